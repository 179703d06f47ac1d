"""`envbuild init`: a first target file, or a stack drafted from a page or a checkout."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuild.cli.choose import facts_option
from envbuild.cli.output import Ui, common_options
from envbuild.errors import EnvbuildError
from envbuild.text import plural

if TYPE_CHECKING:
    from envbuild.init.assemble import Result
    from envbuild.init.tree import Tree


@click.command("init")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@facts_option
@click.option(
    "--from", "source", metavar="PAGE|FOLDER|GIT[@REF]", help="Draft a stack from a setup page or a checkout."
)
@click.option("--yes", is_flag=True, help="Take the default of what nothing says, and ask nothing.")
@click.option("--offline", is_flag=True, help="Ask no index about guesses, and no repository about commits.")
@click.option("--with-lock", "locks", is_flag=True, help="Also resolve the draft and write its lock.")
@common_options
def init(
    ui: Ui, file: Path | None, facts: str | None, source: str | None, yes: bool, offline: bool, locks: bool
) -> None:
    """Write a first file FILE, with comments. A file that is there is never replaced.

    Without --from a target file, from eight answers at most, or from recorded facts of its nodes. With --from a stack,
    by rules and facts alone: nothing of what is read is run. FILE is then NAME.yaml where it is not said.
    """
    if source is None:
        if file is None:
            raise click.UsageError("name the target file to write, or `--from` a page, folder or repository")
        from envbuild.cli.catalog_cmd import first_target

        first_target(ui, file, facts)
        return
    if facts is not None:
        raise click.UsageError("--facts describes a target; with --from a stack is drafted")
    _drafted(ui, source, file, ask=not yes and not ui.json and sys.stdin.isatty(), offline=offline, locks=locks)


def _drafted(ui: Ui, source: str, file: Path | None, *, ask: bool, offline: bool, locks: bool) -> None:
    result, path = draft(source, file, ask=ask, offline=offline)
    reference = _reference(path)
    lock = _locked(ui, reference) if locks else ""
    ui.result(lambda: _data(result, path, lock), lambda: _summary(result, reference, lock))


def _reference(path: Path) -> str:
    return str(path) if "/" in str(path) else f"./{path}"


def ensure_draft(ui: Ui, source: str, *, ask: bool) -> str:
    """The stack file of an input as a reference, drafted unless it is there. Raises EnvbuildError as `draft`."""
    from envbuild.init.input import opened
    from envbuild.init.write import head

    with opened(source) as tree:
        path = Path(f"{_name(tree)}.yaml")
        begins = head(tree.origin, any_commit=tree.folder is not None)
    if path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(begins):
        ui.note(f"drafted before: {_reference(path)}")
    else:
        result, path = draft(source, None, ask=ask)
        ui.note(_learned(result, _reference(path)))
    return _reference(path)


def _name(tree: Tree) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", tree.origin.name.lower()).strip("-._")[:63] or "drafted"


def draft(source: str, file: Path | None, *, ask: bool = False, offline: bool = False) -> tuple[Result, Path]:
    """Draft a stack from an input and write it. Raises EnvbuildError `init-nothing`, `output-unwritable` (exit 2)."""
    from envbuild.catalog.loader import load_stack
    from envbuild.init.assemble import Ask, assemble
    from envbuild.init.index import confirmed
    from envbuild.init.input import opened
    from envbuild.init.known import load_known
    from envbuild.init.pins import pinned
    from envbuild.init.write import text

    with opened(source) as tree:
        result = assemble(tree, load_known(), Ask() if offline else Ask(confirmed, pinned))
        name = _name(tree)
        path = file or Path(f"{name}.yaml")
        _refuse(path, tree, result)
        if ask:
            result = _asked(result)
        folder = tree.folder.absolute() if tree.folder is not None else None
        written = text(result, name, path.absolute().parent, folder)
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(written)
    except OSError as error:
        why, hint = error.strerror or "", "name a file in a folder that you can write"
        raise EnvbuildError("output-unwritable", f"{path} was not written", why=why, hint=hint) from None
    try:
        load_stack(_reference(path))
    except EnvbuildError:
        path.unlink()
        raise
    return result, path


def _refuse(path: Path, tree: Tree, result: Result) -> None:
    if path.suffix not in (".yaml", ".yml"):
        raise click.UsageError(f"a stack file ends in .yaml: {path}.yaml")
    if path.exists():
        hint = "name another file, or remove this one first"
        raise EnvbuildError(
            "output-unwritable", f"{path} was not written", why="a file of that name is there", hint=hint
        )
    if result.draft.installs or result.projects:
        return
    elsewhere = next((each for each in result.findings if each.rule == "env-elsewhere"), None)
    raise EnvbuildError(
        "init-nothing",
        f"nothing in {tree.origin.name} says what is installed",
        why=f"{elsewhere.statements[0].place}: {elsewhere.truth}"
        if elsewhere
        else f"{len(tree.files)} files were looked at",
        hint="give the page or the folder that installs it"
        + ("; of a job script `envbuild init FILE` describes the cluster" if elsewhere else ""),
    )


def _asked(result: Result) -> Result:
    """Answers to what nothing says, at the terminal; an empty line takes the default."""
    from dataclasses import replace

    draft = result.draft
    for missing in result.missing:
        if missing.what == "python":
            value = click.prompt(f"Which Python ({missing.why})", default=missing.default, err=True)
            draft = replace(draft, python=replace(draft.python, value=value))
        elif missing.what == "torch" and draft.torch is not None:
            value = click.prompt(f"Which torch ({missing.why})", default=missing.default, err=True)
            draft = replace(draft, torch=replace(draft.torch, value=value))
        elif missing.what == "flavour" and draft.flavour is not None:
            value = click.prompt(f"Which flavour ({missing.why})", default=missing.default, err=True)
            draft = replace(draft, flavour=replace(draft.flavour, value=value))
    return replace(result, draft=draft)


def _locked(ui: Ui, reference: str) -> str:
    """The lock's path; empty where it does not resolve, which is a sentence and no failure of the draft."""
    from envbuild.catalog.loader import load_stack, pick_profile
    from envbuild.cli.lock_cmd import ensure_lock

    loaded = load_stack(reference)
    try:
        return str(ensure_lock(ui, loaded, pick_profile(loaded, None), lambda _: False))
    except EnvbuildError as error:
        ui.warn(f"not locked: {error.what}" + (f"\n{error.why}" if error.why else ""))
        if error.hint:
            ui.note(f"`envbuild lock create {reference}`: {error.hint}")
        return ""


def _data(result: Result, path: Path, lock: str) -> dict[str, object]:
    known, every = result.understood
    return {
        "path": str(path),
        "lock": lock or None,
        "understood": {"statements": every, "understood": known},
        "read": result.collected.used,
        "offered": list(result.collected.choices),
        "left_out": result.left_out,
        "missing": [{"what": each.what, "default": each.default, "why": each.why} for each in result.missing],
        "imports": [
            {"module": each.imported.module, "firmness": each.imported.firmness, "how": each.how}
            for each in result.closed
        ],
        "findings": [each.as_json() for each in result.findings],
        "statements": [each.as_json() for each in result.draft.statements],
    }


def _summary(result: Result, reference: str, lock: str) -> str:
    step = f"envbuild provision {reference} --target local" if lock else f"envbuild lock create {reference}"
    return f"{_learned(result, reference)}\nnext: {step}"


def _learned(result: Result, reference: str) -> str:
    draft, (known, every) = result.draft, result.understood
    torch = (
        f"torch {draft.torch.value} {draft.flavour.value if draft.flavour else ''}".strip()
        if draft.torch
        else "no torch"
    )
    added = [each for each in draft.from_imports if draft.package(each) is not None]
    still = [
        each.imported.module for each in result.closed if each.how == "open" and each.imported.firmness == "required"
    ]
    lines = [
        f"wrote {reference}: {known} of {every} statements understood, in {len(result.collected.used)} files",
        f"  decided   Python {draft.python.value}, {torch}, {plural(len(draft.packages), 'package')}, "
        f"{plural(len(draft.sources) + len(result.projects), 'source')}",
    ]
    if added:
        lines.append(f"  imports   {len(added)} packages more, as the code imports them: {', '.join(added[:6])}")
    if still:
        lines.append(f"  open      nothing is known to bring {', '.join(still[:8])}")
    if result.missing:
        lines.append(
            "  not said  " + "; ".join(f"{each.what}: {each.default or 'open'}" for each in result.missing[:5])
        )
    if result.left_out:
        lines.append(f"  left out  {len(result.left_out)} files; the draft names them")
    rules = list(dict.fromkeys(each.rule for each in result.findings))
    if rules:
        lines.append(f"  findings  {len(result.findings)}: {', '.join(rules[:8])}")
    return "\n".join(lines)
