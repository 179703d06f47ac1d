"""The budget of compile jobs: never too many at once, fewer after an OOM kill, and nothing outlives its builder."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.node.build import job_server, wheel
from envbuild.node.build.programs import job_client
from envbuild.node.protocol import NodeError
from tests.node.build_projects import EXTENSIONS, options, shape_project, source, write
from tests.node.build_projects import own_folder as own_folder
from tests.node.build_projects import python as python
from tests.support.patience import PATIENCE, alive, text_of, until

GATE = job_client.__file__

# Counts how many of it run at once, and writes the count down.
COUNTED = """#!/bin/sh
mkdir -p "{top}/now"
: > "{top}/now/$$"
ls "{top}/now" | wc -l >> "{top}/seen"
while [ "$(wc -l < "{top}/seen")" -lt {meet} ]; do sleep 0.02; done
rm "{top}/now/$$"
"""
# Dies of SIGKILL when another one compiles, as under memory that is enough for one.
HUNGRY = """#!/bin/sh
case "$*" in *" -c "*) ;; *) exec {compiler} "$@" ;; esac
mkdir -p "{top}/now"
: > "{top}/now/$$"
for _ in 1 2 3 4 5 6 7 8 9 10; do
    if [ "$(ls "{top}/now" | wc -l)" -gt 1 ]; then
        rm -f "{top}/now/$$"
        echo killed >> "{top}/kills"
        {death}
    fi
    sleep 0.05
done
rm -f "{top}/now/$$"
exec {compiler} "$@"
"""


def program(path: Path, text: str, **more: object) -> Path:
    path.write_text(text.format(top=path.parent, **more))
    path.chmod(0o755)
    return path


def gated(budget: job_server.Budget, memory: float, *command: str, source: str = "x") -> subprocess.Popen[bytes]:
    words = [sys.executable, "-I", "-S", GATE, "take", budget.socket, source, str(memory), "--", *command]
    return subprocess.Popen(words, start_new_session=True, stderr=subprocess.PIPE)


def most(top: Path) -> int:
    return max(int(line) for line in (top / "seen").read_text().split())


def test_no_more_than_jobs_run_at_once(tmp_path: Path) -> None:
    command = str(program(tmp_path / "cc", COUNTED, meet=2))
    with job_server.Budget(2, memory=1000) as budget:
        running = [gated(budget, 1.0, command) for _ in range(6)]
        assert [each.wait() for each in running] == [0] * 6
        assert budget.peak == 2
    assert most(tmp_path) == 2


def test_memory_bounds_them_too(tmp_path: Path) -> None:
    command = str(program(tmp_path / "cc", COUNTED, meet=1))
    with job_server.Budget(4, memory=5.0) as budget:
        assert budget.limit(4.0) == 1 and budget.limit(2.5) == 2 and budget.limit(100.0) == 1
        running = [gated(budget, 4.0, command) for _ in range(3)]
        assert [each.wait() for each in running] == [0] * 3
    assert most(tmp_path) == 1


def test_a_gate_that_is_killed_gives_its_token_back(tmp_path: Path) -> None:
    with job_server.Budget(1, memory=1000) as budget:
        first = gated(budget, 1.0, "sleep", "600")
        until(lambda: budget.peak == 1)
        second = gated(budget, 1.0, "true")
        os.killpg(first.pid, signal.SIGKILL)
        assert second.wait(PATIENCE) == 0


def test_the_exit_code_and_the_words_of_a_command_come_through() -> None:
    with job_server.Budget(1) as budget:
        done = gated(budget, 1.0, "sh", "-c", "echo wrong >&2; exit 3")
        assert done.communicate()[1] == b"wrong\n"
        assert done.returncode == 3
        assert gated(budget, 1.0, "/no/such/compiler").wait() == 127
        assert not budget.retried


def test_compilers_end_with_their_builder(tmp_path: Path) -> None:
    """The builder is killed with SIGKILL: it can tell nobody."""
    mark = tmp_path / "pid"
    code = (
        "import subprocess, sys; from envbuild.node.build import job_server as build_jobs\n"
        "budget = build_jobs.Budget(1).__enter__()\n"
        f"words = [sys.executable, '-I', '-S', {GATE!r}, 'take', budget.socket, 'x', '1', '--', 'sh', '-c',\n"
        f"    'echo $$ > {mark}; sleep 600']\n"
        "guard = [sys.executable, '-I', '-S', words[3], 'guard', budget.socket, '--']\n"
        "subprocess.Popen(guard + words, start_new_session=True).wait()\n"
    )
    builder = subprocess.Popen([sys.executable, "-c", code])
    compiler = int(until(lambda: text_of(mark).strip()))
    builder.kill()
    builder.wait()
    until(lambda: not alive(compiler))


# Two modules; one is no C. Its build_ext starts the compiler of the other as ninja does: in a group of its own.
FAILS = """
import os, subprocess, sys, time
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class Ninja(build_ext):
    def build_extension(self, ext):
        if ext.name == "slow":
            process = subprocess.Popen(["sleep", "600"], preexec_fn=os.setpgrp)
            open("started", "w").close()
            sys.exit(process.wait())
        while not os.path.exists("started"):
            time.sleep(0.05)
        super().build_extension(ext)

setup(name="shape", version="1.0", packages=[], cmdclass={"build_ext": Ninja},
      ext_modules=[Extension(each, [each + ".c"]) for each in ("slow", "wrong")])
"""


def test_the_compilers_of_a_source_that_failed_end_with_its_build(tmp_path: Path, python: str) -> None:
    project = write(tmp_path / "project", {"setup.py": FAILS, "slow.c": "", "wrong.c": "#error no\n"})
    with job_server.Budget(3, memory=1000) as budget:
        other = gated(budget, 1.0, "sleep", "600")
        asked = source(environment={"OWNED_BY": str(tmp_path)})
        with pytest.raises(NodeError, match="shape"):
            wheel.build_wheel(python, asked, str(project), str(tmp_path / "out"), options(tmp_path, budget=budget))
        assert not [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if owned(pid, tmp_path)]
        assert other.poll() is None  # another source goes on
    assert other.wait(PATIENCE)


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
MODULE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "shape_C", "", -1, 0};
PyMODINIT_FUNC PyInit_shape_C(void) { return PyModule_Create(&module); }
"""


@pytest.mark.parametrize("good", [True, False])
def test_compilers_that_are_called_rather_than_spawned_take_tokens_too(tmp_path: Path, python: str, good: bool) -> None:
    files = {"setup.py": CALLS, "one.c": MODULE, "two.c": "int two;" if good else "#error no"}
    project = write(tmp_path / "project", files)
    with job_server.Budget(1, memory=1000) as budget:
        make = functools.partial(
            wheel.build_wheel, python, source(), str(project), str(tmp_path / "out"), options(tmp_path, budget=budget)
        )
        if good:
            make()
            assert (budget.told()["done"], budget.told()["total"], budget.peak) == (2, 2, 1)
        else:
            with pytest.raises(NodeError) as caught:
                make()
            assert caught.value.code == "build-failed" and "#error no" in caught.value.why


def owned(pid: int, by: Path) -> bool:
    try:
        return f"OWNED_BY={by}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes() and alive(pid)
    except OSError:
        return False


@pytest.mark.parametrize(
    "death",
    ["kill -9 $$", "echo 'gcc: fatal error: Killed signal terminated program cc1' >&2; exit 1"],
    ids=["compiler", "program below it"],
)
def test_after_an_oom_kill_half_as_many_go_on(tmp_path: Path, python: str, death: str) -> None:
    """Only what was killed is compiled again; the extensions that are done stay."""
    compiler = program(tmp_path / "hungry", HUNGRY, compiler="/usr/bin/cc", death=death)
    if not os.path.exists("/usr/bin/cc"):
        pytest.skip("no /usr/bin/cc")
    project = shape_project(tmp_path / "project")
    asked = source(flags=["cpp_ext", "cuda_ext"], extensions=EXTENSIONS, environment={"CC": str(compiler)})
    with job_server.Budget(2, memory=1000) as budget:
        result = wheel.build_wheel(python, asked, str(project), str(tmp_path / "out"), options(tmp_path, budget=budget))
        assert (budget.jobs, budget.retried) == (1, {"shape"})
    assert result["retried"] and result["jobs"] == 2
    assert result["extensions"] == EXTENSIONS
    assert (tmp_path / "kills").exists()


def test_an_oom_kill_is_told_of_its_own_source_alone(tmp_path: Path) -> None:
    once = f"[ -e {tmp_path}/killed ] || {{ touch {tmp_path}/killed; kill -9 $$; }}"
    with job_server.Budget(2, memory=1000) as budget:
        assert gated(budget, 1.0, "true", source="small").wait() == 0
        assert gated(budget, 1.0, "sh", "-c", once, source="large").wait() == 0
        assert gated(budget, 1.0, "true", source="late").wait() == 0
        assert budget.retried == {"large"}


def test_a_compiler_that_is_always_killed_is_a_failure(tmp_path: Path, python: str) -> None:
    compiler = program(tmp_path / "dying", "#!/bin/sh\necho once >> {top}/runs\nkill -9 $$\n")
    project = shape_project(tmp_path / "project")
    asked = source(flags=["cpp_ext"], environment={"CC": str(compiler)})
    with pytest.raises(NodeError) as caught:
        wheel.build_wheel(python, asked, str(project), str(tmp_path / "out"), options(tmp_path, jobs=2))
    assert caught.value.code == "build-failed" and "too little memory" in caught.value.why
    # `look` asks the compiler twice for its version; the compile command itself runs twice.
    assert len((tmp_path / "runs").read_text().split()) == 4


@pytest.mark.parametrize(
    ("command", "archs", "threads"),
    [
        (["nvcc", "-c", "a.cu", "-gencode=arch=compute_90,code=sm_90"], 1, None),
        (["nvcc", "-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=sm_90"], 2, None),
        (["nvcc", "--threads", "4", "-gencode=arch=compute_80,code=sm_80"], 1, 4),
        (["nvcc", "--threads=0"], 0, 0),
    ],
)
def test_architectures_and_threads_of_nvcc(command: list[str], archs: int, threads: int | None) -> None:
    assert (job_client.archs(command), job_client.threads(command)) == (archs, threads)


NVCC = '#!/bin/sh\necho "$@" >> "{top}/words"\n'


def test_an_nvcc_of_several_architectures_takes_idle_tokens(tmp_path: Path) -> None:
    nvcc = str(program(tmp_path / "nvcc", NVCC))
    several = ["-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=sm_90"]
    with job_server.Budget(8, memory=1000) as budget:
        assert gated(budget, 1.0, nvcc, *several, "-c", "a.cu").wait() == 0
        assert budget.peak == 2
        assert gated(budget, 1.0, nvcc, *several[:2], "-c", "a.cu").wait() == 0
    with job_server.Budget(1, memory=1000) as budget:
        assert gated(budget, 1.0, nvcc, *several, "-c", "a.cu").wait() == 0
    lines = (tmp_path / "words").read_text().splitlines()
    assert ["--threads 2" in line for line in lines] == [True, False, False]


def test_each_thread_of_nvcc_is_counted_with_its_memory(tmp_path: Path) -> None:
    nvcc = str(program(tmp_path / "nvcc", NVCC))
    several = [word for sm in (70, 80, 90) for word in ("-gencode", f"arch=compute_{sm},code=sm_{sm}")]
    with job_server.Budget(16, memory=5.0) as budget:
        assert gated(budget, 2.5, nvcc, *several, "-c", "a.cu").wait() == 0
        assert budget.peak == 2
    assert (tmp_path / "words").read_text().split()[-2:] == ["--threads", "2"]


KERNEL = "template <int N> __global__ void scale(float *x) { x[threadIdx.x] *= N; }\n" + "".join(
    f"template __global__ void scale<{i}>(float *);\n" for i in range(20)
)


@pytest.mark.slow
def test_the_real_nvcc_compiles_for_two_architectures_at_once(tmp_path: Path) -> None:
    real = shutil.which("nvcc")
    if real is None:
        pytest.skip("no nvcc here")
    nvcc = str(program(tmp_path / "nvcc", NVCC + 'exec {real} "$@"\n', real=real))
    (tmp_path / "a.cu").write_text(KERNEL)
    several = [f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in (80, 90)]
    command = [nvcc, "-c", str(tmp_path / "a.cu"), "-o", str(tmp_path / "a.o"), *several]
    with job_server.Budget(2, memory=1000) as budget:
        done = gated(budget, 1.0, *command)
        assert done.wait() == 0, done.communicate()[1].decode()
        assert budget.peak == 2
    assert (tmp_path / "words").read_text().split()[-2:] == ["--threads", "2"]
    data = (tmp_path / "a.o").read_bytes()
    assert b"sm_80" in data and b"sm_90" in data


def test_the_longest_are_started_first(tmp_path: Path) -> None:
    for name, size in (("small.cpp", 10), ("large.cpp", 1000), ("kernel.cu", 500)):
        (tmp_path / name).write_text("x" * size)
    weights = [job_client.weigh(["cc", "-c", str(tmp_path / name)]) for name in ("small.cpp", "large.cpp", "kernel.cu")]
    assert weights == sorted(weights)
    assert job_client.weigh(["cc", "-shared", "a.o", "-o", "a.so"]) > weights[-1]


def test_what_includes_all_of_torch_is_started_first(tmp_path: Path) -> None:
    """Apex's fused softmaxes, of 3 to 4 kB, take longest of all: by their own size they were compiled last."""
    (tmp_path / "softmax.h").write_text("#pragma once\n# include <torch/extension.h>\n")
    (tmp_path / "templates.h").write_text("/" * 3000)
    texts = {
        "small.cu": "// #include <torch/all.h>\n#include <ATen/ATen.h>\n",
        "large.cu": "/" * 2000,
        "headers.cu": '#include "templates.h"\n#include "missing.h"\n#include "."\n',
        "softmax.cu": '#include "softmax.h"\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    weights = [job_client.weigh(["nvcc", "-c", str(tmp_path / name)]) for name in texts]
    assert weights == sorted(weights)
    assert weights[-1] < job_client.weigh(["c++", "-shared", "softmax.o"])
    (tmp_path / "module.cpp").write_text("#include <torch/extension.h>\n")
    assert weights[0] < job_client.weigh(["c++", "-c", str(tmp_path / "module.cpp")]) < weights[-1]


def test_the_longest_of_those_that_come_together_is_first_though_jobs_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apex's longest file began 33 s after sixteen shorter ones, which had come a moment before it."""
    monkeypatch.setattr(job_server, "_QUIET", 6 * PATIENCE)
    monkeypatch.setattr(job_server, "_BOUND", 6 * PATIENCE)
    compiler = str(program(tmp_path / "cc", '#!/bin/sh\necho "$2" >> {top}/order\n'))
    files = {"a.cpp": "", "b.cpp": "/" * 10, "c.cu": "#include <torch/all.h>\n", "d.cu": "/" * 1000}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with job_server.Budget(1, memory=1000) as budget:
        running = []
        for count, name in enumerate(files, 1):  # of two sources, the shortest first, each when the one before waits
            if count == len(files):
                monkeypatch.setattr(job_server, "_QUIET", 0.01)
            running.append(gated(budget, 1.0, compiler, "-c", str(tmp_path / name), source=name[-2:]))
            until(lambda count=count: len(budget._waiting) == count or (tmp_path / "order").exists())
        assert [each.wait(PATIENCE) for each in running] == [0] * 4
    begun = [os.path.basename(line) for line in (tmp_path / "order").read_text().split()]
    assert begun == ["c.cu", "d.cu", "b.cpp", "a.cpp"]


def asks(budget: job_server.Budget, source: str) -> socket.socket:
    line = job_client.connect(budget.socket)
    line.settimeout(PATIENCE)
    message = {"op": "take", "source": source, "cores": 1, "memory": 1.0, "weight": 1, "file": "a.cu"}
    job_client.send(line, message)
    return line


def test_a_source_is_waited_for_once_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one whose files come one by one, nor what is gone when its time comes, holds a build up."""
    monkeypatch.setattr(job_server, "_QUIET", 6 * PATIENCE)
    monkeypatch.setattr(job_server, "_BOUND", 0.2)
    with job_server.Budget(4, memory=1000) as budget:
        asks(budget, "gone").close()
        until(lambda: not budget._lines)
        with asks(budget, "first") as line:
            assert job_client.receive(line) == {"idle": 0}
        monkeypatch.setattr(job_server, "_BOUND", 6 * PATIENCE)
        with asks(budget, "first") as line:
            assert job_client.receive(line) == {"idle": 0}
        with asks(budget, "second"), asks(budget, "first") as held:
            held.settimeout(0.5)
            with pytest.raises(TimeoutError):
                job_client.receive(held)


@pytest.mark.parametrize(
    ("limit", "usage", "stat", "free"),
    [("8000000000", "6000000000", "inactive_file 1000000000\n", 3.0), ("max", "1", "", 20.0)],
)
def test_free_memory_is_what_the_cgroup_leaves(tmp_path: Path, limit: str, usage: str, stat: str, free: float) -> None:
    files = {
        "proc/meminfo": "MemTotal: 30000000 kB\nMemAvailable: 19531250 kB\n",
        "sys/fs/cgroup/memory.max": limit + "\n",
        "sys/fs/cgroup/memory.current": usage + "\n",
        "sys/fs/cgroup/memory.stat": stat,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert job_server.free_memory(str(tmp_path)) == pytest.approx(free)
