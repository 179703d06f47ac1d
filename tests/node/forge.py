"""Small sources with a C extension, built by a backend of their own, and a compiler that writes down when it runs."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from envbuild.catalog.patches import load_patch
from envbuild.node.build.patch import digest
from tests.node.env_support import pin, redirect_git
from tests.support.programs import completed, executable
from tests.support.wheels import PACK

# A backend that compiles `fast.c` into `quick._fast`.
BACKEND = (
    PACK
    + """
import glob, os, subprocess, sysconfig

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "_fast" + sysconfig.get_config_var("EXT_SUFFIX")
    include = sysconfig.get_path("include")
    words = ["cc", *os.environ.get("CFLAGS", "").split(), "-shared", "-fPIC", "-I", include]
    subprocess.run([*words, "-o", "quick/" + name, "fast.c"], check=True)
    files = {path: open(path, "rb").read() for path in ["quick/" + name, *glob.glob("quick/*.py")]}
    tag = "cp%s-cp%s-linux_x86_64" % ((sysconfig.get_config_var("py_version_nodot"),) * 2)
    return write_wheel(Path(wheel_directory), "quick", "1.0", files, tag=tag).name
"""
)
EXTENSION = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_fast", "", -1, methods};
PyMODINIT_FUNC PyInit__fast(void) { return PyModule_Create(&module); }
"""
# What activation scripts of conda packages set decides what is compiled, and is there when it is imported.
ACTIVATED = {
    "fast.c": "#ifndef ANSWER\n#define ANSWER 42\n#endif\n" + EXTENSION.replace("42", "ANSWER"),
    "quick/activated.py": "import os, sys\n\nOURS = os.path.isdir(os.path.join(sys.prefix, 'conda-meta'))\n"
    "HOME = os.environ['TOOL_HOME'] if OURS else ''\n",
}
# Compiles and cannot be loaded: it calls what no library has.
BROKEN = EXTENSION.replace("PyLong_FromLong(42)", "nowhere()").replace(
    "#include", "extern void *nowhere(void);\n#include"
)
FILES = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "backend.py": BACKEND,
    "fast.c": EXTENSION,
    "quick/__init__.py": "",
    "quick/old.py": "import numpy as np\n\nKIND = np.float\n",
}
PATCH = "numpy-aliases"
LOGGED = """#!/bin/sh
case "$*" in *--version*|*--help*|*-dumpversion*) ;; *) echo "$*" >> "{log}" ;; esac
exec {compiler} "$@"
"""


def need_compiler() -> str:
    """Path of a C compiler, or a skip that says what is missing."""
    compiler = shutil.which("cc")
    if compiler is None or not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        pytest.skip("no C compiler, or no headers of this Python: an extension cannot be built here")
    return compiler


class Forge:
    """Repositories that https://git.example.org/ leads to, and a `cc` that writes its compilations into `log`."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hub = top / "hub"
        self.log = top / "compiled"
        redirect_git(monkeypatch, self.hub)
        programs = top / "programs"
        executable(programs / "cc", LOGGED.format(log=self.log, compiler=need_compiler()))
        monkeypatch.setenv("PATH", str(programs), prepend=":")
        monkeypatch.setenv("CCACHE_DISABLE", "1")

    def compiled(self) -> int:
        """How many compilations there were since the last time."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return len(lines)

    def source(self, name: str = "quick", files: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
        """A source as a lock has it."""
        return pin(self.hub, name, {**FILES, **(files or {})}, **more)

    def patched(self, name: str = "quick", files: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
        """The same with a patch, pinned as a lock does."""
        pin = {"name": PATCH, "digest": digest(spec()), "least": 1, "most": 1}
        return self.source(name, files, **{"patches": [PATCH], "patch_pins": [pin], **more})


def spec(name: str = PATCH) -> dict[str, Any]:
    """A patch as the planner puts it into a request."""
    return load_patch(name).spec(load_patch(name).expected())


def download(folder: Path, *requirements: str) -> list[Path]:
    """Wheels from wherever this user's pip is configured to look, or a skip that says what pip said."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    done = completed([*words, *requirements], timeout=300)
    if done.returncode:
        pytest.skip(f"{' '.join(requirements)} is not available here: {done.stderr.strip()[-300:]}")
    return sorted(folder.glob("*.whl"))
