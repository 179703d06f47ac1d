"""A report as it lies on a disk: a run directory, its `evidence.json`, or a page that carries the evidence inside."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from envbuild.model.evidence import Evidence
from envbuild.regular_file import LARGEST, read_file
from envbuild.report import evidence_file
from envbuild.report.evidence_file import read_bytes, read_evidence
from envbuild.report.verdict import make_verdict
from envbuild.text import plural, visible

Kind = Literal["checked", "problem", "not-checked"]


@dataclass(frozen=True)
class Finding:
    """`kind`: it holds, it does not (`code` says how), or it was not checked. `topic`: what it is about."""

    kind: Kind
    topic: str
    says: str
    code: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        code = {"code": self.code} if self.code else {}
        return {"kind": self.kind, "topic": self.topic, **code, "says": self.says}


def checked(topic: str, says: str) -> Finding:
    """A statement that was checked and holds."""
    return Finding("checked", topic, says)


def problem(code: str, topic: str, says: str) -> Finding:
    """A statement that does not hold."""
    return Finding("problem", topic, says, code)


def not_checked(topic: str, says: str) -> Finding:
    """A statement that could not be checked."""
    return Finding("not-checked", topic, says)


def judged(topic: str, good: str, problems: Iterable[Finding]) -> list[Finding]:
    """The problems, or, without any, one finding that all is `good`."""
    return list(problems) or [checked(topic, good)]


@dataclass(frozen=True)
class Opened:
    """`text` is the evidence as bytes, `folder` where its attachments would lie; `html` and `markdown` the pages."""

    path: Path
    folder: Path
    text: bytes
    evidence: Evidence
    signature: bytes | None = None
    html: str | None = None
    markdown: str | None = None


def open_report(path: Path) -> Opened:
    """Read a report. Raises EnvbuildError `report-page-invalid` (exit 5) and what `read_evidence` raises (exit 2)."""
    folder, file = (path, path / "evidence.json") if path.is_dir() else (path.parent, path)
    data = read_bytes(file)
    if file == path and data.lstrip()[:1] == b"<":
        page = _text(path, data)
        evidence, signature = evidence_file.carried(page, path)
        return Opened(path, folder, evidence, read_evidence(evidence, path), signature, page)
    read = read_evidence(data, file)
    html, markdown = _page(folder / "report.html"), _page(folder / "report.md")
    return Opened(file, folder, data, read, _beside(folder / evidence_file.SIGNATURE), html, markdown)


def _beside(path: Path) -> bytes | None:
    return read_bytes(path) if os.path.lexists(path) else None


def _page(path: Path) -> str | None:
    data = _beside(path)
    return None if data is None else _text(path, data)


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise evidence_file.page_invalid(path, f"it is not UTF-8: byte {error.start}") from error


def read_attachment(folder: Path, name: str, limit: int = LARGEST) -> bytes | None:
    """A regular file below `folder`, not through a link; None where there is none. Raises ValueError with why not."""
    path = folder / name
    if not os.path.lexists(path):
        return None
    if path.parent.resolve() != (folder.resolve() / name).parent:
        raise ValueError("a link leads out of the folder")
    try:
        return read_file(path, limit, follow=False)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error


_KINDS: tuple[tuple[Kind, str, str, str], ...] = (
    ("problem", "Does not hold", "✗", "bold red"),
    ("checked", "Checked", "✓", "green"),
    ("not-checked", "Not checked", "○", "yellow"),
)


def as_dict(report: Opened, findings: Sequence[Finding]) -> dict[str, Any]:
    """For `--json`: `ok`, the run, and the findings; `error` is the first problem."""
    problems = [finding for finding in findings if finding.kind == "problem"]
    first = {"error": {"code": problems[0].code, "what": problems[0].says, "exit": 5}} if problems else {}
    run = {"run": report.evidence.run, "stack": report.evidence.stack}
    return {"ok": not problems, **first, **run, "findings": [finding.as_dict() for finding in findings]}


def lines(report: Opened, findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Lines of (text, style)."""
    problems = [finding for finding in findings if finding.kind == "problem"]
    open_ = sum(finding.kind == "not-checked" for finding in findings)
    name = visible(f"{report.evidence.stack}, run {report.evidence.run}")
    sure = f"{plural(open_, 'thing')} could not be checked" if open_ else "everything was checked"
    if problems:
        count = f"{plural(len(problems), 'statement')} of this report do{'es' * (len(problems) == 1)} not hold"
        says, style = f"✗ {name}: {count}; {sure}", "bold red"
    else:
        says, style = f"✓ {name}: what could be checked holds; {sure}", "bold green"
    if report.evidence.exit:
        failed = visible(make_verdict(report.evidence).sentence)
        says += f". The run itself failed (exit {report.evidence.exit}): {failed}"
        style = style.replace("green", "yellow")
    out = [(says, style)]
    for kind, title, mark, colour in _KINDS:
        rows = [finding for finding in findings if finding.kind == kind]
        out += [("", ""), (title, "bold")] if rows else []
        for row in rows:
            text = visible(f"{row.code}: {row.says}" if row.code else row.says)
            out.append((f"  {mark} {row.topic:10}  {text}", colour))
    if problems:
        hint = f"hint: `envbuild help {problems[0].code}` explains it; ask the authors for a new copy"
        out += [("", ""), (hint, "cyan")]
    return out
