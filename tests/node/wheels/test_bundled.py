"""Built wheels handed from node to node, in a bundle or a shared store: right ones are installed without a compiler.

Each byte is checked, all come or none; wrong ones are not used and say why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuild.node.bundle import archive
from envbuild.node.wheels import bundled, manage
from envbuild.node.wheels.build_key import build_key, why_not_for
from envbuild.node.wheels.bundled import Handed
from envbuild.node.wheels.store import Store
from tests.node.wheel_support import PACKAGES, filled, inputs
from tests.support.fails import fails


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, list[str]]:
    keys = [filled(tmp_path / "from", tmp_path, commit=digit * 40)[1] for digit in "12"]
    return tmp_path / "from", sorted(keys)


def packed(store: Path, to: Path, keys: list[str]) -> dict[str, Any]:
    request = {"prefix": "/nowhere", "args": {"action": "pack", "store": str(store), "file": str(to), "keys": keys}}
    return manage.run(request)[1]


def taken(bundle: Path, store: Path, folder: Path) -> dict[str, Any]:
    index = archive.unpack(str(bundle), str(folder))
    bundled.take_in(str(store), str(folder), index)
    return index


def test_what_is_packed_on_one_node_is_found_on_another_and_packed_there_into_the_same_bundle(
    tmp_path: Path, two: tuple[Path, list[str]]
) -> None:
    store, keys = two
    packed(store, tmp_path / "all.tar", keys)
    index = taken(tmp_path / "all.tar", tmp_path / "to", tmp_path / "unpacked")
    assert set(bundled.keys_of(index).values()) <= set(keys)
    for key in keys:
        there, here = Store(str(store)).find(key), Store(str(tmp_path / "to")).find(key)
        assert there and here
        assert here.data == there.data
    taken(tmp_path / "all.tar", tmp_path / "to", tmp_path / "again")
    assert sorted(Store(str(tmp_path / "to")).folders()) == keys
    assert list((tmp_path / "to" / "tmp").iterdir()) == []
    second = packed(tmp_path / "to", tmp_path / "2.tar", keys)
    assert (tmp_path / "all.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()
    assert second["bytes"] == (tmp_path / "2.tar").stat().st_size
    (tmp_path / "file").write_text("in the way")
    taken(tmp_path / "2.tar", tmp_path / "file" / "store", tmp_path / "third")
    assert (tmp_path / "file").read_text() == "in the way", "a store that cannot be written stays as it is"


def test_a_damaged_wheel_is_not_packed(tmp_path: Path, two: tuple[Path, list[str]]) -> None:
    store, keys = two
    (wheel,) = (store / keys[0]).glob("*.whl")
    wheel.write_bytes(b"damaged")
    with fails("wheel-unknown", match="no valid wheel"):
        packed(store, tmp_path / "x.tar", keys)
    assert not (tmp_path / "x.tar").exists()


def test_an_entry_that_contradicts_itself_is_not_taken_in(tmp_path: Path, two: tuple[Path, list[str]]) -> None:
    store, keys = two
    packed(store, tmp_path / "x.tar", keys[:1])
    index = archive.unpack(str(tmp_path / "x.tar"), str(tmp_path / "unpacked"))
    build = tmp_path / "unpacked" / "built" / keys[0] / "build.json"
    build.write_text(build.read_text().replace(keys[0][:8], "00000000"))
    with fails("bundle-damaged", 5):
        bundled.take_in(str(tmp_path / "to"), str(tmp_path / "unpacked"), index)
    assert Store(str(tmp_path / "to")).folders() == []


def of_tools(**toolchain: Any) -> dict[str, Any]:
    """The usual inputs on a node with other tools."""
    made = inputs()
    return {**made, "toolchain": {**made["toolchain"], **toolchain}}


NO_TOOLS = {"cc": "", "cxx": "", "ld": "", "nvcc": "", "mpi": ""}


@pytest.mark.parametrize(
    ("tools", "why"),
    [
        ({}, ""),
        (NO_TOOLS, ""),
        ({"mpi": ""}, ""),
        ({"cc": "", "cxx": "", "ld": "another linker", "nvcc": "another nvcc"}, ""),
        ({"cc": "gcc 13"}, "cc: gcc 13 here"),
        ({"nvcc": "release 12.5"}, "nvcc: release 12.5 here"),
        ({"ld": "another linker"}, "ld: another linker here"),
        ({"libc": "glibc 2.31"}, "libc: glibc 2.31 here"),
        ({"libc": ""}, "libc: none here"),
        ({"cc": "", "cxx": "", "mpi": "gcc -I/opt/other"}, "mpi: gcc -I/opt/other here"),
    ],
)
def test_other_tools_give_other_wheels_and_a_lacking_one_keeps_no_node_from_a_wheel(
    tools: dict[str, str], why: str
) -> None:
    found = why_not_for(of_tools(**tools), inputs())
    assert found.startswith(why) and bool(found) == bool(why)


def test_whatever_else_differs_is_another_wheel() -> None:
    own = inputs()
    for name in own:
        if name not in ("toolchain", "packages"):
            assert why_not_for({**own, name: "different"}, own) == f"another {name}"
    assert why_not_for(own, own, PACKAGES) == ""
    assert why_not_for(own, own, {**PACKAGES, "six": "1.17"}) == "", "the build saw no six"
    assert why_not_for(own, own, {**PACKAGES, "numpy": "2.0"}) == "another numpy"
    assert why_not_for(own, own, {**PACKAGES, "ninja": "1.13"}) == "another ninja"


def test_the_own_key_needs_no_reason_and_a_foreign_one_has_it(tmp_path: Path) -> None:
    store, key = filled(tmp_path / "wheels", tmp_path)
    handed = Handed({"by": "gpu1", "keys": {"apex": key}})
    assert handed.expected(store, "apex", inputs())
    entry = handed.entry(store, "apex", inputs(), PACKAGES, str(tmp_path))
    assert entry is not None
    assert Path(entry.wheel).parent.parent == tmp_path, "a private copy"
    assert handed.outcome["apex"] == {"by": "gpu1", "key": key, "used": True, "why": ""}
    bare = of_tools(cc="", cxx="", ld="")
    assert build_key(bare) != key
    assert handed.entry(store, "apex", bare, PACKAGES, str(tmp_path)) is not None
    assert handed.outcome["apex"]["why"] == "this node has not all tools that gpu1 built with"
    assert not handed.expected(store, "other", inputs())
    assert handed.entry(store, "other", inputs(), PACKAGES, str(tmp_path)) is None
    assert "other" not in handed.outcome


def test_a_wrong_a_damaged_and_a_missing_wheel_are_not_used(tmp_path: Path) -> None:
    store, key = filled(tmp_path / "wheels", tmp_path)
    handed = Handed({"by": "gpu1", "keys": {"apex": key, "gone": "0" * 64}})
    other = of_tools(cc="gcc 13")
    assert not handed.expected(store, "apex", other)
    assert handed.entry(store, "apex", other, PACKAGES, str(tmp_path)) is None
    assert "cc: gcc 13 here" in handed.outcome["apex"]["why"]
    wheel = next((tmp_path / "wheels" / key).glob("*.whl"))
    wheel.write_bytes(b"other bytes")
    for name in ("apex", "gone"):
        assert handed.entry(store, name, inputs(), PACKAGES, str(tmp_path)) is None
        told = handed.outcome[name]
        assert (told["used"], told["why"]) == (False, "the wheel store has no good wheel of it")
