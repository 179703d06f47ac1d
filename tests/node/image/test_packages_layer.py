"""A build upon the layer of the packages reads and imports what it adds, takes the rest as noted, and says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import merkle
from envbuild.node.env import verify
from envbuild.node.image import added_files, build_stage, packages_layer
from envbuild.node.protocol import NodeError
from tests.node.env_support import Node, make_repository, make_variant, make_wheel, node, redirect_git
from tests.node.image.test_added_files import of_packages, of_the_rest

__all__ = ["node"]
TORCH = b"__version__ = '1.0'\n\nclass version:\n    cuda = None\n"


@pytest.fixture
def variant(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stand-in for torch, and a source that is put beside it."""
    redirect_git(monkeypatch, tmp_path / "hub")
    commit, tree = make_repository(tmp_path / "hub" / "tree", {"tree.py": ""})
    source = {"name": "tree", "git": "https://git.example.org/tree", "commit": commit, "tree": tree, "install": "path"}
    package = make_wheel(node.wheels, "torch", files={"torch/__init__.py": TORCH})
    return make_variant([package], sources=[source], imports=["tree", "torch"], torch="1.0")


def place(node: Node) -> Path:
    return node.prefix / "envs" / "demo-exact-packages"


def smoke(node: Node, **more: Any) -> dict[str, Any]:
    return node.request("smoke", environment=str(place(node)), items=[{"name": "sound"}], cuda=False, **more)


def packages(node: Node, variant: dict[str, Any], **more: Any) -> None:
    request = of_packages(node, {**variant, "imports": []}, str(place(node)))
    request["args"].update(more)
    request["args"]["requests"].append(smoke(node))
    build_stage.run(request)


def rest(node: Node, variant: dict[str, Any]) -> dict[str, Any]:
    request = of_the_rest(node, variant, str(place(node)))
    request["args"]["requests"].insert(1, smoke(node))
    build_stage.run(request)
    stamp = json.loads((place(node) / ".envbuild" / "stamp.json").read_text())
    return dict(stamp)


def verified(node: Node, *, deep: bool) -> dict[str, Any]:
    result = verify.run(node.request("verify", stack="demo", deep=deep))[1]
    return {**result, "checks": {check["name"]: check for check in result["checks"]}}


def test_only_what_is_added_is_read_and_the_root_is_that_of_one_install(
    node: Node, variant: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Node(tmp_path / "whole", stack="demo")
    whole.wheels = node.wheels
    whole.install(variant)
    root = whole.activate(variant)[1]["root"]
    packages(node, variant)
    read: list[str] = []
    results: dict[str, Any] = {}
    entry, run = merkle._Hasher.entry, build_stage.verbs.run

    def counted(self: Any, path: str, facts: Any) -> Any:
        read.append(path)
        return entry(self, path, facts)

    def kept_result(verb: str, asked: dict[str, Any]) -> Any:
        results[verb] = run(verb, asked)[1]
        return True, results[verb]

    monkeypatch.setattr(merkle._Hasher, "entry", counted)
    monkeypatch.setattr(build_stage.verbs, "run", kept_result)
    stamp = rest(node, variant)
    assert stamp["root"] == root
    site = f"lib/python{variant['python']}/site-packages"
    assert sorted(set(read)) == [f"{site}/envbuild-source-tree.pth", "src/tree/tree.py"]
    kept = stamp["files"] - 2
    assert stamp["evidence"]["layers"] == {
        "packages": {"files": kept, "level": "stamped"}, "added": {"files": 2, "level": "measured"},
    }  # fmt: skip
    (sound,) = (check for check in results["smoke"]["checks"] if check["name"] == "smoke/sound")
    assert sound["status"] == "passed" and [row["module"] for row in sound["details"]["modules"]] == ["tree"]
    assert sound["says"].endswith("; torch imported only when the layer of the packages was made")

    quick = verified(node, deep=False)
    assert quick["level"] == "stamped"
    assert f"(2 files; the root takes {kept} files from the stamp of the layer" in quick["checks"]["files"]["says"]
    deep = verified(node, deep=True)
    assert (deep["level"], deep["root"], deep["ok"]) == ("measured", root, True)
    assert "layer" not in verified(node, deep=False)["checks"]["files"]["says"], "all were read since"


def test_a_layer_that_was_changed_in_its_storage_is_found_by_reading_it(node: Node, variant: dict[str, Any]) -> None:
    packages(node, variant)
    (file,) = place(node).rglob("torch/__init__.py")
    file.write_bytes(TORCH.replace(b"1.0", b"1.1"))
    rest(node, variant)
    found = verified(node, deep=True)
    assert not found["ok"] and [row["path"].rpartition("/")[2] for row in found["drift"]] == ["__init__.py"]


def test_a_file_of_another_size_is_not_taken_from_the_notes(node: Node, variant: dict[str, Any]) -> None:
    packages(node, variant)
    (file,) = place(node).rglob("torch/__init__.py")
    file.write_bytes(TORCH + b"#")
    with pytest.raises(NodeError) as caught:
        rest(node, variant)
    assert (caught.value.code, caught.value.exit_code) == ("record-mismatch", 5)


def test_without_notes_everything_is_read(node: Node, variant: dict[str, Any]) -> None:
    packages(node, variant)
    (node.prefix / "image" / packages_layer.NOTES).unlink()
    assert "layers" not in rest(node, variant)["evidence"]


@pytest.mark.parametrize(
    ("name", "text", "disturbed"),
    [
        ("own.py", "1", False),
        ("own.pth", "/opt/own\n", False),
        ("own.pth", "/opt/own\nimport own; own.start()\n", True),
        ("sitecustomize.py", "", True),
        ("sitecustomize/__init__.py", "", True),
        ("usercustomize.cpython-311-x86_64-linux-gnu.so", "", True),
        ("sitecustomize-1.0.dist-info/METADATA", "", False),
        ("torch.py", "2", True),
    ],
)
def test_what_can_change_an_import_makes_it_done_again(tmp_path: Path, name: str, text: str, disturbed: bool) -> None:
    environment, site = tmp_path / "envs" / "e", tmp_path / "envs" / "e" / "lib"
    site.mkdir(parents=True)
    (tmp_path / "image").mkdir()
    (site / "torch.py").write_text("1")
    packages_layer.note(str(tmp_path), str(environment), "", {"imported": ["torch"]})
    layers = packages_layer.Layers(str(tmp_path), str(environment), added_files.look(str(environment)))
    (site / name).parent.mkdir(exist_ok=True)
    (site / name).write_text(text)
    known = layers.scan.entries
    layers.scan.entries = packages_layer.contents.scan(str(tmp_path), str(environment), {"sources": []}, known)
    layers.compare()
    assert layers.imported == ([] if disturbed else ["torch"])


def test_a_slim_image_lacks_the_tests_of_packages_and_nothing_else(node: Node, variant: dict[str, Any]) -> None:
    tests = ("torch/test/data.bin", "torch/deep/tests/test_it.py", "torch/bin/test_api")
    stay = ("torch/bin/protoc", "torch/testing.py", "torch/test_of.py", "torch/latest/tests.py")
    files = {"torch/__init__.py": TORCH, **dict.fromkeys((*tests, *stay), b"12")}
    variant = make_variant([make_wheel(node.wheels, "torch", files=files)], imports=["torch"], torch="1.0")
    packages(node, variant, slim=True)
    stamp = rest(node, variant)
    site = f"lib/python{variant['python']}/site-packages"
    gone = sorted(f"{site}/{name}" for name in tests)
    assert stamp["evidence"]["left_out"] == {"files": 3, "bytes": 6, "paths": gone}
    assert not (place(node) / site / "torch" / "deep").exists(), "empty folders go, too"
    assert all((place(node) / site / name).is_file() for name in stay)
    found = verified(node, deep=True)
    assert found["ok"] and found["checks"]["left-out"]["says"].startswith(
        "3 files of tests of packages (0.0 MB) left out"
    )

    (place(node) / gone[0]).write_bytes(b"12")
    (place(node) / site / stay[0]).unlink()
    drift = {row["path"]: row["kind"] for row in verified(node, deep=True)["drift"]}
    assert drift == {gone[0]: "extra", f"{site}/{stay[0]}": "missing"}
