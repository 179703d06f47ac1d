"""The verb `container`: what it takes in, what it refuses, and when an image counts.

Programs of the names of Apptainer, enroot and srun write their words down and make the file they were asked for. enroot
and pyxis run for real in tests/slurm where a machine has them, podman in tests/fleet/test_containers.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import lease
from envbuild.node.image import container, load, runtimes
from envbuild.node.protocol import Interrupted, NodeError
from tests.support.fails import fails
from tests.support.files import write_file, write_tar
from tests.support.patience import until
from tests.support.programs import completed, executable

CONFIG = b'{"config": {}, "rootfs": {"diff_ids": []}}'
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
KNOWN = {"numpy": "1.22.2"}
GOOD = {"protocol": 1, "ok": True, "result": {"ok": True, "root": "r" * 64, "base_packages": KNOWN, "checks": []}}
BAD = {"protocol": 1, "ok": True, "result": {"ok": False, "root": "r" * 64, "checks": []}}


class Site:
    """A prefix, and programs that are not the real ones on PATH."""

    def __init__(self, top: Path) -> None:
        self.prefix, self.bin, self.log = top / "prefix", top / "bin", top / "log"
        self.bin.mkdir()

    def program(self, name: str, verify: dict[str, Any] | None = None) -> str:
        verify_ = json.dumps(verify or GOOD, separators=(",", ":"))
        return str(self.script(name, _FAKE.format(log=self.log, verify=verify_)))

    def script(self, name: str, text: str) -> Path:
        return executable(self.bin / name, text)

    def archive(self, config: bytes = CONFIG, layers: Sequence[bytes] = ()) -> dict[str, Any]:
        """The image as a file that the controller sent."""
        name = f"{hashlib.sha256(config).hexdigest()}.json"
        files = {f"{index}.tar": layer for index, layer in enumerate(layers)}
        manifest = json.dumps([{"Config": name, "RepoTags": ["x:1"], "Layers": list(files)}]).encode()
        path = self.prefix / "images" / "image.tar"
        write_tar(path, {name: config, "manifest.json": manifest, **files})
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

    def fails(self, code: str, exit_code: int, runtime: str, **more: Any) -> NodeError:
        with fails(code, exit_code) as caught:
            self.install(runtime, **more)
        return caught.value

    def record(self) -> dict[str, Any]:
        """The record, empty where there is none."""
        return runtimes.read_record(str(self.prefix), "tiny") or {}


# Docker with containerd's store: it knows an image by its names and the digest of its manifest, not by its id.
_CONTAINERD = """#!/bin/sh
printf '%s\\n' "$*" >> {log}
case "$1 $2" in
    "info "*) echo '[["driver-type","io.containerd.snapshotter.v1"]]' ;;
    "load "*|"pull "*) touch {log}.there ;;
    "image inspect") [ -e {log}.there ] && case "$5" in
        {name}|{manifest}) echo sha256:{manifest} ;;
        *) exit 1 ;;
    esac ;;
    "run "*) cat > /dev/null; echo '{verify}' ;;
esac
"""
MANIFEST = "5" * 64


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site(tmp_path)
    monkeypatch.setenv("PATH", f"{site.bin}{os.pathsep}{os.environ['PATH']}")
    return site


def test_apptainer_makes_a_file_of_what_was_sent_once_and_the_record_comes_last(
    node: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    program = node.program("apptainer")
    sent = node.archive()
    command = [program, "exec", "--user={caller}", "{image}"]
    changed, result = node.install("apptainer", command=command, **sent)
    assert (changed, result["ok"], result["verify"]["root"]) == (True, True, "r" * 64)
    path = node.prefix / "images" / f"tiny-{ID[:12]}.sif"
    build, *asked = node.log.read_text().splitlines()
    assert build == f"build --force {path}.half docker-archive://{sent['archive']}"
    # What runs inside has the GPUs of the caller and is the caller.
    begin = f"exec --user={os.geteuid()}:{os.getegid()} {path} env CUDA_VISIBLE_DEVICES=3 /in/envs/x/bin/python "
    assert [line.startswith(f"{begin}-I -S -c ") for line in asked] == [True, True]
    assert asked[0].endswith(" verify")
    assert not Path(sent["archive"]).exists(), "the file that was sent is gone"
    record = node.record()
    assert (record["id"], record["file"]["path"], record["root"]) == (ID, str(path), "r" * 64)
    assert record["base_packages"] == KNOWN, "for runs in which nothing has to be done"
    launcher = node.prefix / "bin" / "tiny"
    assert launcher.read_text().endswith(f"exec {path}\n") and os.access(launcher, os.X_OK)
    looked = runtimes.look("tiny", str(node.prefix))
    assert (looked["present"], looked["launcher"]) == (True, True)
    assert looked["runtimes"]["apptainer"] == {
        "path": str(node.bin / "apptainer"), "version": "1.3.4", "works": True, "why": "",
    }  # fmt: skip
    assert lease.read(str(node.prefix)) is None
    node.log.unlink()
    assert node.install("apptainer", **node.archive())[1]["ok"]
    assert "\nbuild" not in f"\n{node.log.read_text()}", "a file that is whole is taken as it is"


@pytest.mark.parametrize(("left", "noted"), [("truncated", True), ("of somebody else", False)])
def test_d45_a_file_that_is_there_and_is_not_the_one_that_was_made_is_made_again(
    node: Site, left: str, noted: bool
) -> None:
    node.program("apptainer")
    path = node.prefix / "images" / f"tiny-{ID[:12]}.sif"
    if noted:
        node.install("apptainer", **node.archive())
    write_file(path, left)
    node.log.unlink(missing_ok=True)
    changed, result = node.install("apptainer", **node.archive())
    assert (changed, result["ok"], path.read_text()) == (True, True, "sif\n")
    assert node.log.read_text().startswith("build ")
    assert node.record()["file"]["sha256"] == hashlib.sha256(b"sif\n").hexdigest()
    check = completed(["sha256sum", "-c", f"{path}.sha256"])
    assert check.returncode == 0, check.stderr


def test_a_step_whose_connection_broke_can_be_begun_again(node: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    node.program("apptainer")
    sent = node.archive()

    def stopped(*_args: object) -> None:
        raise Interrupted(15)

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(container, "_tested", stopped)
        node.install("apptainer", **sent)
    assert Path(sent["archive"]).exists() and not node.record()
    assert node.install("apptainer", **sent)[1]["ok"]
    assert not Path(sent["archive"]).exists()


ROOM = {
    "apptainer": ("APPTAINER_TMPDIR", "APPTAINER_CACHEDIR"),
    "enroot": ("ENROOT_TEMP_PATH", "ENROOT_CACHE_PATH"),
}


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("runtime", ROOM)
def test_a_file_is_made_where_there_is_room_and_nothing_stays(node: Site, runtime: str, said: bool) -> None:
    """Twenty gigabytes do not fit /tmp of many nodes, nor the quota of a home folder."""
    unpacks, keeps = ROOM[runtime]
    program = Path(node.program(runtime))
    words = "".join(f'echo "{name}=${name}" >> {node.log}\n' for name in ROOM[runtime])
    program.write_text(program.read_text() + words)
    top = node.prefix.parent / "scratch" if said else node.prefix / "tmp"
    left, mine = (write_file(top / f"image-build-{name}" / "file").parent for name in ("0a_left9", "of-mine"))
    pull = {"pull": "r.example:5000/team/x@sha256:" + "a" * 64}
    more = node.archive() if runtime == "apptainer" else pull
    node.install(runtime, **more, **({"tmp": str(top)} if said else {}))
    made, *places = node.log.read_text().splitlines()[:3]
    if runtime == "enroot":
        path = node.prefix / "images" / f"tiny-{ID[:12]}.sqsh"
        assert made == f"import --output {path}.half docker://r.example:5000#team/x:sha256:{'a' * 64}"
    found = dict(line.partition("=")[::2] for line in places)
    if runtime == "enroot" and not said:
        assert found[unpacks] == os.environ.get("ENROOT_TEMP_PATH", ""), "not on a file system that may not do"
    else:
        assert found[unpacks].startswith(f"{top}/image-build-")
    assert found[keeps].startswith(f"{top}/image-build-")
    assert list(top.iterdir()) == [mine] and not left.exists()


def test_podman_unpacks_layers_where_the_target_says(node: Site) -> None:
    podman = node.script(
        "podman",
        f'#!/bin/sh\necho "$1 $TMPDIR" >> {node.log}\n'
        f'case "$1" in image) [ -e {node.log}.there ] && echo {ID} ;; load) touch {node.log}.there ;; esac\n',
    )
    tmp = node.prefix.parent / "scratch"
    args = {"runtime": "podman", "program": str(podman), "id": ID, "name": "x:1", "stack": "tiny", "tmp": str(tmp)}
    assert load.load({**args, "prefix": str(node.prefix), **node.archive()}, str(node.prefix)) == (ID, None)
    assert f"load {tmp}" in node.log.read_text().splitlines() and tmp.is_dir()


@pytest.mark.parametrize(
    ("reference", "uri"),
    [
        ("pytorch@sha256:aa", "registry-1.docker.io#library/pytorch:sha256:aa"),
        ("team/tiny@sha256:aa", "registry-1.docker.io#team/tiny:sha256:aa"),
        ("docker.io/team/tiny@sha256:aa", "registry-1.docker.io#team/tiny:sha256:aa"),
        ("localhost:5000/tiny:1", "localhost:5000#tiny:1"),
        ("r.example/a/b:1", "r.example#a/b:1"),
    ],
)
def test_enroot_is_told_the_registry_of_what_names_none(reference: str, uri: str) -> None:
    assert load.enroot_uri(reference) == f"docker://{uri}"


@pytest.mark.parametrize(
    ("runtime", "script", "why"),
    [
        ("pyxis", "echo '--container-image=PATH --container-env=NAME'", ""),
        ("pyxis", "echo '--container-image=PATH'", "pyxis is older than 0.15"),
        ("pyxis", "echo", "its plugin is not in the Slurm of this node"),
        ("pyxis", "echo no controller >&2; exit 1", "no controller"),
        ("podman", "echo '1 65536 4.3.1'", ""),
        # Then it takes no image of ours; without ids at all it is root. An Apptainer that works comes after it.
        ("podman", "echo '1 4.3.1'", "/etc/subuid"),
        ("podman", "echo '4.3.1'", ""),
    ],
)
def test_a_runtime_that_is_there_works_or_says_why_not(runtime: str, script: str, why: str, node: Site) -> None:
    path = node.script({"pyxis": "srun"}.get(runtime, runtime), f"#!/bin/sh\n{script}\n")
    found = runtimes.look("tiny", str(node.prefix))["runtimes"][runtime]
    assert (found["path"], found["works"], found["version"]) == (
        str(path), not why, "4.3.1" if runtime == "podman" else None
    )  # fmt: skip
    assert why in found["why"] and bool(found["why"]) == bool(why)


def test_pyxis_outside_of_a_job_is_refused(node: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    program = node.program("srun")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    words = [program, "--nodelist", "{node}", "exec"]
    node.program("enroot")
    pull = {"pull": f"registry.example.org/tiny@sha256:{'a' * 64}"}
    node.fails("container-needs-job", 7, "enroot", **pull, command=words)
    monkeypatch.setenv("SLURMD_NODENAME", "gpu7")
    answer = json.dumps(GOOD, separators=(",", ":"))
    said = f'echo "$* ${{SLURM_LABELIO-none}}" >> {node.log}'
    (node.bin / "srun").write_text(f"#!/bin/sh\n{said}\ncat > /dev/null\necho '{answer}'\n")
    monkeypatch.setenv("SLURM_LABELIO", "1")
    node.install("enroot", **pull, command=words)
    last = node.log.read_text().splitlines()[-1]
    assert last.startswith("--nodelist gpu7 exec /in/envs/x/bin/python ") and last.endswith(" smoke none")


LOGS = '#!/bin/sh\necho "$*" >> {log}\n'
FULL = '#!/bin/sh\necho "FATAL: write x.sif: no space left on device" >&2\nexit 255\n'
MUTE = '#!/bin/sh\n[ "$1" != build ] || {{ echo x > "$3"; exit 0; }}\necho "no setuid" >&2\nexit 255\n'
OTHER = b'{"config": {"User": "root"}}'
# What the runtime is, its configuration and what is said of the archive, and how it ends.
REFUSED: dict[str, tuple[str, str, bytes, dict[str, Any], str, int, str]] = {
    "an archive that was changed on the way": (
        "apptainer", LOGS, CONFIG, {"sha256": "0" * 64}, "image-damaged", 5, "sent was 000000000000",
    ),
    "one for a repair, which takes nothing away": (
        "podman", LOGS, CONFIG, {"sha256": "0" * 64, "force": True}, "image-damaged", 5, "sent was 000000000000",
    ),
    "an archive of another image, whatever its hash": (
        "apptainer", LOGS, OTHER, {}, "image-damaged", 5, "its image has the id",
    ),
    "a file that is no archive": ("apptainer", LOGS, b"", {}, "image-damaged", 5, "it is no archive of one image"),
    "a runtime that gives no answer": ("apptainer", MUTE, CONFIG, {}, "image-does-not-run", 1, "no setuid"),
    "a full disk": ("apptainer", FULL, CONFIG, {}, "disk-full", 75, "no space left"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("runtime", "script", "config", "more", "code", "exit_code", "why"), REFUSED.values(), ids=REFUSED
)
def test_what_cannot_be_used_is_refused_and_the_file_that_was_sent_removed(
    runtime: str, script: str, config: bytes, more: dict[str, Any], code: str, exit_code: int, why: str, node: Site
) -> None:
    node.script(runtime, script.format(log=node.log))
    sent = node.archive(config)
    if not config:
        Path(sent["archive"]).write_bytes(b"no tar")
        sent["sha256"] = hashlib.sha256(b"no tar").hexdigest()
    assert why in node.fails(code, exit_code, runtime, **{**sent, **more}).why
    assert not Path(sent["archive"]).exists() and not node.record()
    assert not node.log.exists(), "nothing was given to the runtime"
    assert code != "disk-full" or list((node.prefix / "images").iterdir()) == []


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
    assert checks == {"image/id": "passed", "image/launcher": "failed", "image/root": "passed"}
    other = {**GOOD, "result": {**GOOD["result"], "root": "s" * 64}}
    node.program("apptainer", verify=other)
    assert {check["name"]: check["status"] for check in asked()["checks"]}["image/root"] == "failed"
    (file,) = (node.prefix / "images").glob("*.sif")
    file.write_text("sof\n")
    assert {check["name"]: check["status"] for check in asked()["checks"]}["image/id"] == "failed"
    file.unlink()
    looked = runtimes.look("tiny", str(node.prefix))
    assert (looked["present"], looked["launcher"]) == (False, False)
    (node.prefix / "images" / "tiny.json").write_text("[]")
    with fails("image-none", 1):
        asked()


def test_an_image_that_something_runs_in_is_not_taken_away(node: Site) -> None:
    node.script("podman", f'#!/bin/sh\necho "$*" >> {node.log}\n[ "$1" != ps ] || echo 4fb2c0ffee\n')
    node.fails("image-in-use", 75, "podman", **node.archive(), force=True)
    said = node.log.read_text().splitlines()
    assert said == [
        "images --quiet --no-trunc --filter reference=localhost/x", f"ps --quiet --filter ancestor={ID}",
    ]  # fmt: skip


def test_cdi_is_there_when_a_specification_names_nvidia(tmp_path: Path) -> None:
    assert not runtimes.cdi((str(tmp_path), str(tmp_path / "missing")))
    (tmp_path / "other.yaml").write_text("kind: vendor.com/net\n")
    assert not runtimes.cdi((str(tmp_path),))
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    assert runtimes.cdi((str(tmp_path),))


def test_a_node_of_a_job_names_a_file_that_is_not_the_one_that_was_made(tmp_path: Path) -> None:
    path, wanted = tmp_path / "tiny.sif", hashlib.sha256(b"whole").hexdigest()
    file = {"path": str(path), "sha256": None}
    args: dict[str, Any] = {"action": "try", "stack": "tiny", "runtime": "apptainer", "file": file}
    for sha256, text in ((None, None), (wanted, "damaged")):
        file["sha256"] = sha256
        if text:
            path.write_text(text)
        with fails("image-damaged", 5) as caught:
            container.run({"prefix": str(tmp_path), "run": "run", "args": args})
        assert str(path) in caught.value.what
    with fails("request-invalid"):  # a name cannot lead out of the prefix
        container.run({"prefix": str(tmp_path), "run": "r", "args": {"action": "look", "stack": "../x"}})


@pytest.mark.parametrize("pulled", [None, MANIFEST, "6" * 64])
def test_docker_with_the_store_of_containerd_calls_an_image_by_its_manifest(node: Site, pulled: str | None) -> None:
    """As every new docker 29: it was refused as another image than the one that was sent."""
    name = f"r.example/x@sha256:{pulled}" if pulled else "localhost/x:1"
    docker = node.bin / "docker"
    answer = json.dumps(GOOD, separators=(",", ":"))
    executable(docker, _CONTAINERD.format(log=node.log, name=name, manifest=MANIFEST, verify=answer))
    more = {"pull": name} if pulled else node.archive()
    command = [str(docker), "run", "--rm", "{image}"]
    given = {"command": command, "asks": {"verify": {"stack": "tiny"}}, "launcher": "#!/bin/sh\nexec docker {image}\n"}
    if pulled not in (None, MANIFEST):
        node.fails("image-id-differs", 5, "docker", **given, **more)
        return
    _, result = node.install("docker", **given, **more)
    assert result["ok"]
    record = node.record()
    assert (record["id"], record["called"]) == (ID, MANIFEST)
    assert record["command"][-1] == MANIFEST and MANIFEST in (node.prefix / "bin" / "tiny").read_text()
    assert runtimes.present(record)
    (node.log.parent / f"{node.log.name}.there").unlink()
    assert not runtimes.present(record)


def test_a_runtime_is_told_to_end_its_container_before_it_is_killed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.program("apptainer")
    site.install("apptainer", **site.archive())
    began, ended = tmp_path / "began", tmp_path / "ended"
    trap = f"trap 'sleep 0.5; touch {ended}; exit 143' TERM"
    site.script("apptainer", f"#!/bin/sh\n{trap}\ntouch {began}\nwhile :; do sleep 0.1; done\n")
    args = {"action": "ask", "stack": "tiny", "verb": "smoke", "request": {"items": []}}
    request = {"protocol": 1, "verb": "container", "run": "r1", "prefix": str(site.prefix), "args": args}
    words = [sys.executable, "-m", "envbuild.node", "container"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdin is not None
        node.stdin.write(json.dumps(request))
        node.stdin.close()
        node.stdin = None
        until(began.exists)
        node.send_signal(signal.SIGTERM)
        out, _ = node.communicate(timeout=60)
    assert ended.exists()
    assert (node.returncode, json.loads(out)["error"]["code"]) == (130, "interrupted")
