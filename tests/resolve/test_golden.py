"""Golden decisions: facts and a request in, the verdict of one rule out; reasons cite the compat data."""

from __future__ import annotations

import copy
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from envbuild.catalog.yaml_load import load_yaml
from envbuild.model.plan import Decision
from envbuild.resolve.compat import Compat
from envbuild.resolve.compat_read import compat_from_plain
from envbuild.resolve.engine import evaluate
from envbuild.resolve.request import Request
from tests.resolve.builders import compat, node_facts, plain_compat, rule_ids
from tests.support.fails import fails

CASES: list[dict[str, Any]] = [
    row for path in sorted((Path(__file__).parent / "golden").glob("*.yaml")) for row in load_yaml(path)
]


def request_of(row: dict[str, Any]) -> Request:
    fields = dict(row["request"])
    for key, kind in (("compiled", tuple), ("traits", frozenset), ("from_pypi", frozenset)):
        if key in fields:
            fields[key] = kind(fields[key])
    for key in ("flags", "patches"):
        if key in fields:
            fields[key] = {name: tuple(values) for name, values in fields[key].items()}
    return Request(**fields)


def decided(row: dict[str, Any], data: Compat) -> list[Decision]:
    facts = node_facts(row["node"], **row.get("facts", {}))
    return [d for d in evaluate(facts, request_of(row), data) if d.rule == row["rule"]]


@pytest.mark.parametrize("row", CASES, ids=[row["case"] for row in CASES])
def test_golden_decision_and_the_key_of_the_data_that_its_reason_cites(row: dict[str, Any]) -> None:
    found = decided(row, compat())
    assert found, f"the rule {row['rule']} said nothing"
    assert {d.verdict for d in found} == {row["verdict"]}, [d.what for d in found]
    for item in found:
        assert item.compared is not None and all(item.compared)
        assert item.source and item.verified
        assert len(item.verified) <= 120
        place, _, says = item.source.partition(": ")
        if place.startswith("compat/"):
            file, _, key = place.removeprefix("compat/").partition(".yaml#")
            rows = plain_compat()[file]
            assert key in rows or key in {rule["id"] for rule in rows["rules"]}, item.source
            assert 0 < len(says) <= 120
        assert row.get("says", "") in item.what
        assert row.get("instead", "") in item.alternatives
        assert item.verdict != "refuse" or not item.verified.startswith(("not verified", "memory"))
        if item.verdict == "refuse" and row["rule"] != "gpu-arch":
            assert item.alternatives, "a refusal names what would work"
    path, _, reason = row["because"].partition(": ")
    value: Any = plain_compat()
    for key in path.split("/"):
        assert key in value, f"{path}: no key {key}"
        value = value[key]
    assert reason


def test_every_rule_has_an_allow_and_a_non_allow_case() -> None:
    verdicts = defaultdict(set)
    for row in CASES:
        verdicts[row["rule"]].add("allow" if row["verdict"] == "allow" else "other")
    assert {rule for rule in rule_ids() if verdicts[rule] != {"allow", "other"}} == set()


def test_case_names_and_rule_ids_are_unique() -> None:
    names = [row["case"] for row in CASES]
    assert len(names) == len(set(names))
    ids = rule_ids()
    assert len(ids) == len(set(ids))


def test_newest_and_oldest_torch_by_python_agree_with_what_was_asked_live() -> None:
    asked = plain_compat()["python"]["newest_torch"]
    for python, version in asked["newest"].items():
        tag = "cp" + python.replace(".", "")
        have = [v for v, r in compat().torch.items() if r.on_pypi and tag in r.tags["x86_64"]]
        assert have[-1] == version
        assert have[0] == asked["oldest"].get(python, have[0])


def test_damaged_data_are_a_coded_error() -> None:
    lacking, wrong = copy.deepcopy(plain_compat()), copy.deepcopy(plain_compat())
    del lacking["cuda"]["driver_floors"]
    wrong["gpus"]["models"]["H200-SXM-141GB"]["sparse_tflops"] = "many"
    for plain in (lacking, wrong):
        with fails("installation-broken"):
            compat_from_plain(plain)
