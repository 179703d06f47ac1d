"""The join of findings, results, decisions and deviations, as data and as text."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from envbuild.catalog.loader import list_stacks, load_stack
from envbuild.explain.checks import CheckResult
from envbuild.explain.text import render_text
from envbuild.explain.view import Decided, explain, least_nodes, parameters
from envbuild.model.launch import ModelSize, Reference
from envbuild.model.plan import Candidate, Decision, Resolution
from envbuild.model.stack import Stack

Make = Callable[..., Stack]

DECISION = Decision(
    rule="driver-floor", verdict="refuse", what="too old", compared=("440", "450.80"), instead="a newer driver"
)
RESOLUTION = Resolution(
    node="gpu1",
    stack="demo",
    profile="exact",
    variant_id=None,
    variant_digest=None,
    interpreter=None,
    decisions=(DECISION,),
    candidates=(Candidate(variant_id="v1", chosen=False, decisions=(DECISION,)),),
)


def two(make_stack: Make) -> Stack:
    return make_stack(
        {"id": "later", "severity": "trap", "says": "be careful"},
        {"id": "first", "severity": "wrong", "check": {"kind": "zero-stage-refused", "stage": 2}},
    )


def test_json_holds_findings_decisions_and_deviations_as_lists(make_stack: Make) -> None:
    result = CheckResult("first", "zero-stage-refused", "q", "holds", "d")
    data = explain(two(make_stack), "exact", results=[result], decided=Decided((RESOLUTION,))).as_dict()
    assert json.loads(json.dumps(data)) == data
    assert [f["id"] for f in data["findings"]] == ["later", "first"]
    assert [f["outcome"] for f in data["findings"]] == [None, "holds"]
    assert data["findings"][1]["check_results"][0]["question"] == "q"
    assert [(d["node"], d["rule"], d["verdict"]) for d in data["decisions"]] == [("gpu1", "driver-floor", "refuse")] * 2
    assert data["deviations"] == []
    assert "why_no_decisions" not in data


def test_text_groups_by_severity_the_gravest_first_and_says_why_nothing_was_decided(make_stack: Make) -> None:
    unknown = explain(two(make_stack), "exact", decided=Decided(note="no facts"))
    assert unknown.as_dict()["why_no_decisions"] == "no facts"
    assert "\nno facts" in render_text(unknown)
    text = render_text(explain(two(make_stack), "exact", decided=Decided((RESOLUTION,))))
    assert text.index("Wrong (1)") < text.index("first") < text.index("Traps (1)") < text.index("later")
    assert "refuse  too old (rule driver-floor: 440 against 450.80)" in text
    assert "instead: a newer driver" in text


def test_rules_that_a_node_meets_are_counted_and_listed_where_asked(make_stack: Make) -> None:
    met = DECISION.model_copy(update={"rule": "nvcc-absent", "verdict": "allow", "what": "nvcc can compile"})
    decided = Decided((RESOLUTION.model_copy(update={"decisions": (DECISION, met)}),))
    plain, whole = (render_text(explain(two(make_stack), "exact", decided=decided), met=met) for met in (False, True))
    assert "\n  allow   1 more rule; `-v` shows all\n" in plain and "refuse  too old" in plain
    assert "\n  allow   nvcc can compile (rule nvcc-absent: 440 against 450.80)\n" in whole and "shows all" not in whole


def test_text_begins_with_the_figure_the_nodes_of_the_largest_model_and_what_deviates() -> None:
    text = render_text(explain(load_stack("opt-175b").stack, "exact"))
    first = ("figure: at least 200000 words/s, 125m", "nodes: 175b", "37 findings", "Deviations from", "Wrong (10)")
    places = [text.index(words) for words in first]
    assert places == sorted(places)


def test_text_names_a_broken_check_and_keeps_to_its_width(make_stack: Make) -> None:
    broken = CheckResult("first", "k", "the question", "broken", "the answer " * 12)
    text = render_text(explain(two(make_stack), "exact", results=[broken]), width=80)
    assert "CHECK FAILED" in text
    assert "1 checks: 0 hold, 1 broken, 0 not run" in text
    assert all(len(line) <= 80 for line in text.splitlines() if "https://" not in line)


@pytest.mark.parametrize("name", [name for name in list_stacks() if load_stack(name).stack.document])
def test_shipped_documents_keep_to_the_width_but_for_addresses(name: str) -> None:
    stack = load_stack(name).stack
    lines = render_text(explain(stack, next(iter(stack.profiles))), width=80).splitlines()
    assert [line for line in lines if len(line) > 80 and len(line.split()[-1]) < 30] == []


def test_the_least_number_of_nodes_follows_the_memory_model() -> None:
    reference = Reference.from_plain(
        {
            "models": [{"name": "big", "layers": 10, "hidden": 1000, "heads": 10}],
            "memory": {
                "model": "big",
                "bytes_per_parameter": 10,
                "usable": 0.5,
                "gpu_gb": 1,
                "gpus_per_node": 2,
                "source": "us",
            },
        }
    )
    opt = ModelSize(name="175b", layers=96, hidden=12288, heads=96, sequence=2048, vocabulary=51196)
    assert round(parameters(opt) / 1e9, 1) == 174.6
    least = least_nodes(reference)
    assert least is not None
    # 120.1 million parameters are 1.2 GB; a node has 2 x 1 GB, half of it usable.
    assert (least.nodes, least.node_gb, round(least.needed_gb, 2)) == (2, 1.0, 1.2)
    assert least_nodes(Reference()) is None
    assert least_nodes(None) is None
