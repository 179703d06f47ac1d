"""All checks of one report, in the order in which a reader wants them: signature, run, contents, figures, pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from envbuild import __version__
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.evidence import Evidence
from envbuild.report import evidence_file
from envbuild.report.equality import names
from envbuild.report.formats import FORMATS
from envbuild.report.recheck.contents import Attached, check_contents, read_all
from envbuild.report.recheck.figures import check_figures
from envbuild.report.recheck.opened import (
    Finding,
    Opened,
    checked,
    judged,
    not_checked,
    open_report,
    problem,
    read_attachment,
)
from envbuild.report.render import render_html, render_markdown
from envbuild.report.signature import check, principal
from envbuild.resources import own_commit
from envbuild.text import plural


def check_run(evidence: Evidence, attached: Attached, folder: str, wanted: str | None) -> Iterator[Finding]:
    """All findings about the run; `folder` is the name of the report's folder, `wanted` the run that was asked for."""
    problems = []
    if wanted is not None and evidence.run != wanted:
        problems.append(problem("report-run-differs", "run", f"it is of the run {evidence.run}, not of {wanted}"))
    if Evidence.is_run(folder) and folder != evidence.run:
        says = f"it is of the run {evidence.run} and lies in the folder of {folder}"
        problems.append(problem("report-run-differs", "run", says))
    yield from judged("run", f"the report is of the run {evidence.run}", problems)
    tested = {digest for digest, variant in attached.variants.items() if variant.smoke}
    nodes = [node for node in evidence.nodes if node.variant_digest in tested]
    untried = [node.node for node in nodes if not any(check.name.startswith("smoke/") for check in node.checks)]
    if untried:
        yield not_checked("checks", f"no smoke test ran on {names(untried)}, and the lock has one")
    if any(node.facts or node.checks for node in evidence.nodes):
        yield not_checked("nodes", "what the nodes report about hardware and system, and the texts of checks")
    if logs := sum(node.log is not None for node in evidence.nodes):
        yield not_checked("logs", f"those of {plural(logs, 'node')} are in the report; their sha256 is in the evidence")


_TOPIC = "signature"


def check_signature(report: Opened, signers: Path | None) -> Iterator[Finding]:
    """What is to be said of the signature; `signers` as ssh-keygen's allowed_signers has them."""
    signature = report.signature
    if signature is None:
        if signers is not None:
            yield problem("report-unsigned", _TOPIC, "the report is not signed")
        else:
            yield not_checked(_TOPIC, "there is none: anyone who can write these files could have invented them")
        return
    key = check(report.text, signature)
    if key is None:
        yield problem("report-signature-invalid", _TOPIC, "it does not verify for this evidence")
    elif signers is None:
        yield checked(_TOPIC, f"the key {key} signed exactly this evidence")
        yield not_checked(_TOPIC, "who owns the key; `--signers FILE` names the people that you trust")
    elif (name := principal(report.text, signature, signers)) is None:
        yield problem("report-signer-unknown", _TOPIC, f"{signers.name} does not have the key {key} for this")
    else:
        yield checked(_TOPIC, f"{name} signed exactly this evidence, with the key {key}")


_TABLES: dict[str, Callable[[Evidence], str]] = {"report.md": render_markdown, **dict(FORMATS.values())}


def other_build(version: str, commit: str) -> str:
    """That another build of envbuild made a text, which this one renders differently; empty if it was this build."""
    maker, own = (
        f"envbuild {name} (commit {known[:12] or 'unknown'})"
        for name, known in ((version, commit), (__version__, own_commit()))
    )
    return "" if maker == own else f"{maker} made it; {own} renders it differently"


def check_pages(report: Opened, maker: tuple[str, str]) -> Iterator[Finding]:
    """What is to be said of the page and of what lies beside it; `maker`: version and commit of their envbuild."""
    alone = report.path.suffix == ".html"
    for name, page in (("report.html", report.html), ("report.md", report.markdown)):
        if page is None and not alone:
            yield not_checked("page", f"{name} is not here; `envbuild report show` makes it from the evidence")
    if report.html is not None:
        yield from _html(report, report.html, maker)
    # Beside a page that was mailed alone lies what has nothing to do with it.
    for name, render in _TABLES.items() if not alone else ():
        try:
            data = read_attachment(report.folder, name)
        except ValueError as error:
            yield problem("report-file-unsafe", "page", f"{name}: {error}")
            continue
        if data is not None:
            yield _page_finding(name, data == render(report.evidence).encode(), maker)


def _html(report: Opened, html: str, maker: tuple[str, str]) -> Iterator[Finding]:
    try:
        evidence, signature = evidence_file.carried(html, report.path)
    except EnvbuildError as error:
        yield problem(error.code, "page", f"report.html: {error.why}")
        return
    if evidence != evidence_file.embeddable(report.text):
        yield problem("report-page-of-another", "page", "report.html carries other evidence than evidence.json")
        return
    if signature != report.signature:
        yield problem("report-page-of-another", "page", "report.html carries another signature, or none")
        return
    again = render_html(report.evidence, report.text, report.signature)
    # What it carries packed was compared above, unpacked.
    yield _page_finding("report.html", evidence_file.around(html) == evidence_file.around(again), maker)


def _page_finding(name: str, same: bool, maker: tuple[str, str]) -> Finding:
    if same:
        return checked("page", f"{name} shows what the evidence holds, byte by byte")
    if says := other_build(*maker):
        return not_checked("page", f"{name}: {says}. Trust nothing that only this file says")
    return problem(
        "report-page-differs", "page", f"{name} is not what envbuild {__version__} renders from its evidence"
    )


def verify_report(
    path: Path, *, run: str | None = None, signers: Path | None = None, maker: tuple[str, str] | None = None
) -> tuple[Opened, list[Finding]]:
    """Open a report and check it; `run` is the run that it has to be of, `signers` an allowed_signers of ssh-keygen.

    `maker`: version and commit of the envbuild that made its pages, where that is not the one of the run.

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
    attached, more = read_all(report)
    findings += more
    findings += check_run(evidence, attached, report.folder.resolve().name, run)
    findings += check_contents(evidence, attached)
    findings += check_figures(evidence)
    findings += check_pages(report, maker or (evidence.envbuild, evidence.tools.get("envbuild-commit", own_commit())))
    return report, findings
