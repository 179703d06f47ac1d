"""Which files of an input are read, and as what: the way that the page takes, or an offer beside it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from envbuild.init.draft import Origin
from envbuild.init.read import read, reader_of
from envbuild.init.statement import Statement
from envbuild.init.tree import Tree

_MANIFESTS = frozenset(
    ("pyproject.toml", "setup.py", "setup.cfg", "requirements", "environment.yml", "Pipfile", "pixi")
)
# Requirements files that say by their name what they are for: choices, never summed up.
_CHOICE = re.compile(
    r"(?:^|[-_./])(?:dev|test|tests|testing|doc|docs|lint|ci|rocm|amd|cpu|mac|macos|osx|windows|win|npu|ascend|xpu|hpu|tpu|"
    r"gpu|cuda|optional|extra|extras|all|full|minimal|lock|frozen|notebook|demo|eval|build|train|benchmark|gradio|app|web)"
    r"(?:[-_./]|[0-9]*\.)",
    re.IGNORECASE,
)
_PAGE = re.compile(
    r"(?:docs?/)?(?:[\w-]+/)?(?:readme|install|installation|getting[_-]?started|setup|quick[_-]?start)[\w.-]*\.(?:md|rst)",
    re.IGNORECASE,
)
_PASSED = re.compile(r"(?:^|/)(?:tests?|third[_-]?party|3rdparty|vendor|vendored|submodules|external|node_modules)/")
_INSTALLER = re.compile(r"(?:install|setup|env)[\w-]*\.sh$")
_DEEPEST = 4
_MOST = 200
_BUILT = re.compile(r"^[ \t]*(?:-[ \t]+)?[A-Za-z0-9_.-]+=[^=\s]+=[A-Za-z0-9_.]+$", re.MULTILINE)


@dataclass
class Collected:
    """Statements of all files that were read; `used` has the format of each, `choices` those that are only offered.

    `contents`: the beginning of the sha256 of each file that is used. `themselves`: what asks an index for the project.
    """

    statements: list[Statement] = field(default_factory=list)
    used: dict[str, str] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    themselves: tuple[Statement, ...] = ()


def collect(tree: Tree) -> Collected:
    """The statements of a file, or of the files of a folder that say something about its environment."""
    out = Collected()
    if tree.alone:
        _whole(tree, tree.files[0], out)
        return out
    main, offered = _sorted(tree)
    for path in main:
        _whole(tree, path, out)
    _included(tree, out)
    traits = (statement for statement in out.statements if (statement.kind, statement.value) == ("trait", "project"))
    own = {trait.get("name").lower().replace("_", "-") for trait in traits}
    for path in offered:
        if path not in out.used:
            _offered(tree, path, out)
    out.statements = [_of_submodule(statement, tree.origin) for statement in out.statements]
    # A project that installs itself from the index is its own tree.
    out.themselves = tuple(statement for statement in out.statements if _is_self(statement, own))
    out.statements = [statement for statement in out.statements if statement not in out.themselves]
    return out


def _of_submodule(statement: Statement, origin: Origin) -> Statement:
    """What installs a folder of a submodule installs that repository, at its commit."""
    path, own = _normal(statement.value), statement.get("source") in ("", origin.url)
    for folder, address in origin.submodules if statement.kind == "local" and own else ():
        if f"{path}/".startswith(f"{folder}/"):
            url, _, commit = address.rpartition("@")
            more = {"ref": commit, "how": "pip", "name": PurePosixPath(folder).name, "source": ""}
            more["subdirectory"] = path[len(folder) + 1 :]
            return replace(statement, kind="source", value=url, options=dict(statement.options) | more)
    return statement


def together(trees: Sequence[Tree]) -> Collected:
    """The statements of several inputs; a path that two of them have is named after the input that comes later."""
    out = collect(trees[0])
    for tree in trees[1:]:
        more = collect(tree)
        names = {
            path: f"{tree.origin.name}/{path}" if path in out.used else path for path in (*more.used, *more.choices)
        }
        out.statements += [
            replace(
                statement, place=replace(statement.place, file=names.get(statement.place.file, statement.place.file))
            )
            for statement in more.statements
        ]
        out.used |= {names[path]: noun for path, noun in more.used.items()}
        out.contents |= {names[path]: digest for path, digest in more.contents.items()}
        out.choices |= {names[path]: noun for path, noun in more.choices.items()}
    return out


def digest(text: str) -> str:
    """The beginning of the sha256 of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _whole(tree: Tree, path: str, out: Collected) -> None:
    text = tree.text(path)
    if text is None:
        return
    known = reader_of(path)
    out.used[path] = known[0] if known else "text"
    out.contents[path] = digest(text)
    out.statements += read(text, path)


def _offered(tree: Tree, path: str, out: Collected) -> None:
    """A nested or alternative file: each of its packages stands in an extra of the file's name."""
    text = tree.text(path)
    known = reader_of(path)
    if text is None or known is None:
        return
    out.choices[path] = known[0]
    for statement in read(text, path):
        extra = "locked" if known[0] == "lock" else f"file:{path}"
        options = dict(statement.options) | (
            {"extra": extra} if statement.kind in ("package", "conda", "source") else {}
        )
        out.statements.append(replace(statement, optional=True, options=options))


def _sorted(tree: Tree) -> tuple[list[str], list[str]]:
    main: list[str] = []
    offered: list[str] = []
    for path in sorted(tree.files, key=lambda name: (name.count("/"), name)):
        known = reader_of(path)
        if known is None or path.count("/") >= _DEEPEST or _PASSED.search(path):
            continue
        noun, inside = known[0], "/" in path
        if noun in _MANIFESTS:
            is_main = not inside or path.startswith("requirements/")
            choice = noun in ("requirements", "environment.yml") and (_CHOICE.search(path) or _frozen(tree, path))
            (main if is_main and not choice else offered).append(path)
        elif noun in ("Markdown", "reStructuredText"):
            if _PAGE.fullmatch(path) and not re.search(r"[_.-](?:zh|cn|ja|jp|ko|fr|de|es|ru)\b", path, re.IGNORECASE):
                (offered if inside else main).append(path)
        elif noun in ("Dockerfile", "Apptainer", "workflow", "lock", "meta.yaml") or (
            noun == "script" and _INSTALLER.search(path)
        ):
            offered.append(path)
    return main, offered[:_MOST]


def _frozen(tree: Tree, path: str) -> bool:
    """Whether a requirements file is what conda exported on one machine."""
    return len(_BUILT.findall(tree.text(path) or "")) > 3


def _included(tree: Tree, out: Collected) -> None:
    """Files that read ones include, and that are in the tree."""
    files = set(tree.files)
    pending = [statement for statement in out.statements if statement.kind == "file" and not statement.optional]
    while pending:
        statement = pending.pop(0)
        name = _normal(statement.value)
        known = reader_of(name)
        if name not in files or name in out.used or known is None or known[0] == "lock" or _CHOICE.search(name):
            continue
        before = len(out.statements)
        _whole(tree, name, out)
        pending += [statement for statement in out.statements[before:] if statement.kind == "file"]
    out.statements = [
        replace(statement, options=dict(statement.options) | {"read": "yes"})
        if statement.kind == "file" and _normal(statement.value) in out.used.keys() | files
        else statement
        for statement in out.statements
    ]


def _normal(path: str) -> str:
    parts: list[str] = []
    for part in PurePosixPath(path).parts:
        if part == "..":
            parts[-1:] = []
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _is_self(statement: Statement, own: Iterable[str]) -> bool:
    """Whether a package is the project itself; a nightly build of it would hide the code of the commit."""
    name = re.match(r"[A-Za-z0-9._-]+", statement.value) if statement.kind == "package" else None
    return name is not None and name[0].lower().replace("_", "-").removesuffix("-nightly") in own
