"""Built wheels in a bundle, for a node that does not share the store: each byte is checked, and all come or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuild.node.bundle import read
from envbuild.node.protocol import NodeError
from envbuild.node.wheels import bundled, manage
from envbuild.node.wheels.store import Store
from tests.node.wheel_support import filled


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, list[str]]:
    keys = [filled(tmp_path / "from", tmp_path, commit=digit * 40)[1] for digit in "12"]
    return tmp_path / "from", sorted(keys)


def packed(store: Path, to: Path, keys: list[str]) -> dict[str, Any]:
    request = {"prefix": "/nowhere", "args": {"action": "pack", "store": str(store), "file": str(to), "keys": keys}}
    return manage.run(request)[1]


def taken(bundle: Path, store: Path, folder: Path) -> dict[str, Any]:
    index = read.unpack(str(bundle), str(folder))
    bundled.take_in(str(store), str(folder), index)
    return index


def test_what_is_packed_on_one_node_is_found_on_another(tmp_path: Path, two: tuple[Path, list[str]]) -> None:
    store, keys = two
    packed(store, tmp_path / "all.tar", keys)
    index = taken(tmp_path / "all.tar", tmp_path / "to", tmp_path / "unpacked")
    assert set(bundled.keys_of(index).values()) <= set(keys)
    for key in keys:
        there, here = Store(str(store)).find(key), Store(str(tmp_path / "to")).find(key)
        assert there and here
        assert (here.sha256, here.inputs, here.facts, here.built_at) == (
            there.sha256,
            there.inputs,
            there.facts,
            there.built_at,
        )
    taken(tmp_path / "all.tar", tmp_path / "to", tmp_path / "again")
    assert sorted(Store(str(tmp_path / "to")).folders()) == keys
    assert list((tmp_path / "to" / "tmp").iterdir()) == []


def test_equal_entries_give_equal_bundles_wherever_they_lie(tmp_path: Path, two: tuple[Path, list[str]]) -> None:
    store, keys = two
    first = packed(store, tmp_path / "1.tar", keys)
    taken(tmp_path / "1.tar", tmp_path / "to", tmp_path / "unpacked")
    second = packed(tmp_path / "to", tmp_path / "2.tar", keys)
    assert (first["sha256"], first["digest"]) == (second["sha256"], second["digest"])


def test_a_damaged_wheel_is_not_packed(tmp_path: Path, two: tuple[Path, list[str]]) -> None:
    store, keys = two
    (wheel,) = (store / keys[0]).glob("*.whl")
    wheel.write_bytes(b"damaged")
    with pytest.raises(NodeError, match="no good wheel") as found:
        packed(store, tmp_path / "x.tar", keys)
    assert found.value.code == "wheel-unknown"
    assert not (tmp_path / "x.tar").exists()


def test_an_entry_that_contradicts_itself_is_not_taken_in(tmp_path: Path, two: tuple[Path, list[str]]) -> None:
    store, keys = two
    packed(store, tmp_path / "x.tar", keys[:1])
    index = read.unpack(str(tmp_path / "x.tar"), str(tmp_path / "unpacked"))
    build = tmp_path / "unpacked" / "built" / keys[0] / "build.json"
    build.write_text(build.read_text().replace(keys[0][:8], "00000000"))
    with pytest.raises(NodeError) as found:
        bundled.take_in(str(tmp_path / "to"), str(tmp_path / "unpacked"), index)
    assert (found.value.code, found.value.exit_code) == ("bundle-damaged", 5)
    assert Store(str(tmp_path / "to")).folders() == []
