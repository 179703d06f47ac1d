"""The build context: the Dockerfile, the requests, the entry point and the node program in one folder.

The node program is a zip file made from this envbuild, and the addresses of indexes belong into no commit: both are
written beside the texts and not committed with them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

from envbuild.container.dockerfile import render
from envbuild.container.recipe import INDEXES as INDEXES
from envbuild.container.recipe import NODE as NODE
from envbuild.container.recipe import ImageRecipe
from envbuild.errors import EnvbuildError
from envbuild.node_program import node_pyz

LIMIT = 100_000_000
UNCOMMITTED = (NODE, INDEXES)
# What the plain form adds to the folder.
_PLAIN = ("requirements*.txt", "patches")
_COPIED = re.compile(r"^COPY (?!--from=)(.+) \S+$", re.MULTILINE)
_DIFF_LINES = 60


def texts(recipe: ImageRecipe) -> dict[str, str]:
    """File name -> text of everything that is generated and committed.

    In a checkout the folder is the context of the plain form alone.
    """
    files = {"Dockerfile": render(recipe), **recipe.files}
    own = UNCOMMITTED if recipe.uncommitted else ()
    allowed = sorted([*(recipe.files if own else ()), *own, *_PLAIN])
    files[".dockerignore"] = "*\n" + "".join(f"!{name}\n" for name in allowed)
    files[".gitignore"] = "".join(f"{name}\n" for name in (*own, "patches/"))
    return files


def write(
    recipe: ImageRecipe, folder: Path, *, program: bool = True, more: Mapping[str, str] | None = None
) -> list[str]:
    """Write the context into `folder` (made where missing), and `more` texts; names of files that were not so before.

    `program`: with what is not committed (the node program, addresses of indexes), without which nothing can be built.
    Raises EnvbuildError `context-unwritable`.
    """
    contents = {name: text.encode() for name, text in {**texts(recipe), **(more or {})}.items()}
    if program:
        contents |= {name: text.encode() for name, text in recipe.uncommitted.items()}
        contents[NODE] = node_pyz()
    return write_files(folder, contents)


def write_files(folder: Path, contents: Mapping[str, bytes]) -> list[str]:
    """Write what differs; its names. Raises EnvbuildError `context-unwritable`."""
    changed = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            if not path.is_file() or path.read_bytes() != data:
                path.write_bytes(data)
                changed.append(name)
    except OSError as error:
        raise EnvbuildError("context-unwritable", f"cannot write {error.filename or folder}", why=str(error)) from error
    return changed


def compare(recipe: ImageRecipe, folder: Path) -> str:
    """A unified diff from what is in `folder` to what the lock gives; empty when they agree."""
    return compare_files(folder, texts(recipe))


def compare_files(folder: Path, wanted: Mapping[str, str]) -> str:
    """The same for any files: name -> text."""
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


def check(folder: Path, *, program: bool = True, dockerfile: str = "Dockerfile") -> None:
    """Refuse a context that cannot be built from; `program`: what is not committed has to be there too.

    Raises EnvbuildError: `context-too-large` (exit 7) over 100 MB, with its largest files; `context-hides` (exit 2)
    where `.dockerignore` hides what the Dockerfile copies; `context-incomplete` (exit 2) where that is not there.
    """
    ignored = _patterns(folder / ".dockerignore")
    sizes: dict[str, int] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.is_symlink() and not _hidden(name, ignored):
            sizes[name] = path.stat().st_size
    total = sum(sizes.values())
    if total > LIMIT:
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
        raise EnvbuildError(
            "context-too-large",
            f"the build context {folder} has {total / 1e6:.0f} MB, more than {LIMIT / 1e6:.0f} MB",
            why="largest: " + ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in largest),
            hint="take them out, or name them in .dockerignore; packages belong into `--wheelhouse`",
        )
    file = folder / dockerfile
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    for match in _COPIED.finditer(text):
        for name in match.group(1).split():
            if _hidden(name, ignored):
                raise EnvbuildError(
                    "context-hides",
                    f"{folder / '.dockerignore'} hides {name}, which the Dockerfile copies",
                    hint=f"add a last line `!{name}`, or write the context again with `envbuild image dockerfile -o`",
                )
            if not (folder / name).exists() and (program or name not in UNCOMMITTED):
                raise EnvbuildError(
                    "context-incomplete",
                    f"{folder / name} is missing",
                    hint="`envbuild image dockerfile STACK -o DIR` writes the whole context",
                )


def _patterns(path: Path) -> list[tuple[re.Pattern[str], bool]]:
    """Patterns of a .dockerignore in order, with whether they hide; the last one that fits decides."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        hides = not text.startswith("!")
        text = text.lstrip("!").strip().strip("/")
        parts = re.split(r"(\*\*/?|\*|\?)", text)
        words: Mapping[str, str] = {"**": ".*", "**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
        found.append((re.compile("".join(words.get(part, re.escape(part)) for part in parts) + r"(?:/.*)?"), hides))
    return found


def _hidden(name: str, patterns: list[tuple[re.Pattern[str], bool]]) -> bool:
    hidden = False
    for pattern, hides in patterns:
        if pattern.fullmatch(name):
            hidden = hides
    return hidden
