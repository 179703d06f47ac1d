"""A change of any cell that a rule reads changes what the rule decides; the other cells are named with the reason."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any

import pytest

from envbuild.resolve.compat import Compat
from envbuild.resolve.compat_read import compat_from_plain
from envbuild.resolve.engine import evaluate
from tests.resolve.builders import compat, node_facts, plain_compat
from tests.resolve.cells import NOT_READ, Path, Probe, cell, leaves, probes, why_not_read
from tests.resolve.test_golden import CASES, request_of
from tests.support.plain import changed

ALL = tuple(probes())
# Enough for every probe that is about no release of its own.
OTHER_RELEASES = ("1.8.0", "1.10.0", "2.1.0")


@cache
def small(release: str | None) -> dict[str, Any]:
    """The data with few releases, so that building them again for every cell is quick."""
    plain = plain_compat()
    versions = [v for v in plain["torch"]["releases"] if v in OTHER_RELEASES or v == release]
    releases = {version: plain["torch"]["releases"][version] for version in versions}
    out = {**plain, "torch": {**plain["torch"], "releases": releases}}
    if release is not None:
        out |= {"packages": {**plain["packages"], "rules": []}, "images": {**plain["images"], "images": {}}}
    return out


@cache
def unchanged(release: str | None) -> Compat:
    return compat_from_plain(small(release))


def answers(probe: Probe) -> tuple[object, object]:
    """Before and after the change."""
    if probe.whole:
        return probe.answer(compat()), probe.answer(compat_from_plain(changed(plain_compat(), probe.path, probe.value)))
    release = str(probe.path[2]) if probe.path[:2] == ("torch", "releases") else None
    other = compat_from_plain(changed(small(release), probe.path, probe.value))
    return probe.answer(unchanged(release)), probe.answer(other)


GROUPS: dict[str, list[Probe]] = defaultdict(list)
for _probe in ALL:
    GROUPS["/".join(map(str, _probe.path[:2]))].append(_probe)


@pytest.mark.parametrize("group", GROUPS)
def test_a_change_of_a_cell_changes_what_is_decided(group: str) -> None:
    same = {probe.name: before for probe in GROUPS[group] for before, after in [answers(probe)] if before == after}
    assert same == {}


def test_every_cell_has_a_probe_or_a_reason() -> None:
    probed = {probe.path for probe in ALL}
    cells = set(leaves(plain_compat()))
    assert {path for path in cells if path not in probed and why_not_read(path) is None} == set()
    # Taken away together with its key such a cell changes a verdict; its value alone is words.
    both = {path for path in cells & probed if why_not_read(path)}
    assert {path[:3] for path in both} <= {("cuda", "nvcc_check", "own_list")}


def test_every_reason_is_that_of_a_cell() -> None:
    reasons = {why_not_read(path) for path in leaves(plain_compat())}
    assert set(NOT_READ.values()) - reasons == set()


def test_cells_that_are_said_not_to_be_read_change_no_verdict_of_any_golden_case() -> None:
    plain: Any = plain_compat()
    for path in leaves(plain_compat()):
        if why_not_read(path) is not None and not _key_is_read(path):
            plain = changed(plain, path, _another(path))
    other = compat_from_plain(plain)

    def decided(data: Compat) -> list[list[str]]:
        rows = ((node_facts(row["node"], **row.get("facts", {})), request_of(row)) for row in CASES)
        return [[item.verdict for item in evaluate(facts, request, data)] for facts, request in rows]

    assert decided(other) == decided(compat())


def _key_is_read(path: Path) -> bool:
    """Names that must stay what they are for the data to be whole: rule ids, locators, requirements without effect."""
    return path[-1] in ("has", "commits") or (path[0], path[-1]) in {("torch", "locator"), ("packages", "id")}


def _another(path: Path) -> object:
    value = cell(path)
    return value + 1 if isinstance(value, int | float) and not isinstance(value, bool) else f"other {value}"
