"""`environment.yml` of conda as a stack: what people have already is what they lock.

Read are `name`, `channels`, `dependencies` with a `pip:` part, and `variables`; `prefix` is where a copy lay and
says nothing. Everything else is refused with its line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from envbuild.catalog.yaml_load import YamlDocument
from envbuild.errors import EnvbuildError
from envbuild.regular_file import refuse

KEYS = ("name", "channels", "dependencies", "variables", "prefix")
CODE = "environment-yml"
# conda packages whose distribution has another name.
DISTRIBUTIONS = {"pytorch": "torch", "msgpack-python": "msgpack", "py-opencv": "opencv-python"}
_PYTHON = re.compile(r"(?:.*::)?python(?:\[version=)?[\s='\"~]*(3\.[0-9]{1,2})(?![0-9])")
_NAME = re.compile(r"(?:.*::)?([A-Za-z0-9_][A-Za-z0-9_.-]*)")
_LOCAL = re.compile(r"\.{0,2}/|~|[a-z+]+://|.*\.(conda|tar\.bz2|whl)$")
_CHANNEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class Entry(NamedTuple):
    """One line of it: a `channel`, a match spec (`conda`), a line of the `pip` part, or a `variable`.

    `problem`: why no lock can hold it, with its hint.
    """

    kind: str
    text: str
    where: tuple[str | int, ...]
    problem: str = ""
    hint: str = ""


def entries(document: YamlDocument) -> Iterator[Entry]:
    """What it lists, with what is wrong about it; nothing is refused here."""
    yield from _channels(document.data.get("channels"))
    # How a file becomes a stack with sources and indexes, which an environment.yml cannot say.
    draft = f"`{shlex.join(['envbuild', 'init', '--from', document.name])}` drafts a stack file, where it is a source"
    yield from _dependencies(document.data.get("dependencies"), draft)
    variables = document.data.get("variables")
    for name, value in (variables if isinstance(variables, dict) else {}).items():
        yield Entry("variable", f"{name}={value}", ("variables", name))


def as_stack(document: YamlDocument, path: Path) -> dict[str, Any]:
    """The stack that it stands for, as plain data: one profile `exact` for the engine conda.

    What it lists of conda is left to conda where a wheel needs it too. Raises EnvbuildError `environment-yml` (exit 2)
    with the line of what cannot be read.
    """
    data = document.data
    for key in data:
        if key not in KEYS:
            raise _refused(document, (key,), f"`{key}` is no key of an environment.yml that envbuild reads")
    listed = list(entries(document))
    for entry in sorted(listed, key=lambda item: item.kind == "channel"):
        if entry.problem:
            raise _refused(document, entry.where, entry.problem, entry.hint)
    texts = {kind: [entry.text for entry in listed if entry.kind == kind] for kind in ("conda", "pip", "channel")}
    specs = texts["conda"]
    section = {
        "channels": [_channel(text) for text in texts["channel"] if text != "nodefaults"],
        "packages": specs,
        "provides": dict(sorted(_provides(specs))),
        "only": True,
    }
    profile = {"python": [_python(document, specs)], "conda": section, "packages": texts["pip"]}
    if data.get("variables"):
        profile["environment"] = data["variables"]
    name = re.sub(r"[^a-z0-9._-]+", "-", str(data.get("name") or path.stem).lower()).strip("-._") or "environment"
    return {"name": name[:63], "summary": f"{path.name} of conda", "profiles": {"exact": profile}}


def _dependencies(listed: Any, draft: str) -> Iterator[Entry]:
    if not isinstance(listed, list):
        yield Entry("conda", "", ("dependencies",), "`dependencies` is no list")
        return
    for place, entry in enumerate(listed):
        where = ("dependencies", place)
        if isinstance(entry, dict) and list(entry) == ["pip"] and isinstance(entry["pip"], list):
            yield from (_requirement((*where, "pip", n), text, draft) for n, text in enumerate(entry["pip"]))
        elif not isinstance(entry, str):
            yield Entry("conda", "", where, "a dependency is a match spec, or `pip:` with a list")
        elif _LOCAL.match(entry):
            problem = f"{entry} is a file or an address; a lock holds packages of channels"
            yield Entry("conda", entry, where, problem)
        else:
            yield Entry("conda", entry.strip(), where)


def _requirement(where: tuple[str | int, ...], text: Any, draft: str) -> Entry:
    line = str(text).strip()
    if not isinstance(text, str):
        return Entry("pip", line, where, "a line of the pip part is text")
    if line.startswith("-"):
        hint = "write its lines into the pip part" if line.startswith(("-r", "--r")) else draft
        return Entry("pip", line, where, f"`{line}` is an option of pip and no package", hint)
    if _LOCAL.match(line) or " @ " in line:
        return Entry("pip", line, where, f"{line} is a path or an address and no package of an index", draft)
    return Entry("pip", line, where)


def _channels(listed: Any) -> Iterator[Entry]:
    if not isinstance(listed, list) or not all(isinstance(channel, str) for channel in listed) or not listed:
        hint = "`channels: [conda-forge]`; without one conda would take Anaconda's own, which need a licence"
        yield Entry("channel", "", ("channels",), "it lists no channel", hint)
    for place, text in enumerate(listed if isinstance(listed, list) else ()):
        named = isinstance(text, str) and (text == "nodefaults" or _CHANNEL.fullmatch(_channel(text)["name"]))
        problem = "" if named else f"{text} is no name of a channel"
        yield Entry("channel", str(text), ("channels", place), problem, "write its full address" if problem else "")


def _channel(text: str) -> dict[str, str]:
    name = text if "://" not in text else PurePosixPath(urlsplit(text).path).name.lower()
    return {"name": name} if name == text else {"name": name, "url": text}


def _python(document: YamlDocument, specs: list[str]) -> str:
    version = next((match.group(1) for match in map(_PYTHON.match, specs) if match), None)
    if version is None:
        hint = "`- python=3.11` among the dependencies: a lock is for one Python"
        raise _refused(document, ("dependencies",), "it does not say which Python", hint)
    return version


def _provides(specs: list[str]) -> Iterator[tuple[str, str]]:
    names = (match.group(1).lower() for match in map(_NAME.match, specs) if match)
    return ((DISTRIBUTIONS.get(name, name), name) for name in names if name[0] != "_" and name != "python")


def _refused(document: YamlDocument, where: tuple[str | int, ...], problem: str, hint: str = "") -> EnvbuildError:
    return refuse(CODE, document.name, *document.locate(where), problem, hint)
