"""Source build: a package of 12 small C++ extensions. Goal: >= 1.8x against `setup.py bdist_wheel` on 2 idle cores."""

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
RUNS = 3
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
static PyObject *count(PyObject *, PyObject *) {
    known["twelve"].push_back(%(i)d);
    std::sort(known["twelve"].begin(), known["twelve"].end());
    std::cout << known["twelve"].size();
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
        ["command", "wall s", "CPU s", "times as fast", "goal"],
        [
            ["setup.py bdist_wheel", spread(serial.wall), spread(serial.cpu), "1", ""],
            ["envbuild", spread(ours.wall), spread(ours.cpu), f"{ratio(serial.wall, ours.wall):.2f}", ">= 1.8"],
        ],
    )


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
    from envbuild.node import build_wheel, pipconf, uv

    with tempfile.TemporaryDirectory() as scratch:
        tool = uv.Uv(program("uv"), scratch, scratch, pipconf.read(os.environ))
        names = [f"twelve_{i}" for i in range(EXTENSIONS)]
        source = {"name": "twelve", "commit": "0" * 40, "build": {"extensions": names}}
        build_wheel.build_wheel(python, source, project, out, build_wheel.Options(tool))


if __name__ == "__main__":
    main()
