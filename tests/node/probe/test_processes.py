"""What the programs that this one has started do now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from envbuild.node.probe.processes import at_work, written
from tests.support.patience import until
from tests.support.programs import executable


def test_the_file_is_named_that_a_compiler_or_a_script_in_its_place_works_on() -> None:
    waits = "import sys; sys.stdin.read()"
    # A Python that lies elsewhere than it was built for finds its modules by its name, which is another here.
    env = {**os.environ, "PYTHONHOME": sys.base_prefix}
    for words in (["x86_64-linux-gnu-g++-12", "-c", waits], ["/usr/bin/nvcc", "-c", waits]):
        argv = [*words, "/src/adam.cu"]
        with subprocess.Popen(argv, executable=sys.executable, env=env, stdin=subprocess.PIPE) as process:
            until(lambda: at_work() == {"what": "adam.cu"})
            process.communicate()
    assert at_work() == {}


def test_a_compiler_below_another_program_is_found_and_one_that_only_has_the_name_of_a_file_is_not(
    tmp_path: Path,
) -> None:
    executable(tmp_path / "cc", "#!/bin/sh\nread line\n")
    for program, found in (("./cc", {"what": "a.c"}), ("cat", {})):
        script = f"echo ready; {program} -c a.c; true" if found else "echo ready; cat a.c; true"
        (tmp_path / "a.c").write_text("")
        with subprocess.Popen(
            ["/bin/sh", "-c", script], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            if found:
                until(lambda: at_work() == {"what": "a.c"})
            else:
                assert at_work() == {}
            process.communicate()


def test_bytes_that_a_program_has_written_are_counted(tmp_path: Path) -> None:
    code = "import sys; open(sys.argv[1], 'wb').write(bytes(5_000_000)); print(flush=True); sys.stdin.read()"
    program = tmp_path / "program"  # other tests of this process leave Pythons behind that write, too
    program.symlink_to(sys.executable)
    argv = [str(program), "-c", code, str(tmp_path / "out")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 5_000_000 <= written(str(program)) < 6_000_000
        process.communicate()
    assert written(str(program)) == 0
