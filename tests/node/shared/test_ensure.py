"""What every job begins with: nothing where the environment is, else an installation from the bundle that all see."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.node.bundle import archive
from envbuild.node.env import caches, foundation, install, published, stamp
from envbuild.node.hashing import digest_of
from envbuild.node.shared import ensure, look
from tests.node.env.test_caches import aged
from tests.node.env_support import Node, make_variant, make_wheel, site
from tests.support.fails import fails
from tests.support.programs import completed


def bundle_of(folder: Path, to: Path) -> str:
    """Write a bundle of the wheels in a folder; its digest."""
    paths = {f"wheels/{path.name}": str(path) for path in folder.glob("*.whl")}
    rows = [
        {"path": name, "sha256": digest_of(path), "bytes": os.path.getsize(path), "what": "wheel"}
        for name, path in paths.items()
    ]
    made = archive.make_index("demo", "exact", [os.uname().machine], ["v"], rows)
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.open("wb") as out:
        archive.to_tar(out, made, paths)
    return str(made["digest"])


class Published:
    """`wipe` removes the node's whole prefix, as another node has nothing of it."""

    def __init__(self, node: Node) -> None:
        self.node, self.shared = node, node.top / "shared"
        files = {"alpha/__init__.py": b"def main():\n    print(1)\n", "alpha/data": b"data"}
        self.variant = make_variant([make_wheel(node.wheels, files=files, scripts={"alpha": "alpha:main"})])
        self.bundle = self.shared / "store" / ("0" * 12) / "bundle.tar"
        digest = bundle_of(node.wheels, self.bundle)
        artifacts = {"bundle": {"file": str(self.bundle), "digest": digest}, "sources": {}}
        request = node.install_request(self.variant, artifacts=artifacts)["args"]
        node.install(self.variant, artifacts=artifacts)
        self.more = node.top / "job" / "requests" / "ensure.json"
        told = {"folder": str(self.shared / "ensure"), "script": "#!/bin/sh\n", "requests": [str(self.more)]}
        publish = {**told, "install": request}
        node.activate(self.variant, variables={"A": "1"}, evidence={"hardware": ["none"]}, publish=publish)
        self.environment = node.environment(self.variant)
        self.stamp: dict[str, Any] = stamp.read(str(self.environment)) or {}
        shutil.rmtree(node.wheels)

    def wipe(self) -> None:
        shutil.rmtree(self.node.prefix)

    def request(self) -> dict[str, Any]:
        """What every later job sends."""
        found = json.loads((self.shared / "ensure" / "demo.json").read_text())
        assert isinstance(found, dict)
        return found

    def ensure(self) -> tuple[bool, dict[str, Any]]:
        request = self.request()
        return ensure.run({**request, "args": {**request["args"], "wait": 30}})

    def verify(self) -> dict[str, Any]:
        return look.verify({**self.node.request("verify", stack="demo", deep=True), "prefix": str(self.shared)})[1]


def other_root(shared: Published) -> None:
    request = shared.request()
    request["args"]["root"] = "0" * 64
    (shared.shared / "ensure" / "demo.json").write_text(json.dumps(request))


@pytest.fixture
def shared(node: Node) -> Published:
    return Published(node)


def test_ensure_does_nothing_quickly_where_everything_is_in_place(shared: Published) -> None:
    shared.bundle.unlink()  # nothing of it is needed then
    begun = time.process_time()
    changed, told = shared.ensure()
    assert (changed, told["root"]) == (False, shared.stamp["root"])
    assert time.process_time() - begun < 0.5


def test_the_shared_folder_has_the_request_of_the_job_its_script_and_says_what_nodes_get(shared: Published) -> None:
    assert shared.request() == json.loads(shared.more.read_text())
    assert (shared.shared / "ensure" / "demo.sh").read_text() == "#!/bin/sh\n"
    (told,) = published.facts(str(shared.shared), "demo")
    assert (told["path"], told["root"], told["current"]) == (str(shared.environment), shared.stamp["root"], True)
    assert {**told["stamp"], "version": shared.stamp["version"]} == shared.stamp
    assert published.facts(str(shared.shared), "other") == []


def test_ensure_installs_on_an_empty_disk_and_gives_the_root_of_the_first_node(shared: Published) -> None:
    shared.wipe()
    changed, told = shared.ensure()
    assert (changed, told["root"]) == (True, shared.stamp["root"])
    assert told["checks"][0]["says"] == f"installed from {shared.bundle}"
    assert os.path.realpath(told["current"]) == str(shared.environment)
    assert shared.node.verify(deep=True)["root"] == shared.stamp["root"]
    assert "export A=1" in Path(told["activate"]).read_text()
    out = completed([shared.environment / "bin" / "alpha"], check=True)
    assert out.stdout == "1\n"
    assert list((shared.node.prefix / "store").iterdir()) == [], "what was unpacked goes"
    assert shared.ensure()[0] is False


def test_ensure_switches_back_and_repairs_what_has_drifted(shared: Published) -> None:
    link = shared.node.prefix / "current" / "demo"
    link.unlink()
    assert shared.ensure()[0] is True
    assert link.resolve() == shared.environment
    (shared.environment / "notes.txt").write_text("notes")
    shutil.rmtree(next(site(shared.environment).glob("alpha-*.dist-info")))
    changed, told = shared.ensure()
    assert changed and "notes.txt" in told["checks"][0]["says"], "files of users are kept"
    assert shared.node.verify(deep=True)["ok"]
    other_root(shared)
    with fails("root-differs", 5):
        shared.ensure()


def test_several_ensures_at_once_install_once(shared: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.wipe()
    installed: list[str] = []
    real = install._build

    def count(*args: object) -> object:
        installed.append("once")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(install, "_build", count)
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(shared.ensure()[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, False, False, True]
    assert installed == ["once"]


def flip(bundle: Path) -> None:
    data = bytearray(bundle.read_bytes())
    data[data.index(b"PK") + 100] ^= 1
    bundle.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "code"),
    [(lambda shared: flip(shared.bundle), "bundle-damaged"), (other_root, "root-differs")],
    ids=["a flipped byte", "another root"],
)
def test_what_is_not_as_published_makes_nothing_current(
    shared: Published, harm: Callable[[Published], None], code: str
) -> None:
    shared.wipe()
    harm(shared)
    with fails(code, 5):
        shared.ensure()
    assert stamp.read(str(shared.environment)) is None
    assert not (shared.node.prefix / "current").exists()


def test_the_bundle_is_read_and_one_that_is_gone_is_told(shared: Published) -> None:
    assert shared.verify()["ok"]
    flip(shared.bundle)
    found = shared.verify()
    assert (found["ok"], found["root"]) == (False, shared.stamp["root"])
    assert "sha256" in found["checks"][0]["says"]
    shared.bundle.unlink()
    assert shared.verify()["ok"] is False
    assert published.facts(str(shared.shared), "demo") == []
    (shared.shared / "ensure" / "demo.json").unlink()
    with fails("environment-unknown", match="demo"):
        shared.verify()


def test_a_staged_interpreter_is_copied_to_where_it_belongs_once(tmp_path: Path) -> None:
    staged, prefix = tmp_path / "shared" / "tools", tmp_path / "prefix"
    (staged / "python-abc" / "python" / "bin").mkdir(parents=True)
    (staged / "python-abc" / "python" / "bin" / "python3").symlink_to("python3.11")
    interpreter = prefix / "tools" / "python-abc" / "python" / "bin" / "python3"
    for _ in range(2):
        foundation.bring_staged(str(prefix), str(interpreter), str(staged))
    assert os.readlink(interpreter) == "python3.11"
    assert os.listdir(prefix / "tools") == ["python-abc"]
    foundation.bring_staged(str(prefix), "/usr/bin/python3", str(staged))
    foundation.bring_staged(str(prefix), str(prefix / "tools" / "other" / "python3"), str(staged))
    assert os.listdir(prefix / "tools") == ["python-abc"]


def test_a_bundle_that_jobs_install_from_is_never_cleaned_however_old_it_is(shared: Published) -> None:
    aged(shared.shared, 40)

    def clean() -> dict[str, Any]:
        args = {"dry_run": False, "wait": 30}
        return caches.run({"verb": "cache", "run": "r", "prefix": str(shared.shared), "args": args})[1]

    (row,) = clean()["places"]
    assert (row["kind"], row["items"], row["note"]) == ("bundles", 1, "jobs install environments from them")
    shared.wipe()
    assert shared.ensure()[0]
    (shared.shared / "ensure" / "demo.json").unlink()
    aged(shared.shared, 40)
    assert clean()["removed"] == [str(shared.bundle.parent)]
