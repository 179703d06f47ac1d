"""Makes a kit: what lies in it is what lies in the report, and what follows from that."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from envbuild import __version__
from envbuild.catalog.loader import list_stacks, load_stack, manifest_digest
from envbuild.errors import EnvbuildError
from envbuild.kit.manifest import NAME, REPORT, Manifest, listed, parse, render
from envbuild.kit.readme import README, lock_name, readme, stack_name
from envbuild.lock.files import parse_lock
from envbuild.model.evidence import Evidence
from envbuild.model.lock import Lock
from envbuild.model.stack import Stack
from envbuild.regular_file import read_manifest
from envbuild.report.publish import copy_report
from envbuild.report.recheck.opened import open_report
from envbuild.report.render import write_new
from envbuild.report.sign import require_holding, sign_report


def default_name(path: Path) -> str:
    """What a kit of the report at `path` is called: by its stack and run."""
    evidence = open_report(path).evidence
    return f"kit-{evidence.stack}-{evidence.run}"


def make_kit(
    path: Path, output: Path, *, publish: bool = True, stack: str | None = None, key: Path | None = None
) -> tuple[dict[str, bytes], list[str]]:
    """Write the kit of the report at `path` to `output`: a folder, or a tar file where its name ends in `.tar`.

    `stack`: the stack's file, where envbuild ships none; `key`: an SSH key that signs the report in the kit. Returns
    its files, and in sentences what was left out. The same report gives the same bytes.
    Raises EnvbuildError `output-exists`, `kit-stack-differs` (exit 2), `report-not-holding`, `kit-invalid` (exit 5),
    `kit-without-lock` (exit 7), `output-unwritable`, and what reading the report and the stack raises.
    """
    require_holding(path)
    with tempfile.TemporaryDirectory(prefix="envbuild-kit-") as scratch:
        folder = Path(scratch) / REPORT
        _, left = copy_report(path, folder, publish=publish)
        if key is not None:
            sign_report(folder, key)
        paths = [each for each in folder.rglob("*") if each.is_file()]
        files = {each.relative_to(scratch).as_posix(): each.read_bytes() for each in paths}
        report = open_report(folder)
    evidence = report.evidence
    files[lock_name(evidence)] = _lock(files, evidence)
    own = _own(evidence, parse_lock(files[lock_name(evidence)].decode(), lock_name(evidence)), stack)
    if not own and evidence.stack not in list_stacks():
        left.append(f"{stack_name(evidence)} is not in the kit: --stack FILE names the stack's file")
    manifest = Manifest(envbuild=__version__, form="published" if publish else "full")
    files |= own
    files[README] = readme(manifest, evidence, signed=report.envelope is not None, own=bool(own))
    files[NAME] = render(manifest.model_copy(update={"files": listed(files)}))
    parse(files[NAME])  # a kit that nobody could read is not written
    write_new(output, _tar(files, output.stem) if output.suffix == ".tar" else files)
    return files, left


def _lock(files: Mapping[str, bytes], evidence: Evidence) -> bytes:
    item = next((each for each in evidence.attachments if each.kind == "lock"), None)
    data = files.get(f"{REPORT}/{item.path}") if item is not None else None
    if data is None:
        raise EnvbuildError(
            "kit-without-lock",
            "there is no lock to put into the kit",
            why="no lock goes with the report",
            hint="a page alone has no lock: give the run's folder",
        )
    return data


def _own(evidence: Evidence, lock: Lock, stack: str | None) -> dict[str, bytes]:
    """The file of a stack that envbuild does not ship, as it is."""
    loaded = load_stack(stack) if stack is not None else None
    if loaded is not None and not is_stack_of(loaded.stack, evidence, lock):
        raise EnvbuildError(
            "kit-stack-differs",
            f"{loaded.ref} is not the stack that the report's lock was made from",
            hint="give the file of that time with --stack",
        )
    return {stack_name(evidence): read_manifest(loaded.path)} if loaded is not None and not loaded.shipped else {}


def is_stack_of(stack: Stack, evidence: Evidence, lock: Lock) -> bool:
    """Whether the lock of a report was made from this stack."""
    known = stack.name == evidence.stack and evidence.profile in stack.profiles
    return known and manifest_digest(stack, evidence.profile) == lock.manifest_digest


def _tar(files: Mapping[str, bytes], top: str) -> bytes:
    """The files below the folder `top`: no times, no owners, in one order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()
