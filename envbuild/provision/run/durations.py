"""How long steps took on machines before, so that the next plan says what it will take; in the user's state folder.

A row is one step of one variant in one prefix of one host: `planned` and `took` seconds, and `again`: what the same
takes there once more, when the wheel store has what was compiled.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import platformdirs

from envbuild.model.facts import NodeFacts
from envbuild.model.plan import Plan
from envbuild.node import paths
from envbuild.node.protocol import NodeError
from envbuild.provision.run.journal import Event, EventKind

NAME = "durations.json"
MOST = 8000
_KEY = ("host", "prefix", "variant", "step")
Row = Mapping[str, Any]


def folder() -> Path:
    """Where they are kept."""
    return platformdirs.user_state_path("envbuild")


def read(where: Path) -> list[Row]:
    """The rows, the newest last; none where this envbuild cannot read them."""
    try:
        rows = json.loads((where / NAME).read_bytes())
        return [row for row in rows if all(isinstance(row[key], str) for key in _KEY) and row["took"] >= 0]
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return []


def as_before(plan: Plan, facts: Mapping[str, NodeFacts], rows: Sequence[Row]) -> Plan:
    """The plan with the seconds that each step took: the same before, or by how much plans of the host were wrong."""
    if not rows:
        return plan
    hosts, nodes = dict[str, list[Row]](), []
    for row in rows:
        hosts.setdefault(row["host"], []).append(row)
    for node in plan.nodes:
        about = facts.get(node.node)
        if about is None:
            nodes.append(node)
            continue
        mine = hosts.get(about.hostname, [])
        here = about.prefix.path, node.variant_digest
        steps = [
            step.model_copy(update={"seconds": _seconds(step.seconds, step.kind, here, mine)}) for step in node.steps
        ]
        nodes.append(node.model_copy(update={"steps": tuple(steps)}))
    return plan.model_copy(update={"nodes": tuple(nodes)})


def _seconds(planned: float, step: str, here: tuple[str, str], rows: Iterable[Row]) -> float:
    best, known = 0, planned
    for row in rows:
        if row["step"] != step:
            continue
        same = row["variant"] == here[1]
        rank = 3 if same and row["prefix"] == here[0] else 2 if same else 1
        if rank >= best:
            scaled = planned * row["took"] / row["planned"] if row["planned"] else planned
            best, known = rank, {3: row["again"], 2: row["took"], 1: scaled}[rank]
    return round(known, 1)


def learn(
    where: Path, plan: Plan, facts: Mapping[str, NodeFacts], planned: Mapping[tuple[str, str], float],
    events: Iterable[Event],
) -> None:  # fmt: skip
    """Keep what the steps of a run took; `planned`: seconds by node and step before anything was known of the machine.

    A file that cannot be written is no error.
    """
    nodes = {node.node: node for node in plan.nodes if node.node in facts}
    rows = {tuple(row[key] for key in _KEY): row for row in read(where)}
    for event in events:
        node, step = nodes.get(event.node or ""), str(event.data.get("step"))
        took = event.data.get("seconds")
        if event.kind != EventKind.STEP_FINISHED or node is None or not isinstance(took, int | float):
            continue
        if event.data.get("status") not in ("ok", "changed"):
            continue
        about = facts[node.node]
        key = (about.hostname, about.prefix.path, node.variant_digest, step)
        compiled = (event.data.get("parts") or {}).get("wheels", 0.0)
        rows.pop(key, None)
        rows[key] = {
            **dict(zip(_KEY, key, strict=True)),
            "planned": planned.get((node.node, step), 0.0),
            "took": round(took, 1),
            "again": round(took - compiled, 1),
        }
    with contextlib.suppress(OSError, NodeError):
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths.write_json(str(where / NAME), list(rows.values())[-MOST:])
