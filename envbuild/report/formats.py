"""The report for other programs: JUnit XML.

Never looks at a clock, a node or the network: the same run gives the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from envbuild.model.evidence import Check, Evidence, NodeEvidence
from envbuild.report.render import harmless
from envbuild.report.verdict import GOOD, reason
from envbuild.report.view import failures, output

JUNIT = "junit.xml"
"""the file of it, beside the evidence"""


def render_junit(evidence: Evidence) -> str:
    """XML as `docs/schemas/junit.xsd` describes it; a node that is not good without a failed check is an error."""
    safe = harmless(evidence)
    suites = [_suite(safe, node) for node in safe.nodes]
    counts = {key: str(sum(int(suite.get(key, "0")) for suite in suites)) for key in ("tests", "failures", "errors")}
    root = ElementTree.Element("testsuites", {"name": f"{safe.stack} ({safe.profile}) {safe.run}", **counts})
    root.extend(suites)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _suite(evidence: Evidence, node: NodeEvidence) -> ElementTree.Element:
    failed = any(check.status == "failed" for check in node.checks)
    made = suite(evidence.stack, node.node, node.checks, evidence.started)
    if node.status not in GOOD and not failed:
        case = ElementTree.SubElement(made, "testcase", name="node", classname=evidence.stack, time="0.000")
        ElementTree.SubElement(
            case, "error", message=reason(node), type=str((node.error or {}).get("code", node.status))
        )
        made.attrib |= {"tests": str(len(made)), "errors": "1"}
    return made


def suite(stack: str, name: str, checks: Sequence[Check], started: str) -> ElementTree.Element:
    """The checks of one node, or of one image."""
    made = ElementTree.Element(
        "testsuite", name=name, hostname=name, timestamp=started[:19], tests=str(len(checks)),
        failures=str(sum(check.status == "failed" for check in checks)), errors="0",
        skipped=str(sum(check.status in ("skipped", "not-run") for check in checks)),
        time=f"{sum(check.seconds or 0.0 for check in checks):.3f}",
    )  # fmt: skip
    made.extend(_case(stack, check) for check in checks)
    return made


def _case(stack: str, check: Check) -> ElementTree.Element:
    seconds = f"{check.seconds or 0.0:.3f}"
    case = ElementTree.Element("testcase", name=check.name, classname=stack, time=seconds)
    if check.status == "failed":
        failed = ElementTree.SubElement(case, "failure", message=check.says, type="check-failed")
        failed.text = "\n".join([*failures(check), output(check)]).strip() or None
    elif check.status != "passed":
        ElementTree.SubElement(case, "skipped", message=check.says)
    if check.metrics:
        lines = (f"{m.name} = {m.median:g} {m.unit} (n = {m.n}, {m.least:g} to {m.greatest:g})" for m in check.metrics)
        ElementTree.SubElement(case, "system-out").text = "\n".join(lines)
    return case
