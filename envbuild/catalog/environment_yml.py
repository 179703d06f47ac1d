"""`environment.yml` of conda as a stack: what people have already is what they lock.

Read are `name`, `channels`, `dependencies` with a `pip:` part, and `variables`; `prefix` is where a copy lay and
says nothing. Everything else is refused with its line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
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


def is_environment(data: Any) -> bool:
    """Whether plain data is an `environment.yml` and no stack."""
    return isinstance(data, dict) and "dependencies" in data and "profiles" not in data


def as_stack(document: YamlDocument, path: Path) -> dict[str, Any]:
    """The stack that it stands for, as plain data: one profile `exact` for the engine conda.

    What it lists of conda is left to conda where a wheel needs it too. Raises EnvbuildError `environment-yml` (exit 2)
    with the line of what cannot be read.
    """
    data = document.data
    for key in data:
        if key not in KEYS:
            raise _refused(document, (key,), f"`{key}` is no key of an environment.yml that envbuild reads")
    specs, pip = _dependencies(document)
    section = {
        "channels": list(_channels(document)),
        "packages": specs,
        "provides": dict(sorted(_provides(specs))),
        "only": True,
    }
    profile = {"python": [_python(document, specs)], "conda": section, "packages": pip}
    if data.get("variables"):
        profile["environment"] = data["variables"]
    name = re.sub(r"[^a-z0-9._-]+", "-", str(data.get("name") or path.stem).lower()).strip("-._") or "environment"
    return {"name": name[:63], "summary": f"{path.name} of conda", "profiles": {"exact": profile}}


def _dependencies(document: YamlDocument) -> tuple[list[str], list[str]]:
    """The match specs and the requirements of the pip part."""
    entries = document.data["dependencies"]
    if not isinstance(entries, list):
        raise _refused(document, ("dependencies",), "`dependencies` is no list")
    specs: list[str] = []
    pip: list[str] = []
    for place, entry in enumerate(entries):
        where = ("dependencies", place)
        if isinstance(entry, dict) and list(entry) == ["pip"] and isinstance(entry["pip"], list):
            pip += [_requirement(document, (*where, "pip", n), text) for n, text in enumerate(entry["pip"])]
        elif not isinstance(entry, str):
            raise _refused(document, where, "a dependency is a match spec, or `pip:` with a list")
        elif _LOCAL.match(entry):
            raise _refused(document, where, f"{entry} is a file or an address; a lock holds packages of channels")
        else:
            specs.append(entry.strip())
    return specs, pip


def _requirement(document: YamlDocument, where: tuple[str | int, ...], text: Any) -> str:
    if not isinstance(text, str):
        raise _refused(document, where, "a line of the pip part is text")
    line = text.strip()
    if line.startswith("-"):
        what = f"`{line}` is an option of pip and no package"
        lines = "write its lines into the pip part"
        raise _refused(document, where, what, lines if line.startswith(("-r", "--r")) else _draft(document))
    if _LOCAL.match(line) or " @ " in line:
        what = f"{line} is a path or an address and no package of an index"
        raise _refused(document, where, what, _draft(document))
    return line


def _draft(document: YamlDocument) -> str:
    """How a file becomes a stack with sources and indexes, which an environment.yml cannot say."""
    return f"`{shlex.join(['envbuild', 'init', '--from', document.name])}` drafts a stack file, where it is a source"


def _channels(document: YamlDocument) -> Iterator[dict[str, str]]:
    listed = document.data.get("channels")
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed) or not listed:
        hint = "`channels: [conda-forge]`; without one conda would take Anaconda's own, which need a licence"
        raise _refused(document, ("channels",), "it lists no channel", hint)
    for place, text in enumerate(listed):
        if text == "nodefaults":
            continue
        name = text if "://" not in text else PurePosixPath(urlsplit(text).path).name.lower()
        if not _CHANNEL.fullmatch(name):
            raise _refused(document, ("channels", place), f"{text} is no name of a channel", "write its full address")
        yield {"name": name} if name == text else {"name": name, "url": text}


def _python(document: YamlDocument, specs: list[str]) -> str:
    found = next((match.group(1) for match in map(_PYTHON.match, specs) if match), None)
    if found is None:
        hint = "`- python=3.11` among the dependencies: a lock is for one Python"
        raise _refused(document, ("dependencies",), "it does not say which Python", hint)
    return found


def _provides(specs: list[str]) -> Iterator[tuple[str, str]]:
    names = (match.group(1).lower() for match in map(_NAME.match, specs) if match)
    return ((DISTRIBUTIONS.get(name, name), name) for name in names if name[0] != "_" and name != "python")


def _refused(document: YamlDocument, where: tuple[str | int, ...], problem: str, hint: str = "") -> EnvbuildError:
    return refuse(CODE, document.name, *document.locate(where), problem, hint)
