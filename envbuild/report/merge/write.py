"""Writes the merged report of several: its evidence and pages, and every part as it was signed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envbuild import __version__
from envbuild.model.evidence import Attachment, Evidence, attachment
from envbuild.report.merge.evidence import merged, part_of
from envbuild.report.page import SIGNATURE
from envbuild.report.recheck.attached import LIMIT
from envbuild.report.recheck.opened import Opened, read_attachment
from envbuild.report.render import render_json, report_files, write_new
from envbuild.report.sign import require_holding

# What stands for all parts; plan and journal are of one part each, and stay there.
_SHARED = {"lock": "lock.toml", "profile": "profile.json", "variant": "variant-{}.json", "files": "files-{}.json.gz"}


def merge_reports(paths: Sequence[Path], output: Path | None = None) -> tuple[Path, Evidence]:
    """Write the folder `output`, without one `merged-STACK-RUN`; where it is, and the evidence in it.

    Raises EnvbuildError as `merged` and `require_holding` do, `output-exists` (exit 2) and `report-not-written`.
    """
    reports = [require_holding(path) for path in paths]
    made = merged([part_of(report.text, report.evidence) for report in reports], __version__)
    attachments, files = list[Attachment](), dict[str, bytes]()
    for part in made.parts:
        report = next(each for each in reports if each.evidence.run == part.run)
        for item, data in _contents(report, part.run, part.sha256):
            if item.path not in files:
                attachments.append(item)
                files[item.path] = data
    evidence = made.model_copy(update={"attachments": tuple(attachments)})
    text = render_json(evidence).encode()
    output = output or Path(f"merged-{evidence.stack}-{evidence.run}")
    write_new(output, report_files(evidence, text) | files)
    return output, evidence


def _contents(report: Opened, run: str, sha256: str) -> list[tuple[Attachment, bytes]]:
    """The files of a part below `parts/RUN`, and those that stand for all parts."""
    found = [_file("part", f"parts/{run}/evidence.json", report.text, sha256)]
    if report.envelope is not None:
        found.append(_file("part", f"parts/{run}/{SIGNATURE}", report.envelope, sha256))
    for item in report.evidence.attachments:
        data = read_attachment(report.folder, item.path, LIMIT)
        if data is None:
            continue
        # The journal went on after its digest was taken.
        data = data[: item.bytes]
        found.append(_file("part", f"parts/{run}/{item.path}", data, sha256))
        if item.kind in _SHARED:
            found.append(_file(item.kind, f"attachments/{_SHARED[item.kind].format(str(item.of)[:12])}", data, item.of))
    return found


def _file(kind: str, path: str, data: bytes, of: str | None) -> tuple[Attachment, bytes]:
    return attachment(kind, path, data, of), data
