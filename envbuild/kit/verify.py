"""A kit checked by somebody who trusts nobody: its files, the report in it, and whether they belong together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from envbuild import __version__
from envbuild.catalog.loader import list_stacks, load_stack
from envbuild.errors import EnvbuildError
from envbuild.kit.make import README, is_stack_of, lock_name, readme, stack_name
from envbuild.kit.manifest import LARGEST, NAME, REPORT, Manifest, check_files, invalid, opened, read_manifest
from envbuild.lock.files import parse_lock
from envbuild.model.evidence import Evidence
from envbuild.model.lock import Lock
from envbuild.report.evidence_file import SIGNATURE
from envbuild.report.formats import FORMATS
from envbuild.report.publish import published
from envbuild.report.recheck.opened import Finding, Opened, checked, not_checked, problem, read_attachment
from envbuild.report.recheck.verify import verify_report


def verify_kit(path: Path, *, run: str | None = None, signers: Path | None = None) -> tuple[Opened, list[Finding]]:
    """Check a kit, a folder or a tar file; then as `verify_report` does for the report in it.

    Raises EnvbuildError with exit 5: `kit-missing`, `kit-invalid`, and
    what `verify_report` raises.
    """
    with opened(path) as (folder, sizes):
        manifest = read_manifest(folder)
        if f"{REPORT}/evidence.json" not in sizes:
            raise invalid(NAME, f"{REPORT}/evidence.json is not there")
        findings = list(check_files(folder, sizes, manifest))
        report, more = verify_report(folder / REPORT, run=run, signers=signers, maker=manifest.envbuild)
        findings += _unknown(manifest, report)
        findings += _together(folder, sizes, manifest, report)
        return report, [*findings, *more]


def _unknown(manifest: Manifest, report: Opened) -> Iterator[Finding]:
    """Files that `kit.json`, which no signature covers, lists and no kit of this report has."""
    inside = {"evidence.json", SIGNATURE, "report.html", "report.md", *(name for name, _ in FORMATS.values())}
    inside |= {item.path for item in report.evidence.attachments}
    known = {README, lock_name(report.evidence), stack_name(report.evidence), *(f"{REPORT}/{name}" for name in inside)}
    for file in manifest.files:
        if file.path not in known:
            yield problem("kit-file-unlisted", "kit", f"{file.path} belongs to no kit of this report")


def _together(folder: Path, sizes: dict[str, int], manifest: Manifest, report: Opened) -> Iterator[Finding]:
    name, evidence = lock_name(report.evidence), report.evidence
    own = stack_name(evidence) in sizes
    yield _readme(folder, manifest, report, own=own)
    if manifest.form == "published":
        yield _form(evidence)
    if name not in sizes:
        yield problem("kit-file-missing", "kit", f"{name}, the lock of the report, is not there")
        return
    data = read_attachment(folder, name, LARGEST) or b""
    item = next((attachment for attachment in evidence.attachments if attachment.kind == "lock"), None)
    if item is None or data != read_attachment(report.folder, item.path, LARGEST):
        yield problem("kit-lock-differs", "kit", f"{name} is not the lock of the report")
        return
    yield checked("kit", f"{name} is the lock of the report")
    if own:
        try:
            yield _stack(folder / stack_name(evidence), evidence, parse_lock(data.decode(errors="replace"), name))
        except EnvbuildError as error:
            yield problem("report-lock-invalid", "kit", f"{name}: {error.what}: {error.why}")
    elif evidence.stack not in list_stacks():
        yield not_checked("stack", f"{stack_name(evidence)}, the authors' own stack, is not in the kit")


def _form(evidence: Evidence) -> Finding:
    """Whether the report is a published one, as `kit.json` says, which no signature covers."""
    if published(evidence) == evidence:
        return checked("kit", "the report has only fields that are public")
    says = "fields stand in the report that a published one does not have: do not pass it on"
    return problem("kit-form-differs", "kit", f"{NAME} calls it published: {says}")


def _stack(path: Path, evidence: Evidence, lock: Lock) -> Finding:
    """The file of a stack of the authors' own, which is what the lock was made from."""
    try:
        same = is_stack_of(load_stack(str(path)).stack, evidence, lock)
        says = f"{path.name} is{' not' * (not same)} the stack that the lock was made from"
    except EnvbuildError as error:
        same, says = False, error.what.replace(f"{path.parent}/", "")
    return checked("stack", says) if same else problem("kit-stack-differs", "stack", says)


def _readme(folder: Path, manifest: Manifest, report: Opened, *, own: bool) -> Finding:
    """README, made again: no signature covers it."""
    made = readme(manifest, report.evidence, signed=report.envelope is not None, own=own)
    if read_attachment(folder, README, LARGEST) == made:
        return checked("kit", f"{README} says what the report does")
    if manifest.envbuild == __version__:
        return problem("kit-text-differs", "kit", f"{README} does not say what the report does")
    says = f"envbuild {manifest.envbuild} made the kit; envbuild {__version__} renders it differently"
    return not_checked("kit", f"{README}: {says}: trust no command or figure in it")
