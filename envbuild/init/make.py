"""From an input to a stack file: read, decide, ask, write."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from envbuild.catalog.loader import load_stack
from envbuild.errors import EnvbuildError
from envbuild.init.assemble import Ask, Result, assemble, with_compiled
from envbuild.init.collect import digest
from envbuild.init.index import confirmed, own_build, pinned
from envbuild.init.known import load_known
from envbuild.init.tree import Tree, opened
from envbuild.init.write import IMPORTS, NOT_SAID, head, text
from envbuild.regular_file import read_file
from envbuild.text import few

# As `write` names the files that a draft was made of.
_READ = re.compile(r"^# read: (.+) \([^()]*\), sha256 ([0-9a-f]{12})$", re.MULTILINE)
_IMPORTS = re.compile(rf"^{IMPORTS} (?!.*, sha256)(.+)$", re.MULTILINE)


def reference(path: Path) -> str:
    """How a stack file is named on a command line."""
    return str(path) if "/" in str(path) else f"./{path}"


def drafted_before(source: str) -> tuple[str, list[str], list[str]]:
    """The stack file here that was drafted from this input (empty: none), what has changed of that input, what is open.

    Open are imports of the input's own code that the file still has as not said.

    Raises EnvbuildError as `opened`.
    """
    with opened(source) as tree:
        path = Path(f"{_name(tree)}.yaml")
        begins = head(tree.origin, any_commit=tree.folder is not None)
        written = _written(path)
        if not written.startswith(begins):
            return "", [], []
        imports = _IMPORTS.search(written)
        now = assemble(tree, load_known()) if imports else None
        others = sorted(set(imports[1].split(", ")) ^ set(now.imports.split(", "))) if imports and now else []
        changed = [f"what {tree.origin.name} imports ({few(others)})"] if others else []
        open_ = [
            f"{closing.imported.module} ({closing.where})"
            for closing in (now.closed if now else ())
            if closing.imported.firmness == "required" and f"{NOT_SAID} `import {closing.imported.module}`" in written
        ]
        texts = {name: (tree.text(name), was) for name, was in _READ.findall(written)}
        changed += [name for name, (text, was) in texts.items() if text is None or digest(text) != was]
        return reference(path), changed, open_


def _written(path: Path) -> str:
    return read_file(path).decode("utf-8", "replace") if path.is_file() else ""


def _name(tree: Tree) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", tree.origin.name.lower()).strip("-._")[:63] or "drafted"


def draft(
    source: str,
    file: Path | None,
    *,
    ask: Callable[[Result], Result] | None = None,
    flavour: str | None = None,
    offline: bool = False,
    also: Sequence[str] = (),
    here: bool = False,
) -> tuple[Result, Path]:
    """Draft a stack from an input, and what others say beside it, and write it; `ask` has answers to what nothing says.

    `flavour` of torch is taken instead of the one that the input names. `here`: it will be built on this machine, so
    its Pythons come before others, and CUDA code is compiled where its GPU and nvcc fit.

    Raises EnvbuildError `init-nothing`, `output-exists`, `output-unwritable`, `usage` (exit 2).
    """
    with ExitStack() as stack:
        # The code that is installed is that of the first folder or repository.
        trees = [stack.enter_context(opened(place)) for place in (source, *also)]
        tree, *others = sorted(trees, key=lambda opened_tree: opened_tree.alone)
        asks = Ask() if offline else Ask(confirmed, pinned, own_build)
        asks = replace(asks, pythons=_pythons if here else tuple, flavour=flavour or "")
        result = assemble(tree, load_known(), asks, others)
        name = _name(tree)
        path = file or Path(f"{name}.yaml")
        _refuse(path, tree, result, source)
        if ask:
            result = ask(result)
        if here and result.draft.flavour and _compiles(result.draft.flavour.value):
            result = with_compiled(result, tree, load_known(), asks.git)
        folder = tree.folder.absolute() if tree.folder is not None else None
        written = text(result, name, path.absolute().parent, folder)
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(written)
    except OSError as error:
        why, hint = error.strerror or "", "name a file in a folder that you can write"
        raise EnvbuildError("output-unwritable", f"{path} was not written", why=why, hint=hint) from None
    try:
        load_stack(reference(path))
    except EnvbuildError:
        path.unlink()
        raise
    return result, path


def _pythons() -> set[str]:
    """Minor versions of the interpreters on this machine, as a node tells them."""
    from envbuild.node.probe.programs import python_facts

    pythons = python_facts(os.get_exec_path(), "")
    return {".".join(python["version"].split(".")[:2]) for python in pythons if not python["virtual"]}


def _compiles(flavour: str) -> bool:
    """Whether this machine has a GPU and an nvcc of the flavour's CUDA major, as a node tells it.

    Without a GPU a build is for all architectures of torch, and many a setup.py names fewer itself (`arch-missing`).
    """
    from envbuild.node.probe import gpus

    folders = os.get_exec_path()
    fitting = any(nvcc["version"].split(".")[0] == flavour[2:-1] for nvcc in gpus.nvcc_facts(folders))
    return fitting and bool(gpus.gpu_facts(folders)["gpus"])


def _refuse(path: Path, tree: Tree, result: Result, source: str) -> None:
    if path.suffix not in (".yaml", ".yml"):
        raise EnvbuildError("usage", f"a stack file ends in .yaml: {path}.yaml")
    if path.exists():
        other = path.with_name(f"{path.stem}-stack.yaml")
        what, why = f"{path} is there already, and envbuild replaces no file", ""
        hint = f"name another file: `envbuild init {shlex.quote(str(other))} --from {shlex.quote(source)}`"
        begins, first = head(tree.origin, any_commit=True), _written(path).partition("\n")[0]
        if tree.folder is None and first.startswith(f"{begins} at "):
            drafted = first.removeprefix(f"{begins} at ").strip().rstrip(".")
            what = f"{path} is the draft of an older commit, {drafted}"
            why = f"{shlex.quote(source)} is at {str(tree.origin.commit)[:12]} now, and envbuild replaces no file"
            new = f"for a draft of the new commit, `mv {path} {path}.old`, then type this command again"
            hint = f"`envbuild up {reference(path)}` builds the older draft; {new}"
        raise EnvbuildError("output-exists", what, why=why, hint=hint)
    if result.draft.installs or result.projects:
        return
    elsewhere = next((finding for finding in result.findings if finding.rule == "env-elsewhere"), None)
    raise EnvbuildError(
        "init-nothing",
        f"nothing in {tree.origin.name} says what is installed",
        why=f"{elsewhere.statements[0].place}: {elsewhere.truth}"
        if elsewhere
        else f"{len(tree.files)} files were looked at",
        hint="give the page or folder with the install instructions"
        + ("; for a job script, `envbuild init FILE` describes the cluster" if elsewhere else ""),
    )
