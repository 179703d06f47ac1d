"""Small projects with real extensions, and environments to build them in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import pip_config
from envbuild.node.build import build_dir, job_server
from envbuild.node.build import wheel as build_wheel
from envbuild.node.packages import uv
from tests.node.env_support import MINOR, uv_path
from tests.node.forge import need_compiler
from tests.support.files import write_files
from tests.support.once import kept
from tests.support.programs import completed

SETUPTOOLS = "setuptools==80.9.0"

MODULE = """
#include <Python.h>
#include "{header}"
static PyObject *value(PyObject *self, PyObject *args) {{ (void)self; (void)args; return PyLong_FromLong(VALUE); }}
static PyMethodDef methods[] = {{{{"value", value, METH_NOARGS, 0}}, {{0, 0, 0, 0}}}};
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}", 0, -1, methods, 0, 0, 0, 0}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&module); }}
"""
# As Apex does it: flags are read and removed from the command line, and an extension comes only with its flag.
SETUP = """
import sys
import sysconfig
import tempfile
from setuptools import Extension, setup
extensions = []
for flag, name in (("--cpp_ext", "shape_C"), ("--cuda_ext", "shape.sub.amp_C")):
    if flag in sys.argv:
        sys.argv.remove(flag)
        file = "csrc/" + name.rpartition(".")[2] + ".c"
        extensions.append(Extension(name, [file], include_dirs=["csrc"]))
setup(
    name="shape", version="1.0", packages=["shape", "shape.sub"], ext_modules=extensions,
    package_data={"shape": ["data.txt"]}, scripts=["bin/shape-run"],
)
"""
PYPROJECT = '[build-system]\nrequires = ["setuptools", "wheel"]\nbuild-backend = "setuptools.build_meta"\n'
EXTENSIONS = ["shape.sub.amp_C", "shape_C"]


def c_module(name: str, header: str = "value.h") -> str:
    return MODULE.format(name=name, header=header)


def shape_project(top: Path, setup: str = SETUP, pyproject: str | None = None, **more: str) -> Path:
    """A package of Apex's shape: two extensions, each behind its flag, data and a script."""
    files = {
        "setup.py": setup,
        "csrc/value.h": "#define VALUE 7\n",
        "csrc/shape_C.c": c_module("shape_C"),
        "csrc/amp_C.c": c_module("amp_C"),
        "shape/__init__.py": "",
        "shape/sub/__init__.py": "",
        "shape/data.txt": "data\n",
        "bin/shape-run": "#!/bin/sh\necho run\n",
        **more,
    }
    if pyproject is not None:
        files["pyproject.toml"] = pyproject
    write_files(top, files)
    (top / "bin" / "shape-run").chmod(0o755)
    return top


def source(name: str = "shape", commit: str = "c" * 40, **build: Any) -> dict[str, Any]:
    return {"name": name, "commit": commit, "build": build}


def build(
    python: str, tmp_path: Path, project: Path, source: dict[str, Any], out: str = "out",
    jobs: int | None = None, budget: job_server.Budget | None = None, **more: Any,
) -> Any:  # fmt: skip
    """Build a source's project into `out`; result of `build_wheel`."""
    if budget is None:
        with job_server.Budget(jobs) as own:
            return build(python, tmp_path, project, source, out, budget=own, **more)
    for name in ("cache", "scratch"):
        (tmp_path / name).mkdir(exist_ok=True)
    tool = uv.Uv(uv_path(), str(tmp_path / "cache"), str(tmp_path / "scratch"), pip_config.read(dict(os.environ)))
    given = build_wheel.Options(tool, budget, **more)
    return build_wheel.build_wheel(python, source, str(project), str(tmp_path / out), given)


def rebuild(python: str, tmp_path: Path, project: Path, source: dict[str, Any], wheel: str, **more: Any) -> Any:
    """Build it once more, and compare."""
    again = build(python, tmp_path, project, source, "again", anew=True, **more)
    return build_wheel.compare(wheel, again["wheel"])


def _index_run(words: list[str]) -> str:
    """Run uv with the indexes that pip is configured for; empty, or why it did not work."""
    config = pip_config.read(dict(os.environ))
    env = dict(os.environ)
    if config.index_url:
        env.setdefault("UV_DEFAULT_INDEX", config.index_url)
    if config.cert:
        env.setdefault("SSL_CERT_FILE", config.cert)
    words = [uv_path(), "pip", "install", "-q", "--index-strategy", "unsafe-best-match", *words]
    done = completed(words, env=env, timeout=200)
    return done.stderr[-300:] if done.returncode else ""


def _tools(folder: Path) -> str:
    """Make a folder with setuptools; why it cannot be made, empty when it is."""
    why = _index_run(["--python", sys.executable, "--target", str(folder), SETUPTOOLS])
    return f"{SETUPTOOLS} not available here: {why}" if why else ""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A canonical build path of the test's own: others on this machine may be building the same."""
    monkeypatch.setattr(build_dir, "CANONICAL", str(tmp_path / "canonical"))


@pytest.fixture
def python(tmp_path: Path) -> str:
    """The interpreter of a new environment that has setuptools."""
    return environment(tmp_path / "environment")


def environment(folder: Path) -> str:
    """A virtual environment on this interpreter, with setuptools; returns its `bin/python`, or skips."""
    need_compiler()
    tools, why = kept(f"{SETUPTOOLS}-{MINOR}", _tools)
    if why:
        pytest.skip(why)
    done = subprocess.run([uv_path(), "venv", "-q", "--python", sys.executable, str(folder)], capture_output=True)
    assert done.returncode == 0, done.stderr
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "tools.pth").write_text(f"import site; site.addsitedir({str(tools)!r})\n")
    return str(folder / "bin" / "python")


def index_environment(folder: Path, interpreter: str, *packages: str) -> str:
    """A virtual environment with packages of the index; skips when they are not available."""
    done = subprocess.run([uv_path(), "venv", "-q", "--python", interpreter, str(folder)], capture_output=True)
    assert done.returncode == 0, done.stderr
    python = str(folder / "bin" / "python")
    why = _index_run(["--python", python, *packages])
    if why:
        pytest.skip(f"{' '.join(packages)} not available here: {why}")
    return python


def unpack_run(wheel: str, python: str, folder: Path, code: str) -> str:
    """The output of `code` with the unpacked wheel on the path."""
    shutil.unpack_archive(wheel, folder, "zip")
    done = completed([python, "-c", code], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
