"""Git sources: pinned by commit and tree, reached through git's own insteadOf."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from envbuild.node import git_source
from envbuild.node.env import remove
from tests.node.env_support import Node, git, locked, make_repository, make_variant, pin, redirect_git, run_python, site
from tests.support.fails import fails
from tests.support.files import write_tar
from tests.support.need import need
from tests.support.programs import executable
from tests.support.wheels import PACK

BACKEND = (
    PACK
    + """
import os
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    flags = repr((config_settings or {}).get("--build-option"))
    code = open("lib/__init__.py").read()
    files = {"lib/__init__.py": code, "lib/flags.py": "F = " + flags + "\\n"}
    return write_wheel(Path(wheel_directory), "lib", "1.0", files).name
def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return write_wheel(Path(wheel_directory), "lib", "1.0", {"lib.pth": os.getcwd() + "\\n"}).name
"""
)
PROJECT = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\n'
    'name = "lib"\nversion = "1.0"\n',
    "backend.py": BACKEND,
    "lib/__init__.py": "VALUE = 41\n",
}
SETUP = """
import os, sys
assert sys.argv[1:] == ["build_ext", "--inplace", "--fast"], sys.argv
os.makedirs("build/temp")
open("helpers.so", "w").write("built with " + os.environ["MY_ARCH"])
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of repositories that https://git.example.org/ leads to."""
    redirect_git(monkeypatch, tmp_path / "hub")
    return tmp_path / "hub"


NANO = {
    "model.py": "X = 1\n",
    "data/shakespeare_char/prepare.py": "import os\nhere = os.path.dirname(os.path.abspath(__file__))\n"
    "for name in ('input.txt', 'train.bin'):\n    open(os.path.join(here, name), 'w').write('text')\n"
    "os.makedirs('out', exist_ok=True)\nopen('out/ckpt.pt', 'w').write('weights')\n",
}


def test_d89_data_in_a_source_is_told_and_no_drift_and_code_and_links_are_drift(
    node: Node, hub: Path, tmp_path: Path
) -> None:
    source = pin(hub, "nano", NANO, install="path")
    environment = node.build(make_variant([], sources=[source]))
    tree = environment / "src" / "nano"
    subprocess.run([environment / "bin" / "python", "data/shakespeare_char/prepare.py"], cwd=tree, check=True)
    result = node.verify(deep=True)
    assert result["ok"]
    assert (result["drift"], result["drift_count"]) == ([], 0)
    stamp = json.loads((environment / ".envbuild" / "stamp.json").read_text())
    assert result["root"] == stamp["root"], "the root is of the files that were stamped"
    (added,) = [check for check in result["checks"] if check["name"] == "added-files"]
    assert added["status"] == "passed"
    assert added["details"]["deviation"] == "added-files"
    assert added["details"]["count"] == 3
    for words in (
        "3 files that no build made, such as src/nano/data/shakespeare_char/input.txt",
        "kept on repair",
        "src/nano: data/ (2 files), out/ (1 file)",
        '`generated: ["data/**", "out/**"]`',
        "`outputs:`",
    ):
        assert words in added["says"]
    planted = {
        "torch.py": Path.touch,
        "fast.so": Path.touch,
        "torch": lambda path: path.symlink_to(tmp_path),
        "pipe": os.mkfifo,
    }
    for name, plant in planted.items():
        plant(tree / name)
    (tree / "model.py").write_text("X = 2\n")
    (tree / "data" / "shakespeare_char" / "prepare.py").unlink()
    result = node.verify(deep=True)
    assert not result["ok"]
    kinds = {"model.py": "changed", "data/shakespeare_char/prepare.py": "missing", **dict.fromkeys(planted, "extra")}
    assert {each["path"]: each["kind"] for each in result["drift"]} == {
        f"src/nano/{path}": kind for path, kind in kinds.items()
    }


def test_d89_outputs_lie_outside_the_environment_and_outlive_it(node: Node, hub: Path) -> None:
    source = pin(hub, "nano", NANO, install="path", outputs=["out", "runs/logs"])
    variant = make_variant([], sources=[source])
    environment = node.build(variant)
    root = node.verify(deep=True)["root"]
    tree, kept = environment / "src" / "nano", node.prefix / "outputs" / "demo" / "nano"
    (tree / "out" / "ckpt.pt").write_text("weights")
    (tree / "runs" / "logs" / "planted.py").write_text("")
    result = node.verify(deep=True)
    assert (result["ok"], result["root"], result["drift"]) == (True, root, [])
    assert not [check for check in result["checks"] if check["name"] == "added-files"]
    node.install(variant, repair=True)
    node.activate(variant)
    assert (tree / "out" / "ckpt.pt").read_text() == "weights"
    assert node.verify(deep=True)["root"] == root
    remove.run(node.request("remove", environment=str(environment), force=True))
    assert (kept / "out" / "ckpt.pt").read_text() == "weights"
    other = Node(node.top / "other")
    other.build(make_variant([], sources=[source]))
    assert other.verify(deep=True)["root"] == root, "where outputs lie is no part of the root"


def test_d89_outputs_with_files_of_the_repository_are_refused(node: Node, hub: Path) -> None:
    (hub / "nano").mkdir()
    (hub / "nano" / "link").symlink_to(node.top)
    source = pin(hub, "nano", NANO, install="path")
    for output in ("data", "data/shakespeare_char", "link/out", "../out", ".git"):
        with fails("request-invalid"):
            node.install(make_variant([], sources=[{**source, "outputs": [output]}]))
    assert not (node.top / "out").exists()


def test_path_sources_build_in_place_with_pinned_submodules_and_nothing_of_the_user_or_the_repository_runs(
    node: Node, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"setup.py": SETUP, "sub/mod.py": "X = 5\n"}
    build = {"kind": "inplace", "flags": ["fast"]}
    built = pin(hub, "megatron", files, install="path", build=build, generated=["helpers*.so"])
    beside = pin(hub, "lib", {**PROJECT, "a.txt": "one\ntwo\n"}, install="path", path="lib")
    commit, tree = make_repository(hub / "inner", {"inner.py": "Y = 7\n"})
    make_repository(hub / "outer", {"outer.py": ""})
    git(hub / "outer", "submodule", "-q", "add", f"file://{hub}/inner", "third/inner")
    text = '[submodule "x"]\n\tpath = third/inner\n\turl = ext::sh -c touch% /nonexistent\n'
    part = {"path": "third/inner", "git": "https://git.example.org/inner", "commit": commit, "tree": tree}
    outer = pin(hub, "outer", {".gitmodules": text}, install="path", submodules=[part])
    hook = executable(tmp_path / "hooks" / "post-checkout", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    config = hub / "gitconfig"
    config.write_text(config.read_text() + f"[core]\n\thooksPath = {hook.parent}\n\tautocrlf = true\n")
    environment = node.build(make_variant([], sources=[built, beside, outer], environment={"MY_ARCH": "9.0"}))
    assert run_python(environment, "import sub.mod; print(sub.mod.X)") == "5"
    src = environment / "src"
    assert (src / "megatron" / "helpers.so").read_text() == "built with 9.0"
    assert not (src / "megatron" / "build").exists()
    assert (src / "outer" / "third" / "inner" / "inner.py").read_text() == "Y = 7\n"
    assert not list(src.rglob(".git"))
    assert (src / "lib" / "a.txt").read_bytes() == b"one\ntwo\n", "no filter of the user's has changed it"
    assert not (tmp_path / "ran").exists()
    assert (site(environment) / "envbuild-source-lib.pth").read_text() == f"{environment}/src/lib/lib\n"
    assert node.verify(deep=True)["ok"]
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    git_source.fetch(outer, str(tmp_path / "fetched"), None)
    assert (tmp_path / "fetched" / "third" / "inner" / "inner.py").is_file(), "also from a folder that was removed"
    monkeypatch.chdir(tmp_path)
    node.run = "run-2"
    other, other_tree = make_repository(hub / "inner", {"inner.py": "Y = 8\n"})
    moved = dict(outer, submodules=[dict(part, commit=other, tree=other_tree)])
    node.fails(make_variant([], sources=[moved]), "tree-mismatch", 5)


def test_what_is_not_in_its_repository_or_would_lie_outside_its_source_is_refused(
    node: Node, hub: Path, tmp_path: Path
) -> None:
    (hub / "outer").mkdir(parents=True)
    (hub / "outer" / "third").symlink_to(tmp_path)
    part = {"path": "third/inner", "git": "https://git.example.org/inner", "commit": "1" * 40, "tree": "2" * 40}
    source = pin(hub, "outer", {"a": ""}, install="path", submodules=[part])
    node.fails(make_variant([], sources=[source]), "tree-mismatch", 5)
    assert not (tmp_path / "inner").exists()
    gone = {**pin(hub, "lib", PROJECT), "git": "https://git.example.org/none"}
    node.fails(make_variant([], sources=[gone]), "source-unreachable", 4)
    foreign = {**source, "submodules": [], "git": "ext::sh -c true"}
    node.fails(make_variant([], sources=[foreign]), "request-invalid", 2)
    for path in ("../x", "/x", "a/../b", "-x", "a//b", ".git/x", ""):
        outside = {**source, "submodules": [{**part, "path": path}]}
        assert (
            "not a path inside a source" in node.fails(make_variant([], sources=[outside]), "request-invalid", 2).what
        )


COMPILED = """
import os, subprocess, sys
folder = os.path.join(sys.prefix, "include")  # as numpy has its headers in the environment
os.makedirs(folder, exist_ok=True)
open(os.path.join(folder, "type.h"), "w").write("typedef struct { int value; } of_environment;")
command = ["cc", "-g", "-c", "c.c", "-o", "c.so", "-I", folder, *os.environ["CPPFLAGS"].split()]
subprocess.check_call(command)
"""


def test_d33_what_is_compiled_or_built_by_code_that_writes_a_set_and_the_day_down_has_one_root(
    node: Node, hub: Path, tmp_path: Path
) -> None:
    need("cc")
    files = {"setup.py": COMPILED, "c.c": "#include <type.h>\nof_environment used;\nint f(void) { return __LINE__; }\n"}
    source = pin(hub, "ext", files, install="path", build={"kind": "inplace"})
    unequal = "repr([*set('abcdefgh'), os.environ.get('SOURCE_DATE_EPOCH', os.times().elapsed)])"
    backend = BACKEND.replace('repr((config_settings or {}).get("--build-option"))', unequal)
    members = {**PROJECT, "backend.py": backend, "PKG-INFO": "Metadata-Version: 2.1\nName: lib\nVersion: 1.0\n"}
    members = {f"lib-1.0/{path}": text for path, text in members.items()}
    package = locked(write_tar(node.wheels / "lib-1.0.tar.gz", members, "w:gz"), "lib", "1.0")
    variant = make_variant([package], sources=[source])
    roots = []
    for prefix in ("one", "two/deeper"):
        node.prefix, node.cache = tmp_path / prefix, tmp_path / f"{prefix}-cache"
        environment = node.build(variant)
        assert str(tmp_path).encode() not in (environment / "src" / "ext" / "c.so").read_bytes()
        roots.append(node.verify(deep=True)["root"])
    assert roots[0] == roots[1]
