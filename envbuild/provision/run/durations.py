"""How long steps took on a machine before, so that the next run says it; in the user's state folder.

A row is one step of one variant in one prefix of one host, and its seconds less those of compiling: what was compiled
is in the wheel store.
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
from envbuild.provision.run.journal import Event, EventKind
from envbuild.provision.run.progress_events import is_amount
from envbuild.provision.run.run_dir import keep

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
        return [row for row in json.loads((where / NAME).read_bytes()) if _good(row)]
    except (OSError, ValueError, TypeError, RecursionError):
        return []


def _good(row: Any) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(k), str) for k in _KEY) and is_amount(row.get("seconds"))


def as_before(plan: Plan, facts: Mapping[str, NodeFacts], rows: Sequence[Row]) -> Plan:
    """The plan with the seconds that each step took here before, where that is known."""
    known = {tuple(row[key] for key in _KEY): row["seconds"] for row in rows}
    nodes = []
    for node in plan.nodes:
        if (about := facts.get(node.node)) is not None:
            here = about.hostname, about.prefix.path, node.variant_digest
            steps = (step.model_copy(update={"before": known.get((*here, step.kind))}) for step in node.steps)
            node = node.model_copy(update={"steps": tuple(steps)})
        nodes.append(node)
    return plan.model_copy(update={"nodes": tuple(nodes)})


def learn(where: Path, plan: Plan, facts: Mapping[str, NodeFacts], events: Iterable[Event]) -> None:
    """Keep what the steps of a run took. Nothing that goes wrong here is an error of the run."""
    nodes = {node.node: node for node in plan.nodes if node.node in facts}
    with contextlib.suppress(Exception):
        rows = {tuple(row[key] for key in _KEY): row for row in read(where)}
        for event in events:
            node, took = nodes.get(event.node or ""), event.data.get("seconds")
            if event.kind != EventKind.STEP_FINISHED or node is None or not is_amount(took):
                continue
            if event.data.get("status") not in ("ok", "changed"):
                continue
            about, compiled = facts[node.node], (event.data.get("parts") or {}).get("wheels", 0.0)
            key = (about.hostname, about.prefix.path, node.variant_digest, str(event.data.get("step")))
            rows.pop(key, None)  # the newest is the last
            rows[key] = {**dict(zip(_KEY, key, strict=True)), "seconds": max(0.0, round(took - compiled, 1))}
        keep(where / NAME, list(rows.values())[-MOST:])
