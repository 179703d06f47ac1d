"""A report for others: signed, and copied whole or only the fields that the schema of evidence marks as public.

A node has a label (`node-1`, by its place in the evidence) instead of its name. A text that the schema demands and does
not mark reads `not published`, and so does a text that is none of the fixed ones that its mark names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from envbuild.errors import EnvbuildError
from envbuild.model.common import LEFT_OUT
from envbuild.model.evidence import Evidence
from envbuild.node.redact import redact_data
from envbuild.report import evidence_file
from envbuild.report.formats import FORMATS
from envbuild.report.recheck.opened import Opened, open_report, read_attachment
from envbuild.report.recheck.verify import verify_report
from envbuild.report.render import render_json, report_files, write_whole
from envbuild.report.signature import check, sign

NOT_PUBLIC = "is left out: it may name your hosts and folders"


def require_holding(path: Path, *, remade: tuple[str, ...] = ("page",)) -> Opened:
    """The report, where it holds but for what the caller makes anew: findings about the topics `remade`.

    Raises EnvbuildError `report-not-holding` (exit 5), and what `verify_report` raises.
    """
    report, findings = verify_report(path)
    problems = [finding for finding in findings if finding.kind == "problem" and finding.topic not in remade]
    if problems:
        raise EnvbuildError(
            "report-not-holding",
            f"the report at {path} fails its check",
            why="; ".join(f"{problem.code}: {problem.says}" for problem in problems),
            hint="`envbuild report verify` lists every problem",
        )
    return report


def sign_report(folder: Path, key: Path) -> Path:
    """Write the signature into the folder of a report, and the page anew, which carries it; the signature's path.

    An earlier signature is replaced. Raises EnvbuildError `report-not-signed`, and what `require_holding` raises.
    """
    report = require_holding(folder, remade=("page", "signature"))
    # Evidence of an early envbuild may hold signs that could end its element in the page.
    text = evidence_file.embeddable(report.text)
    signature = sign(text, key)
    if check(text, signature) is None:
        raise EnvbuildError(
            "report-not-signed", f"{key} made a signature that does not verify", why="see `ssh-keygen -Y`"
        )
    write_whole(folder, report_files(report.evidence, text, signature))
    return folder / evidence_file.SIGNATURE


def published(evidence: Evidence) -> Evidence:
    """The public part of the evidence; published evidence stays the same."""
    kept = tuple(item for item in evidence.attachments if item.is_public)
    labels = {node.node: f"node-{number}" for number, node in enumerate(evidence.nodes, 1)}
    public = public_fields(evidence.model_copy(update={"attachments": kept}), labels)
    return Evidence.from_plain(redact_data(public))


def public_fields(model: BaseModel, labels: Mapping[str, str]) -> dict[str, Any]:
    """The marked fields of a model as plain data; `labels`: of each node, by its name."""
    plain = dict[str, Any]()
    for name, field in type(model).model_fields.items():
        extra = field.json_schema_extra
        mark = extra.get("public") if isinstance(extra, dict) else None
        if mark is not None:
            plain[name] = _public(getattr(model, name), mark, labels)
        elif field.is_required():
            plain[name] = LEFT_OUT
    return {name: value for name, value in plain.items() if value is not None}


def _public(value: Any, mark: Any, labels: Mapping[str, str]) -> Any:
    if isinstance(value, BaseModel):
        return public_fields(value, labels)
    if isinstance(value, list | tuple):
        return [_public(item, mark, labels) for item in value]
    if mark == "node":
        return None if value is None else labels.get(value, LEFT_OUT)
    if isinstance(mark, list):
        return _keys(value, mark)
    if isinstance(mark, dict):
        return value if re.fullmatch(mark["pattern"], value) else LEFT_OUT
    return value


def _keys(value: Any, keys: Iterable[str]) -> Any:
    """The listed keys of free-form data."""
    if isinstance(value, list | tuple):
        return [_keys(item, keys) for item in value]
    if not isinstance(value, dict):
        return None
    kept = dict[str, Any]()
    for key, item in value.items():
        below = [rest for first, _, rest in (pattern.partition(".") for pattern in keys) if fnmatchcase(key, first)]
        if "" in below:
            kept[key] = item
        elif below:
            kept[key] = _keys(item, below)
    return kept


def copy_report(
    path: Path, output: Path, *, publish: bool = False, beside: Collection[str] = ()
) -> tuple[list[Path], list[str]]:
    """Evidence, signature and attachments as they are, pages made anew; what was written, and texts of what was left.

    `publish`: only what is public, so without the signature, which is over all of the evidence. `beside`: kinds of
    attachments that the caller has put beside the report.
    Raises EnvbuildError as `open_report` does, and `output-unwritable`.
    """
    report = open_report(path)
    evidence, text, signature = report.evidence, report.text, report.signature
    if publish:
        evidence = published(evidence)
        text, signature = render_json(evidence).encode(), None
    private = [item for item in report.evidence.attachments if publish and not item.is_public]
    held = [item.path for item in private if item.kind not in beside]
    left = [f"{path} {NOT_PUBLIC}" for path in held]
    files = report_files(evidence, text, signature)
    files |= {name: render(evidence).encode() for name, render in FORMATS.values()}
    for item in evidence.attachments:
        try:
            data = read_attachment(report.folder, item.path)
        except ValueError:
            data = None
        if data is None:
            left.append(f"{item.path} is missing from the report")
        else:
            files[item.path] = data
    write_whole(output, files)
    return [output / name for name in files], left
