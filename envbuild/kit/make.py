"""Makes a kit: what lies in it is what lies in the report, and what follows from that."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from envbuild import __version__
from envbuild.catalog.loader import LoadedStack, list_stacks, load_stack
from envbuild.catalog.manifest_file import read_manifest
from envbuild.errors import EnvbuildError
from envbuild.hostlist import fold_hosts
from envbuild.kit.manifest import ANNOTATED, NAME, REPORT, Manifest, listed, parse, render
from envbuild.kit.texts import Contents, is_stack_of, lock_name, stack_name, texts
from envbuild.lock.files import parse_lock
from envbuild.model.evidence import Evidence
from envbuild.model.lock import Lock
from envbuild.model.resolution import Resolution
from envbuild.model.stack import Document
from envbuild.report.copies import copy_report
from envbuild.report.publish import names_nobody
from envbuild.report.recheck.opened import open_report
from envbuild.report.render import harmless, write_new
from envbuild.report.sign import require_holding, sign_report
from envbuild.text import grouped


@dataclass(frozen=True)
class Wanted:
    """How a kit is made. `stack`: its file, where envbuild ships none; `document`: the text to annotate, else fetched.

    `annotated`: whether to annotate it at all. `key`: an SSH key that signs the report in the kit.
    """

    publish: bool = True
    authors: tuple[str, ...] = ()
    stack: str | None = None
    document: Path | None = None
    annotated: bool = True
    key: Path | None = None


def default_name(path: Path) -> str:
    """What a kit of the report at `path` is called: by its stack and run."""
    evidence = open_report(path).evidence
    return f"kit-{evidence.stack}-{evidence.run}"


def make_kit(path: Path, output: Path, wanted: Wanted) -> tuple[dict[str, bytes], list[str]]:
    """Write the kit of the report at `path` to `output`: a folder, or a tar file where its name ends in `.tar`.

    Returns its files, and in sentences what was left out. The same report gives the same bytes.
    Raises EnvbuildError `output-exists`, `kit-stack-differs`, `kit-author-invalid` (exit 2), `report-not-holding`,
    `kit-invalid` (exit 5), `kit-without-lock` (exit 7), `report-not-written`, and what reading the report, the stack
    and its document raises.
    """
    require_holding(path)
    with tempfile.TemporaryDirectory(prefix="envbuild-kit-") as scratch:
        files, left = _files(path, Path(scratch), wanted)
    if output.suffix == ".tar":
        write_new(output, _tar(files, output.stem))
    else:
        write_new(output, files)
    return files, left


def _files(path: Path, scratch: Path, wanted: Wanted) -> tuple[dict[str, bytes], list[str]]:
    folder = scratch / REPORT
    _, left = copy_report(path, folder, publish=wanted.publish)
    if wanted.key is not None:
        sign_report(folder, wanted.key)
    report = open_report(folder)
    name = lock_name(report.evidence)
    data = _lock(folder, report.evidence, left)
    lock = parse_lock(data.decode(), name)
    loaded = _stack(report.evidence, lock, wanted)
    page, document = _annotated(report.evidence, loaded, wanted.document) if loaded and wanted.annotated else ("", None)
    if loaded is None and wanted.annotated:
        left.append(f"{ANNOTATED} is not in the kit: no document is known (--stack FILE names a stack of your own)")
    own = _own(open_report(path).evidence, loaded, wanted.publish, left)
    form: Literal["published", "full"] = "published" if wanted.publish else "full"
    try:
        manifest = Manifest(envbuild=__version__, form=form, authors=wanted.authors, document=document)
    except ValidationError as error:
        raise EnvbuildError("kit-author-invalid", "--author is no name", why=error.errors()[0]["msg"]) from error
    files = {each.relative_to(scratch).as_posix(): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    files |= {name: data} | own | ({ANNOTATED: page.encode()} if page else {})
    files |= texts(Contents(manifest, report.evidence, lock, report.envelope is not None, "".join(own)))
    data = render(manifest.model_copy(update={"files": listed(files)}))
    parse(data)  # a kit that nobody could read is not written
    return files | {NAME: data}, left


def _lock(folder: Path, evidence: Evidence, left: list[str]) -> bytes:
    item = next((each for each in evidence.attachments if each.kind == "lock"), None)
    if item is not None:
        return (folder / item.path).read_bytes()
    why = "it may name somebody" if left else "the report does not name one"
    raise EnvbuildError(
        "kit-without-lock",
        "there is no lock to put into the kit",
        why=f"no lock goes with the report: {why}",
        hint="--full takes all that is there; a page alone has no lock: give the run's folder",
    )


def _stack(evidence: Evidence, lock: Lock, wanted: Wanted) -> LoadedStack | None:
    """The report's stack, where its file is given, or shipped and its document wanted."""
    if wanted.stack is None and not (wanted.annotated and evidence.stack in list_stacks()):
        return None
    loaded = load_stack(wanted.stack or evidence.stack)
    if not is_stack_of(loaded.stack, evidence, lock):
        raise EnvbuildError(
            "kit-stack-differs",
            f"{loaded.ref} is not the stack that the report's lock was made from",
            hint="give the file of that time with --stack, or --without-document",
        )
    return loaded


def _own(evidence: Evidence, loaded: LoadedStack | None, publish: bool, left: list[str]) -> dict[str, bytes]:
    """The file of a stack that envbuild does not ship, as it is; `evidence` with all the names that may be in it."""
    name = stack_name(evidence)
    if loaded is None and evidence.stack not in list_stacks():
        left.append(f"{name} is not in the kit: --stack FILE names the stack's file")
    if loaded is None or loaded.shipped:
        return {}
    data = read_manifest(loaded.path)
    if publish and not names_nobody(evidence, data.decode()):
        left.append(f"{name}, the stack's file, does not go with it: it may name somebody")
        return {}
    return {name: data}


def _annotated(evidence: Evidence, loaded: LoadedStack, document: Path | None) -> tuple[str, Document | None]:
    """The page and what it is made from; nothing where the stack has no document."""
    stack = loaded.stack
    if stack.document is None:
        return "", None
    from envbuild.explain.page import render_page
    from envbuild.explain.recipes import document_recipes
    from envbuild.explain.source import read_document
    from envbuild.explain.view import Decided, explain

    text = read_document(stack, document)
    recipes = document_recipes(stack, evidence.profile)
    explained = explain(stack, evidence.profile, recipes=recipes, decided=Decided(tuple(_decided(harmless(evidence)))))
    return render_page(explained, text.text, text.doubt), stack.document


def _decided(evidence: Evidence) -> list[Resolution]:
    """What was decided in the run, once for all nodes for which it is the same."""
    resolutions = [node.resolution for node in evidence.nodes if node.resolution is not None]
    groups = grouped(resolutions, lambda found: (found.variant_id, found.decisions))
    return [same[0].model_copy(update={"node": fold_hosts(each.node for each in same)}) for same in groups.values()]


def _tar(files: Mapping[str, bytes], top: str) -> bytes:
    """The files below the folder `top`: no times, no owners, in one order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()
