"""`verify`: what has drifted is named file by file, and nothing is written but when contents were last read."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from envbuild.node import merkle
from envbuild.node.protocol import NodeError
from envbuild.node.shared import look
from tests.node.env_support import MINOR, Node, make_variant, make_wheel, run_python, site
from tests.support.fails import fails
from tests.support.files import write_files

FILES = {
    "alpha/__init__.py": b"VALUE = 1\n",
    "alpha/data.bin": bytes(range(256)),
    "alpha/more.bin": b"\0",
    "alpha/tool.sh": b"#!/bin/sh\n",
}


@pytest.fixture
def built(node: Node) -> Path:
    return node.build(make_variant([make_wheel(node.wheels, files=FILES)]))


WRITES = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def test_an_untouched_environment_passes_and_only_the_time_is_written(node: Node, built: Path) -> None:
    source = site(built) / "alpha" / "__init__.py"
    for flags in ([], ["-O"], ["-OO"]):
        subprocess.run([built / "bin" / "python", *flags, "-c", "import alpha, json.tool"], check=True, env=WRITES)
    assert Path(importlib.util.cache_from_source(str(source))).exists()
    assert len(list(site(built).rglob("*.opt-*.pyc"))) == 2
    before = {path: os.lstat(path).st_mtime_ns for path in node.prefix.rglob("*")}
    result = node.verify(deep=True)
    assert result["ok"]
    assert result["level"] == "measured"
    read = built / ".envbuild" / "read.json"
    before[read], before[read.parent] = (os.lstat(path).st_mtime_ns for path in (read, read.parent))
    assert [check["name"] for check in result["checks"]] == ["stamp", "packages", "link", "files", "bytecode"]
    stamped = json.loads((built / ".envbuild" / "stamp.json").read_text())
    version = run_python(built, "import platform; print(platform.python_version())")
    assert result["checks"][0]["details"] == {"python": version, "built_in": stamped["run"]}
    assert {path: os.lstat(path).st_mtime_ns for path in node.prefix.rglob("*")} == before
    # D31: a note about another build at this place is not believed.
    read.write_text(json.dumps({**json.loads(read.read_text()), "run": "another", "at": "2040-01-01T00:00:00Z"}))
    quick = node.verify()
    (files,) = [check for check in quick["checks"] if check["name"] == "files"]
    assert (quick["level"], files["status"], files["level"]) == ("stamped", "not-run", "not-checked")
    assert "2040" not in files["says"]


def test_missing_extra_and_mode_are_told_apart_and_a_file_that_became_something_else(
    node: Node, built: Path, tmp_path: Path
) -> None:
    alpha = site(built) / "alpha"
    (alpha / "__init__.py").unlink()
    (alpha / "tool.sh").chmod(0o755)
    (site(built) / "planted.pth").write_text("import os\n")
    (alpha / "data.bin").rename(tmp_path / "same.bin")
    (alpha / "data.bin").symlink_to(tmp_path / "same.bin")
    (alpha / "more.bin").unlink()
    os.mkfifo(alpha / "more.bin")
    drift = {os.path.basename(change["path"]): change["kind"] for change in node.verify(deep=True)["drift"]}
    assert drift == {
        "__init__.py": "missing", "planted.pth": "extra", "tool.sh": "mode", "data.bin": "changed",
        "more.bin": "changed",
    }  # fmt: skip


def test_another_variant_or_version_and_a_missing_or_extra_package(node: Node) -> None:
    variant = make_variant([make_wheel(node.wheels, files=FILES)])
    built = node.build(variant)
    other = make_variant([make_wheel(node.wheels, version="3.0")])
    says = json.dumps(node.verify(variant=other)["checks"])
    assert "the stamp says variant" in says
    assert "alpha is 1.0, the lock says 3.0" in says
    variant["packages"].append({"name": "Tq_dm", "version": "4.66", "files": []})
    assert "tq-dm 4.66 is missing" in json.dumps(node.verify(variant=variant)["checks"])
    path = built / ".envbuild/stamp.json"
    stamped = json.loads(path.read_text())
    stamped["evidence"] = {**(stamped.get("evidence") or {}), "kept_of_base": {"tq-dm": ["4.66", "4.1"]}}
    path.write_text(json.dumps(stamped))
    assert node.verify(variant=variant)["ok"], "an image keeps it of its base"
    shutil.copytree(site(built) / "alpha-1.0.dist-info", site(built) / "beta-1.0.dist-info")
    (site(built) / "beta-1.0.dist-info" / "METADATA").write_text("Name: beta\nVersion: 1.0\n")
    assert "beta 1.0 is there and not in the stamp" in json.dumps(node.verify()["checks"])


TAG = f"cpython-{MINOR.replace('.', '')}"
PYCS = {
    "alpha/__pycache__/ghost.cpython-311.pyc": b"",
    "alpha/__pycache__/__init__.cpython-399.pyc": b"",
    "alpha/ghost.pyc": b"",
    f"alpha/__pycache__/__init__.{TAG}.pyc": importlib.util.MAGIC_NUMBER + bytes(12) + b"\xe3\xff\xff",
    f"beta/__pycache__/__init__.{TAG}.pyc": b"short",
}


def test_orphan_foreign_and_broken_pycs_are_refused(node: Node) -> None:
    built = node.build(make_variant([make_wheel(node.wheels), make_wheel(node.wheels, "beta")]))
    write_files(site(built), PYCS)
    drift = node.verify(deep=True)["drift"]
    assert {each["kind"] for each in drift} == {"pyc-not-from-source"}
    assert {each["path"].partition("site-packages/")[2] for each in drift} == set(PYCS)


def test_stamp_and_list_of_files_are_told_and_where_they_are_changed_or_missing_that_is_noticed(
    node: Node, built: Path
) -> None:
    stamp, listed = built / ".envbuild" / "stamp.json", built / ".envbuild" / "files.json"
    changed, answer = look.run(node.request("verify", tell="files", environment=str(built)))
    files = json.loads(zlib.decompress(base64.b64decode(answer["files"])))
    stamped = json.loads(stamp.read_text())
    assert (changed, answer["root"], files) == (False, stamped["root"], json.loads(listed.read_text()))
    assert merkle.root_of(files) == stamped["root"], "the list gives the root"
    assert "base_packages" not in node.verify()
    stamp.write_text(json.dumps({**stamped, "base_packages": {"numpy": "1.22.2"}}))
    assert node.verify(base=True)["base_packages"] == {"numpy": "1.22.2"}
    files.popitem()
    listed.write_text(json.dumps(files))
    result = node.verify(deep=True)
    assert not result["ok"]
    assert result["drift"] == [{"path": ".envbuild/files.json", "kind": "changed"}]
    (node.prefix / "current" / "demo").unlink()
    assert node.verify(environment=str(built))["ok"]
    with pytest.raises(NodeError, match="in use"):
        node.verify()
    stamp.write_text("{")
    assert not node.verify(environment=str(built))["ok"]
    stamp.unlink()
    with fails("environment-unstamped", match="no stamp"):
        look.run(node.request("verify", tell="files", environment=str(built)))
    with pytest.raises(NodeError, match="there is no environment"):
        node.verify(environment=str(built) + "0")
