"""Editable sources of a setuptools before 64, which has no `build_editable`: as metaseq's, whose lock has 59.5.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.node.build_projects import c_module
from tests.node.env_support import Node, locked, make_variant, pin, redirect_git
from tests.node.forge import download, need_compiler
from tests.support.fails import fails
from tests.support.programs import completed

SETUP = """
import os
import sys
from setuptools import Extension, setup

def write_version():
    with open(os.path.join("opt", "version.py"), "w") as stream:
        stream.write("__version__ = '0.0.1'\\n")

def write_header():
    # As numpy has its own: what is compiled with -g names the folder of a header of the environment.
    folder = os.path.join(sys.prefix, "include")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "type.h"), "w") as stream:
        stream.write("typedef struct { int value; } of_environment;\\n")
    return folder

write_version()
setup(
    name="opt", version="0.0.1", packages=["opt", "opt.data"], scripts=["bin/opt-count"],
    ext_modules=[Extension("opt.data.fast", ["opt/data/fast.c"], include_dirs=["opt/data", write_header()],
                           extra_compile_args=["-g"])],
    setup_requires=["setuptools>=18.0", "never-heard-of-it"] if "install" in sys.argv else [],
    entry_points={"console_scripts": ["opt-baselines = opt.run:main"]},
)
"""
# As metaseq has it: a backend that a newer setuptools would make editable wheels with.
PROJECT = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools", "wheel"]\nbuild-backend = "setuptools.build_meta"\n',
    "setup.py": SETUP,
    "opt/__init__.py": "",
    "opt/run.py": "from opt.data import fast\n\ndef main():\n    print('runs', fast.value())\n",
    "opt/data/__init__.py": "",
    "opt/data/value.h": "#include <type.h>\nextern of_environment used;\nof_environment used = {7};\n#define VALUE 7\n",
    "opt/data/fast.c": c_module("fast", "value.h"),
    "bin/opt-count": "#!/usr/bin/env python3\nimport opt.version\nprint(opt.version.__version__)\n",
}
# Nothing but setup.cfg, and packages in a folder of their own.
CONFIGURED = {
    "setup.cfg": "[metadata]\nname = Opt-Cfg\nversion = 2.0\n[options]\npackage_dir =\n  =src\npackages = opt\n"
    "[options.entry_points]\nconsole_scripts =\n  opt-cfg = opt:main\n",
    "pyproject.toml": PROJECT["pyproject.toml"],
    "src/opt/__init__.py": "def main():\n    print('configured')\n",
}
GENERATED = ["opt/version.py", "opt/data/*.so"]


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The setuptools of the opt locks, and a `wheel` of its time."""
    folder = tmp_path_factory.mktemp("old-tools")
    return [download(folder / name, each)[0] for name, each in (("s", "setuptools==59.5.0"), ("w", "wheel==0.40.0"))]


def variant(node: Node, tools: list[Path], tmp_path: Path, files: dict[str, str]) -> dict[str, Any]:
    packages = []
    for path in tools:
        (node.wheels / path.name).write_bytes(path.read_bytes())
        packages.append(locked(node.wheels / path.name, *path.name.split("-")[:2]))
    source = pin(tmp_path / "hub", "opt", files, install="editable", generated=GENERATED)
    return make_variant(packages, sources=[source])


def output(environment: Path, *words: str) -> str:
    done = completed([str(environment / "bin" / words[0]), *words[1:]], cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


TOLD = """
import importlib.metadata as m, json, opt.data.fast
print(json.dumps([m.version("opt"), [e.name for e in m.entry_points()["console_scripts"] if e.value == "opt.run:main"]
    if isinstance(m.entry_points(), dict) else [e.name for e in m.entry_points(name="opt-baselines")], opt.__file__]))
"""


@pytest.mark.slow
def test_d01_editable_source_of_old_setuptools_is_installed(
    node: Node, tools: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_compiler()
    redirect_git(monkeypatch, tmp_path / "hub")
    wanted = variant(node, tools, tmp_path, PROJECT)
    roots = []
    for place in (node, Node(tmp_path / "another prefix")):
        for path in node.wheels.iterdir():
            (place.wheels / path.name).write_bytes(path.read_bytes())
        environment = place.build(wanted)
        tree = environment / "src" / "opt"
        assert output(environment, "opt-baselines") == "runs 7"
        assert output(environment, "opt-count") == "0.0.1"
        version, scripts, file = json.loads(output(environment, "python", "-I", "-c", TOLD))
        assert (version, scripts, file) == ("0.0.1", ["opt-baselines"], str(tree / "opt" / "__init__.py"))
        assert len(list((tree / "opt" / "data").glob("fast.*.so"))) == 1
        assert {path.name for path in tree.iterdir()} == {"bin", "opt", "pyproject.toml", "setup.py"}
        (tree / "opt" / "version.py").write_text("__version__ = 'of another run'\n")
        (tree / "opt" / "data" / "of_a_run.so").write_text("compiled when a run began")
        told = place.verify(deep=True)
        assert told["ok"] and told["drift"] == []
        roots.append(told["root"])
        (module,) = (tree / "opt" / "data").glob("fast.*.so")
        with module.open("ab") as stream:
            stream.write(b"changed")
        name = module.relative_to(environment).as_posix()
        assert place.verify(deep=True)["drift"] == [{"path": name, "kind": "changed"}]
        module.unlink()
        assert place.verify(deep=True)["drift"] == [{"path": name, "kind": "missing"}]
    assert roots[0] == roots[1], "the root does not depend on where the environment lies"


def test_d01_without_setup_py_and_in_a_folder_of_its_own(
    node: Node, tools: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redirect_git(monkeypatch, tmp_path / "hub")
    environment = node.build(variant(node, tools, tmp_path, CONFIGURED))
    assert output(environment, "opt-cfg") == "configured"
    assert output(environment, "python", "-c", "import importlib.metadata as m; print(m.version('opt-cfg'))") == "2.0"


def test_d01_packages_that_a_path_file_cannot_reach_are_refused(
    node: Node, tools: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redirect_git(monkeypatch, tmp_path / "hub")
    setup = 'from setuptools import setup\nsetup(name="opt", packages=["opt"], package_dir={"opt": "code"})\n'
    wanted = variant(node, tools, tmp_path, {"setup.py": setup, "code/__init__.py": ""})
    with fails("build-failed", 4) as found:
        node.install(wanted)
    assert "its package opt lies in code" in found.value.why and "`install: wheel`" in found.value.why
