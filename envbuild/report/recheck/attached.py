"""The files beside the evidence: each against its digest, and read as what it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.model import evidence
from envbuild.model.evidence import Attachment
from envbuild.model.lock import Lock, Variant
from envbuild.model.stack import Profile
from envbuild.report import evidence_file
from envbuild.report.recheck.opened import Finding, Opened, checked, not_checked, problem, read_attachment

LIMIT = 64 * 1024 * 1024
_TOPIC = "files"


@dataclass
class Attached:
    """What could be read: `variants` by digest, file lists by the root that they are said to give."""

    lock: Lock | None = None
    profile: dict[str, Any] | None = None
    profile_digest: str = ""
    variants: dict[str, Variant] = field(default_factory=dict)
    lists: dict[str, evidence.Files] = field(default_factory=dict)
    plan: dict[str, Any] | None = None


def read_all(report: Opened) -> tuple[Attached, list[Finding]]:
    """Every attachment that is there and whole, and what is to be said of each and of files that nobody listed."""
    found, findings, missing, good = Attached(), list[Finding](), list[str](), 0
    for item in report.evidence.attachments:
        try:
            data = read_attachment(report.folder, item.path, LIMIT)
        except ValueError as error:
            findings.append(problem("report-file-unsafe", _TOPIC, f"{item.path}: {error}"))
            continue
        if data is None:
            missing.append(item.path)
            continue
        bad = list(_digest(item, data)) or list(_content(found, item, data))
        findings += bad
        good += not bad
    findings += _listing(report)
    if good:
        says = "file beside the evidence has its" if good == 1 else "files beside the evidence have their"
        findings.append(checked(_TOPIC, f"{good} {says} digest"))
    if missing:
        findings.append(not_checked(_TOPIC, f"not beside the report: {', '.join(missing)}"))
    elif not report.evidence.attachments:
        findings.append(not_checked(_TOPIC, "the evidence names no lock, plan or file list that would belong to it"))
    return found, findings


def _digest(item: Attachment, data: bytes) -> Iterator[Finding]:
    if len(data) < item.bytes:
        yield problem("report-file-truncated", _TOPIC, f"{item.path} has {len(data):,} of {item.bytes:,} bytes")
    elif len(data) > item.bytes and item.kind != "journal":
        yield problem(
            "report-file-differs", _TOPIC, f"{item.path} has {len(data):,} bytes, {item.bytes:,} are recorded"
        )
    elif hashlib.sha256(data[: item.bytes]).hexdigest() != item.sha256:
        yield problem("report-file-differs", _TOPIC, f"{item.path} does not have the recorded sha256")


def _content(found: Attached, item: Attachment, data: bytes) -> Iterator[Finding]:
    try:
        _take(found, item, data)
    except EnvbuildError as error:
        yield problem("report-lock-invalid", "lock", f"{error.what}: {error.why}")
    except (ValueError, KeyError, TypeError) as error:
        yield problem("report-file-invalid", _TOPIC, f"{item.path} is no {item.kind}: {str(error).splitlines()[0]}")


def _take(found: Attached, item: Attachment, data: bytes) -> None:
    if item.kind == "lock":
        from envbuild.lock.files import parse_lock

        found.lock = parse_lock(data.decode(), item.path)
    elif item.kind == "profile":
        found.profile, found.profile_digest = dict(evidence_file.parse(data)), item.sha256
        Profile.from_plain(found.profile["contents"])
    elif item.kind == "variant":
        found.variants[str(item.of)] = Variant.from_plain(evidence_file.parse(data))
    elif item.kind == "files":
        found.lists[str(item.of)] = evidence.unpack(data)
    elif item.kind == "plan":
        found.plan = dict(evidence_file.parse(data))


def _listing(report: Opened) -> Iterator[Finding]:
    """Files among the attachments that the evidence does not name."""
    named = {item.path for item in report.evidence.attachments}
    folders = {Path(path).parts[0] for path in named if "/" in path}
    for folder in sorted(folders):
        for file in sorted((report.folder / folder).rglob("*")):
            name = file.relative_to(report.folder).as_posix()
            if name not in named and not file.is_dir():
                yield problem("report-file-unlisted", _TOPIC, f"{name} is there and the evidence does not name it")
