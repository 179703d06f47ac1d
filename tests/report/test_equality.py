"""Fleet equality in every form of the report."""

from __future__ import annotations

from envbuild.report.render import render_html, render_json, render_markdown
from envbuild.report.terminal import summary_lines
from tests.report.samples import ROOT, evidence, node

FLEET = [node(f"gpu{number:02}") for number in range(1, 9)]
ODD = {"nodes": ["gpu07"], "root": "cc" * 32, "differs": ["Python 3.11.2, not 3.11.7", "1 of 9 files differs: <b>x"]}


def _text(lines: list[tuple[str, str]]) -> str:
    return "\n".join(text for text, _ in lines)


def test_eight_equal_nodes_are_one_line() -> None:
    made = evidence(*FLEET, equality={"root": ROOT, "nodes": [each["node"] for each in FLEET]})
    said = f"8 nodes, one root {ROOT[:12]} (measured)"
    assert said in _text(summary_lines(made))
    for page in (render_markdown(made), render_html(made)):
        assert said in page
        assert "Deviating" not in page
    assert '"equality"' in render_json(made)


def test_d31_one_root_says_on_how_many_nodes_it_was_measured() -> None:
    equality = {"root": ROOT, "nodes": [each["node"] for each in FLEET]}
    stamped = [{**each, "root_level": "stamped"} for each in FLEET]
    made = evidence(*stamped, equality=equality)
    assert f"8 nodes, one root {ROOT[:12]} (stamped)" in _text(summary_lines(made))
    made = evidence(FLEET[0], *stamped[1:], equality=equality)
    assert f"8 nodes, one root {ROOT[:12]} (measured on 1)" in _text(summary_lines(made))


def test_a_node_that_deviates_is_named_with_what_differs() -> None:
    usual = [each["node"] for each in FLEET if each["node"] != "gpu07"]
    made = evidence(*FLEET, equality={"root": ROOT, "nodes": usual, "deviating": [ODD]})
    shown = _text(summary_lines(made))
    assert f"7 of 8 nodes have the root {ROOT[:12]}; 1 deviates (measured)" in shown
    assert f"! gpu07 deviates: root {'cc' * 6}\n    Python 3.11.2, not 3.11.7\n    1 of 9 files differs" in shown
    for page in (render_markdown(made), render_html(made)):
        assert "Deviating nodes" in page
        assert "&lt;b&gt;x" in page
        assert "<b>x" not in page


def test_nodes_that_deviate_alike_are_folded() -> None:
    odd = {**ODD, "nodes": ["gpu05", "gpu06", "gpu07", "gpu08"]}
    made = evidence(*FLEET, equality={"root": ROOT, "nodes": ["gpu01", "gpu02", "gpu03", "gpu04"], "deviating": [odd]})
    assert "gpu[05-08] deviates" in _text(summary_lines(made))


def test_a_drifted_file_is_told_once_on_the_terminal() -> None:
    bad = node("gpu02", drift=[{"kind": "changed", "path": "lib/x.py"}], drift_count=1)
    odd = {"nodes": ["gpu02"], "root": ROOT, "differs": ["drifted since it was stamped: changed lib/x.py"]}
    made = evidence(FLEET[0], bad, equality={"root": ROOT, "nodes": ["gpu01"], "deviating": [odd]})
    assert _text(summary_lines(made)).count("lib/x.py") == 1


def test_what_failed_stands_before_what_was_not_begun_for_it() -> None:
    left = {"code": "not-begun", "what": "gpu01: not started, because too many nodes failed", "exit": 75}
    broken = {"code": "disk-full", "what": "gpu02: no room", "exit": 75}
    nodes = [
        node("gpu01", status="not-begun", exit=75, error=left, root=None, checks=[]),
        node("gpu02", status="failed", exit=75, error=broken, root=None, checks=[]),
        node("gpu03"),
    ]
    shown = _text(summary_lines(evidence(*nodes, exit=8)))
    assert "not ready on 2 of 3 nodes: gpu02: no room" in shown.replace("\n  ", " ")
    assert shown.index("✗ gpu02") < shown.index("○ gpu01") < shown.index("✓ gpu03")
