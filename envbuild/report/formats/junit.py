"""JUnit XML: a suite for each node, a case for each check."""

from __future__ import annotations

from xml.etree import ElementTree

from envbuild.model.evidence import Check, Evidence, NodeEvidence
from envbuild.report.render import harmless
from envbuild.report.verdict import GOOD, reason
from envbuild.report.view import failures, output


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
    cases = [_case(evidence, check) for check in node.checks]
    failed = sum(check.status == "failed" for check in node.checks)
    lost = node.status not in GOOD and not failed
    if lost:
        case = ElementTree.Element("testcase", name="node", classname=evidence.stack, time="0.000")
        ElementTree.SubElement(
            case, "error", message=reason(node), type=str((node.error or {}).get("code", node.status))
        )
        cases.append(case)
    suite = ElementTree.Element(
        "testsuite", name=node.node, hostname=node.node, timestamp=evidence.started[:19], tests=str(len(cases)),
        failures=str(failed), errors=str(int(lost)),
        skipped=str(sum(check.status in ("skipped", "not-run") for check in node.checks)),
        time=f"{sum(check.seconds or 0.0 for check in node.checks):.3f}",
    )  # fmt: skip
    suite.extend(cases)
    return suite


def _case(evidence: Evidence, check: Check) -> ElementTree.Element:
    seconds = f"{check.seconds or 0.0:.3f}"
    case = ElementTree.Element("testcase", name=check.name, classname=evidence.stack, time=seconds)
    if check.status == "failed":
        failed = ElementTree.SubElement(case, "failure", message=check.says, type="check-failed")
        failed.text = "\n".join([*failures(check), output(check)]).strip() or None
    elif check.status != "passed":
        ElementTree.SubElement(case, "skipped", message=check.says)
    if check.metrics:
        lines = (f"{m.name} = {m.median:g} {m.unit} (n = {m.n}, {m.least:g} to {m.greatest:g})" for m in check.metrics)
        ElementTree.SubElement(case, "system-out").text = "\n".join(lines)
    return case
