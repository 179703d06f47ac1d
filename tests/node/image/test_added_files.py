"""An image is built in two steps: together they are the install of a bare node, and what the second adds is a layer."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import lease
from envbuild.node.image import added_files, build_stage
from envbuild.node.protocol import NodeError
from tests.node.env_support import Node, make_repository, make_variant, make_wheel, node
from tests.node.forge import Forge, spec

__all__ = ["node"]


def listing(top: Path) -> dict[str, Any]:
    """Path -> mode, and content or target, of everything below a folder."""
    found: dict[str, Any] = {}
    for path in sorted(top.rglob("*")):
        mode = path.lstat().st_mode
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(top))] = (mode, content)
    return found


@pytest.fixture
def whole(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, Any]]:
    """A variant with packages, a patched extension and a path source; what else its install is asked."""
    forge = Forge(tmp_path, monkeypatch)
    commit, tree = make_repository(tmp_path / "hub" / "tree", {"tree.py": "", "bin/run": "x"})
    git = "https://git.example.org/tree"
    path = {"name": "tree", "git": git, "commit": commit, "tree": tree, "install": "path"}
    # Headers are dated 1980 for compilers; those of packages are no files of the next layer for that.
    files = {"alpha/__init__.py": b"def main():\n    print(1)\n", "alpha/include/alpha.h": b"#define ALPHA 1\n"}
    package = make_wheel(node.wheels, files=files, scripts={"alpha-run": "alpha:main"})
    source = forge.patched(build={"extensions": ["quick._fast"]})
    return make_variant([package], sources=[source, path]), {"build": {"arch_list": []}, "patches": {"quick": [spec()]}}


def of_packages(node: Node, variant: dict[str, Any], environment: str) -> dict[str, Any]:
    part = {key: value for key, value in variant.items() if key not in ("sources", "smoke")}
    step = node.install_request(part, environment=environment, part="packages")
    del step["args"]["variant"]
    return node.request("image", stage="packages", variant=part, requests=[step])


def of_the_rest(node: Node, variant: dict[str, Any], environment: str, **more: Any) -> dict[str, Any]:
    (node.prefix / "image").mkdir(parents=True, exist_ok=True)
    file = node.prefix / "image" / "variant.json"
    file.write_text(json.dumps(variant))
    install = node.install_request(variant, environment=environment, part="rest", **more)
    activate = node.request("activate", environment=environment, stack=node.stack, profile="exact")
    del install["args"]["variant"]
    requests = [install, activate]
    return node.request("image", stage="build", variant=str(file), requests=requests, added=str(node.prefix / "added"))


def test_both_parts_give_the_root_of_one_install_and_the_second_is_a_layer(
    node: Node, whole: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    variant, more = whole
    node.install(variant, **more)
    root = node.activate(variant)[1]["root"]

    inside = Node(tmp_path / "inside", stack="demo")
    inside.wheels = node.wheels
    environment = str(inside.prefix / "envs" / "demo-exact-packages")
    assert build_stage.run(of_packages(inside, variant, environment))[1]["packages"] == 1
    assert lease.read(str(inside.prefix)) is None
    runtime = tmp_path / "runtime"
    shutil.copytree(inside.prefix / "envs", runtime / "envs", symlinks=True)
    assert not (inside.prefix / "cache").exists() and not list(runtime.rglob("stamp.json"))

    built = build_stage.run(of_the_rest(inside, variant, environment, **more))[1]
    assert built["root"] == root
    added = inside.prefix / "added"
    assert not list(added.rglob("alpha*")), "packages are in the layer before"
    shutil.copytree(added, runtime, symlinks=True, dirs_exist_ok=True)
    assert listing(runtime / "envs") == listing(inside.prefix / "envs")
    assert os.path.samefile(runtime / "current" / "demo", runtime / "envs" / "demo-exact-packages")


def test_the_rest_alone_is_refused(node: Node, whole: tuple[dict[str, Any], dict[str, Any]]) -> None:
    variant, more = whole
    with pytest.raises(NodeError) as caught:
        build_stage.run(of_the_rest(node, variant, str(node.environment(variant)), **more))
    assert caught.value.code == "environment-not-installed"


def test_packages_of_another_lock_are_not_taken_for_those_of_this(
    node: Node, whole: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    variant, more = whole
    environment = str(node.environment(variant))
    other = make_variant([make_wheel(node.wheels, version="2.0")])
    build_stage.run(of_packages(node, other, environment))
    with pytest.raises(NodeError) as caught:
        build_stage.run(of_the_rest(node, variant, environment, **more))
    assert (caught.value.code, caught.value.exit_code) == ("record-mismatch", 5)
    # A folder of the layer below cannot be renamed, and a stage that fails leaves nothing.
    assert Path(environment).is_dir()


def test_only_what_belongs_to_a_part_is_run_in_it(node: Node) -> None:
    request = of_packages(node, make_variant([make_wheel(node.wheels)]), str(node.prefix / "envs" / "demo-exact-x"))
    request["args"]["requests"][0]["verb"] = "activate"
    with pytest.raises(NodeError) as caught:
        build_stage.run(request)
    assert caught.value.code == "request-invalid"


def test_what_a_layer_cannot_say_is_an_error(tmp_path: Path) -> None:
    environment = tmp_path / "envs" / "e"
    (environment / "lib").mkdir(parents=True)
    for name in ("kept", "gone"):
        (environment / "lib" / name).write_text(name)
    before = added_files.look(str(environment))
    (environment / "lib" / "gone").unlink()
    with pytest.raises(NodeError) as caught:
        added_files.set_apart(
            str(tmp_path), str(environment), before, added_files.look(str(environment)), str(tmp_path / "added")
        )
    assert (caught.value.code, caught.value.exit_code) == ("image-layer", 4)
    assert "lib/gone" in caught.value.what
    (environment / "lib" / "gone").mkdir()
    with pytest.raises(NodeError) as caught:
        added_files.set_apart(
            str(tmp_path), str(environment), before, added_files.look(str(environment)), str(tmp_path / "added")
        )
    assert "lib/gone" in caught.value.what


def test_a_change_is_seen_whatever_it_is(tmp_path: Path) -> None:
    environment = tmp_path / "envs" / "e"
    (environment / "lib").mkdir(parents=True)
    (tmp_path / "current").mkdir()
    for name in ("kept", "mode", "text"):
        (environment / "lib" / name).write_text("1")
    (environment / "lib" / "link").symlink_to("kept")
    before = added_files.look(str(environment))
    (environment / "lib" / "mode").chmod(0o700)
    (environment / "lib" / "text").write_text("2")
    (environment / "lib" / "link").unlink()
    (environment / "lib" / "link").symlink_to("mode")
    (environment / "new").mkdir(mode=0o711)
    added_files.set_apart(
        str(tmp_path), str(environment), before, added_files.look(str(environment)), str(tmp_path / "added")
    )
    made = tmp_path / "added" / "envs" / "e"
    assert sorted(listing(made)) == ["lib", "lib/link", "lib/mode", "lib/text", "new"]
    assert os.readlink(made / "lib" / "link") == "mode"
    assert (made / "new").stat().st_mode & 0o777 == 0o711
