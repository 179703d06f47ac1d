"""The patches of the catalog (`patches/*.yaml`), and what the documents' own recipes would do to a file."""

from __future__ import annotations

import ast
import os
import subprocess
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from envbuild import resources
from envbuild.catalog.validation import read_model
from envbuild.errors import EnvbuildError
from envbuild.model.lock import Lock, Variant
from envbuild.model.patch import Patch, Recipe
from envbuild.node.build.patch import digest
from envbuild.text import did_you_mean

_SED_TIMEOUT = 30.0


def load_patches() -> MappingProxyType[str, Patch]:
    """Every patch by name, sorted. Raises EnvbuildError `manifest-*` when a shipped file is damaged."""
    return MappingProxyType({name: _read(path) for name, path in _files().items()})


@cache
def _files() -> dict[str, Path]:
    """The file of every patch, which has its name."""
    return {path.stem: path for path in sorted((resources.catalog() / "patches").glob("*.yaml"))}


@cache
def _read(path: Path) -> Patch:
    return read_model(Patch, path)


def load_patch(name: str) -> Patch:
    """One patch by its name or an alias. Raises EnvbuildError `patch-unknown`, exit 2, with the nearest name."""
    if name in _files():
        return _read(_files()[name])
    patches = load_patches()
    by_alias = {alias: patch for patch in patches.values() for alias in patch.aliases}
    patch = by_alias.get(name)
    if patch is None:
        raise EnvbuildError(
            "patch-unknown",
            f"there is no patch {name}",
            hint=did_you_mean(name, [*patches, *by_alias]) or "`envbuild patch list` names them",
        )
    return patch


def patches_of(lock: Lock) -> dict[str, Patch]:
    """The patches that the sources of a lock name, by those names. Raises EnvbuildError `patch-unknown`, exit 2."""
    return {name: patch for variant in lock.variants for name, patch in patches_of_variant(variant).items()}


def patches_of_variant(variant: Variant) -> dict[str, Patch]:
    """As `patches_of`, for one variant."""
    return {name: load_patch(name) for source in variant.sources for name in source.patches}


def digest_of(name: str) -> str:
    """sha256 of what a patch does, for locks and build keys."""
    patch = load_patch(name)
    return digest(patch.spec(patch.expected()))


class RecipeEffect(NamedTuple):
    """What a document's recipe does to one file: lines it changes (None: nobody can say), whether it still compiles.

    `compiles` is None for a file that is not Python.
    """

    hits: int | None
    compiles: bool | None


def recipe_effect(recipe: Recipe, data: bytes) -> RecipeEffect:
    """Carry out a recipe on the contents of its file, as the document says it, with the real `sed`.

    Raises EnvbuildError `sed-failed` (exit 2) when sed is missing or refuses the script.
    """
    if recipe.kind == "by-hand" or recipe.file is None:
        return RecipeEffect(None, None)
    after = _sed(recipe.script or "", data) if recipe.kind == "sed" else _without_raise(data)
    hits = sum(one != two for one, two in zip(data.splitlines(), after.splitlines(), strict=False))
    return RecipeEffect(hits, _compiles(after) if recipe.file.endswith(".py") else None)


def _sed(script: str, data: bytes) -> bytes:
    try:
        done = subprocess.run(
            ["sed", "-e", script],
            input=data,
            capture_output=True,
            timeout=_SED_TIMEOUT,
            env={**os.environ, "LC_ALL": "C"},
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvbuildError("sed-failed", "sed could not apply an edit of the document", why=str(error)) from None
    return done.stdout


def _without_raise(data: bytes) -> bytes:
    """Every line of `raise RuntimeError(…)` in the CUDA check commented out, as a reader of the document would."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return data
    lines = data.splitlines(keepends=True)
    checks = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("check_cuda_torch")]
    for node in (inner for check in checks for inner in ast.walk(check)):
        if isinstance(node, ast.Raise) and node.end_lineno:
            for number in range(node.lineno - 1, node.end_lineno):
                lines[number] = b"# " + lines[number]
    return b"".join(lines)


def _compiles(data: bytes) -> bool:
    try:
        compile(data, "recipe", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True
