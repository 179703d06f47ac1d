"""The report for other programs: JUnit XML, and CycloneDX 1.6 as JSON, the software bill of materials.

Never looks at a clock, a node or the network: the same run gives the same text.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from envbuild.model.evidence import Check, Evidence, NodeEvidence, PackageFile
from envbuild.report.render import harmless
from envbuild.report.sections import pins
from envbuild.report.verdict import GOOD, reason
from envbuild.report.view import failures, output

if TYPE_CHECKING:
    from cyclonedx.model.component import Component
    from packageurl import PackageURL


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


# For people; programs read the composition, which says the same.
LISTS = (
    "packages and sources of the lock, and of a base the Python packages that are known; nothing else of an operating "
    "system or of the image that something is built on"
)
_SPACE = uuid.UUID("6f1c9a0b-72d4-4e5e-8b2e-44d0aa170c0c")


def render_cyclonedx(evidence: Evidence) -> str:
    """JSON with a last newline; serial number and time are the run's, so the same run gives the same bytes."""
    safe = harmless(evidence)
    of = f"{safe.run} {safe.lock_digest}"
    return document((safe.stack, safe.profile), safe.envbuild, of, _moment(safe.finished), _components(safe))


def document(stack: tuple[str, str], version: str, of: str, when: datetime, components: Iterable[Component]) -> str:
    """The text for a stack (name, profile), made by envbuild `version`; `of` and `version` decide its serial number."""
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.output.json import JsonV1Dot6

    top = _component(stack[0], stack[1], "stack", kind="application")
    tool = _component("envbuild", version, "envbuild", kind="application")
    bom = Bom(serial_number=uuid.uuid5(_SPACE, f"envbuild {version} {of}"), version=1)
    bom.metadata = BomMetaData(component=top, timestamp=when)
    bom.metadata.tools.components.add(tool)
    bom.metadata.properties.add(Property(name="envbuild:lists", value=LISTS))
    parts = {str(component.bom_ref.value): component for component in components}
    bom.components.update(parts.values())
    bom.register_dependency(top, parts.values())
    # The library has no word for compositions.
    whole = {**json.loads(JsonV1Dot6(bom).output_as_string()), "compositions": [_INCOMPLETE]}
    return json.dumps(whole, indent=1, sort_keys=True) + "\n"


_INCOMPLETE = {"aggregate": "incomplete", "assemblies": ["stack"]}


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _components(evidence: Evidence) -> Iterator[Component]:
    locked = {(row.name, row.sha256): row for variant in evidence.variants for row in variant.packages}
    for pin in pins(evidence):
        if pin.observed:
            yield package(pin.name, pin.observed.partition(" ")[0], locked.get((pin.name, pin.sha256)), same=pin.same)
    for node in evidence.nodes:
        for name, version in node.base_packages.items():
            yield package(name, version, None, same=None, pin="of the base")
        for row in node.sources:
            yield source(*(str(row.get(key) or "") for key in ("name", "git", "commit", "tree")))


def package(name: str, version: str, row: PackageFile | None, *, same: bool | None, pin: str = "") -> Component:
    """A package by its locked file; `same`: what is there is what the lock names (None: no lock names it).

    `pin`: the text of that property instead.
    """
    from packageurl import PackageURL

    conda = row is not None and row.kind == "conda"
    more = {"subdir": row.subdir or "", "build": row.build or ""} if row is not None and conda else None
    safe = name if name.replace("/", " ").strip() else "unnamed"
    url = PackageURL("conda" if conda else "pypi", name=safe, version=version or None, qualifiers=more)
    # A hash is of the locked file: it is no word about what was found where the version is another.
    sha256 = row.sha256 if row is not None and same else None
    pin = pin or {True: "as locked", False: "not as locked", None: "in no lock"}[same]
    return _component(name, version, str(url), url=url, sha256=sha256, pin=pin)


def image(name: str, digest: str | None) -> Component:
    """The image that something stands on, whose own packages are not listed."""
    return _component(name, None, f"image {name}", kind="container", sha256=digest)


def source(name: str, git: str, commit: str, tree: str) -> Component:
    """A source by its commit and tree."""
    return _component(name or "unnamed", commit, f"source {name} {commit}", git=git, commit=commit, tree=tree)


def _component(
    name: str, version: str | None, reference: str, *, kind: str = "library", url: PackageURL | None = None,
    sha256: str | None = None, **properties: str,
) -> Component:  # fmt: skip
    """What a document has by its `reference`; of `properties`, which are ours, those that are not empty."""
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.component import Component, ComponentType

    return Component(
        name=name, version=version, type=ComponentType(kind), purl=url, bom_ref=reference,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else [],
        properties=[Property(name=f"envbuild:{key}", value=value) for key, value in properties.items() if value],
    )  # fmt: skip


FORMATS: dict[str, tuple[str, Callable[[Evidence], str]]] = {
    "junit": ("junit.xml", render_junit),
    "cyclonedx": ("sbom.cdx.json", render_cyclonedx),
}
