"""What an environment costs: recorded sizes are added up, and only what is recorded refuses for sure."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.model.plan import Resolution
from envbuild.resolve.artifacts import Platform
from envbuild.resolve.estimate import PACKAGE, PYTHON_BYTES, STAMP_BYTES_PER_INODE, VENV, disk_words, estimate
from tests.resolve.builders import compat, make_lock, node_facts, package, resolve_fleet, source, target

NODE = Platform("3.11", "x86_64")
KNOWN = {"bytes": 80_000_000, "inodes": 1000}
TREE = {"bytes": 5_000_000, "inodes": 90}
SOURCE = source()


def lock_of(*packages: dict[str, Any], **more: Any) -> Any:
    return make_lock({"id": "v", "python": "3.11", "packages": list(packages), **more})


def cost_of(*packages: dict[str, Any], **more: Any) -> Any:
    return estimate(lock_of(*packages, **more).variants[0], NODE)


def test_d11_recorded_sizes_are_added_up() -> None:
    got = cost_of(package("a", "1", size=7, unpacked=KNOWN), package("b", "1", size=8, unpacked=KNOWN))
    inodes = 2000 + VENV.inodes + 2 * PACKAGE.inodes
    assert (got.rough, got.fetch_bytes, got.inodes) == (False, 15, inodes)
    assert got.disk_bytes == 160_000_000 + VENV.bytes + 2 * PACKAGE.bytes + STAMP_BYTES_PER_INODE * inodes
    assert got.beside_bytes(delivered=True) - got.work_bytes == 15, "delivered files lie beside, no page of an index"
    assert got.beside_bytes(delivered=False) == got.work_bytes + got.index_bytes
    assert got.in_words().count("about") == 0


@pytest.mark.parametrize("more", [{"packages": (package("c", "1", size=10**6),)}, {"sources": [SOURCE]}])
def test_d11_what_is_not_recorded_makes_it_rough(more: dict[str, Any]) -> None:
    got = cost_of(package("a", "1", size=7, unpacked=KNOWN), *more.get("packages", ()), sources=more.get("sources", []))
    assert got.rough
    assert got.certain_bytes == 80_000_000 + (10**6 if "packages" in more else 0)
    assert "about" in got.in_words()
    assert disk_words(1, ["a"], rough=True).startswith("at least ")


def test_d11_a_measured_tree_stands_for_a_source() -> None:
    known, guessed = cost_of(sources=[{**SOURCE, "unpacked": TREE}]), cost_of(sources=[SOURCE])
    assert guessed.disk_bytes - known.disk_bytes > 50_000_000
    assert known.work_bytes > TREE["bytes"], "its repository lies beside it"


def decided(
    lock: Any, free: int, more: dict[str, Any] | None = None, inodes: int | None = None, **options: Any
) -> Resolution:
    prefix = {"path": "/d", "free_bytes": free, "free_inodes": inodes, "writable": True}
    facts = node_facts("cpu-laptop", more={"prefix": prefix, **(more or {})})
    return resolve_fleet({facts.node: facts}, lock, target(), compat(), **options)[facts.node]


def test_d11_one_byte_too_little_is_refused_where_all_is_recorded_and_only_doubted_where_not() -> None:
    sure, rough = (package("a", "1", size=10**6, **kept) for kept in ({"unpacked": KNOWN}, {}))
    for row, verdict in ((sure, "refuse"), (rough, "warn")):
        cost = cost_of(row)
        need = cost.disk_bytes + cost.beside_bytes(delivered=False)
        assert not decided(lock_of(row), need).refused
        got = decided(lock_of(row), need - 1)
        assert [d.verdict for c in got.candidates for d in c.decisions if d.rule == "disk-space"] == [verdict]
        assert got.refused == (verdict == "refuse")
        assert not decided(lock_of(row), need, inodes=cost.inodes).refused
        assert decided(lock_of(row), need, inodes=cost.inodes - 1).refused == (verdict == "refuse")


def test_d11_tools_that_a_node_lacks_take_room_too() -> None:
    row = package("a", "1", size=10**6, unpacked=KNOWN)
    cost = cost_of(row)
    need = cost.disk_bytes + cost.beside_bytes(delivered=False)
    tools = {"tool_bytes": {"uv-1": 40_000_000, f"python-{'a' * 12}": PYTHON_BYTES}}
    assert decided(lock_of(row), need, **tools).refused
    assert not decided(lock_of(row), need, {"toolchain": ["uv-1", f"python-{'a' * 12}"]}, **tools).refused
    shared = {"shared": "/shared", "toolchain": []}
    assert not decided(lock_of(row), need, shared, **tools).refused, "they lie in the shared folder"
