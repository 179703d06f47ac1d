"""The resolver never crashes, whatever a probe says: every field of the facts, every rule, every kind of variant."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild import resources
from envbuild.lock.files import read_lock
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock
from envbuild.resolve.engine import evaluate
from tests.resolve.any_facts import any_facts
from tests.resolve.builders import compat, make_lock, resolve, resolve_fleet, source, target, torch_lock, torch_row
from tests.resolve.test_golden import CASES, request_of

CHEAP = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SHIPPED = sorted(path.name for path in resources.lockfiles().glob("*.lock.toml"))
TARGETS: list[dict[str, Any]] = [
    {},
    {"base": "system"},
    {"base": "image"},
    {"engine": "container", "placement": "image"},
    {"engine": "conda"},
    {"delivery": "controller"},
    {"expects": {"gpu": "H200", "gpus_per_node": 8, "driver": ">=470,<600"}},
]


def every_kind_of_base() -> Lock:
    """One variant a kind of base, each with a source that is compiled."""
    rows: list[dict[str, Any]] = [
        torch_row("2.1.0+cu118", "3.11", id="none"),
        {"id": "standalone", "interpreter": {"kind": "standalone", "name": "x", "sha256": "0" * 64}},
        {"id": "system", "base": {"kind": "system", "provides": ["torch>=2", "numpy"]}},
        {"id": "prefix", "base": {"kind": "prefix", "prefix": "/usr", "provides": ["torch"]}},
        {"id": "module", "base": {"kind": "module", "module": "conda/1", "provides": ["torch"]}},
        {"id": "image", "base": {"kind": "image", "image": "nvcr.io/nvidia/pytorch:22.02-py3", "provides": ["torch"]}},
        {"id": "unknown", "base": {"kind": "image", "image": "nvcr.io/nvidia/pytorch:99.01-py3"}},
        {"id": "nonsense", "torch": "nonsense", "flavour": "cu99"},
    ]
    compiled = source("apex", build={"flags": ["cuda_ext"]})
    return make_lock(*({"python": "3.11", "sources": [compiled], **row} for row in rows))


def check(facts: NodeFacts, lock: Lock, fields: dict[str, Any]) -> None:
    got = resolve(facts, lock, target(**fields), compat())
    assert got.refused == (got.variant_id is None)
    assert not got.refused or any(item.verdict == "refuse" for item in got.decisions)
    assert all(item.rule and item.what and item.source for item in got.decisions)


@CHEAP
@given(any_facts(), st.sampled_from(TARGETS))
def test_a_lock_with_every_base_ends_in_a_decision(facts: NodeFacts, fields: dict[str, Any]) -> None:
    check(facts, every_kind_of_base(), fields)


@cache
def shipped(name: str) -> Lock:
    return read_lock(resources.lockfiles() / name)


@CHEAP
@given(any_facts(), st.sampled_from(SHIPPED), st.sampled_from(TARGETS))
def test_every_shipped_lock_ends_in_a_decision(facts: NodeFacts, name: str, fields: dict[str, Any]) -> None:
    check(facts, shipped(name), fields)


@CHEAP
@given(any_facts(), st.sampled_from(CASES))
def test_every_rule_answers_any_facts(facts: NodeFacts, row: dict[str, Any]) -> None:
    for item in evaluate(facts, request_of(row), compat()):
        assert item.verdict in ("allow", "patch", "warn", "refuse")
        assert item.verdict != "refuse" or not item.verified.startswith("not verified")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(any_facts(), max_size=4), st.sampled_from(TARGETS))
def test_a_fleet_of_any_nodes_ends_in_a_decision_for_each(nodes: list[NodeFacts], fields: dict[str, Any]) -> None:
    named = {f"n{index}": facts.model_copy(update={"node": f"n{index}"}) for index, facts in enumerate(nodes)}
    got = resolve_fleet(named, torch_lock(), target(**fields), compat())
    assert {name: one.node for name, one in got.items()} == {name: name for name in named}
