"""What the programs that this one has started do now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from envbuild.node.probe.processes import at_work, written
from tests.support.patience import until
from tests.support.programs import executable


def test_the_file_is_named_that_a_compiler_works_on(tmp_path: Path) -> None:
    """By itself, as a script in its place or below another program, and not by what only has the name of a file."""
    waits = "import sys; sys.stdin.read()"
    # A Python that lies elsewhere than it was built for finds its modules by its name, which is another here.
    env = {**os.environ, "PYTHONHOME": sys.base_prefix}
    for compiler in ("x86_64-linux-gnu-g++-12", "/usr/bin/nvcc"):
        argv = [compiler, "-c", waits, "/src/adam.cu"]
        with subprocess.Popen(argv, executable=sys.executable, env=env, stdin=subprocess.PIPE) as process:
            until(lambda: at_work() == {"what": "adam.cu"})
            process.communicate()
    executable(tmp_path / "cc", "#!/bin/sh\nread line\n")
    (tmp_path / "a.c").write_text("")
    pipe = subprocess.PIPE
    for script, found in (("./cc -c a.c", {"what": "a.c"}), ("cat a.c -", {})):
        argv = ["/bin/sh", "-c", f"echo ready; {script}; read line"]
        with subprocess.Popen(argv, cwd=tmp_path, stdin=pipe, stdout=pipe) as process:
            assert process.stdout is not None
            process.stdout.readline()
            until(lambda found=found: at_work() == found)
            process.communicate()
    assert at_work() == {}


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
