"""The build context: a Dockerfile and what it copies in one folder, complete in a clone, for any builder."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from envbuild.container.dockerfile import render
from envbuild.container.recipe import ImageRecipe
from envbuild.errors import EnvbuildError

DOCKERFILE = "Dockerfile"
_DIFF_LINES = 60


def texts(recipe: ImageRecipe) -> dict[str, str]:
    """File name -> text of all of it. Raises EnvbuildError `dockerfile-value` (exit 2)."""
    allowed = sorted({name.partition("/")[0] for name in recipe.files})
    ignored = "*\n" + "".join(f"!{name}\n" for name in allowed)
    return {DOCKERFILE: render(recipe), ".dockerignore": ignored, **recipe.files}


def write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write into `folder` (made where missing) what differs; its names. Raises EnvbuildError `context-unwritable`."""
    changed = []
    try:
        for name, text in files.items():
            path, data = folder / name, text.encode()
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or path.read_bytes() != data:
                path.write_bytes(data)
                changed.append(name)
    except OSError as error:
        raise EnvbuildError("context-unwritable", f"cannot write {error.filename or folder}", why=str(error)) from error
    return changed


def compare(folder: Path, wanted: Mapping[str, str]) -> str:
    """A unified diff from what is in `folder` to the files `wanted`; empty when they agree."""
    out: list[str] = []
    for name, text in sorted(wanted.items()):
        path = folder / name
        try:
            there = path.read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            out.append(f"{path} is missing\n")
            continue
        if there != text:
            out += _diff(there, text, str(path))
    return "".join(out)


def _diff(there: str, wanted: str, name: str) -> list[str]:
    before, after = there.splitlines(keepends=True), wanted.splitlines(keepends=True)
    lines = list(difflib.unified_diff(before, after, name, f"{name} (from the lock)", n=2))
    lines = [line if line.endswith("\n") else f"{line}\n\\ no line break at the end\n" for line in lines]
    left = len(lines) - _DIFF_LINES
    return lines if left <= 0 else [*lines[:_DIFF_LINES], f"... {left} more lines of {name}\n"]
