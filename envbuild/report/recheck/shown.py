"""The pages: whether each shows what the evidence holds, by making it again."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild import __version__
from envbuild.errors import EnvbuildError
from envbuild.report import page
from envbuild.report.recheck.finding import Finding, checked, not_checked, problem
from envbuild.report.recheck.opened import Opened
from envbuild.report.render import render_html, render_markdown


def check_pages(report: Opened) -> Iterator[Finding]:
    """What is to be said of `report.html` and `report.md`."""
    if report.html is None and report.markdown is None:
        yield not_checked("page", "there is no page; `envbuild report show` makes one from the evidence")
        return
    if report.html is not None:
        yield from _html(report, report.html)
    if report.markdown is not None and _is_ours(report):
        same = report.markdown == render_markdown(report.evidence)
        yield _said("report.md", same)


def _html(report: Opened, html: str) -> Iterator[Finding]:
    try:
        inside = page.carried(html, report.path)
    except EnvbuildError as error:
        if report.evidence.schema_version == "1.0":
            yield not_checked("page", "report.html is of an envbuild whose pages did not carry their evidence")
        else:
            yield problem(error.code, "page", f"report.html: {error.why}")
        return
    if inside.evidence != page.embeddable(report.text):
        yield problem("report-page-of-another", "page", "report.html carries other evidence than evidence.json")
        return
    if inside.envelope != report.envelope:
        yield problem("report-page-of-another", "page", "report.html carries another signature, or none")
        return
    if not _is_ours(report):
        says = f"envbuild {report.evidence.envbuild} made it, this is {__version__}: it may show the same otherwise"
        yield not_checked("page", says)
        return
    again = render_html(report.evidence, report.text, report.envelope)
    # What it carries packed was compared above, unpacked.
    yield _said("report.html", page.around(html) == page.around(again))


def _is_ours(report: Opened) -> bool:
    return report.evidence.envbuild == __version__


def _said(name: str, same: bool) -> Finding:
    if same:
        return checked("page", f"{name} shows what the evidence holds, byte by byte")
    return problem("report-page-differs", "page", f"{name} is not what envbuild {__version__} makes of its evidence")
