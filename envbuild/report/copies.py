"""A report copied with everything that belongs to it, so that it can be checked where it goes."""

from __future__ import annotations

from pathlib import Path

from envbuild.report.formats.every import FORMATS
from envbuild.report.publish import may_go, published
from envbuild.report.recheck.attached import LIMIT
from envbuild.report.recheck.opened import Opened, open_report, read_attachment
from envbuild.report.render import render_json, report_files, write_whole


def copy_report(path: Path, output: Path, *, publish: bool = False) -> tuple[list[Path], list[str]]:
    """Evidence, signature and attachments as they are, pages made anew; what was written, and texts of what was left.

    `publish`: without the names that envbuild knows, so without the signature, which is over those.
    Raises EnvbuildError as `open_report` does, and `report-not-written`.
    """
    report = open_report(path)
    evidence, text, envelope = report.evidence, report.text, report.envelope
    found, left = _attachments(report, publish=publish)
    if publish:
        whole = published(evidence)
        evidence = whole.model_copy(update={"attachments": tuple(a for a in whole.attachments if a.path in found)})
        text, envelope = render_json(evidence).encode(), None
    files = report_files(evidence, text, envelope)
    files |= {name: render(evidence).encode() for name, render in FORMATS.values()} | found
    write_whole(output, files)
    why = "does not go with it: it may name somebody" if publish else "is not there"
    return [output / name for name in files], [f"{name} belongs to the report and {why}" for name in left]


def _attachments(report: Opened, *, publish: bool) -> tuple[dict[str, bytes], list[str]]:
    found, left = dict[str, bytes](), list[str]()
    for item in report.evidence.attachments:
        try:
            data = read_attachment(report.folder, item.path, LIMIT)
        except ValueError:
            data = None
        if data is None or (publish and not may_go(report.evidence, item, data)):
            left.append(item.path)
        else:
            found[item.path] = data
    return found, left
