"""First use: files whose hash is missing from the lock are fetched once, compared over all nodes, and recorded.

It comes before everything that uses them, because the environment is named by what they are. A node that fetches for
itself fetches such a file, and all have to see the same; for the others this machine does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.lock.first_use import add_first_uses, fill
from envbuild.model.first_use import FirstUse, fetch_row
from envbuild.model.plan import Plan
from envbuild.node import paths, pip_config
from envbuild.node.packages.fetch_unpinned import fetch_file
from envbuild.node.protocol import NodeError
from envbuild.plan.planner import ChosenVariants
from envbuild.provision.ansible.play import run_hosts
from envbuild.provision.delivery.node_files import node_files
from envbuild.provision.run.context import Work
from envbuild.provision.run.journal import EventKind, utc_now
from envbuild.resolve.variant_checks import unrecorded_files
from envbuild.text import grouped

Row = Mapping[str, Any]
"""what the verb `fetch` says of one file"""


@dataclass(frozen=True)
class Seen:
    """One file as one node saw it."""

    node: str
    row: Row


def settle(work: Work, plan: Plan) -> None:
    """Carry out the plan's `fetch` steps; the plan has to be made anew then.

    The record and the lock of the run have the hashes after it. Nodes whose file could not be had, or on which it
    differs, are errors in the survey, and nothing more is done there. Raises EnvbuildError `first-use-through-jobs`
    (exit 7) where the nodes that should fetch are reached by jobs alone.
    """
    target = work.prepared.target
    steps = {node.node: step for node in plan.nodes for step in node.steps if step.kind == "fetch"}
    there = {node: step.request for node, step in steps.items() if step.request is not None}
    if target.connection.kind == "job" and there:
        raise EnvbuildError(
            "first-use-through-jobs",
            f"the target {target.name} cannot fetch a file on first use",
            why="its nodes are reached through jobs alone, and a first use is settled before anything is submitted",
            hint="without `delivery: node` in the target this machine fetches it",
        )
    with work.phase("first-use", "fetching files whose hash the lock lacks"):
        seen = _fetch_here(work, [node for node in steps if node not in there]) + _fetch_on_nodes(work, there)
        packages = _packages(work, steps)
        _fail(work, differing(seen))
        agreed = {one.row["file"]: one for one in reversed(seen) if one.node not in work.survey.errors}
        uses = [_first_use(work, packages[name], one.row) for name, one in sorted(agreed.items())]
        _record(work, uses, seen)


def _packages(work: Work, nodes: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Name and version of the package of every file that is to be fetched."""
    return {
        file.file: (package.name, package.version)
        for node in nodes
        for package, file in unrecorded_files(work.survey.variants[node], work.survey.facts[node])
    }


def _fetch_on_nodes(work: Work, asked: Mapping[str, dict[str, Any]]) -> list[Seen]:
    requests = {node: {"fetch": request} for node, request in asked.items()}
    outcome = run_hosts(requests, {node: node_files(work, node) for node in requests}, work)
    seen: list[Seen] = []
    for node in requests:
        answers = outcome.responses.get(node, {})
        error = outcome.error_of(node)
        if error is None and "fetch" not in answers:
            error = EnvbuildError("step-failed", f"{node} said nothing about what it fetched")
        if error is not None:
            _fail(work, {node: error})
            continue
        facts = work.survey.facts[node]
        rows = [row for row in answers["fetch"]["result"]["files"] if isinstance(row, dict)]
        # The node has these files now, and its tools; the plan that is made anew goes by that.
        there = {**facts.files_found, **{str(row["file"]): str(row["path"]) for row in rows}}
        tools = tuple(dict.fromkeys((*facts.toolchain, *(tool.folder for tool in work.tools[node].tools))))
        work.survey.facts[node] = facts.model_copy(update={"files_found": there, "toolchain": tools})
        seen += [Seen(node, row) for row in rows]
    return seen


def _fetch_here(work: Work, nodes: list[str]) -> list[Seen]:
    """Fetch into the cache that deliveries are made from; every one of `nodes` gets this one file."""
    if not nodes:
        return []
    from envbuild.catalog.indexes import index_addresses
    from envbuild.provision.delivery.artifacts import artifact_cache, sweep

    sweep(artifact_cache())
    folder = artifact_cache() / "packages"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        _fail(work, dict.fromkeys(nodes, _unwritten(error, str(folder))))
        return []
    artifacts: dict[str, Any] = {"find_links": [], "indexes": index_addresses()}
    known: dict[str, Row | EnvbuildError] = {}
    seen: list[Seen] = []
    for node in nodes:
        for package, file in unrecorded_files(work.survey.variants[node], work.survey.facts[node]):
            if file.file not in known:
                wanted = fetch_row(package, file)
                try:
                    known[file.file] = fetch_file(wanted, artifacts, pip_config.read(os.environ), str(folder))
                except NodeError as error:
                    known[file.file] = EnvbuildError.from_dict(error.as_dict())
                except OSError as error:
                    known[file.file] = _unwritten(error, str(folder))
            found = known[file.file]
            if isinstance(found, EnvbuildError):
                _fail(work, {node: found})
            else:
                seen.append(Seen(node, found))
    return seen


def _unwritten(error: OSError, folder: str) -> EnvbuildError:
    """The cache of this machine cannot take the file: `disk-full` (75), or `cache-not-writable` (7)."""
    full = paths.os_error(error, folder)
    if full is not None:
        return EnvbuildError.from_dict(full.as_dict())
    return EnvbuildError(
        "cache-not-writable",
        f"this machine cannot keep what it fetches for nodes in {folder}",
        why=str(error),
        hint="make the folder writable, or set XDG_CACHE_HOME to one that is",
    )


def differing(seen: Iterable[Seen]) -> dict[str, EnvbuildError]:
    """Errors of all nodes that saw a file which is not the same everywhere: nobody knows which one is right."""
    errors: dict[str, EnvbuildError] = {}
    for file, all_seen in grouped(seen, lambda one: str(one.row["file"])).items():
        first = all_seen[0]
        other = next((one for one in all_seen if one.row["sha256"] != first.row["sha256"]), None)
        if other is None:
            continue
        why = "; ".join(f"{one.node} got sha256 {one.row['sha256']} from {one.row['found']}" for one in (first, other))
        for one in all_seen:
            errors.setdefault(
                one.node,
                EnvbuildError(
                    "hash-mismatch",
                    f"{file} is not the same on all nodes",
                    why=why,
                    hint="nothing was recorded and nothing was built; find out which one is right before any is used",
                    details={"file": file, "seen": {each.node: each.row["sha256"] for each in all_seen}},
                ),
            )
    return errors


def _first_use(work: Work, package: tuple[str, str], row: Row) -> FirstUse:
    seen = {key: row[key] for key in ("file", "sha256", "size", "index", "found")}
    return FirstUse(**seen, package=package[0], version=package[1], first_used=utc_now(), run=work.run.id)


def _record(work: Work, uses: list[FirstUse], seen: list[Seen]) -> None:
    """Record, and give lock and variants of the run the hashes. What is recorded otherwise fails its nodes."""
    known: dict[str, FirstUse] = {}
    for use in uses:
        try:
            known[use.file] = add_first_uses([use])[use.file]
        except EnvbuildError as error:
            _fail(work, {one.node: error for one in seen if one.row["file"] == use.file})
        else:
            work.journal.append(EventKind.FIRST_USE, **use.to_json_dict())
    lock = fill(work.prepared.lock, known)
    work.prepared = work.prepared._replace(lock=lock)
    survey = work.survey
    for node in [node for node in survey.variants if node not in survey.errors]:
        variant = ChosenVariants(lock).of(survey.resolutions[node], survey.facts[node])
        survey.variants[node] = variant
        survey.resolutions[node] = survey.resolutions[node].model_copy(update={"variant_digest": variant.digest})


def _fail(work: Work, errors: Mapping[str, EnvbuildError]) -> None:
    """Nothing more is done on these nodes."""
    for node, error in errors.items():
        work.survey.errors.setdefault(node, error)
        work.tools.pop(node, None)
