"""JUnit and CycloneDX: valid by somebody else's rules, and harmless whatever the evidence says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from envbuild.model.evidence import Evidence
from envbuild.report.formats import LISTS, render_cyclonedx, render_junit
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
    lost = [(each.error["code"], each.error["what"]) for each in run.nodes if each.error and not each.checks]
    assert [(each.get("type"), each.get("message")) for each in root.findall(".//error")] == lost


@pytest.mark.parametrize("run", [*RUNS, evidence(node(packages={" / ": "1"}))])
def test_the_bill_of_materials_is_valid_and_the_same_each_time(run: Evidence) -> None:
    # JSON Schema, imported late as in tests/support/schemas.py.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = render_cyclonedx(run)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert text == render_cyclonedx(run)


def test_a_bill_of_materials_has_hashes_of_what_is_as_locked_alone() -> None:
    found = {(each["name"], each.get("version")): each for each in json.loads(render_cyclonedx(fleet()))["components"]}
    assert found["sympy", "1.14.0"]["hashes"] == [{"alg": "SHA-256", "content": "05" * 32}]
    assert "hashes" not in found["numpy", "2.4.0"]
    assert found["sympy", "1.14.0"]["purl"] == "pkg:pypi/sympy@1.14.0"
    assert found["apex", "526871a2" * 5]["properties"][0]["name"] == "envbuild:commit"


def test_a_bill_of_materials_has_what_is_known_of_a_base_and_says_that_it_is_not_whole() -> None:
    """An image on NVIDIA's has hundreds of packages that no lock names, and read as if it had none."""
    found = json.loads(render_cyclonedx(evidence(node(base_packages={"numpy": "1.22.2"}))))
    (numpy,) = [each for each in found["components"] if each["properties"][0]["value"] == "of the base"]
    assert (numpy["name"], numpy["version"], "hashes" in numpy) == ("numpy", "1.22.2", False)
    assert found["compositions"] == [
        {"aggregate": "incomplete", "assemblies": [found["metadata"]["component"]["bom-ref"]]}
    ]
    (lists,) = found["metadata"]["properties"]
    assert (lists["name"], lists["value"]) == ("envbuild:lists", LISTS)


@settings(max_examples=20, deadline=None)
@given(st.text(max_size=40))
def test_whatever_a_node_says_the_xml_is_well_formed(text: str) -> None:
    metric = {"name": text, "unit": text, "n": 1, "median": 1.0, "least": 1.0, "greatest": 1.0}
    check = {"name": text, "status": "passed", "says": text, "metrics": [metric]}
    etree.fromstring(render_junit(evidence(node(text, checks=[check]), stack=text)).encode())
