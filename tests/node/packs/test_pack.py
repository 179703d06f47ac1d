"""An environment that was built once comes out of a pack elsewhere with the same root, or not at all."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import hashing, lease
from envbuild.node.env import activate, staged_tools, stamp
from envbuild.node.packs import ensure, pack_format, published, verify
from envbuild.node.packs import pack as env_pack
from envbuild.node.packs import unpack as env_unpack
from envbuild.node.protocol import NodeError
from tests.node.env_support import MINOR, PYTHON, Node, make_variant, make_wheel, node, site

__all__ = ["node"]
FORMATS = ("tar.gz", "tar.zst", "squashfs")
PROGRAM = {"tar.zst": "zstd", "squashfs": "mksquashfs"}


def require(kind: str) -> None:
    program = PROGRAM.get(kind)
    if program and shutil.which(program) is None:
        pytest.skip(f"no {program} here (see tests/system-packages.txt)")


class Packed:
    """A packed environment; `wipe` removes its whole prefix, as another node has nothing of it."""

    def __init__(self, node: Node, kind: str = "tar.gz", size: int = 10) -> None:
        self.node = node
        files = {"alpha/__init__.py": b"def main():\n    print(1)\n", "alpha/data": os.urandom(size)}
        self.variant = make_variant([make_wheel(node.wheels, files=files, scripts={"alpha": "alpha:main"})])
        self.environment = node.build(self.variant, variables={"A": "1"})
        if not (self.environment / "lib64").exists():
            (self.environment / "lib64").symlink_to("lib")
        subprocess.run([self.environment / "bin" / "python", "-c", "import alpha"], check=True)
        self.stamp = stamp.read(str(self.environment)) or {}
        self.told = self.pack(formats=[kind])[1]

    def pack(self, **args: Any) -> tuple[bool, dict[str, Any]]:
        args = {"environment": str(self.environment), "folder": str(self.node.top / "packs"), **args}
        return env_pack.run(self.node.request("pack", **args))

    def wipe(self) -> None:
        shutil.rmtree(self.node.prefix)

    def args(self, **more: Any) -> dict[str, Any]:
        stamped = {"stack": "demo", "profile": "exact", "variant": self.variant, "variables": {"A": "1"}}
        return {"environment": str(self.environment), "root": self.told["root"], **stamped, **more}

    def unpack(self, **more: Any) -> tuple[bool, dict[str, Any]]:
        given = {key: self.told[key] for key in ("file", "sha256", "format")}
        return env_unpack.run(self.node.request("unpack", **self.args(**given, **more)))

    def activate(self) -> dict[str, Any]:
        return activate.run(self.node.request("activate", **self.args()))[1]

    def ensure(self, **more: Any) -> tuple[bool, dict[str, Any]]:
        pack = {key: self.told[key] for key in ("file", "sha256", "format")}
        return ensure.run(self.node.request("ensure", **self.args(pack={**pack, **more}, wait=30)))


@pytest.fixture
def packed(node: Node) -> Packed:
    return Packed(node)


def code(call: Callable[[], object]) -> tuple[str, int]:
    with pytest.raises(NodeError) as caught:
        call()
    return caught.value.code, caught.value.exit_code


@pytest.mark.parametrize("kind", FORMATS)
def test_what_comes_out_of_a_pack_has_the_root_of_what_went_in(node: Node, kind: str) -> None:
    require(kind)
    packed = Packed(node, kind)
    assert packed.told["format"] == kind
    assert packed.told["root"] == packed.stamp["root"]
    packed.wipe()
    changed, told = packed.unpack()
    assert changed
    assert told["packages"] == packed.stamp["packages"]
    assert stamp.read(str(packed.environment)) is None, "half an environment never counts"
    done = packed.activate()
    assert done["root"] == packed.stamp["root"]
    assert node.verify(deep=True)["ok"]
    assert not list(packed.environment.rglob("__pycache__"))
    out = subprocess.run([packed.environment / "bin" / "alpha"], capture_output=True, text=True, check=True)
    assert out.stdout == "1\n"
    assert not [name for name in os.listdir(node.prefix / "envs") if name.startswith(".")]
    assert packed.unpack()[0] is False


def test_a_pack_is_made_once_and_again_when_it_is_damaged(packed: Packed) -> None:
    file = Path(packed.told["file"])
    before = file.stat().st_mtime_ns
    assert packed.pack() == (False, packed.told)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    changed, told = packed.pack(formats=["tar.gz"])
    assert changed
    assert hashing.digest_of(told["file"]) == told["sha256"]
    assert file.stat().st_mtime_ns != before
    assert sorted(path.name.partition(".")[2] for path in file.parent.iterdir()) == ["json", "tar.gz"]


def test_a_flipped_byte_makes_nothing_current(packed: Packed) -> None:
    packed.wipe()
    file = Path(packed.told["file"])
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert code(packed.unpack) == ("pack-damaged", 5)
    assert code(packed.ensure) == ("pack-damaged", 5)
    assert not packed.environment.exists()
    assert not (packed.node.prefix / "current").exists()
    assert lease.read(str(packed.node.prefix)) is None


def test_a_pack_whose_files_have_another_root_is_not_stamped(packed: Packed) -> None:
    packed.wipe()
    packed.unpack()
    (site(packed.environment) / "extra.py").write_text("")
    assert code(packed.activate) == ("root-differs", 5)
    assert stamp.read(str(packed.environment)) is None
    assert not (packed.node.prefix / "current").exists()


def test_what_is_not_finished_is_not_packed(node: Node) -> None:
    variant = make_variant([make_wheel(node.wheels)])
    node.install(variant)
    folder = str(node.top / "packs")
    request = node.request("pack", environment=str(node.environment(variant)), folder=folder)
    assert code(lambda: env_pack.run(request)) == ("environment-not-stamped", 7)


def test_a_link_that_leads_out_and_a_pipe_are_not_packed(packed: Packed) -> None:
    shutil.rmtree(packed.node.top / "packs")
    (packed.environment / "out").symlink_to("/etc")
    assert code(packed.pack) == ("pack-leads-out", 7)
    (packed.environment / "out").unlink()
    (packed.environment / "out").symlink_to("../../../../x")
    assert code(packed.pack) == ("pack-leads-out", 7)
    (packed.environment / "out").unlink()
    os.mkfifo(packed.environment / "pipe")
    assert code(packed.pack) == ("pack-leads-out", 7)


def test_a_format_that_nobody_here_writes_is_refused(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert code(lambda: env_pack.usable(["squashfs", "tar.zst"])) == ("pack-format-unknown", 7)
    assert env_pack.usable(None) == "tar.gz"
    packed.wipe()
    packed.told["format"] = "tar.zst"
    assert code(packed.unpack) == ("pack-format-unknown", 7)
    packed.told["format"] = "squashfs"
    assert code(packed.unpack) == ("pack-format-unknown", 7)


# Hostile archives: each gets the manifest of a good one, and the right hash, so that only what it holds is refused.


def rewrite(packed: Packed, spoil: Callable[[tarfile.TarFile, dict[str, Any]], None], keep: bool = True) -> None:
    """The pack with what `spoil` puts after the manifest; `keep`: and with its own members."""
    file = Path(packed.told["file"])
    new = file.with_name("spoiled.tar.gz")
    with tarfile.open(file) as good, tarfile.open(new, "w:gz", format=tarfile.GNU_FORMAT) as bad:
        for member in good:
            content = good.extractfile(member) if member.isreg() else None
            if member.name == pack_format.MANIFEST:
                assert content is not None
                manifest = json.loads(content.read())
                top = manifest["folders"][0]
                told = {**manifest, "inodes": manifest["inodes"] + 2, "unpacked": manifest["unpacked"] + 3}
                data = json.dumps(told).encode()
                member.size = len(data)
                bad.addfile(member, io.BytesIO(data))
                add(bad, top, tarfile.DIRTYPE)
                spoil(bad, manifest)
            elif keep and member.name != top:
                bad.addfile(member, content)
    packed.told.update(file=str(new), sha256=hashing.digest_of(str(new)))


def add(archive: tarfile.TarFile, name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, target, 0o755
    member.size = 3 if kind == tarfile.REGTYPE else 0
    archive.addfile(member, io.BytesIO(b"bad") if member.size else None)


def through_a_link(archive: tarfile.TarFile, manifest: dict[str, Any]) -> None:
    add(archive, manifest["folders"][0] + "/lib", tarfile.SYMTYPE, "bin")
    add(archive, manifest["folders"][0] + "/lib/x")


ATTACKS: dict[str, Callable[[tarfile.TarFile, dict[str, Any]], None]] = {
    "absolute name": lambda archive, _: add(archive, "/tmp/envbuild-bad"),
    "dots": lambda archive, m: add(archive, m["folders"][0] + "/../../../bad"),
    "another environment": lambda archive, _: add(archive, "envs/other"),
    "beside the folders": lambda archive, _: add(archive, "bad"),
    "current": lambda archive, _: add(archive, "current", tarfile.DIRTYPE),
    "link that leads out": lambda archive, m: add(archive, m["folders"][0] + "/x", tarfile.SYMTYPE, "/etc/passwd"),
    "relative link that leads out": lambda archive, m: add(archive, m["folders"][0] + "/x", tarfile.SYMTYPE, "../../x"),
    "file through a link": through_a_link,
    "hard link": lambda archive, m: add(archive, m["folders"][0] + "/x", tarfile.LNKTYPE, "/etc/passwd"),
    "device": lambda archive, m: add(archive, m["folders"][0] + "/x", tarfile.CHRTYPE),
    "pipe": lambda archive, m: add(archive, m["folders"][0] + "/x", tarfile.FIFOTYPE),
}


def test_a_hostile_archive_is_refused_and_leaves_nothing(packed: Packed) -> None:
    packed.wipe()
    good = dict(packed.told)
    for attack, spoil in ATTACKS.items():
        packed.told = dict(good)
        rewrite(packed, spoil, keep=attack != "file through a link")
        assert (attack, *code(packed.unpack)) == (attack, "pack-leads-out", 7)
        assert sorted(os.listdir(packed.node.prefix)) == ["envs", "tools"], attack
        assert os.listdir(packed.node.prefix / "envs") == [], attack
    assert not Path("/tmp/envbuild-bad").exists()


@pytest.mark.parametrize("twice", [True, False])
def test_an_archive_with_too_much_or_too_little_is_no_pack(packed: Packed, twice: bool) -> None:
    packed.wipe()

    def more(archive: tarfile.TarFile, manifest: dict[str, Any]) -> None:
        for name in ("/bad", "/worse") if twice else ():
            add(archive, manifest["folders"][0] + name)

    rewrite(packed, more)
    assert code(packed.unpack) == ("pack-damaged", 5)
    assert os.listdir(packed.node.prefix / "envs") == []


def test_a_squashfs_with_a_device_or_a_link_that_leads_out_is_refused(node: Node, tmp_path: Path) -> None:
    require("squashfs")
    packed = Packed(node, "squashfs")
    packed.wipe()
    folder = tmp_path / "content"
    subprocess.run(["unsquashfs", "-q", "-n", "-d", folder, packed.told["file"]], check=True, capture_output=True)
    manifest = json.loads((folder / pack_format.MANIFEST).read_text())
    (folder / pack_format.MANIFEST).write_text(json.dumps({**manifest, "inodes": manifest["inodes"] + 1}))
    (folder / manifest["folders"][0] / "bad").symlink_to("/etc")
    made = tmp_path / "bad.sqfs"
    subprocess.run(["mksquashfs", folder, made, "-quiet", "-no-progress"], check=True, capture_output=True)
    packed.told.update(file=str(made), sha256=hashing.digest_of(str(made)))
    assert code(packed.unpack) == ("pack-leads-out", 7)
    assert os.listdir(node.prefix / "envs") == []


OTHERS = (
    {"machine": "vax"}, {"libc": "glibc 99.1"}, {"libc": "musl"}, {"prefix": "/other"}, {"variant_digest": "0" * 64},
)  # fmt: skip


def test_a_pack_of_another_kind_of_node_is_refused(packed: Packed) -> None:
    packed.wipe()
    packed.node.prefix.joinpath("envs").mkdir(parents=True)
    request = packed.node.request("unpack", **packed.args())
    env_unpack._check_fits(request, str(packed.environment), packed.told)
    for change in OTHERS:
        told = {**packed.told, **change}
        found = code(lambda told=told: env_unpack._check_fits(request, str(packed.environment), told))  # type: ignore[misc]
        assert (change, *found) == (change, "pack-does-not-fit", 7)


def test_another_interpreter_than_the_packed_one_is_refused(packed: Packed) -> None:
    variant = packed.variant
    told = dict(packed.told, python=f"{MINOR}.99")
    assert code(lambda: env_unpack._interpreter(told, variant)) == ("interpreter-mismatch", 7)
    told["interpreter"] = "/nonexistent/python3"
    assert code(lambda: env_unpack._interpreter(told, variant)) == ("interpreter-missing", 7)


def test_an_interpreter_below_the_prefix_travels_with_the_environment(node: Node) -> None:
    # A tree of links to the real one, as small as an interpreter that runs from another place can be.
    home = Path(PYTHON).parent.parent
    standalone = node.prefix / "tools" / "python-abc" / "python"
    (standalone / "bin").mkdir(parents=True)
    shutil.copy2(PYTHON, standalone / "bin" / f"python{MINOR}")
    found = subprocess.run(
        [standalone / "bin" / f"python{MINOR}", "-I", "-c", "import sys; print(sys.prefix)"],
        capture_output=True, text=True,
    )  # fmt: skip
    if found.returncode != 0:
        pytest.skip(f"a copy of {PYTHON} does not run on its own ({home})")
    node.python = str(standalone / "bin" / f"python{MINOR}")
    packed = Packed(node)
    assert packed.told["folders"][1] == "tools/python-abc"
    packed.wipe()
    packed.unpack()
    assert packed.activate()["root"] == packed.stamp["root"]
    assert Path(node.python).exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_full_disk_is_told_and_leaves_nothing(
    node: Node, kind: str, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(kind)
    packed = Packed(node, kind, size=200_000)
    packed.wipe()
    node.prefix.mkdir()
    subprocess.run(["mount", "--bind", small_disk, node.prefix], check=True)
    try:
        assert code(packed.unpack) == ("disk-full", 75)
        # Full in the middle of it: who else writes there was not known before.
        monkeypatch.setattr(env_unpack, "_check_fits", lambda *_: None)
        assert code(packed.unpack) == ("disk-full", 75)
        assert os.listdir(node.prefix / "envs") == []
        assert lease.read(str(node.prefix)) is None
    finally:
        subprocess.run(["umount", "-l", node.prefix], check=True)
    assert packed.unpack()[0]
    assert packed.activate()["root"] == packed.stamp["root"]


# ensure


def test_ensure_does_nothing_quickly_where_everything_is_in_place(packed: Packed) -> None:
    begun = time.process_time()
    changed, told = packed.ensure()
    assert not changed
    assert told["root"] == packed.stamp["root"]
    assert time.process_time() - begun < 0.5
    # Nothing of the pack is needed then.
    Path(packed.told["file"]).unlink()
    assert packed.ensure()[0] is False


def test_ensure_brings_back_an_environment_on_an_empty_disk_from_the_near_copy(packed: Packed) -> None:
    packed.wipe()
    near = packed.node.prefix / "tmp" / "pack"
    near = near.with_name("pack-run2")
    near.parent.mkdir(parents=True)
    shutil.move(packed.told["file"], near)
    left, new = near.with_name("pack-run1"), near.with_name("pack-run3")
    for path, age in ((left, 100_000), (new, 100)):
        path.touch()
        os.utime(path, (time.time() - age, time.time() - age))
    changed, told = packed.ensure(near=str(near))
    assert changed
    assert (left.exists(), new.exists()) == (False, True), "what a killed job left goes after a day"
    assert os.path.realpath(told["current"]) == str(packed.environment)
    assert not near.exists()
    assert packed.node.verify(deep=True)["root"] == packed.stamp["root"]
    assert "export A=1" in Path(told["activate"]).read_text()


def test_ensure_switches_back_and_repairs_what_has_drifted(packed: Packed) -> None:
    link = packed.node.prefix / "current" / "demo"
    link.unlink()
    assert packed.ensure()[0] is True
    assert link.resolve() == packed.environment
    shutil.rmtree(next(site(packed.environment).glob("alpha-*.dist-info")))
    assert packed.ensure()[0] is True
    assert packed.node.verify(deep=True)["ok"]
    assert [name for name in os.listdir(packed.node.prefix / "envs") if "old" in name] == []


def test_several_ensures_at_once_unpack_once(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    packed.wipe()
    unpacked: list[str] = []
    real = env_unpack._unpack

    def count(*args: Any) -> dict[str, Any]:
        unpacked.append("once")
        return real(*args)

    monkeypatch.setattr(env_unpack, "_unpack", count)
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(packed.ensure()[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, False, False, True]
    assert unpacked == ["once"]


def test_a_near_copy_that_is_not_whole_does_not_stand_in_the_way(packed: Packed) -> None:
    packed.wipe()
    near = packed.node.top / "near"
    near.write_bytes(Path(packed.told["file"]).read_bytes()[:-1])
    assert packed.ensure(near=str(near))[0] is True
    assert packed.node.verify(deep=True)["root"] == packed.stamp["root"]
    assert not near.exists()


# What a shared folder says


class Shared(Packed):
    """The same, and what later jobs need of it is published in a shared folder."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.shared = node.top / "shared"
        self.more = node.top / "job" / "requests" / "ensure.json"
        keys = ("stack", "profile", "variant", "variables")
        told: dict[str, Any] = {"args": {key: self.args()[key] for key in keys} | {"evidence": {"hardware": ["none"]}}}
        told |= {"folder": str(self.shared / "ensure"), "script": "#!/bin/sh\n", "requests": [str(self.more)]}
        told |= {"link": str(node.top / "job" / "pack")}
        self.told = self.pack(folder=str(self.shared / "packs"), formats=["tar.gz"], ensure=told)[1]

    def packs(self) -> dict[str, Any]:
        request = {**self.node.request("packs", stack="demo"), "prefix": str(self.shared)}
        return verify.run(request)[1]


@pytest.fixture
def shared(node: Node) -> Shared:
    return Shared(node)


def test_a_published_request_brings_the_environment_back(shared: Shared) -> None:
    shared.wipe()
    request = json.loads((shared.shared / "ensure" / "demo.json").read_text())
    assert request == json.loads(shared.more.read_text())
    assert ensure.run(request)[1]["root"] == shared.stamp["root"]
    assert shared.node.verify(deep=True)["ok"]
    assert (shared.node.top / "job" / "pack").resolve() == Path(shared.told["file"])
    assert (shared.shared / "ensure" / "demo.sh").read_text() == "#!/bin/sh\n"


def test_the_shared_folder_says_what_nodes_get_from_it(shared: Shared) -> None:
    (told,) = published.facts(str(shared.shared), "demo")
    assert (told["path"], told["root"], told["current"]) == (str(shared.environment), shared.stamp["root"], True)
    keys = ("variant_digest", "packages", "sources", "variables", "interpreter", "arch_list")
    assert {key: told["stamp"][key] for key in keys} == {key: shared.stamp[key] for key in keys}
    assert told["stamp"]["evidence"] == {"hardware": ["none"]}
    assert published.facts(str(shared.shared), "other") == []


def test_an_install_takes_the_pack_where_there_is_one_and_builds_where_it_is_damaged(shared: Shared) -> None:
    node, more = shared.node, {"packed": str(shared.shared), "stack": "demo"}
    shared.wipe()
    changed, told = node.install(shared.variant, **more)
    assert (changed, told["pack"]["root"]) == (True, shared.stamp["root"])
    assert node.activate(shared.variant, variables={"A": "1"})[1]["root"] == shared.stamp["root"]
    assert node.install(shared.variant, **more)[0] is False
    shared.wipe()
    file = Path(shared.told["file"])
    file.write_bytes(bytes(file.stat().st_size))
    changed, told = node.install(shared.variant, **more)
    assert (changed, told.get("pack")) == (True, None)
    assert node.activate(shared.variant, variables={"A": "1"})[1]["root"] == shared.stamp["root"]


def test_a_pack_is_compared_with_its_hash_and_one_that_is_gone_is_told(shared: Shared) -> None:
    assert shared.packs()["ok"]
    file = Path(shared.told["file"])
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    found = shared.packs()
    assert (found["ok"], found["root"]) == (False, shared.stamp["root"])
    assert "sha256" in found["checks"][0]["says"]
    file.unlink()
    assert shared.packs()["ok"] is False
    assert published.facts(str(shared.shared), "demo") == []
    (shared.shared / "ensure" / "demo.json").unlink()
    assert code(shared.packs) == ("environment-unknown", 2)


def test_a_staged_interpreter_is_copied_to_where_it_belongs_once(tmp_path: Path) -> None:
    staged, prefix = tmp_path / "shared" / "tools", tmp_path / "prefix"
    (staged / "python-abc" / "python" / "bin").mkdir(parents=True)
    (staged / "python-abc" / "python" / "bin" / "python3").symlink_to("python3.11")
    interpreter = prefix / "tools" / "python-abc" / "python" / "bin" / "python3"
    for _ in range(2):
        staged_tools.bring(str(prefix), str(interpreter), str(staged))
    assert os.readlink(interpreter) == "python3.11"
    assert os.listdir(prefix / "tools") == ["python-abc"]
    staged_tools.bring(str(prefix), "/usr/bin/python3", str(staged))
    staged_tools.bring(str(prefix), str(prefix / "tools" / "other" / "python3"), str(staged))
    assert os.listdir(prefix / "tools") == ["python-abc"]
