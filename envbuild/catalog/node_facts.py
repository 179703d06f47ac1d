"""Recorded facts of nodes: JSON files of the user's, or the examples shipped in `catalog/facts`."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envbuild import resources
from envbuild.catalog.indexes import load_indexes
from envbuild.catalog.loader import file_meant, load_target
from envbuild.catalog.validation import show_value
from envbuild.errors import EnvbuildError
from envbuild.hostlist import expand_hosts, fold_hosts
from envbuild.model.common import first_mistake
from envbuild.model.facts import DiskFacts, NodeFacts, SchedulerFacts
from envbuild.model.target import Target
from envbuild.regular_file import read_file
from envbuild.text import did_you_mean, few, grouped, nearest, unsafe_at

_HINT = "`envbuild doctor --target TARGET --facts-out FILE` writes the facts of nodes"

# JSON of these bytes alone holds no text that is `unsafe`.
_SAFE = bytes({*b"\n\r\t", *range(ord(" "), ord("~") + 1)} - {*b"\\"})


def list_facts() -> tuple[str, ...]:
    """Names of the shipped examples."""
    return tuple(sorted(path.stem for path in (resources.catalog() / "facts").glob("*.json")))


def of_example(ref: str, facts: Mapping[str, NodeFacts], target: Target) -> str:
    """That `facts` of `ref` are a shipped example's, with modules seen that jobs of `target` do not load; else empty.

    An edited copy is known by the names of its nodes and their user.
    """
    if ref not in list_facts():
        hosts = _hosts(facts)
        copied = next((name for name in list_facts() if _hosts(load_facts(name)) == hosts), "")
        return (
            f"an edited copy of the example facts of {copied}: what you did not change is not yours" if copied else ""
        )
    modules = target.scheduler.modules
    lacking = ", ".join(sorted(modules_seen(ref).difference(modules.load if modules else ())))
    seen = f", seen with the module {lacking} loaded, as jobs of `extends: {ref}` load it" if lacking else ""
    user = next(iter(facts.values())).user
    return f"example facts of {ref}: its nodes, GPUs, drivers and user `{user}`, not yours{seen}"


def _hosts(facts: Mapping[str, NodeFacts]) -> set[tuple[str, str]]:
    return {(node.hostname, node.user) for node in facts.values()}


def modules_seen(ref: str) -> frozenset[str]:
    """The modules that were loaded where a shipped example was seen; of other facts nobody knows."""
    if ref not in list_facts():
        return frozenset()
    modules = load_target(ref, template=True).target.scheduler.modules  # of the shipped target with its name
    return frozenset(modules.load if modules else ())


def load_facts(ref: str) -> dict[str, NodeFacts]:
    """Facts by node name, from a file (`./facts.json`) or a shipped example (`azure-nd96`).

    A file holds the facts of one node, a list of nodes, or `{node: facts}` as `doctor --facts-out` writes it (or under
    `facts`, as `--json` prints it). Raises EnvbuildError `facts-unknown` or `file-unreadable`, exit 2.
    """
    path = _find(ref)
    try:
        known: dict[tuple[str, str], Any] = {}
        text = read_file(path)
        data = json.loads(text)
        # A thousand nodes are a quarter of a million texts.
        place = unsafe_at(data) if text.translate(None, _SAFE) else None
        listed = [_node(name, plain, known) for name, plain in _nodes(data)] if place is None else []
    except ValidationError as error:
        raise _unreadable(path, first_mistake(error)) from error
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error
    if place is not None:
        raise _unreadable(path, f"{place}: control characters, invisible ones and line separators are not allowed")
    facts = {node.node: node for node in listed}
    if len(facts) != len(listed) or not facts:
        raise _unreadable(path, "two nodes have the same name" if facts else "there is no node in it")
    return facts


def of_target(facts: Mapping[str, NodeFacts], target: Target) -> tuple[dict[str, NodeFacts], list[str]]:
    """Recorded facts for the prefix of a target, and warnings where they are of another one or of other hosts.

    The prefix is that of the user whom the target names for SSH, else of the facts' own. What they say of another
    folder (space, environments, tools) is then unknown.
    """
    placed = {node: _shared(_at_the_prefix(plain, target), target) for node, plain in facts.items()}
    moved = [node for node in facts if posixpath.normpath(facts[node].prefix.path) != placed[node].prefix.path]
    warnings = [
        f"the facts of {fold_hosts(nodes)} describe another folder, {facts[nodes[0]].prefix.path}: environments, "
        f"tools, space and permissions of {placed[nodes[0]].prefix.path} were not checked"
        for nodes in grouped(moved, lambda node: (facts[node].prefix.path, placed[node].prefix.path)).values()
    ]
    if target.connection.kind != "local" and isinstance(target.hosts, tuple) and "<" not in "".join(target.hosts):
        hosts = expand_hosts(target.hosts)
        others = [node for node in facts if node not in hosts]
        if others:
            warnings.append(f"the target {target.name} has no host {fold_hosts(others)}: it has {fold_hosts(hosts)}")
    return placed, [*warnings, *_unknown_places(facts)]


def _unknown_places(facts: Mapping[str, NodeFacts]) -> list[str]:
    """What `reachable` says of places that no lock names: neither an index of ours nor an address."""
    known = load_indexes()
    write = f"write an address as https://github.com/NVIDIA/apex; indexes are {few(sorted(known), 5)}"
    listed = {name: node for node, plain in facts.items() for name in plain.reachable}
    return [
        f"facts of {node}: `reachable` has {show_value(name)}, which is neither an index nor a whole address; "
        f"{did_you_mean(name, known) if nearest(name, known) else write}"
        for name, node in listed.items()
        if name not in known and not re.search("[/:]", name)
    ]


def _shared(facts: NodeFacts, target: Target) -> NodeFacts:
    """With the folder that the login node and the nodes of a job share, where each node has a disk of its own."""
    if target.connection.kind != "job" or target.placement != "node-local" or target.shared is None:
        return facts
    return facts.model_copy(update={"shared": facts.filled(target.shared)})


def _at_the_prefix(facts: NodeFacts, target: Target) -> NodeFacts:
    user = (target.connection.reaches(facts.node)[1] if target.connection.kind == "ssh" else None) or facts.user
    home = (facts.home if user == facts.user else "") or ("/root" if user == "root" else f"/home/{user}")
    scheduler = facts.scheduler
    if target.connection.kind == "job" and scheduler.job and scheduler.kind != target.scheduler.kind:
        # Hints are in the words of the scheduler that the target has.
        scheduler = SchedulerFacts(kind=target.scheduler.kind, job=scheduler.job)
    facts = facts.model_copy(update={"user": user, "home": home, "scheduler": scheduler})
    path = posixpath.normpath(facts.filled(target.prefix.replace("{data}", "{home}/.local/share")))
    recorded = posixpath.normpath(facts.prefix.path)
    if path == recorded:
        return facts
    pythons = tuple(python for python in facts.pythons if not python.path.startswith(f"{recorded}/"))
    unknown = {"environments": (), "toolchain": (), "busy": None, "pythons": pythons}
    return facts.model_copy(update={"prefix": DiskFacts(path=path, writable=None), **unknown})


def _find(ref: str) -> Path:
    if "/" in ref or ref.endswith(".json") or Path(ref).is_file():
        return Path(ref)
    names = list_facts()
    if ref not in names:
        raise EnvbuildError(
            "facts-unknown",
            f"there are no facts named {ref!r}",
            why="neither a file nor a shipped example",
            hint=did_you_mean(ref, (*names, *(path.name for path in Path().glob("*.json")))),
        )
    return resources.catalog() / "facts" / f"{ref}.json"


def _nodes(data: Any) -> list[tuple[str | None, Any]]:
    """Pairs of a node's name, where the file says it outside the facts, and its facts."""
    if isinstance(data, dict) and isinstance(data.get("facts"), dict):
        data = data["facts"]
    if isinstance(data, list):
        return [(None, item) for item in data]
    if isinstance(data, dict) and data and "protocol" not in data and all(isinstance(v, dict) for v in data.values()):
        return list(data.items())
    return [(None, data)]


def _node(name: str | None, plain: Any, known: dict[tuple[str, str], Any]) -> NodeFacts:
    """The facts of one node; what equals another node's (`known`) is one object, read once: they differ in little."""
    items = plain.items() if isinstance(plain, dict) else ()
    places = {key: (key, repr(value)) for key, value in items if isinstance(value, (dict, list))}
    facts = NodeFacts.model_validate({**plain, **_known(places, known)} if places else plain)
    for key, place in places.items():
        known.setdefault(place, getattr(facts, key))
    shared = _known(places, known)
    return facts.model_copy(update=shared if name is None else {**shared, "node": name})


def _known(places: Mapping[str, tuple[str, str]], known: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    return {key: known[place] for key, place in places.items() if place in known}


def _unreadable(path: Path, why: str) -> EnvbuildError:
    near = "" if path.exists() else file_meant(str(path), path, "json")
    example = resources.catalog() / "facts" / "azure-nd96.json"
    hint = f"{_HINT}; to write them by hand, copy {example} and edit it"
    return EnvbuildError(
        "file-unreadable",
        f"cannot use the facts in {path}",
        why=why,
        hint=near or hint,
    )
