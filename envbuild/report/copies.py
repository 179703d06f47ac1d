"""A report copied with everything that belongs to it, so that it can be checked where it goes."""

from __future__ import annotations

from pathlib import Path

from envbuild.report.formats.every import FORMATS
from envbuild.report.recheck.attached import LIMIT
from envbuild.report.recheck.opened import SIGNATURE, open_report, read_attachment
from envbuild.report.render import render_html, render_markdown, write_whole


def copy_report(path: Path, output: Path) -> tuple[list[Path], list[str]]:
    """Evidence, signature and attachments as they are, pages made anew; what was written, and attachments left behind.

    Raises EnvbuildError as `open_report` does, and `report-not-written`.
    """
    report = open_report(path)
    files = {"evidence.json": report.text}
    if report.envelope is not None:
        files[SIGNATURE] = report.envelope
    files["report.html"] = render_html(report.evidence, report.text, report.envelope).encode()
    files["report.md"] = render_markdown(report.evidence).encode()
    files |= {name: render(report.evidence).encode() for name, render in FORMATS.values()}
    left = []
    for item in report.evidence.attachments:
        try:
            data = read_attachment(report.folder, item.path, LIMIT)
        except ValueError:
            data = None
        if data is None:
            left.append(item.path)
        else:
            files[item.path] = data
    write_whole(output, files)
    return [output / name for name in files], left
