"""All checks of one report, in the order in which a reader wants them."""

from __future__ import annotations

from pathlib import Path

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.report.recheck.attached import read_all
from envbuild.report.recheck.contents import check_contents
from envbuild.report.recheck.figures import check_figures
from envbuild.report.recheck.finding import Finding
from envbuild.report.recheck.opened import Opened, open_report
from envbuild.report.recheck.shown import check_pages
from envbuild.report.recheck.signed import check_signature
from envbuild.report.recheck.summary import check_summary


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
