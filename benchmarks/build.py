"""Source build: a package of 12 C++ extensions of 3 s each. Goal: >= 1.8x `setup.py bdist_wheel` on 2 idle cores."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Case, Sample, measure, print_table, program, ratio, spread

EXTENSIONS = 12
RUNS = 2
_SETUP = """
from setuptools import Extension, setup
setup(name="twelve", version="1.0", packages=[],
      ext_modules=[Extension(f"twelve_{i}", [f"src/twelve_{i}.cpp"]) for i in range(%d)])
"""
_SOURCE = """
#include <Python.h>
#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <vector>
static std::map<std::string, std::vector<int>> known;
template <int N> static int first(std::vector<int> values) {
    std::stable_sort(values.begin(), values.end(), [](int a, int b) { return a % (N + 2) < b % (N + 2); });
    return values.front() + first<N - 1>(values);
}
template <> int first<0>(std::vector<int> values) { return values.front(); }
static PyObject *count(PyObject *, PyObject *) {
    known["twelve"].push_back(%(i)d);
    std::cout << first<12>(known["twelve"]);
    return PyLong_FromLong(%(i)d);
}
static PyMethodDef methods[] = {{"count", count, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "twelve_%(i)d", "", -1, methods};
PyMODINIT_FUNC PyInit_twelve_%(i)d(void) { return PyModule_Create(&module); }
"""


def main() -> None:
    """Measure and print; with `--ours PYTHON PROJECT OUT` it is the timed program itself."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", nargs=3, metavar=("PYTHON", "PROJECT", "OUT"))
    args = parser.parse_args()
    if args.ours:
        build_ours(*args.ours)
        return
    with tempfile.TemporaryDirectory() as folder:
        samples = compare(Path(folder))
    serial, ours = samples.values()
    print_table(
        f"source build of {EXTENSIONS} C++ extensions (n = {RUNS})",
        ["command", "wall s", "CPU s", "cores at work", "times as fast", "goal"],
        [
            row("setup.py bdist_wheel", serial, serial, ""),
            row("envbuild", ours, serial, ">= 1.8"),
        ],
    )


def row(name: str, sample: Sample, serial: Sample, goal: str) -> list[str]:
    """One line of the table; `cores at work` is CPU by wall time, what a busy machine takes away is missing there."""
    cores, fast = ratio(sample.cpu, sample.wall), ratio(serial.wall, sample.wall)
    return [name, spread(sample.wall), spread(sample.cpu), f"{cores:.2f}", f"{fast:.2f}", goal]


def compare(folder: Path) -> dict[str, Sample]:
    """Both ways in turn, each from a clean tree; ccache is off, so that neither is given what the other compiled."""
    python = make_environment(folder / "environment")
    project = make_project(folder / "project")
    copy, out = folder / "copy", folder / "out"

    def fresh() -> None:
        for each in (copy, out):
            shutil.rmtree(each, ignore_errors=True)
        shutil.copytree(project, copy)

    env = {**os.environ, "CCACHE_DISABLE": "1", "PYTHONPATH": str(Path.cwd())}
    serial = f"import os, runpy, sys; os.chdir({str(copy)!r}); sys.argv = ['setup.py', 'bdist_wheel']; "
    serial += "runpy.run_path('setup.py', run_name='__main__')"
    ours = [sys.executable, "-m", "benchmarks.build", "--ours", str(python), str(copy), str(out)]
    cases = [
        Case("setup.py bdist_wheel", [str(python), "-c", serial], before=fresh, env=env),
        Case("envbuild", ours, before=fresh, env=env),
    ]
    return measure(cases, runs=RUNS, warmup=0)


def make_environment(folder: Path) -> Path:
    """A virtual environment with setuptools; returns its interpreter."""
    subprocess.run([program("uv"), "venv", "-q", "--python", sys.executable, str(folder)], check=True)
    python = folder / "bin" / "python"
    command = [program("uv"), "pip", "install", "-q", "--python", str(python), "setuptools>=75,<81"]
    subprocess.run(command, check=True)
    return python


def make_project(folder: Path) -> Path:
    """The package; every source is its own, so that no cache of a compiler helps."""
    (folder / "src").mkdir(parents=True)
    (folder / "setup.py").write_text(_SETUP % EXTENSIONS)
    for i in range(EXTENSIONS):
        (folder / "src" / f"twelve_{i}.cpp").write_text(_SOURCE.replace("%(i)d", str(i)))
    return folder


def build_ours(python: str, project: str, out: str) -> None:
    """What `install` does for a source."""
    from envbuild.node import pip_config
    from envbuild.node.build import wheel
    from envbuild.node.build.job_server import Budget
    from envbuild.node.packages import uv

    with tempfile.TemporaryDirectory() as scratch, Budget() as budget:
        tool = uv.Uv(program("uv"), scratch, scratch, pip_config.read(os.environ))
        names = [f"twelve_{i}" for i in range(EXTENSIONS)]
        source = {"name": "twelve", "commit": "0" * 40, "build": {"extensions": names}}
        wheel.build_wheel(python, source, project, out, wheel.Options(tool, budget))


if __name__ == "__main__":
    main()
