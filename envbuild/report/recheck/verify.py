"""All checks of one report, in the order in which a reader wants them."""

from __future__ import annotations

from pathlib import Path

from envbuild.report.recheck.attached import read_all
from envbuild.report.recheck.checks import check_checks
from envbuild.report.recheck.contents import check_contents
from envbuild.report.recheck.course import check_course
from envbuild.report.recheck.finding import Finding
from envbuild.report.recheck.opened import Opened, open_report
from envbuild.report.recheck.shown import check_pages


def verify_report(path: Path, *, run: str | None = None) -> tuple[Opened, list[Finding]]:
    """Open a report and check it; `run` is the run that it has to be of. Raises EnvbuildError as `open_report` does."""
    report = open_report(path)
    attached, findings = read_all(report)
    evidence = report.evidence
    findings += check_course(evidence, attached, report.folder.resolve().name, run)
    findings += check_contents(evidence, attached)
    findings += check_checks(evidence, attached)
    findings += check_pages(report)
    return report, findings
