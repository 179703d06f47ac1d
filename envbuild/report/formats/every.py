"""Formats by the name that `report show --format` takes: the file that it is called in a folder, and its renderer."""

from __future__ import annotations

from collections.abc import Callable

from envbuild.model.evidence import Evidence
from envbuild.report.formats.cyclonedx import render_cyclonedx
from envbuild.report.formats.junit import render_junit

FORMATS: dict[str, tuple[str, Callable[[Evidence], str]]] = {
    "junit": ("junit.xml", render_junit),
    "cyclonedx": ("sbom.cdx.json", render_cyclonedx),
}
