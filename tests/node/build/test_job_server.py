"""One job server for all builds: never too many compilers at once, fewer after an OOM kill, none left behind."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.node.build import job_server, wheel
from envbuild.node.build.programs import guard, setup_py
from envbuild.node.protocol import NodeError
from tests.node.build_projects import EXTENSIONS, build, c_module, index_environment, shape_project, source
from tests.node.build_projects import own_folder as own_folder
from tests.node.build_projects import python as python
from tests.support.fails import fails
from tests.support.files import write_file, write_files
from tests.support.patience import alive, text_of, until
from tests.support.programs import executable

pytestmark = pytest.mark.slow
FLAGS = ["cpp_ext", "cuda_ext"]
# A compiler that counts how many of it run at once, and writes the count down.
COUNTED = """#!/bin/sh
case "$*" in *" -c "*) ;; *) exec /usr/bin/cc "$@" ;; esac
mkdir -p "{top}/now"
: > "{top}/now/$$"
ls "{top}/now" | wc -l >> "{top}/seen"
sleep 0.3
/usr/bin/cc "$@"
code=$?
rm "{top}/now/$$"
exit $code
"""
# Dies of SIGKILL when another one compiles, as under memory that is enough for one.
HUNGRY = """#!/bin/sh
case "$*" in *" -c "*) ;; *) exec /usr/bin/cc "$@" ;; esac
mkdir -p "{top}/now"
: > "{top}/now/$$"
for _ in 1 2 3 4 5 6 7 8 9 10; do
    if [ "$(ls "{top}/now" | wc -l)" -gt 1 ]; then
        rm -f "{top}/now/"*  # the other one ends with this one
        echo killed >> "{top}/kills"
        {death}
    fi
    sleep 0.05
done
rm -f "{top}/now/$$"
exec /usr/bin/cc "$@"
"""


@pytest.fixture(autouse=True)
def compiler() -> None:
    if not os.path.exists("/usr/bin/cc"):
        pytest.skip("no /usr/bin/cc")


def program(path: Path, text: str, **more: object) -> Path:
    return executable(path, text.format(top=path.parent, **more))


def most(top: Path) -> int:
    return max(int(line) for line in (top / "seen").read_text().split())


def left(budget: job_server.Budget) -> int:
    """Bytes that are in the FIFO now; they stay there."""
    handle = os.open(budget.fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        data = os.read(handle, 1000)
        os.write(handle, data)
        return len(data)
    except BlockingIOError:
        return 0
    finally:
        os.close(handle)


def test_cores_and_memory_bound_how_many_jobs_there_are(tmp_path: Path) -> None:
    """Free memory is what the cgroup leaves."""
    budget = job_server.Budget(4, memory=5.0)
    assert (budget.jobs, budget.limit(4.0), budget.limit(1.0), budget.limit(100.0)) == (2, 1, 2, 1)
    group = tmp_path / "sys/fs/cgroup"
    write_file(tmp_path / "proc/meminfo", "MemTotal: 30000000 kB\nMemAvailable: 19531250 kB\n")
    for limit, usage, stat, free in (
        ("8000000000", "6000000000", "inactive_file 1000000000", 3.0),
        ("max", "1", "", 20.0),
    ):
        write_files(group, {"memory.max": f"{limit}\n", "memory.current": f"{usage}\n", "memory.stat": f"{stat}\n"})
        assert job_server.free_memory(str(tmp_path)) == pytest.approx(free)


def test_each_build_has_one_job_the_fifo_all_others_and_what_a_killed_one_took_comes_back() -> None:
    with job_server.Budget(8, memory=1000) as budget:
        with budget.build("shape", alone=False):
            assert left(budget) == 7
            with budget.build("shape", alone=False):
                assert left(budget) == 6
            assert left(budget) == 7
            handle = os.open(budget.fifo, os.O_RDWR)
            os.read(handle, 2)
            os.close(handle)
            assert left(budget) == 5
        with budget.build("shape", alone=True):
            assert left(budget) == 8


@pytest.mark.parametrize(("jobs", "first", "second"), [(1, False, False), (4, True, False), (4, False, True)])
def test_a_build_waits_for_a_job_and_one_that_must_be_alone_for_all_others(
    jobs: int, first: bool, second: bool
) -> None:
    with job_server.Budget(jobs, memory=1000) as budget:
        entered = threading.Event()

        def other() -> None:
            with budget.build("second", second):
                entered.set()

        with budget.build("first", first):
            thread = threading.Thread(target=other)
            thread.start()
            assert not entered.wait(0.2)
        thread.join()
        assert entered.is_set()


def test_the_build_of_fewest_files_starts_its_ninja_first_and_waits_for_none_that_waits_for_it() -> None:
    """ninja takes all jobs that are free where it starts, and its first command may last a minute."""
    with job_server.Budget(4, memory=1000) as budget:
        budget.expect(["large", "small", "ended", "alone"])
        budget.forget("ended")
        order: list[str] = []

        def turn(name: str, files: int) -> None:
            setup_py.Tokens(budget.fifo).turn(name, files)
            order.append(name)

        large = threading.Thread(target=turn, args=("large", 9))
        with budget.build("large", alone=False):
            waits = threading.Thread(target=lambda: budget.build("alone", alone=True).__enter__())
            for thread in (large, waits):
                thread.start()
            large.join(0.3)
            assert order == []
            turn("small", 2)
            large.join(10)
            assert order == ["small", "large"]
        waits.join()


GUARD = [sys.executable, "-I", "-S", guard.__file__, "sh", "-c"]


def test_compilers_end_with_their_builder_and_with_a_build_that_is_told_to_end(tmp_path: Path) -> None:
    """The builder is killed with SIGKILL: it can tell nobody. A group of its own saves no compiler."""
    words = [*GUARD, f"set -m; sh -c 'echo $$ > {tmp_path / 'one'}; sleep 600' & wait"]
    code = f"import subprocess; subprocess.Popen({words!r}, start_new_session=True).wait()"
    builder = subprocess.Popen([sys.executable, "-c", code])
    told = subprocess.Popen([*GUARD, f"echo $$ > {tmp_path / 'two'}; sleep 600"], start_new_session=True)
    compilers = [int(until(lambda name=name: text_of(tmp_path / name).strip())) for name in ("one", "two")]
    builder.kill()
    told.send_signal(signal.SIGTERM)
    assert (builder.wait(), told.wait()) == (-9, 143)
    for compiler in compilers:
        until(lambda compiler=compiler: not alive(compiler))


def test_the_exit_code_of_a_build_comes_through() -> None:
    for end, code in (("exit 3", 3), ("kill -9 $$", 137)):
        done = subprocess.run([*GUARD, f"echo wrong >&2; {end}"], start_new_session=True, capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (code, b"wrong\n", b"")


# Two modules; one is no C. Its build_ext starts the compiler of the other as ninja does: in a group of its own.
FAILS = """
import os, subprocess, sys, time
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

def compile_slowly():
    process = subprocess.Popen(["sleep", "600"], preexec_fn=os.setpgrp)
    open("started", "w").close()
    sys.exit(process.wait())

class Ninja(build_ext):
    def build_extension(self, ext):
        if ext.name == "slow":
            compile_slowly()
        while not os.path.exists("started"):
            time.sleep(0.05)
        super().build_extension(ext)

setup(name="shape", version="1.0", packages=[], cmdclass={"build_ext": Ninja},
      ext_modules=[Extension(each, [each + ".c"]) for each in ("slow", "wrong")])
"""


def test_the_compilers_of_a_source_that_failed_end_with_its_build(tmp_path: Path, python: str) -> None:
    project = write_files(tmp_path / "project", {"setup.py": FAILS, "slow.c": "", "wrong.c": "#error no\n"})
    asked = source(environment={"OWNED_BY": str(tmp_path)})
    with pytest.raises(NodeError, match="shape") as caught:
        build(python, tmp_path, project, asked, jobs=3)
    assert "extension wrong" in caught.value.why
    assert not [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if owned(pid, tmp_path)]


# As of setuptools 84: compilers start programs by `call`, which raises subprocess's errors, and `spawn` is not asked.
CALLS = """
import subprocess
from setuptools import Extension, setup
from distutils.unixccompiler import UnixCCompiler

def call(self, words, **more):
    subprocess.check_call(words, **more)

def compile(self, obj, src, ext, cc_args, extra_postargs, pp_opts):
    self.call(self.compiler_so + cc_args + [src, "-o", obj] + extra_postargs)

UnixCCompiler.call, UnixCCompiler._compile = call, compile
UnixCCompiler.spawn = lambda self, words, **more: self.call(words, **more)
setup(name="shape", version="1.0", packages=[], ext_modules=[Extension("shape_C", ["one.c", "two.c"])])
"""


def test_compilers_that_are_called_rather_than_spawned_are_counted_too(tmp_path: Path, python: str) -> None:
    files = {"setup.py": CALLS, "one.c": c_module("shape_C"), "value.h": "#define VALUE 7\n", "two.c": "#error no"}
    project = write_files(tmp_path / "project", files)
    with fails("build-failed") as caught:
        build(python, tmp_path, project, source(), jobs=2)
    assert "#error no" in caught.value.why
    (project / "two.c").write_text("int two;")
    result = build(python, tmp_path, project, source(), jobs=2)
    assert result["extensions"] == ["shape_C"]


def owned(pid: int, by: Path) -> bool:
    try:
        return f"OWNED_BY={by}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes() and alive(pid)
    except OSError:
        return False


@pytest.mark.parametrize("jobs", [3, 1])
def test_no_more_compilers_than_jobs_run_whatever_is_built_at_once(tmp_path: Path, python: str, jobs: int) -> None:
    cc = str(program(tmp_path / "cc", COUNTED))
    program(Path(python).parent / "ninja", "#!/bin/sh\necho 1.13.0\n")  # older ones make each build wait for the others
    made = {}

    def call(name: str, budget: job_server.Budget) -> None:
        project = shape_project(tmp_path / name)
        asked = source(name, flags=FLAGS, extensions=EXTENSIONS, environment={"CC": cc})
        made[name] = build(python, tmp_path, project, asked, f"out-{name}", budget=budget)["extensions"]

    wheel.build_all({name: functools.partial(call, name) for name in ("one", "two")}, jobs)
    assert made == {"one": EXTENSIONS, "two": EXTENSIONS}
    assert most(tmp_path) == jobs


def test_extensions_of_which_one_fills_the_memory_are_built_one_after_another(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_server, "free_memory", lambda: 10.0)
    asked = source(flags=FLAGS, memory_per_job=9, environment={"CC": str(program(tmp_path / "cc", COUNTED))})
    project = shape_project(tmp_path / "project")
    result = build(python, tmp_path, project, asked, jobs=4)
    assert (result["jobs"], most(tmp_path)) == (1, 1)


# What torch does: one build.ninja in the folder of the objects, and -j for MAX_JOBS.
NINJA = """
import os, subprocess, sys, types
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

torch = sys.modules["torch.utils.cpp_extension"] = types.ModuleType("torch.utils.cpp_extension")

def run_ninja(folder, verbose, error_prefix):
    more = ["-j", os.environ["MAX_JOBS"]] if "MAX_JOBS" in os.environ else []
    subprocess.run(["ninja", "-v"] + more, cwd=folder, check=True)

setattr(torch, NAME, run_ninja)

class BuildExtension(build_ext):
    use_ninja = True
    def build_extensions(self):
        def compile(sources, output_dir=None, **named):
            os.makedirs(output_dir, exist_ok=True)
            objects = [os.path.join(output_dir, os.path.basename(name) + ".o") for name in sources]
            lines = ["rule compile", "  command = %s -fPIC $in -c -o $out" % os.environ["CC"]]
            for made, name in zip(objects, sources):
                lines.append("build %s: compile %s" % (os.path.abspath(made), os.path.abspath(name)))
            with open(os.path.join(output_dir, "build.ninja"), "w") as stream:
                stream.write("\\n".join(lines) + "\\n")
            getattr(torch, NAME)(output_dir, True, error_prefix="Error compiling objects for extension")
            return objects
        self.compiler.compile = compile
        build_ext.build_extensions(self)

BuildExtension.__module__ = "torch.utils.cpp_extension"
setup(name="shape", version="1.0", packages=[], cmdclass={"build_ext": BuildExtension},
      ext_modules=[Extension(n, [n + "_%d.c" % i for i in range(4)]) for n in ("one", "two")])
"""


def ninja_project(tmp_path: Path, name: str = "_run_ninja_build", **more: str) -> Path:
    """Two extensions of four files each."""
    files = {f"{extension}_{i}.c": f"int {extension}_{i};\n" for extension in ("one", "two") for i in range(4)}
    return write_files(tmp_path / "project", {"setup.py": f"NAME = {name!r}\n{NINJA}", **files, **more})


@pytest.fixture(scope="module")
def with_ninja(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The interpreter of an environment with a ninja of that version, made once."""

    @functools.cache
    def made(version: str) -> str:
        folder = tmp_path_factory.mktemp("ninja") / "environment"
        return index_environment(folder, sys.executable, "setuptools==80.9.0", f"ninja=={version}")

    return made


@pytest.mark.parametrize(
    ("ninja", "name", "jobs"),
    [
        ("1.13.0", "_run_ninja_build", 3),
        ("1.13.0", "of_another_torch", 3),
        ("1.11.1.1", "_run_ninja_build", 4),
        ("1.11.1.1", "of_another_torch", 2),
    ],
)
def test_a_ninja_takes_jobs_of_the_server_and_an_old_one_its_share(
    tmp_path: Path, with_ninja: Callable[[str], str], ninja: str, name: str, jobs: int
) -> None:
    python = with_ninja(ninja)
    project = ninja_project(tmp_path, name)
    asked = source(extensions=["one", "two"], environment={"CC": str(program(tmp_path / "cc", COUNTED))})
    build(python, tmp_path, project, asked, jobs=jobs)
    assert most(tmp_path) == jobs
    assert len((tmp_path / "seen").read_text().split()) == 8


def test_one_ninja_that_fails_fails_the_build_and_says_which_file(
    tmp_path: Path, with_ninja: Callable[[str], str]
) -> None:
    python = with_ninja("1.13.0")
    project = ninja_project(tmp_path, **{"two_2.c": "#error no\n"})
    asked = source(environment={"CC": "/usr/bin/cc"})
    with fails("build-failed") as caught:
        build(python, tmp_path, project, asked, jobs=2)
    assert "two_2.c:1:2: error: #error no" in caught.value.why


def test_what_takes_longest_is_begun_first(tmp_path: Path, python: str) -> None:
    """CUDA code, then what includes all of torch, then by size; the slowest extension before the others."""
    listing = "sed -n 's/^build.*compile //p' build.ninja >> {top}/../../order"
    program(Path(python).parent / "ninja", f"#!/bin/sh\n[ $1 = --version ] && echo 1.13.0 || {listing}\nexit 0\n")
    longer = {"two_2.c": "int two_2;\n// longer\n", "two_3.c": "#include <torch/extension.h>\n"}
    project = ninja_project(tmp_path, "other", **longer)
    asked = source(environment={"CC": "cc"})
    with pytest.raises(NodeError):  # this ninja compiles nothing
        build(python, tmp_path, project, asked, jobs=1)
    order = [Path(name).name for name in (tmp_path / "order").read_text().split()]
    assert order == ["two_3.c", "two_2.c", "two_0.c", "two_1.c"]


@pytest.mark.parametrize(
    "death",
    ["kill -9 $$", "echo 'gcc: fatal error: Killed signal terminated program cc1' >&2; exit 1"],
    ids=["compiler", "program below it"],
)
def test_after_an_oom_kill_half_as_many_go_on(tmp_path: Path, python: str, death: str) -> None:
    cc = program(tmp_path / "hungry", HUNGRY, death=death)
    project = shape_project(tmp_path / "project")
    asked = source(flags=FLAGS, extensions=EXTENSIONS, environment={"CC": str(cc)})
    result = build(python, tmp_path, project, asked, jobs=2)
    assert result["retried"] and result["jobs"] == 2
    assert result["extensions"] == EXTENSIONS
    assert (tmp_path / "kills").exists()


def test_a_compiler_that_is_always_killed_is_a_failure(tmp_path: Path, python: str) -> None:
    cc = program(tmp_path / "dying", "#!/bin/sh\necho once >> {top}/runs\nkill -9 $$\n")
    project = shape_project(tmp_path / "project")
    asked = source(flags=["cpp_ext"], environment={"CC": str(cc)})
    with fails("build-failed") as caught:
        build(python, tmp_path, project, asked, jobs=2)
    assert "too little memory" in caught.value.why
    # `look` asks the compiler twice for its version; the compile command itself runs twice.
    assert len((tmp_path / "runs").read_text().split()) == 4


def test_progress_counts_the_files_that_are_compiled(tmp_path: Path, python: str) -> None:
    """As long as the second of two compilers stands, one file of two is done."""
    go = tmp_path / "go"
    text = '#!/bin/sh\ncase "$*" in *amp_C.c*) until [ -e {go} ]; do sleep 0.05; done ;; esac\nexec /usr/bin/cc "$@"\n'
    cc = program(tmp_path / "slow-cc", text, go=go)
    project = shape_project(tmp_path / "project")
    asked = source(flags=FLAGS, environment={"CC": str(cc)})
    with job_server.Budget(2, memory=1000) as budget:
        words = (python, tmp_path, project, asked)
        thread = threading.Thread(target=build, args=words, kwargs={"budget": budget})
        thread.start()
        until(lambda: budget.progress().get("done") == 1)
        assert (budget.progress()["total"], budget.progress()["unit"]) == (2, "files")
        go.touch()
        thread.join()
        assert "total" not in budget.progress()
