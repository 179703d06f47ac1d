"""Host compilers and the small programs that a build may need, each with its version."""

import os
import re
from collections.abc import Callable
from functools import partial

from envbuild.node import proc
from envbuild.node.probe import parse_system
from envbuild.node.protocol import Json
from envbuild.node.read_text import names, which

DEADLINE = 5.0
TOOLS = ("git", "tar", "gzip", "xz", "zstd", "unzip", "patch", "make", "cmake", "ninja", "uv", "curl", "wget", "rsync")
_COMPILER = re.compile(r"(gcc|g\+\+)(-[0-9]{1,2})?\Z")


def compiler_facts(folders: "list[str]") -> "list[dict[str, str]]":
    """Every gcc and g++ on PATH, with or without a version in its name; links to one file count once a kind."""
    chosen: dict[tuple[str, str], str] = {}
    for folder in folders:
        for name in names(folder):
            match = _COMPILER.match(name)
            path = os.path.join(folder, name)
            if match and os.access(path, os.X_OK):
                chosen.setdefault((match.group(1), os.path.realpath(path)), path)
    return versions(list(chosen.values()), parse_system.parse_compiler, DEADLINE)


def versions(paths: "list[str]", parse: "Callable[[str], str | None]", deadline: float) -> "list[dict[str, str]]":
    """`path` and `version` of each program that says one; all are asked at once, for at most `deadline` seconds."""
    answers = proc.parallel([partial(proc.run, [path, "--version"], timeout=deadline) for path in paths])
    said = [(path, parse(answer.out)) for path, answer in zip(paths, answers) if answer and answer.ok]  # noqa: B905
    return [{"path": path, "version": version} for path, version in said if version]


def tool_facts(folders: "list[str]", modules: "str | None") -> Json:
    """Tool -> version; None when it is not there, `unknown` when it is there and does not say.

    `module` is a shell function, so its entry is what `modules_system` found.
    """
    paths = {name: which(name, folders) for name in TOOLS}
    there = [name for name in TOOLS if paths[name]]
    answers = proc.parallel([partial(_version, name, paths[name] or "") for name in there])
    found: Json = dict.fromkeys(TOOLS)
    for name, answer in zip(there, answers):  # noqa: B905 - strict= is of Python 3.10
        found[name] = answer or "unknown"
    found["module"] = (modules.partition(" ")[2] or "unknown") if modules else None
    found["sudo"] = "unknown" if which("sudo", folders) else None
    return found


def _version(name: str, path: str) -> "str | None":
    answer = proc.run([path, "-v" if name == "unzip" else "--version"], timeout=DEADLINE)
    return parse_system.parse_tool(answer.out or answer.err)
