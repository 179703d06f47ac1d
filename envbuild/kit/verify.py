"""A kit checked by somebody who trusts nobody: its files, the report in it, and whether they belong together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from envbuild import __version__
from envbuild.catalog.loader import list_stacks, load_stack
from envbuild.errors import EnvbuildError
from envbuild.kit.manifest import ANNOTATED, LARGEST, NAME, REPORT, Manifest
from envbuild.kit.read import check_files, opened, read_manifest
from envbuild.kit.texts import SOURCES, TEXTS, Contents, is_stack_of, lock_name, stack_name, texts
from envbuild.lock.files import parse_lock
from envbuild.model.evidence import Evidence
from envbuild.model.lock import Lock
from envbuild.report.formats.every import FORMATS
from envbuild.report.page import SIGNATURE
from envbuild.report.publish import is_published
from envbuild.report.recheck.finding import Finding, checked, judged, not_checked, problem
from envbuild.report.recheck.opened import Opened, read_attachment
from envbuild.report.recheck.verify import verify_report


def verify_kit(path: Path, *, run: str | None = None, signers: Path | None = None) -> tuple[Opened, list[Finding]]:
    """Check a kit, a folder or a tar file; then as `verify_report` does for the report in it.

    Raises EnvbuildError with exit 5: `kit-missing`, `kit-invalid`, `kit-version`, `kit-unsafe`, `kit-too-large`, and
    what `verify_report` raises.
    """
    with opened(path) as (folder, there):
        manifest = read_manifest(folder)
        findings = list(check_files(folder, there, manifest))
        report, found = verify_report(folder / REPORT, run=run, signers=signers, maker=manifest.envbuild)
        findings += _unknown(manifest, report)
        findings += _together(folder, manifest, report)
        return report, [*findings, *found]


def _unknown(manifest: Manifest, report: Opened) -> Iterator[Finding]:
    """Files that `kit.json`, which no signature covers, lists and no kit of this report has."""
    inside = {"evidence.json", SIGNATURE, "report.html", "report.md", *(name for name, _ in FORMATS.values())}
    inside |= {item.path for item in report.evidence.attachments}
    known = {
        *TEXTS,
        ANNOTATED,
        lock_name(report.evidence),
        stack_name(report.evidence),
        *(f"{REPORT}/{name}" for name in inside),
    }
    for file in manifest.files:
        if file.path not in known:
            yield problem("kit-file-unlisted", "kit", f"{file.path} belongs to no kit of this report")


def _together(folder: Path, manifest: Manifest, report: Opened) -> Iterator[Finding]:
    name = lock_name(report.evidence)
    data = read_attachment(folder, name, LARGEST) if "/" not in name else None
    if data is None:
        yield problem("kit-file-missing", "kit", f"{name}, the lock of the report, is not there")
        return
    item = next((each for each in report.evidence.attachments if each.kind == "lock"), None)
    same = item is not None and data == read_attachment(report.folder, item.path, LARGEST)
    bad = [] if same else [problem("kit-lock-differs", "kit", f"{name} is not the lock of the report")]
    yield from judged("kit", f"{name} is the lock of the report", bad)
    if same:
        try:
            lock = parse_lock(data.decode(errors="replace"), name)
        except EnvbuildError as error:
            yield problem("report-lock-invalid", "kit", f"{name}: {error.what}: {error.why}")
        else:
            yield from _stack(folder, report.evidence, lock)
            own = stack_name(report.evidence) if (folder / stack_name(report.evidence)).is_file() else ""
            yield from _texts(folder, Contents(manifest, report.evidence, lock, report.envelope is not None, own))
    yield from _document(folder, manifest)
    if manifest.form == "published":
        yield _form(report)
        yield not_checked("kit", "whether other names are in it: a stack, repository or package may tell whose it is")


def _form(report: Opened) -> Finding:
    """Whether the report may be a published one, as `kit.json` says, which no signature covers."""
    if is_published(report.evidence):
        return checked("kit", "hosts, users and places of the nodes are pseudonyms, as in a published report")
    says = "hosts, users, places or files stand in the report that a published one does not have: do not pass it on"
    return problem("kit-form-differs", "kit", f"{NAME} calls it published: {says}")


def _stack(folder: Path, evidence: Evidence, lock: Lock) -> Iterator[Finding]:
    """The file of a stack of the authors' own, which is what the lock was made from."""
    name = stack_name(evidence)
    if not (folder / name).is_file():
        if evidence.stack not in list_stacks():
            yield not_checked("stack", f"{name}, the authors' own stack, is not in the kit")
        return
    try:
        same = is_stack_of(load_stack(str(folder / name)).stack, evidence, lock)
        says = f"{name} is{' not' * (not same)} the stack that the lock was made from"
    except EnvbuildError as error:
        same, says = False, error.what.replace(f"{folder}/", "")
    yield checked("stack", says) if same else problem("kit-stack-differs", "stack", says)


def _texts(folder: Path, contents: Contents) -> Iterator[Finding]:
    """README, appendix and the like, made again; they are what a reviewer reads and no signature covers."""
    by = contents.manifest.envbuild
    tables = {f"{REPORT}/{name}": render(contents.evidence).encode() for name, render in FORMATS.values()}
    made = texts(contents) | tables
    wrong = [name for name, data in made.items() if read_attachment(folder, name, LARGEST) != data]
    if wrong and by != __version__:
        says = f"envbuild {by} made the kit, and this is {__version__}, which does not make them so"
        yield not_checked("kit", f"{', '.join(wrong)}: {says}: believe no command or figure there")
        return
    bad = [problem("kit-text-differs", "kit", f"{name} does not say what the report and the lock do") for name in wrong]
    yield from judged("kit", f"{', '.join(made)} say what the report and the lock do", bad)


def _document(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    there = (folder / ANNOTATED).is_file()
    if there != (manifest.document is not None):
        yield problem("kit-text-differs", "kit", f"{ANNOTATED} is{' not' * (not there)} there; kit.json says otherwise")
    elif there:
        yield _safe(folder, manifest)
        says = f"what {ANNOTATED} shows, and that {SOURCES} names the right document: `envbuild explain` makes it again"
        yield not_checked("kit", says)
    if manifest.authors:
        yield not_checked("kit", "who made it: the authors are as they call themselves")


def _safe(folder: Path, manifest: Manifest) -> Finding:
    """Whether the annotated document, which nobody can make again without its text, can do no harm."""
    from envbuild.explain.page import is_harmless

    page = (read_attachment(folder, ANNOTATED, LARGEST) or b"").decode(errors="replace")
    if is_harmless(page):
        return checked("kit", f"{ANNOTATED} has its digest, and a policy by which it runs and loads nothing")
    says = f"{ANNOTATED} does not begin as a page of envbuild {__version__}: it may run or load something, opened"
    return not_checked("kit", says) if manifest.envbuild != __version__ else problem("kit-unsafe", "kit", says)
