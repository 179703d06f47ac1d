"""All checks of one report, in the order in which a reader wants them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from envbuild import __version__
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.evidence import Evidence
from envbuild.report import page, ssh_signature
from envbuild.report.formats.every import FORMATS
from envbuild.report.recheck.attached import LIMIT, read_all
from envbuild.report.recheck.contents import check_contents
from envbuild.report.recheck.figures import check_figures
from envbuild.report.recheck.opened import Finding, Opened, checked, not_checked, open_report, problem, read_attachment
from envbuild.report.recheck.summary import check_summary
from envbuild.report.render import render_html, render_markdown
from envbuild.report.statement import pae, statement, subject_digest, unseal

_TOPIC = "signature"


def check_signature(report: Opened, signers: Path | None) -> Iterator[Finding]:
    """What is to be said of the signature; `signers` as ssh-keygen's allowed_signers has them."""
    if report.envelope is None:
        if signers is not None:
            yield problem("report-unsigned", _TOPIC, "the report is not signed")
        else:
            yield not_checked(_TOPIC, "there is none: whoever can write these files can make all of them up")
        return
    try:
        payload, key, signature = unseal(report.envelope)
        subject = subject_digest(payload)
    except ValueError as error:
        yield problem("report-envelope-invalid", _TOPIC, str(error))
        return
    found, same = ssh_signature.check(pae(payload), signature), payload == statement(report.text, report.evidence)
    if found is None or found.key != key:
        yield problem("report-signature-invalid", _TOPIC, "it is not right for what it is said to sign")
    elif subject != hashlib.sha256(report.text).hexdigest():
        yield problem("report-signature-of-another", _TOPIC, "it is right, and is over the evidence of another report")
    elif not same and report.evidence.envbuild == __version__:
        yield problem("report-statement-differs", _TOPIC, "the statement does not say what the evidence does")
    else:
        yield from _who(pae(payload), signature, key, signers)
        if not same:
            says = f"envbuild {report.evidence.envbuild} made it, and this is {__version__}, which does not make it so"
            yield not_checked(_TOPIC, f"what its statement says: {says}")


def _who(data: bytes, signature: str, key: str, signers: Path | None) -> Iterator[Finding]:
    if signers is None:
        yield checked(_TOPIC, f"the key {key} signed exactly this evidence")
        yield not_checked(_TOPIC, "whose key that is: `--signers` names a file of those that you trust")
        return
    name = ssh_signature.principal(data, signature, signers)
    if name is None:
        yield problem("report-signer-unknown", _TOPIC, f"{signers.name} does not have the key {key} for this")
    else:
        yield checked(_TOPIC, f"{name} signed exactly this evidence, with the key {key}")


_TABLES: dict[str, Callable[[Evidence], str]] = {"report.md": render_markdown, **dict(FORMATS.values())}


def check_pages(report: Opened, maker: str) -> Iterator[Finding]:
    """What is to be said of the page and of what lies beside it; `maker`: the version of envbuild that made them."""
    if report.html is None and report.markdown is None:
        yield not_checked("page", "there is no page; `envbuild report show` makes one from the evidence")
    if report.html is not None:
        yield from _html(report, report.html, maker)
    # Beside a page that was mailed alone lies what has nothing to do with it.
    for name, render in _TABLES.items() if report.path.suffix != ".html" else ():
        try:
            data = read_attachment(report.folder, name, LIMIT)
        except ValueError as error:
            yield problem("report-file-unsafe", "page", f"{name}: {error}")
            continue
        if data is not None:
            yield _said(name, data == render(report.evidence).encode(), maker)


def _html(report: Opened, html: str, maker: str) -> Iterator[Finding]:
    try:
        inside = page.carried(html, report.path)
    except EnvbuildError as error:
        yield problem(error.code, "page", f"report.html: {error.why}")
        return
    if inside.evidence != page.embeddable(report.text):
        yield problem("report-page-of-another", "page", "report.html carries other evidence than evidence.json")
        return
    if inside.envelope != report.envelope:
        yield problem("report-page-of-another", "page", "report.html carries another signature, or none")
        return
    again = render_html(report.evidence, report.text, report.envelope)
    # What it carries packed was compared above, unpacked.
    yield _said("report.html", page.around(html) == page.around(again), maker)


def _said(name: str, same: bool, maker: str) -> Finding:
    if same:
        return checked("page", f"{name} shows what the evidence holds, byte by byte")
    if maker != __version__:
        says = f"envbuild {maker} made it, and this is {__version__}, which does not make it so"
        return not_checked("page", f"{name}: {says}: believe nothing that stands there alone")
    return problem("report-page-differs", "page", f"{name} is not what envbuild {__version__} makes of its evidence")


def verify_report(
    path: Path, *, run: str | None = None, signers: Path | None = None, maker: str = ""
) -> tuple[Opened, list[Finding]]:
    """Open a report and check it; `run` is the run that it has to be of, `signers` an allowed_signers of ssh-keygen.

    `maker`: the version of envbuild that made its pages, where that is not the one of the run.

    Raises EnvbuildError as `open_report` does, but with exit 5 where there is something at `path`;
    `file-unreadable` (2), `ssh-keygen-missing` (7).
    """
    try:
        report = open_report(path)
    except EnvbuildError as error:
        if path.exists():
            error.exit_code = ExitCode.INTEGRITY
        raise
    evidence = report.evidence
    findings = list(check_signature(report, signers))
    attached, found = read_all(report)
    findings += found
    findings += check_summary(evidence, attached, report.folder.resolve().name, run)
    findings += check_contents(evidence, attached)
    findings += check_figures(evidence)
    findings += check_pages(report, maker or evidence.envbuild)
    return report, findings
