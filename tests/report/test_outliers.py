"""Outliers: a node, or one GPU of it, that is not as those that are alike."""

from __future__ import annotations

from typing import Any

from envbuild.model.evidence import Evidence
from envbuild.report.render import render_html, render_markdown
from envbuild.report.sections import Outliers
from envbuild.report.view import View
from tests.report.samples import evidence, facts, fleet, node, shown


def rates(*medians: float, spread: float = 5.0, n: int = 10, gpus: int = 8, **more: Any) -> Evidence:
    """A run whose nodes measured `speed`, each between `spread` below and above its median."""
    nodes = []
    for at, median in enumerate(medians):
        metric = {"name": "speed", "unit": "x/s", "n": n, "median": median, **more}
        metric |= {"least": median - spread, "greatest": median + spread}
        check = {"name": "smoke/speed", "status": "passed", "says": "", "metrics": [metric]}
        nodes.append(node(f"n{at}", facts=facts(f"n{at}", gpus), checks=[check]))
    return evidence(*nodes)


def found(run: Evidence) -> Outliers:
    out = View(run).outliers
    assert out is not None
    return out


def test_a_node_outside_the_spread_of_the_usual_node_of_its_class_is_one_on_either_side() -> None:
    out = found(rates(100, 94, 101, 105, 106.5, 100))
    assert [(each.node, each.worse, each.percent) for each in out.found] == [
        ("n1", True, "-6.0 %"),
        ("n4", False, "+6.5 %"),
    ]
    assert (out.figures, out.nodes) == (1, 6)
    assert out.found[0].usual == "100 (95 to 105)"
    slow = found(rates(100, 94, 101, 105, 106.5, 100, lower_is_better=True))
    assert [(each.node, each.worse) for each in slow.found] == [("n4", True), ("n1", False)]


def test_within_the_spread_there_is_none_and_the_page_says_so() -> None:
    run = rates(100, 97, 103)
    assert found(run).found == ()
    assert "None. 1 figure on 3 nodes" in shown(render_html(run))


def test_two_nodes_one_repeat_or_other_hardware_are_compared_with_nothing() -> None:
    one, two = rates(100, 50), rates(100, 50, 70, n=1, spread=0)
    other = evidence(
        *rates(100, 100).to_json_dict()["nodes"], {**rates(1, gpus=4).to_json_dict()["nodes"][0], "node": "x"}
    )
    for run in (one, two, other, evidence()):
        assert View(run).outliers is None
        assert 'id="outliers"' not in shown(render_html(run))


def test_one_slow_gpu_of_a_node_whose_median_is_usual_is_named_in_page_and_markdown() -> None:
    (slow,) = found(fleet()).found
    assert (slow.node, slow.what, slow.worse) == ("gpu04", "Matrix products, bf16, GPUs: GPU 5", True)
    for text in (shown(render_html(fleet())), render_markdown(fleet())):
        assert "GPU 5" in text.partition("Outliers</h3>" if "</h3>" in text else "### Outliers")[2][:1500]
