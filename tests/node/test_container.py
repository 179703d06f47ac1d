"""The verb `container`: what it takes in, what it refuses, and when an image counts.

Apptainer and enroot cannot be had here: programs of those names write their words down and make the file they were
asked for. What the real ones do with the words is not tested. podman runs for real in tests/fleet/test_containers.py.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import container, container_load, container_look, lease
from envbuild.node.protocol import NodeError

CONFIG = b'{"config": {}}'
ID = hashlib.sha256(CONFIG).hexdigest()
# Says its words, makes the file that it was asked for, and answers as the node program in an image would.
_FAKE = """#!/bin/sh
printf '%s\\n' "$*" >> {log}
case "$1" in
    build) shift; [ "$1" = --force ] && shift; echo sif > "$1" ;;
    import) echo sqsh > "$3" ;;
    --version) echo "apptainer version 1.3.4" ;;
    version) echo 3.5.0 ;;
    exec|start)
        cat > /dev/null
        case "$*" in
            *" verify") echo '{verify}' ;;
            *" smoke") echo '{{"protocol":1,"ok":true,"result":{{"ok":true,"exit":0,"checks":[]}}}}' ;;
        esac ;;
esac
"""
GOOD = {"protocol": 1, "ok": True, "result": {"ok": True, "root": "r" * 64, "checks": []}}
BAD = {"protocol": 1, "ok": True, "result": {"ok": False, "root": "r" * 64, "checks": []}}


class Site:
    """A prefix, and programs that are not the real ones on PATH."""

    def __init__(self, top: Path) -> None:
        self.prefix, self.bin, self.log = top / "prefix", top / "bin", top / "log"
        self.bin.mkdir()

    def program(self, name: str, verify: dict[str, Any] | None = None) -> str:
        path = self.bin / name
        path.write_text(_FAKE.format(log=self.log, verify=json.dumps(verify or GOOD, separators=(",", ":"))))
        path.chmod(0o755)
        return str(path)

    def archive(self, config: bytes = CONFIG) -> dict[str, Any]:
        """The image as a file that the controller sent."""
        folder = self.prefix / "images"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "image.tar"
        manifest = json.dumps([{"Config": "c.json", "RepoTags": ["x:1"], "Layers": []}]).encode()
        with tarfile.open(path, "w") as out:
            for name, data in (("c.json", config), ("manifest.json", manifest)):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))
        return {"archive": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}

    def install(self, runtime: str, **more: Any) -> tuple[bool, dict[str, Any]]:
        words = "exec" if runtime == "apptainer" else "start"
        program = str(self.bin / runtime)
        args = {
            "action": "install", "stack": "tiny", "id": ID, "name": "localhost/x:1", "runtime": runtime,
            "program": program, "key": "k", "command": [program, words, "{image}"], "planned": [], "inside": "/in",
            "environment": "/in/envs/x", "cuda": False, "launcher": f"#!/bin/sh\nexec {program} {words} {{image}}\n",
            "asks": {"verify": {"stack": "tiny"}, "smoke": {"items": []}}, **more,
        }  # fmt: skip
        return container.run({"prefix": str(self.prefix), "run": "r1", "args": args})

    def record(self) -> dict[str, Any] | None:
        return container_look.read_record(str(self.prefix), "tiny")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site(tmp_path)
    monkeypatch.setenv("PATH", f"{site.bin}{os.pathsep}{os.environ['PATH']}")
    return site


def test_apptainer_makes_a_file_of_what_was_sent_and_the_record_comes_last(node: Site) -> None:
    node.program("apptainer")
    sent = node.archive()
    changed, result = node.install("apptainer", **sent)
    assert (changed, result["ok"], result["verify"]["root"]) == (True, True, "r" * 64)
    path = node.prefix / "images" / f"tiny-{ID[:12]}.sif"
    said = node.log.read_text().splitlines()
    assert said[0] == f"build --force {path}.half docker-archive://{sent['archive']}"
    assert said[1].startswith(f"exec {path} /in/current/tiny/bin/python /in/image/envbuild-node.pyz verify")
    assert not Path(sent["archive"]).exists(), "the file that was sent is gone"
    record = node.record()
    assert record is not None
    assert (record["id"], record["file"]["path"], record["root"]) == (ID, str(path), "r" * 64)
    launcher = node.prefix / "bin" / "tiny"
    assert launcher.read_text().endswith(f"exec {path}\n") and os.access(launcher, os.X_OK)
    looked = container_look.look("tiny", str(node.prefix))
    assert (looked["present"], looked["launcher"]) == (True, True)
    assert looked["runtimes"]["apptainer"] == {
        "path": str(node.bin / "apptainer"), "version": "1.3.4", "works": True, "why": "",
    }  # fmt: skip
    assert lease.read(str(node.prefix)) is None


def test_enroot_imports_from_a_registry_or_says_that_it_cannot(node: Site) -> None:
    node.program("enroot")
    with pytest.raises(NodeError) as caught:
        node.install("enroot", **node.archive())
    assert (caught.value.code, caught.value.exit_code) == ("container-no-import", 7)
    node.install("enroot", pull=f"registry.example.org:5000/team/tiny@sha256:{'a' * 64}")
    path = node.prefix / "images" / f"tiny-{ID[:12]}.sqsh"
    said = node.log.read_text().splitlines()[0]
    uri = f"docker://registry.example.org:5000#team/tiny:sha256:{'a' * 64}"
    assert said == f"import --output {path}.half {uri}"


def test_a_file_that_was_changed_on_the_way_is_refused_and_removed(node: Site) -> None:
    node.program("apptainer")
    sent = node.archive()
    with Path(sent["archive"]).open("ab") as out:
        out.write(b"x")
    with pytest.raises(NodeError) as caught:
        node.install("apptainer", **sent)
    assert (caught.value.code, caught.value.exit_code) == ("image-archive-damaged", 5)
    assert not Path(sent["archive"]).exists() and node.record() is None
    assert not node.log.exists(), "nothing was given to the runtime"


def test_an_archive_of_another_image_is_refused_whatever_its_hash(node: Site) -> None:
    node.program("apptainer")
    with pytest.raises(NodeError) as caught:
        node.install("apptainer", **node.archive(b'{"config": {"User": "root"}}'))
    assert (caught.value.code, "its image has the id" in caught.value.why) == ("image-archive-damaged", True)


def test_an_image_that_fails_its_tests_does_not_replace_the_one_in_use(node: Site) -> None:
    node.program("apptainer")
    node.install("apptainer", **node.archive())
    before, launcher = node.record(), (node.prefix / "bin" / "tiny").read_bytes()
    node.program("apptainer", BAD)
    _, result = node.install("apptainer", **node.archive(), force=True, key="other")
    assert (result["ok"], result["exit"]) == (False, 1)
    assert node.record() == before
    assert (node.prefix / "bin" / "tiny").read_bytes() == launcher
    assert lease.read(str(node.prefix)) is None


def test_what_was_lost_or_changed_is_seen(node: Site) -> None:
    node.program("apptainer")
    node.install("apptainer", **node.archive())
    ask = {"action": "ask", "stack": "tiny", "verb": "verify", "request": {"stack": "tiny"}}

    def asked() -> dict[str, Any]:
        return container.run({"prefix": str(node.prefix), "run": "r2", "args": dict(ask)})[1]

    assert asked()["ok"] and asked()["root"] == "r" * 64
    (node.prefix / "bin" / "tiny").write_text("#!/bin/sh\n")
    checks = {check["name"]: check["status"] for check in asked()["checks"]}
    assert checks == {"image/id": "passed", "image/launcher": "failed"}
    (file,) = (node.prefix / "images").glob("*.sif")
    file.write_text("sof\n")
    assert {check["name"]: check["status"] for check in asked()["checks"]}["image/id"] == "failed"
    file.unlink()
    looked = container_look.look("tiny", str(node.prefix))
    assert (looked["present"], looked["launcher"]) == (False, False)
    (node.prefix / "images" / "tiny.json").write_text("[]")
    with pytest.raises(NodeError) as caught:
        asked()
    assert (caught.value.code, caught.value.exit_code) == ("image-none", 1)


def test_a_runtime_that_gives_no_answer_is_told_with_its_words(node: Site) -> None:
    path = node.bin / "apptainer"
    path.write_text('#!/bin/sh\n[ "$1" != build ] || { echo x > "$3"; exit 0; }\necho "no setuid" >&2\nexit 255\n')
    path.chmod(0o755)
    with pytest.raises(NodeError) as caught:
        node.install("apptainer", **node.archive())
    assert (caught.value.code, caught.value.why, caught.value.exit_code) == ("image-does-not-run", "no setuid", 1)
    assert node.record() is None


def test_repair_takes_nothing_away_for_a_damaged_file(node: Site) -> None:
    path = node.bin / "podman"
    path.write_text(f'#!/bin/sh\necho "$*" >> {node.log}\n')
    path.chmod(0o755)
    with pytest.raises(NodeError) as caught:
        node.install("podman", **{**node.archive(), "sha256": "0" * 64}, force=True)
    assert caught.value.code == "image-archive-damaged"
    assert not node.log.exists()


def test_a_full_disk_is_told_as_such(node: Site) -> None:
    path = node.bin / "apptainer"
    path.write_text('#!/bin/sh\necho "FATAL: write x.sif: no space left on device" >&2\nexit 255\n')
    path.chmod(0o755)
    with pytest.raises(NodeError) as caught:
        node.install("apptainer", **node.archive())
    assert (caught.value.code, caught.value.exit_code) in {("disk-full", 75), ("inodes-full", 75)}
    assert list((node.prefix / "images").iterdir()) == []


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(b"no tar")
    with pytest.raises(NodeError):
        container_load.check_archive({"archive": str(path), "id": ID, "sha256": hashlib.sha256(b"no tar").hexdigest()})


def test_an_image_that_something_runs_in_is_not_taken_away(node: Site) -> None:
    path = node.bin / "podman"
    path.write_text(f'#!/bin/sh\necho "$*" >> {node.log}\n[ "$1" != ps ] || echo 4fb2c0ffee\n')
    path.chmod(0o755)
    with pytest.raises(NodeError) as caught:
        node.install("podman", **node.archive(), force=True)
    assert (caught.value.code, caught.value.exit_code) == ("image-in-use", 75)
    said = node.log.read_text().splitlines()
    assert said == [
        "images --quiet --no-trunc --filter reference=localhost/x", f"ps --quiet --filter ancestor={ID}",
    ]  # fmt: skip


def test_cdi_is_there_when_a_specification_names_nvidia(tmp_path: Path) -> None:
    assert not container_look.cdi((str(tmp_path), str(tmp_path / "missing")))
    (tmp_path / "other.yaml").write_text("kind: vendor.com/net\n")
    assert not container_look.cdi((str(tmp_path),))
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    assert container_look.cdi((str(tmp_path),))


def test_a_stack_name_cannot_lead_out_of_the_prefix(tmp_path: Path) -> None:
    with pytest.raises(NodeError) as caught:
        container.run({"prefix": str(tmp_path), "run": "r", "args": {"action": "look", "stack": "../x"}})
    assert caught.value.code == "request-invalid"


@pytest.mark.parametrize("sha256", [hashlib.sha256(b"whole").hexdigest(), None])
def test_a_node_of_a_job_names_a_file_that_is_not_the_one_that_was_made(sha256: str | None, tmp_path: Path) -> None:
    path = tmp_path / "tiny.sif"
    if sha256:
        path.write_bytes(b"damaged")
    args = {"action": "try", "stack": "tiny", "runtime": "apptainer", "file": {"path": str(path), "sha256": sha256}}
    with pytest.raises(NodeError) as caught:
        container.run({"prefix": str(tmp_path), "run": "run", "args": args})
    assert (caught.value.code, caught.value.exit_code) == ("image-file-damaged", 5)
    assert str(path) in caught.value.what
