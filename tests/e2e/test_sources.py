"""Git sources through the real command: pinned by commit and tree, installed in every way, and watched afterwards."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.world import World, drift, edit_lock
from tests.node.env_support import git
from tests.node.forge import download, need_compiler
from tests.node.test_git_source import PROJECT
from tests.support.need import need
from tests.support.programs import completed
from tests.support.repositories import lose_file

# What a Megatron checkout does with its helpers: compiled beside the code, by the environment's own Python.
SETUP = """
import subprocess, sys, sysconfig
assert sys.argv[1:] == ["build_ext", "--inplace"], sys.argv
name = "helpers" + sysconfig.get_config_var("EXT_SUFFIX")
subprocess.run(["cc", "-shared", "-fPIC", "-I", sysconfig.get_path("include"), "-o", name, "helpers.c"], check=True)
"""
HELPERS = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "helpers", "", -1, methods};
PyMODINIT_FUNC PyInit_helpers(void) { return PyModule_Create(&module); }
"""


def source(world: World, name: str = "lib", files: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return {**world.repository(name, PROJECT if files is None else files), "ref": "main", **more}


def nothing_was_built(world: World) -> bool:
    folders = [world.prefix / "envs", world.prefix / "current"]
    return all(not folder.exists() or list(folder.iterdir()) == [] for folder in folders)


@pytest.mark.slow
def test_a_moved_branch_changes_nothing_but_the_answer_of_lock_check(world: World) -> None:
    world.tiny(sources=[source(world)])
    assert world.run("lock", "check", "./tiny.yaml").rc == 0
    world.repository("lib", {"lib/__init__.py": "VALUE = 'moved'\n"})
    checked = world.run("lock", "check", "./tiny.yaml", "--json", rc=1)
    assert any("lib" in finding["subject"] for finding in checked.json["findings"])
    assert world.run("lock", "check", "./tiny.yaml", "--offline").rc == 0
    evidence = world.built()
    assert world.python("import lib; print(lib.VALUE)") == "41"
    (told,) = evidence["sources"]
    assert told["tree"] == git(world.hub / "lib", "rev-parse", f"{told['commit']}^{{tree}}")
    assert drift(world) == (0, {})


def test_d99_a_source_may_be_called_as_its_repository_with_capitals(world: World) -> None:
    world.tiny(sources=[source(world, "nanoGPT", install="path")])
    (told,) = world.built()["sources"]
    assert told["name"] == "nanoGPT"
    assert world.python("import lib; print(lib.VALUE)") == "41"
    assert drift(world) == (0, {})


@pytest.mark.slow
def test_a_wrong_tree_hash_and_a_commit_that_is_gone_are_told_and_nothing_is_built(world: World) -> None:
    pin = source(world)
    lock = world.tiny(sources=[pin]).with_name("tiny.lock.toml")
    text = lock.read_text()
    edit_lock(lock, lambda plain: plain["sources"][0].update(tree="1" * 40))
    assert world.provision().code == "lock-edited", "the stack names the tree as well"
    world.fails(5, "tree-mismatch", "--frozen")
    assert nothing_was_built(world)

    lock.write_text(text)
    for folder in (world.hub / "lib", world.home / ".cache" / "envbuild", world.prefix):
        shutil.rmtree(folder, ignore_errors=True)
    world.repository("lib", {"other": "history"})
    error = world.fails(5, "commit-missing").error
    assert pin["commit"] in error["what"] + error["why"]
    assert nothing_was_built(world)
    assert world.run("lock", "check", "./tiny.yaml").rc != 0


@pytest.mark.slow
def test_an_editable_source_is_watched_but_not_its_generated_files(world: World) -> None:
    world.tiny(sources=[source(world, install="editable", generated=["lib/version.py", "**/*.so"])])
    world.built()
    tree = world.current / "src" / "lib"
    assert world.python("import lib; print(lib.__file__)") == str(tree / "lib" / "__init__.py")
    (tree / "lib" / "version.py").write_text("V = 1\n")
    (tree / "lib" / "jit.so").write_text("built by a run")
    assert world.python("import lib.version; print(lib.version.V)") == "1"
    assert drift(world) == (0, {})
    (tree / "lib" / "__init__.py").write_text("VALUE = 42\n")
    (tree / "planted.py").write_text("")
    code, found = drift(world)
    assert code == 1
    assert found["src/lib/lib/__init__.py"] == "changed"
    assert found["src/lib/planted.py"] == "extra"
    assert not [path for path in found if "version" in path or "jit" in path]


@pytest.mark.slow
def test_an_extension_is_built_in_place(world: World) -> None:
    need_compiler()
    pin = source(
        world, "megatron", {"setup.py": SETUP, "helpers.c": HELPERS, "megatron/__init__.py": ""}, install="path",
        build={"kind": "inplace"}, generated=["helpers*.so"],
    )  # fmt: skip
    world.tiny(sources=[pin], imports=["megatron", "helpers"])
    world.built()
    assert world.python("import helpers; print(helpers.answer())") == "42"
    assert drift(world) == (0, {})
    (module,) = (world.current / "src" / "megatron").glob("helpers*.so")
    with module.open("ab") as stream:
        stream.write(b"changed")
    assert drift(world) == (1, {f"src/megatron/{module.name}": "changed"})


@pytest.mark.parametrize("shell", [pytest.param("dash", marks=pytest.mark.slow), "bash"])
def test_variables_arrive_literally_in_a_shell(world: World, shell: str) -> None:
    need(shell)
    value = """$(touch /tmp/pwned) `id` 'single' "double" \\ $HOME ; & | * é"""
    there = world.top / "it's there $(id)"
    there.touch()
    paths = {"HF_THERE": {"path": str(there), "if": "exists"}, "HF_GONE": {"path": str(there) + "-not", "if": "exists"}}
    world.tiny(environment={"HF_TRICKY": value, **paths})
    world.built()
    program = 'import os; print([os.environ.get(n) for n in ("HF_TRICKY", "HF_THERE", "HF_GONE", "ENVBUILD_STACK")])'
    text = f'eval "$({shell} -c \'exec "$@"\' - "$@" env activate tiny)" && exec python -c "$CODE"'
    argv = [shell, "-c", text, shell, sys.executable, "-m", "envbuild"]
    done = completed(argv, env={**world.env, "CODE": program}, cwd=world.work)
    assert done.stdout == f"{[value, str(there), None, 'tiny']}\n", done.stderr
    assert not Path("/tmp/pwned").exists()
    assert not list(world.home.glob(".*rc")) + list(world.home.glob(".*profile")), "no start-up file is written"


HATCHED = {
    "pyproject.toml": '[build-system]\nrequires = ["hatchling>=1.20"]\nbuild-backend = "hatchling.build"\n'
    '[project]\nname = "hatched"\nversion = "1.0"\n[project.scripts]\nhatched = "hatched:main"\n',
    "hatched/__init__.py": "def main():\n    print('hatched')\n",
}
TOOLED = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools>=61"]\nbuild-backend = "setuptools.build_meta"\n'
    '[project]\nname = "tooled"\nversion = "1.0"\n[tool.setuptools]\npackages = ["tooled"]\n',
    "tooled/__init__.py": "",
}
LEGACY = {
    "setup.py": "import packaging\nfrom setuptools import setup\n"
    'setup(name="legacy", version="1.0", py_modules=["legacy"])\n',
    "legacy.py": "",
}


@pytest.mark.slow
def test_d04_a_users_sources_of_three_backends_need_no_word_about_build_tools(world: World) -> None:
    plain = "wheel hatchling packaging pathspec pluggy trove-classifiers tomlkit editables"
    for name in ("setuptools>=75,<81", *plain.split()):
        download(world.wheels, name)
    world.wheel()
    pins = [("hatched", HATCHED, "editable"), ("tooled", TOOLED, "wheel"), ("legacy", LEGACY, "wheel")]
    sources = [{**world.repository(name, files), "install": how} for name, files, how in pins]
    imports = [name for name, _, _ in pins]
    done = world.good("lock", "create", f"./{world.stack(sources=sources, imports=imports).name}")
    assert "warning" not in done.err
    world.built()
    assert world.python("import hatched, tooled, legacy; hatched.main()") == "hatched"


@pytest.mark.slow
def test_d09_a_mirror_that_lost_an_object_is_one_error_for_every_verb(world: World) -> None:
    pinned = source(world)
    world.tiny(sources=[{**pinned, "install": "path"}])
    stack = world.work / "tiny.yaml"
    check = {"kind": "text-in-tree", "at": "lib", "text": "import", "expected": 99}
    words = {key: key for key in ("says", "truth", "evidence", "does")}
    findings = [{**words, "id": "one", "severity": "wrong", "check": check}]
    stack.write_text(yaml.safe_dump({**yaml.safe_load(stack.read_text()), "findings": findings}))
    lost = lose_file(world.hub / "lib", next(iter(PROJECT)))
    says = f"https://git.example.org/lib lacks object {lost}"

    checked = world.run("lock", "check", "./tiny.yaml", "--json")
    [problem] = checked.json["findings"]
    assert (checked.rc, problem["code"], problem["says"]) == (75, "object-missing", says)
    for target in ("local", "./far.yaml"):
        (world.work / "far.yaml").write_text("name: far\nextends: local\ndelivery: controller\n")
        done = world.run("provision", "--target", target, "--stack", "./tiny.yaml", "--json")
        error = done.error if target == "local" else done.json["error"]
        assert (done.rc, error["code"], error["what"]) == (75, "object-missing", says), done.err
        assert nothing_was_built(world)
    explained = world.run("explain", "./tiny.yaml", "--run-checks", "--json")
    [result] = explained.json["findings"][0]["check_results"]
    assert (explained.rc, result["outcome"], result["error"]) == (75, "not-run", "object-missing")
    assert result["detail"] == says
