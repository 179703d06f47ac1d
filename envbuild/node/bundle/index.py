"""`bundle.json`: what a bundle is for, and every file of it by path, sha256 and bytes. One form only.

`version`, `stack`, `profile`, `machines` (as `uname -m` says it), `variants` (labels), `files`, and `digest`: sha256
over all that, by which the bundle is known. A file has `path`, `sha256`, `bytes`, `what`; a built wheel also `key`
(its build key) and `source`. The path says what a file is:

    wheels/FILE                       `wheel`: a locked package, as a wheel or as its source archive
    built/KEY/FILE.whl, build.json    `built wheel`: an entry of a wheel store
    sources/FILE.bundle               `source`: a git bundle with the commit and its tree, no history
    conda/CHANNEL/SUBDIR/FILE         `conda package`
    tools/FILE                        `tool`: uv as a wheel
    tools/HEX-FILE.tar.gz             `interpreter`: a standalone Python
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from envbuild.node.bundle import plain_tar
from envbuild.node.protocol import Json, NodeError, has_fields

NAME = "bundle.json"
VERSION = 1
LARGEST_INDEX = 64 * 1024 * 1024
MOST_FILES = 100_000
LARGEST = 64 << 30
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,254}"
_FORMS = {
    "wheel": r"wheels/" + _PART,
    "built wheel": r"built/[0-9a-f]{64}/" + _PART,
    "source": r"sources/" + _PART + r"\.bundle",
    "conda package": r"conda(/" + _PART + r"){3}",
    "tool": r"tools/" + _PART,
    "interpreter": r"tools/" + _PART,
}
LIMITS = plain_tar.Limits(
    re.compile("%s(/%s){0,3}" % (_PART, _PART)),
    MOST_FILES + 1,
    lambda name: LARGEST_INDEX if name == NAME else LARGEST,
    MOST_FILES * LARGEST,
    exact=True,
)


def make(stack: str, profile: str, machines: list[str], variants: list[str], files: list[Json]) -> Json:
    """The index of these files, by their paths. Raises NodeError `bundle-unsafe` (exit 5) for what none may hold."""
    index: Json = {"version": VERSION, "stack": stack, "profile": profile}
    index.update(machines=sorted(set(machines)), variants=sorted(set(variants)))
    index["files"] = sorted(files, key=lambda file: file["path"])
    index["digest"] = _digest(index)
    problem = _problem(index)
    if problem:
        raise unsafe("the bundle", problem)
    return index


def encode(index: Json) -> bytes:
    """The bytes of `bundle.json`."""
    return _canonical(index) + b"\n"


def parse(data: bytes, path: object) -> Json:
    """The index in the bytes of `bundle.json`. Raises NodeError `bundle-damaged`, `bundle-unsafe` (exit 5)."""
    try:
        index = json.loads(data.decode("ascii"))
        same = isinstance(index, dict) and encode(index) == data
    except (ValueError, RecursionError):
        index, same = None, False
    if not isinstance(index, dict) or index.get("version") != VERSION:
        raise damaged(path, f"its {NAME} is not one that this envbuild reads")
    if not same or index.get("digest") != _digest(index):
        raise damaged(path, f"its {NAME} was changed")
    problem = _problem(index)
    if problem:
        raise unsafe(path, problem)
    return index


def _canonical(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def _digest(index: Json) -> str:
    return hashlib.sha256(_canonical({key: value for key, value in index.items() if key != "digest"})).hexdigest()


def _problem(index: Json) -> str:
    """What is wrong with the contents of an index; empty when nothing is."""
    if not has_fields(index, stack=str, profile=str, machines=list, variants=list, files=list):
        return f"{NAME} lacks a field"
    names = plain_tar.Names(LIMITS)
    paths = []
    for file in index["files"]:
        if not isinstance(file, dict) or not has_fields(file, path=str, sha256=str, bytes=int, what=str):
            return f"{NAME} has a row without path, sha256, bytes or what"
        path, form = file["path"], _FORMS.get(file["what"], "")
        if not re.fullmatch(form, path) or not re.fullmatch("[0-9a-f]{64}", file["sha256"]) or file["bytes"] < 0:
            return f"{path[:200]} is no {file['what'][:40]} of a bundle"
        try:
            names.file(path, file["bytes"])
        except plain_tar.HostileError as error:
            return f"{path[:200]}: {error.why}"
        paths.append(path)
    return "" if paths == sorted(paths) else "its files do not stand in the order of their paths"


def damaged(path: object, why: str) -> NodeError:
    """`bundle-damaged` (exit 5)."""
    return NodeError(
        "bundle-damaged",
        f"{path} differs from its index",
        why=why,
        hint="carry the file here again, or make it again: `envbuild bundle create STACK -o FILE`",
    )


def unsafe(path: object, why: str) -> NodeError:
    """`bundle-unsafe` (exit 5)."""
    return NodeError(
        "bundle-unsafe",
        f"{path} is not a bundle, and envbuild uses nothing from it",
        why=why,
        hint="do not unpack it before you know who made it",
    )
