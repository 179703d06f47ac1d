"""JUnit: valid by somebody else's rules, and harmless whatever the evidence says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from envbuild.cli.report_cmd import report
from envbuild.model.evidence import Evidence
from envbuild.report.formats import render_junit
from tests.report.samples import evidence, fleet, node
from tests.report.test_render import failing_fleet, hostile

XSD = Path(__file__).parents[2] / "docs" / "schemas" / "junit.xsd"
JENKINS = Path(__file__).with_name("junit-jenkins.xsd")
RUNS = [evidence(), fleet(), failing_fleet(), hostile()]


@pytest.mark.parametrize("run", RUNS)
def test_junit_is_valid_and_counts_what_failed(run: Evidence) -> None:
    root = etree.fromstring(render_junit(run).encode())
    for schema in (XSD, JENKINS):
        etree.XMLSchema(etree.parse(str(schema))).assertValid(root)
    failed = sum(check.status == "failed" for each in run.nodes for check in each.checks)
    assert int(root.get("failures")) == failed == len(root.findall(".//failure"))
    assert int(root.get("tests")) == len(root.findall(".//testcase"))


def test_a_node_that_was_lost_is_an_error_of_its_own() -> None:
    root = etree.fromstring(render_junit(failing_fleet()).encode())
    [error] = root.findall(".//error")
    assert (error.get("type"), error.get("message")) == ("wheel-hash-mismatch", "numpy has another hash")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_whatever_a_node_says_the_xml_is_well_formed(text: str) -> None:
    metric = {"name": text, "unit": text, "n": 1, "median": 1.0, "least": 1.0, "greatest": 1.0}
    check = {"name": text, "status": "passed", "says": text, "metrics": [metric]}
    etree.fromstring(render_junit(evidence(node(text, checks=[check]), stack=text)).encode())


def test_it_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "evidence.json").write_text(json.dumps(evidence().to_json_dict()))
    report.main(["show", str(tmp_path), "--format", "junit"], standalone_mode=False)
    assert capsys.readouterr().out.startswith("<testsuites")
