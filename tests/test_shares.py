"""Which process of a run begins with what."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support.shares import LONG, dealt

TOP = Path(__file__).parents[1]


def test_each_process_begins_with_a_long_module_and_nothing_is_lost() -> None:
    short = [f"tests/e2e/test_{name}.py::test_{number}" for name in "abcd" for number in range(10)]
    long = [f"{module}::test_{number}" for module in LONG[:5] for number in range(2)]
    found = dealt([*short[:20], *long, *short[20:]], module_of, slow, 4)
    assert sorted(found) == sorted([*short, *long])
    assert [module_of(found[at]) for at in (0, 12, 24, 37)] == [*LONG[:4]]
    assert [module_of(each) for each in found[2:4]] == [LONG[4]] * 2, "the fifth is second where the first began"
    assert [each for each in found if each in short] == short


def test_without_a_long_module_or_in_one_process_modules_keep_their_order() -> None:
    short = [f"tests/e2e/test_{name}.py::test_{number}" for name in "abc" for number in range(3)]
    assert dealt(short, module_of, slow, 4) == short
    assert dealt([*short, f"{LONG[0]}::test"], module_of, slow, 1) == [f"{LONG[0]}::test", *short]
    assert dealt([], module_of, slow, 4) == []
    assert [module for module in LONG if not (TOP / module).is_file()] == []


def test_slow_items_begin_before_fast_ones_in_every_process() -> None:
    fast = [f"tests/e2e/test_{name}.py::test_{number}" for name in "abc" for number in range(8)]
    items = [*fast[:11], *(f"tests/fleet/test_a.py::test_slow_{number}" for number in range(4)), *fast[11:]]
    found = dealt(items, module_of, slow, 2)
    assert [slow(each) for each in found] == ([True] * 2 + [False] * 12) * 2
    assert [each for each in found if not slow(each)] == fast


def module_of(item: str) -> str:
    return item.partition("::")[0]


def slow(item: str) -> bool:
    return "::test_slow" in item


def test_no_folder_of_tests_has_a_name_that_pytest_passes_over(pytestconfig: pytest.Config) -> None:
    """tests/node/build was in no whole run: `build` is in pytest's own list of such names."""
    folders = {path.parent.name for path in (TOP / "tests").rglob("test_*.py")}
    assert [name for name in folders for left in pytestconfig.getini("norecursedirs") if fnmatch(name, left)] == []
