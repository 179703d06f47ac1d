"""The engine conda from a stack file to a verified environment, with the real command and a channel in a folder."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import MINOR, World
from tests.support.conda import PLACEHOLDER, Channel, File, Package

MARK = PLACEHOLDER.encode()
NATIVE = {
    "setup.py": "from setuptools import Extension, setup\n"
    "setup(name='native', version='1.0', ext_modules=[Extension('native', ['native.c'])])\n",
    "native.c": "#define PY_SSIZE_T_CLEAN\n#include <Python.h>\n"
    "static PyObject *answer(PyObject *s, PyObject *a) { return PyLong_FromLong(42); }\n"
    'static PyMethodDef m[] = {{"answer", answer, METH_NOARGS, 0}, {0, 0, 0, 0}};\n'
    'static struct PyModuleDef d = {PyModuleDef_HEAD_INIT, "native", 0, -1, m};\n'
    "PyMODINIT_FUNC PyInit_native(void) { return PyModule_Create(&d); }\n",
}


def fill(channel: Channel, python: Path) -> Channel:
    """A Python, a library whose place is in a binary file, scripts of activation, and a noarch package."""
    archive = next((python / "linux-64").iterdir())
    place = channel.folder / "linux-64" / archive.name
    os.link(archive, place)
    channel.take(place, json.loads((python / "index.json").read_text()))
    tool = Package(
        "tool",
        "2.0",
        "h1_3",
        {
            "lib/libtool.so": File(b"\0" + MARK + b"/share\0end", placeholder="binary"),
            "etc/conda/activate.d/tool.sh": b'export TOOL_HOME="$CONDA_PREFIX/share"\n',
            "etc/conda/deactivate.d/tool.sh": b"unset TOOL_HOME\n",
        },
        depends=(f"python {MINOR}.*",),
    )
    module = b"VERSION = '1.5'\ndef main():\n    print('pure')\n"
    info = b"Metadata-Version: 2.1\nName: pure\nVersion: 1.5\n"
    files = {"site-packages/pure/__init__.py": module, "site-packages/pure-1.5.dist-info/METADATA": info}
    pure = Package("pure", "1.5", "py_0", files, depends=("python",), subdir="noarch",
                   entry_points=("pure-run = pure:main",))  # fmt: skip
    channel.add(tool)
    channel.add(pure)
    return channel


@pytest.fixture
def stack(world: World, conda_python: Path) -> Path:
    """A locked stack with conda packages, a wheel and a git source."""
    channel = fill(Channel(world.top / "forge", "forge"), conda_python)
    world.wheel(scripts={"alpha-run": "alpha:main"})
    section: dict[str, Any] = {"channels": [{"name": "forge", "url": channel.url}], "packages": ["tool", "pure"]}
    path = world.stack(conda=section)
    world.lock(path)
    return path


def test_a_stack_becomes_a_verified_environment_and_a_second_run_changes_nothing(world: World, stack: Path) -> None:
    node = world.built("--engine", "conda")
    assert world.python("import sys; print(sys.prefix)") == str(world.current)
    assert world.python("import alpha, pure; print(alpha.VERSION, pure.VERSION)") == "1.0 1.5"
    again = world.built("--engine", "conda")
    assert (again["root"], again["status"]) == (node["root"], "unchanged")
    assert world.run("verify", "--stack", f"./{stack.name}").rc == 0
    library = world.current / "lib" / "libtool.so"
    data = bytearray(library.read_bytes())
    data[0] ^= 1
    library.write_bytes(data)
    found = world.run("verify", "--stack", f"./{stack.name}", "--json")
    assert found.rc == 1
    assert found.node["drift"] == [{"path": "lib/libtool.so", "kind": "changed", "package": "tool 2.0 h1_3"}]
    said = world.run("verify", "--stack", f"./{stack.name}")
    assert "lib/libtool.so (tool 2.0 h1_3)" in said.out
    assert world.built("--engine", "conda", "--repair")["root"] == node["root"]


def test_scripts_of_activation_are_run_and_taken_back(world: World, stack: Path) -> None:
    world.built("--engine", "conda")
    script = world.current / ".envbuild" / "activate.sh"
    code = (
        f'. "{script}"; echo "$CONDA_PREFIX $TOOL_HOME"; deactivate; echo "${{CONDA_PREFIX-none}} ${{TOOL_HOME-none}}"'
    )
    said = subprocess.run(
        ["sh", "-uc", code], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}
    )
    assert said.stdout.splitlines() == [f"{world.current} {world.current}/share", "none none"]
