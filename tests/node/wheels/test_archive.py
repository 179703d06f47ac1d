"""Wheels carried to a node that does not share the store: every byte is checked, and all come or none."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from envbuild.node.protocol import NodeError
from envbuild.node.wheels import manage
from envbuild.node.wheels.store import Store
from tests.node.wheel_support import filled


def ask(store: Path, action: str, **args: Any) -> dict[str, Any]:
    request = {"prefix": "/nowhere", "args": {"action": action, "store": str(store), **args}}
    return manage.run(request)[1]


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, list[str]]:
    keys = [filled(tmp_path / "from", tmp_path, commit=digit * 40)[1] for digit in "12"]
    return tmp_path / "from", sorted(keys)


def refused(store: Path, pack: Path, **args: Any) -> NodeError:
    with pytest.raises(NodeError) as found:
        ask(store, "unpack", file=str(pack), **args)
    assert (found.value.code, found.value.exit_code) == ("pack-damaged", 5)
    assert Store(str(store)).folders() == [], "all or none"
    assert list((store / "tmp").iterdir()) == []
    return found.value


def test_what_is_packed_on_one_node_is_found_on_another(tmp_path: Path, two: tuple[Path, list[str]]) -> None:
    store, keys = two
    packed = ask(store, "pack", file=str(tmp_path / "all.tar"))
    assert packed["packed"] == keys
    taken = ask(tmp_path / "to", "unpack", file=str(tmp_path / "all.tar"), sha256=packed["sha256"])
    assert (taken["taken"], taken["there"]) == (keys, [])
    for key in keys:
        there, here = Store(str(store)).find(key), Store(str(tmp_path / "to")).find(key)
        assert there and here
        assert (here.sha256, here.inputs, here.facts, here.built_at) == (
            there.sha256,
            there.inputs,
            there.facts,
            there.built_at,
        )
    again = ask(tmp_path / "to", "unpack", file=str(tmp_path / "all.tar"))
    assert (again["taken"], again["there"]) == ([], keys)
    assert list((tmp_path / "to" / "tmp").iterdir()) == []


def test_equal_entries_give_equal_packs_wherever_they_lie(tmp_path: Path, two: tuple[Path, list[str]]) -> None:
    store, _ = two
    first = ask(store, "pack", file=str(tmp_path / "1.tar"))
    ask(tmp_path / "to", "unpack", file=str(tmp_path / "1.tar"))
    second = ask(tmp_path / "to", "pack", file=str(tmp_path / "2.tar"))
    assert first["sha256"] == second["sha256"]


def test_a_key_may_be_named_by_its_beginning(tmp_path: Path, two: tuple[Path, list[str]]) -> None:
    store, keys = two
    assert ask(store, "pack", file=str(tmp_path / "one.tar"), keys=[keys[1][:12]])["packed"] == [keys[1]]
    for wrong in ("", "ffff0000"):
        with pytest.raises(NodeError) as found:
            ask(store, "pack", file=str(tmp_path / "x.tar"), keys=[wrong])
        assert found.value.code == "wheel-unknown"
    assert not (tmp_path / "x.tar").exists()


def test_a_damaged_wheel_is_not_packed(tmp_path: Path, two: tuple[Path, list[str]]) -> None:
    store, keys = two
    (wheel,) = (store / keys[0]).glob("*.whl")
    wheel.write_bytes(b"damaged")
    with pytest.raises(NodeError, match="no good wheel"):
        ask(store, "pack", file=str(tmp_path / "x.tar"), keys=[keys[0]])
    assert ask(store, "pack", file=str(tmp_path / "x.tar"))["packed"] == [keys[1]]
    assert sorted(path.name for path in tmp_path.glob(".wheels-*")) == []


def test_a_pack_of_another_digest_is_refused(tmp_path: Path, two: tuple[Path, list[str]]) -> None:
    ask(two[0], "pack", file=str(tmp_path / "all.tar"))
    assert "its sha256 is not 000000" in refused(tmp_path / "to", tmp_path / "all.tar", sha256="0" * 64).why


def test_a_pack_that_was_cut_or_changed_on_the_way_is_refused(tmp_path: Path, two: tuple[Path, list[str]]) -> None:
    pack = tmp_path / "all.tar"
    ask(two[0], "pack", file=str(pack))
    whole = pack.read_bytes()
    at = whole.index(b"PK\x03\x04") + 50
    flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    between = whole.index(two[1][1].encode())
    for data in (whole[: len(whole) // 3], whole[:between], flipped, b"", b"no tar at all"):
        pack.write_bytes(data)
        refused(tmp_path / "to", pack)


def insert(pack: Path, info: tarfile.TarInfo, data: bytes) -> None:
    """Write the pack again with one more member before its key list."""
    with tarfile.open(pack) as archive:
        members = [(each, archive.extractfile(each)) for each in archive.getmembers()]
        contents = [(each, stream.read() if stream else b"") for each, stream in members]
    with tarfile.open(pack, "w", format=tarfile.GNU_FORMAT) as archive:
        for each, content in [*contents[:-1], (info, data), contents[-1]]:
            archive.addfile(each, io.BytesIO(content))


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 0
    return info, b""


@pytest.mark.parametrize(
    "strange",
    [
        member("../escape.whl"),
        member("/etc/escape.whl"),
        member("0" * 64 + "/../escape.whl"),
        member("0" * 64 + "/x.whl", tarfile.SYMTYPE, "/etc/passwd"),
        member("0" * 64 + "/x.whl", tarfile.LNKTYPE, "build.json"),
        member("0" * 64 + "/x.whl", tarfile.FIFOTYPE),
        member("0" * 64, tarfile.DIRTYPE),
        member("0" * 64 + "/setup.py"),
        member("0" * 64 + "/build.json"),
    ],
    ids=lambda pair: f"{pair[0].name[-14:]} {pair[0].type.decode()}",
)
def test_a_pack_with_anything_else_in_it_is_refused(
    tmp_path: Path, two: tuple[Path, list[str]], strange: tuple[tarfile.TarInfo, bytes]
) -> None:
    pack = tmp_path / "all.tar"
    ask(two[0], "pack", file=str(pack))
    insert(pack, *strange)
    refused(tmp_path / "to", pack)
    assert not (tmp_path / "escape.whl").exists()


def test_a_member_twice_is_refused(tmp_path: Path, two: tuple[Path, list[str]]) -> None:
    pack = tmp_path / "all.tar"
    ask(two[0], "pack", file=str(pack))
    with tarfile.open(pack) as archive:
        first = archive.getmembers()[1]
        content = archive.extractfile(first)
        assert content
        data = content.read()
    insert(pack, first, data)
    assert "twice" in refused(tmp_path / "to", pack).why


def test_nothing_may_follow_the_list_of_keys(tmp_path: Path, two: tuple[Path, list[str]]) -> None:
    pack = tmp_path / "all.tar"
    ask(two[0], "pack", file=str(pack))
    with tarfile.open(pack, "a") as archive:
        archive.addfile(tarfile.TarInfo("x"))
    assert "trailing data" in refused(tmp_path / "to", pack).why


def test_a_pack_that_is_not_there_and_a_folder_that_cannot_be_written_are_told(
    tmp_path: Path, two: tuple[Path, list[str]]
) -> None:
    with pytest.raises(NodeError) as missing:
        ask(tmp_path / "to", "unpack", file=str(tmp_path / "none.tar"))
    assert (missing.value.code, missing.value.exit_code) == ("pack-missing", 2)
    with pytest.raises(NodeError) as unwritable:
        ask(two[0], "pack", file=str(tmp_path / "none" / "x.tar"))
    assert (unwritable.value.code, unwritable.value.exit_code) == ("pack-not-writable", 7)
