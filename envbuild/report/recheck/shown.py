"""The pages: whether each shows what the evidence holds, by making it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from envbuild import __version__
from envbuild.errors import EnvbuildError
from envbuild.model.evidence import Evidence
from envbuild.report import page
from envbuild.report.formats.every import FORMATS
from envbuild.report.recheck.attached import LIMIT
from envbuild.report.recheck.finding import Finding, checked, not_checked, problem
from envbuild.report.recheck.opened import Opened, read_attachment
from envbuild.report.render import render_html, render_markdown

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
