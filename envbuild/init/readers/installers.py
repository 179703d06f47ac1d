"""Arguments of `pip install`, `uv` and `conda install` as statements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from envbuild.init.readers.requirement import (
    GitAddress,
    Spec,
    conda_spec,
    git_address,
    is_git,
    is_local,
    requirement,
    wheel,
)
from envbuild.init.readers.words import Command
from envbuild.init.statement import Kind, Place, Statement, without_credentials

# Options of pip and uv that take a value.
_VALUED = frozenset(
    ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "-r", "--requirement", "-c", "--constraint", "-e",
     "--editable", "--global-option", "--install-option", "--config-settings", "--config-setting", "-C", "-t",
     "--target", "--prefix", "--root", "--trusted-host", "--timeout", "--default-timeout", "--retries", "--cache-dir",
     "--no-binary", "--only-binary", "--platform", "--python-version", "--progress-bar", "--proxy", "--cert", "-p",
     "--python", "--index", "--default-index", "--torch-backend", "--extra", "--group", "--with", "--src",
     "--resume-retries")
)  # fmt: skip
_JOINED = re.compile(r"(--[a-z-]+)=(.*)", re.DOTALL)
_CONDA_VALUED = frozenset(("-n", "--name", "-p", "--prefix", "-c", "--channel", "-f", "--file", "--solver"))
_SLIP = re.compile(r"=[0-9][0-9.*,<>=]*$")


@dataclass
class Position:
    """Where a shell is: the folder, the clones and wheels in it, and the command that is being read.

    `where` is the clone that commands are in (empty: the page's own repository, or none) and the folder in it.
    """

    file: str
    optional: bool = False
    clones: dict[str, str] = field(default_factory=dict)  # folder to address
    wheels: dict[str, str] = field(default_factory=dict)  # name of a file to its address
    where: tuple[str, str] = ("", "")
    _line: int = 1
    _column: int = 1
    _text: str = ""
    _via: str = ""

    def make(self, kind: Kind, value: str, **options: str) -> Statement:
        """A statement of the command that is being read."""
        place = Place(self.file, self._line, self._column)
        kept = {name: text for name, text in options.items() if text}
        return Statement(kind, value, place, self._text, self._via, self.optional, kept)

    def source(self, address: GitAddress, how: str, **options: str) -> Statement:
        """A repository; `how` it comes: clone or pip."""
        return self.make(
            "source", address.url, ref=address.ref, name=address.name, subdirectory=address.subdirectory,
            ssh="yes" if address.ssh else "", how=how, **options,
        )  # fmt: skip


class Words(NamedTuple):
    """A command line taken apart: options with values, flags, and what stands alone."""

    options: list[tuple[str, str]]
    flags: set[str]
    names: list[str]

    def values(self, *names: str) -> list[str]:
        """The values of an option, by any of its names."""
        return [value for name, value in self.options if name in names]


def taken_apart(words: list[str], valued: frozenset[str]) -> Words:
    """Options, flags and names of a command line."""
    out = Words([], set(), [])
    rest = iter(words)
    for word in rest:
        joined = _JOINED.fullmatch(word)
        if joined:
            out.options.append((joined[1], joined[2]))
        elif word in valued:
            out.options.append((word, next(rest, "")))
        elif word.startswith("-") and len(word) > 1:
            out.flags.add(word)
        elif word:
            out.names.append(word)
    return out


def pip(shell: Position, words: list[str], command: Command) -> Iterator[Statement]:
    """Statements of pip and of uv, which takes the same words after `uv pip`, and names after `uv add`."""
    if words[0] == "uv":
        if words[1:2] == ["venv"]:
            yield from _uv_venv(shell, words)
        elif words[1:2] == ["sync"]:
            yield shell.make("file", "pyproject.toml", by="-r", source=shell.where[0])
        words = words[2:] if words[1:2] == ["pip"] else words[1:]
    else:
        words = words[1:]
    verb = next((word for word in words if not word.startswith("-")), "")
    parts = taken_apart(_joined(words[words.index(verb) + 1 :]) if verb else [], _VALUED)
    if verb == "uninstall":
        yield from (shell.make("remove", name) for name in parts.names)
    elif verb in ("install", "add", "wheel", "download"):
        yield from _installed(shell, parts, command)


def _uv_venv(shell: Position, words: list[str]) -> Iterator[Statement]:
    for value in taken_apart(words[2:], _VALUED).values("-p", "--python"):
        if match := re.fullmatch(r"(?:python|cpython-?)?(3\.[0-9]+)(?:\.[0-9]+)?", value):
            yield shell.make("python", f"=={match[1]}.*")


def _installed(shell: Position, parts: Words, command: Command) -> Iterator[Statement]:
    indexes = [without_credentials(url) for url in parts.values("-i", "--index-url", "--index", "--default-index")]
    extra = [without_credentials(url) for url in parts.values("--extra-index-url")]
    links = [without_credentials(url) for url in parts.values("-f", "--find-links")]
    how = {
        "index": " ".join(indexes), "extra_index": " ".join(extra), "find_links": " ".join(links),
        "no_deps": "yes" if "--no-deps" in parts.flags else "",
        "no_isolation": "yes" if "--no-build-isolation" in parts.flags else "",
        "flags": _flags(parts), "torch_backend": " ".join(parts.values("--torch-backend")),
    }  # fmt: skip
    if parts.values("--global-option", "--install-option"):
        yield shell.make("trait", "pip-global-option", source=shell.where[0])
    for place, urls in (("index", indexes), ("extra", extra), ("find-links", links)):
        yield from (shell.make("index", url, place=place) for url in urls)
    for by, option in (("-r", "--requirement"), ("-c", "--constraint")):
        for name in parts.values(by, option):
            yield shell.make("file", _place(shell, name), by=by, source=shell.where[0])
    slips = [item.target for item in command.redirects if item.operator == ">" and _SLIP.match(item.target)]
    names = parts.names
    if slips and names:  # what was meant
        names[-1] = f"{names[-1]}>{slips[0]}"
    for name in names:
        yield from _one(shell, name, how, editable=False)
    for name in parts.values("-e", "--editable"):
        yield from _one(shell, name, how, editable=True)


def _joined(words: list[str]) -> list[str]:
    """Words of one bracket together: `.[LIST OF MODES]` is one thing to fill in, and no package."""
    out: list[list[str]] = []
    depth = 0
    for word in words:
        if depth > 0:
            out[-1].append(word)
        else:
            out.append([word])
            depth = 0
        depth += word.count("[") - word.count("]")
    return [word for word in map(" ".join, out) if word not in ("pip", "pip3")]


def _flags(parts: Words) -> str:
    """The options of a build, each flag once."""
    values = parts.values("--global-option", "--install-option", "--config-settings", "--config-setting", "-C")
    plain = [value.partition("=")[2] if value.startswith("--build-option=") else value for value in values]
    return " ".join(dict.fromkeys(plain))


def _place(shell: Position, name: str) -> str:
    if re.match(r"https?://|/|~|\$", name):
        return without_credentials(name) if "://" in name else name
    return str(PurePosixPath(shell.where[1], name))


def _one(shell: Position, word: str, how: dict[str, str], *, editable: bool) -> Iterator[Statement]:
    marks = how | {"editable": "yes" if editable else ""}
    if is_git(word):
        address = git_address(word)
        if address:
            yield shell.source(address, "pip", pinned_by="ref" if address.ref else "", **marks)
        return
    built = wheel(shell.wheels.get(word.rpartition("/")[2], word)) if word.endswith(".whl") else None
    if built:
        address_of = shell.wheels.get(word.rpartition("/")[2], word)
        at = without_credentials(address_of) if "://" in address_of else ""
        yield shell.make("package", f"{built.name}=={built.version}", wheel=at or word, local=built.local, **how)
        if built.python:
            yield shell.make("python", f"=={built.python}.*", inferred="wheel")
        return
    if re.match(r"https?://", word):
        yield shell.make("download", without_credentials(word), program="pip")
        return
    folder, extras = _extras(word)
    key = folder.strip("/").rpartition("/")[2].lower()
    if is_local(word) or editable or "/" in word or (key in shell.clones and folder.endswith("/")):
        yield from _folder(shell, folder, extras, marks)
    elif (parsed := requirement(word)) is not None and "$" not in word:
        yield shell.make("package", str(parsed), **how)
    else:
        yield shell.make("unknown", "pip install")


def _extras(word: str) -> tuple[str, str]:
    folder, sign, extras = word.removesuffix("]").rpartition("[")
    return (folder, extras) if sign and word.endswith("]") and "]" not in extras else (word, "")


def _folder(shell: Position, folder: str, extras: str, marks: dict[str, str]) -> Iterator[Statement]:
    source, inside = shell.where
    for part in PurePosixPath(folder).parts:
        if part.lower() in shell.clones and not (source and inside):
            source, inside = shell.clones[part.lower()], ""
        elif part == "..":
            inside = inside.rpartition("/")[0]
        elif part not in (".", "/") and not part.startswith(("~", "$")):
            inside = f"{inside}/{part}".strip("/")
    yield shell.make("local", inside or ".", source=source, extras=extras, **marks)


def conda(shell: Position, words: list[str]) -> Iterator[Statement]:
    """Statements of conda, mamba and micromamba."""
    verbs = [word for word in words[1:] if not word.startswith("-")]
    if not verbs:
        return
    if verbs[0] == "init":
        yield shell.make("startup", "conda init", written="yes")
        return
    if verbs[0] == "activate":
        yield from (shell.make("activate", name) for name in verbs[1:2])
        return
    first = words.index("install") if "install" in words else words.index("create") if "create" in words else 0
    parts = taken_apart(words[first + 1 :] if first else words[1:], _CONDA_VALUED)
    if verbs[0] in ("env", "create", "install", "update"):
        usual = ["environment.yml"] if verbs[:2] == ["env", "create"] else []
        yield from (shell.make("file", name, by="conda") for name in parts.values("-f", "--file") or usual)
    if verbs[0] not in ("create", "install"):
        return
    channels = parts.values("-c", "--channel")
    yield from (shell.make("channel", name) for name in channels)
    joined = " ".join(channels)
    named = False
    for word in parts.names:
        spec = conda_spec(word)
        if spec is None:
            yield shell.make("unknown", f"conda {verbs[0]}")
            continue
        named = named or spec.name == "python"
        yield shell.make("conda", word, name=spec.name, version=spec.version, channels=spec.channel or joined)
        for kind, value, by in conda_facts(spec):
            yield shell.make(kind, value, by=by)
    if verbs[0] == "create" and not named:
        yield shell.make("trait", "conda-without-python")


def conda_facts(spec: Spec) -> Iterator[tuple[Kind, str, str]]:
    """What a match spec says about Python, CUDA and the compiler: kind and value of a statement, and its `by`."""
    name, version, number = spec.name, spec.version, spec.version.removeprefix("==")
    if name == "python" and version:
        exact = re.fullmatch(r"==(3\.[0-9]+)(\.[0-9*]+)*", version)
        yield "python", f"=={exact[1]}.*" if exact else version, ""
    elif name in ("cudatoolkit", "pytorch-cuda", "cuda-version") and version.startswith("=="):
        yield "cuda", number, name
    elif name in ("cuda", "cuda-toolkit", "cuda-nvcc", "cudatoolkit-dev"):
        yield "cuda", number, "toolkit"
    elif re.fullmatch(r"gcc(_linux-64)?|gxx(_linux-64)?|gcc-[0-9]+", name):
        yield "gcc", number or name.removeprefix("gcc-").removeprefix("gcc"), "conda"
