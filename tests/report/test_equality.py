"""Nodes of a fleet compared in every form of the report: one root is one line; outliers; images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from envbuild.model.evidence import Equality, Evidence, NodeEvidence
from envbuild.provision.run.evidence import of_another_root
from envbuild.report.equality import equality_of, without_cause
from envbuild.report.render import render_html, render_json, render_markdown
from envbuild.report.sections import Outliers
from envbuild.report.terminal import summary_lines
from envbuild.report.view import View
from tests.report.samples import ROOT, evidence, facts, fleet, node, shown

FLEET = [node(f"gpu{number:02}") for number in range(1, 9)]
ODD = {"nodes": ["gpu07"], "root": "cc" * 32, "differs": ["Python 3.11.2, not 3.11.7", "1 of 9 files differs: <b>x"]}


def _terminal(run: Evidence) -> str:
    return "\n".join(text for text, _ in summary_lines(run))


def test_d31_eight_equal_nodes_are_one_line_that_says_on_how_many_the_root_was_measured() -> None:
    equality = {"root": ROOT, "nodes": [each["node"] for each in FLEET]}
    made = evidence(*FLEET, equality=equality)
    said = f"8 nodes, one root {ROOT[:12]} (measured)"
    assert said in _terminal(made)
    for page in (render_markdown(made), render_html(made)):
        assert said in page
        assert "Deviating" not in page
    assert '"equality"' in render_json(made)
    stamped = [{**each, "root_level": "stamped"} for each in FLEET]
    assert f"one root {ROOT[:12]} (stamped)" in _terminal(evidence(*stamped, equality=equality))
    one = evidence(FLEET[0], *stamped[1:], equality=equality)
    assert f"8 nodes, one root {ROOT[:12]} (measured on 1)" in _terminal(one)


def test_a_node_that_deviates_is_named_with_what_differs_and_those_that_deviate_alike_are_folded() -> None:
    usual = [each["node"] for each in FLEET]
    made = evidence(*FLEET, equality={"root": ROOT, "nodes": [*usual[:6], usual[7]], "deviating": [ODD]})
    shown = _terminal(made)
    assert f"7 of 8 nodes have the root {ROOT[:12]}; 1 deviates (measured)" in shown
    assert f"! gpu07 deviates: root {'cc' * 6}\n    Python 3.11.2, not 3.11.7\n    1 of 9 files differs" in shown
    for page in (render_markdown(made), render_html(made)):
        assert "Deviating nodes" in page
        assert "&lt;b&gt;x" in page
        assert "<b>x" not in page
    alike = {"root": ROOT, "nodes": usual[:4], "deviating": [{**ODD, "nodes": usual[4:]}]}
    assert "gpu[05-08] deviates" in _terminal(evidence(*FLEET, equality=alike))


def test_a_drifted_file_is_told_once_on_the_terminal() -> None:
    bad = node("gpu02", drift=[{"kind": "changed", "path": "lib/x.py"}], drift_count=1)
    odd = {"nodes": ["gpu02"], "root": ROOT, "differs": ["drifted since it was stamped: changed lib/x.py"]}
    made = evidence(FLEET[0], bad, equality={"root": ROOT, "nodes": ["gpu01"], "deviating": [odd]})
    assert _terminal(made).count("lib/x.py") == 1


ONE, OTHER = "ab" * 32, "cd" * 32


def _fleet(*ids: str) -> Evidence:
    image = {"runtime": "podman", "version": "4.3.1", "name": "localhost/x:1", "launcher": "/opt/envbuild/bin/x"}
    return evidence(*(node(f"gpu{at}", image={**image, "id": each}) for at, each in enumerate(ids, 1)))


def test_equal_images_are_one_line_and_a_node_with_another_is_named() -> None:
    for render in (_terminal, render_markdown, render_html):
        assert f"{ONE[:12]} through podman on 3 of 3 nodes" in render(_fleet(ONE, ONE, ONE))
        assert "through podman" not in render(evidence(node("gpu1")))
    shown = _terminal(_fleet(ONE, OTHER, ONE))
    assert "on 2 of 3 nodes" in shown
    assert f"gpu2 has {OTHER[:12]}" in shown


A, B, C = ("a" * 64, "b" * 64, "c" * 64)


FILES = {f"lib/m{number}.py": "file-0123" for number in range(10)}


def _node(name: str, root: str | None = A, **more: Any) -> NodeEvidence:
    python = more.pop("python", "3.11.7")
    check = {"name": "stamp", "status": "passed", "says": "", "details": {"python": python}}
    data = {"node": name, "status": "ok", "exit": 0, "root": root, "packages": {"numpy": "1.26.4", "torch": "2.1"}}
    return NodeEvidence.from_plain({**data, "variant_digest": "d" * 64, "checks": [check], **more})


def _never(_: Sequence[NodeEvidence]) -> dict[str, Mapping[str, str]]:
    pytest.fail("nobody has to be asked where all roots are equal")


def _files(**of: Mapping[str, str]) -> Any:
    asked: list[str] = []

    def ask(nodes: Sequence[NodeEvidence]) -> dict[str, Mapping[str, str]]:
        asked.extend(node.node for node in nodes)
        return {node.node: of.get(node.node, FILES) for node in nodes}

    ask.asked = asked  # type: ignore[attr-defined]
    return ask


def compared(nodes: Sequence[NodeEvidence], ask: Any) -> Equality:
    made = equality_of(nodes, ask)
    assert made is not None
    return made


def test_equal_nodes_have_one_root_nobody_is_asked_and_one_alone_is_compared_with_nothing() -> None:
    found = equality_of([_node("n1"), _node("n2"), _node("n3", None)], _never)
    assert found == Equality(root=A, python="3.11.7", nodes=("n1", "n2"))
    assert equality_of([_node("n1"), _node("n2", None)], _never) is None
    first = compared([_node("n1", C), _node("n2", A)], None)
    assert (first.root, first.deviating[0].nodes) == (C, ("n2",)), "of as many, the first is the usual one"


def test_who_deviates_has_its_packages_and_files_named_and_one_of_each_kind_is_asked() -> None:
    changed = {**FILES, "lib/m3.py": "file-4567", "lib/new.py": "file-89"}
    del changed["lib/m7.py"]
    odd = {"packages": {"numpy": "1.26.3", "torch": "2.1"}}
    ask = _files(n3=changed)
    found = compared([_node("n1"), _node("n2"), _node("n3", B, **odd), _node("n4", B, **odd)], ask)
    assert (found.root, found.nodes) == (A, ("n1", "n2"))
    (deviation,) = found.deviating
    assert (deviation.nodes, deviation.root) == (("n3", "n4"), B)
    assert deviation.differs == (
        "1 of 2 packages differs: numpy 1.26.3, not 1.26.4",
        "3 of 10 files differ: changed lib/m3.py; missing lib/m7.py; extra lib/new.py",
    )
    assert ask.asked == ["n1", "n3"]


def test_the_interpreter_is_named_and_many_files_are_counted() -> None:
    files = dict.fromkeys(FILES, "file-other")
    found = compared([_node("n1"), _node("n2"), _node("n3", B, python="3.11.2")], _files(n3=files))
    assert found.deviating[0].differs == (
        "Python 3.11.2, not 3.11.7",
        "10 of 10 files differ: changed lib/m0.py; changed lib/m1.py; changed lib/m2.py and 7 more",
    )
    unasked = compared([_node("n1"), _node("n2"), _node("n3", B, python="3.11.2")], None)
    assert unasked.deviating[0].differs == ("Python 3.11.2, not 3.11.7",)


def test_another_variant_is_told_as_such_also_where_files_cannot_be_compared() -> None:
    found = compared([_node("n1"), _node("n2"), _node("n3", B, variant_digest="e" * 64)], lambda _: {})
    assert found.deviating[0].differs == ("variant eeeeeeeeeeee, not dddddddddddd", "its files could not be compared")


def test_what_drifted_since_its_stamp_deviates_although_its_root_is_the_usual_one() -> None:
    drift = [{"kind": "changed", "path": "lib/m1.py"}]
    found = compared([_node("n1"), _node("n2", drift=drift, drift_count=5, exit=1, status="failed")], _never)
    assert found.nodes == ("n1",)
    assert found.deviating[0].differs == ("drifted since it was stamped: changed lib/m1.py and 4 more",)


def test_d106_a_root_that_variant_and_interpreter_do_not_explain_fails_with_what_to_do() -> None:
    changed, older = _node("n3", B), _node("n4", C, python="3.11.2")
    other, drifted = _node("n5", C, variant_digest="e" * 64), _node("n6", drift_count=2)
    nodes = [_node("n1"), _node("n2"), changed, older, other, drifted]
    found = equality_of(nodes, None)
    assert found is not None and found.python == "3.11.7"
    assert without_cause(nodes, found) == [changed]
    failed = of_another_root(changed, found.root, ("envbuild", "provision", "x", "--target", "fleet.yaml"))
    assert failed.error is not None
    assert (failed.status, failed.exit, failed.error["code"], failed.error["exit"]) == ("failed", 1, "drift", 1)
    assert "`envbuild provision x --target fleet.yaml --repair` builds it again" in failed.error["hint"]
    unknown = [_node("n1", python=""), _node("n2", python=""), _node("n3", B, python="")]
    assert without_cause(unknown, equality_of(unknown, None)) == [], "nobody knows the interpreters"


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
