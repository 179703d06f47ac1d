"""A report copied with everything that belongs to it, so that it can be checked where it goes."""

from __future__ import annotations

from pathlib import Path

from envbuild.report.formats.every import FORMATS
from envbuild.report.publish import published
from envbuild.report.recheck.attached import LIMIT
from envbuild.report.recheck.opened import open_report, read_attachment
from envbuild.report.render import render_json, report_files, write_whole


def copy_report(path: Path, output: Path, *, publish: bool = False) -> tuple[list[Path], list[str]]:
    """Evidence, signature and attachments as they are, pages made anew; what was written, and texts of what was left.

    `publish`: only what is public, so without the signature, which is over all of the evidence.
    Raises EnvbuildError as `open_report` does, and `report-not-written`.
    """
    report = open_report(path)
    evidence, text, envelope = report.evidence, report.text, report.envelope
    if publish:
        evidence = published(evidence)
        text, envelope = render_json(evidence).encode(), None
    left = [f"{item.path} is not public" for item in report.evidence.attachments if publish and not item.is_public]
    files = report_files(evidence, text, envelope)
    files |= {name: render(evidence).encode() for name, render in FORMATS.values()}
    for item in evidence.attachments:
        try:
            data = read_attachment(report.folder, item.path, LIMIT)
        except ValueError:
            data = None
        if data is None:
            left.append(f"{item.path} belongs to the report and is not there")
        else:
            files[item.path] = data
    write_whole(output, files)
    return [output / name for name in files], left
