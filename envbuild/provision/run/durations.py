"""How long steps took on machines before, so that the next plan says what it will take; in the user's state folder.

A row is one step of one variant of a `stack` in one prefix of one host: `planned` and `took` seconds, and `again`: what
the same takes there once more, when the wheel store has what was compiled.
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
from envbuild.text import grouped

NAME = "durations.json"
MOST = 8000
_KEY = ("host", "prefix", "variant", "step")
_SECONDS = ("planned", "took", "again")
# How much shorter or longer than estimated other steps of a host are believed to take.
_LEAST, _MOST = 0.1, 10.0
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
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(key), str) for key in _KEY)
        and all(is_amount(row.get(key)) for key in _SECONDS)
    )


def as_before(plan: Plan, facts: Mapping[str, NodeFacts], rows: Sequence[Row]) -> Plan:
    """The plan with the seconds that each step took: the same before, or by how much plans of the host were wrong."""
    if not rows:
        return plan
    hosts, nodes = grouped(rows, lambda row: str(row["host"])), []
    for node in plan.nodes:
        about = facts.get(node.node)
        if about is None:
            nodes.append(node)
            continue
        mine = hosts.get(about.hostname, [])
        here = about.prefix.path, node.variant_digest, plan.stack
        steps = [step.model_copy(update=_seconds(step.seconds, step.kind, here, mine)) for step in node.steps]
        nodes.append(node.model_copy(update={"steps": tuple(steps)}))
    return plan.model_copy(update={"nodes": tuple(nodes)})


def _seconds(planned: float, step: str, here: tuple[str, str, str], rows: Iterable[Row]) -> dict[str, Any]:
    """`seconds` of a step, whether they were `measured` (of this very variant here), and those of `compiling`."""
    rows = [row for row in rows if row["step"] == step]
    same = [row for row in rows if row["variant"] == here[1]]
    again: list[float] = [row["again"] for row in same if row["prefix"] == here[0]]
    if same and not again:  # the wheels are in the store of another prefix
        return {"seconds": same[-1]["took"], "measured": True}
    compiling = _compiling(same) or _compiling(row for row in rows if row.get("stack") == here[2])
    if again:
        return {"seconds": again[-1], "measured": True, "compiling": compiling}
    estimated = [row for row in rows if row["planned"]]
    if not estimated:
        return {"seconds": planned, "compiling": compiling}
    wrong: float = sum(row["again"] for row in estimated) / sum(row["planned"] for row in estimated)
    return {"seconds": round(planned * min(max(wrong, _LEAST), _MOST), 1), "compiling": compiling}


def _compiling(rows: Iterable[Row]) -> float:
    """Seconds that the newest row which compiled anything needed for it."""
    return next((round(row["took"] - row["again"], 1) for row in reversed([*rows]) if row["took"] > row["again"]), 0.0)


def learn(
    where: Path, plan: Plan, facts: Mapping[str, NodeFacts], planned: Mapping[tuple[str, str], float],
    events: Iterable[Event],
) -> None:  # fmt: skip
    """Keep what the steps of a run took; `planned`: seconds by node and step before anything was known of the machine.

    Nothing that goes wrong here is an error of the run.
    """
    nodes = {node.node: node for node in plan.nodes if node.node in facts}
    with contextlib.suppress(Exception):
        rows = {tuple(row[key] for key in _KEY): row for row in read(where)}
        for event in events:
            node, step = nodes.get(event.node or ""), str(event.data.get("step"))
            took = event.data.get("seconds")
            if event.kind != EventKind.STEP_FINISHED or node is None or not is_amount(took):
                continue
            if event.data.get("status") not in ("ok", "changed"):
                continue
            about = facts[node.node]
            key = (about.hostname, about.prefix.path, node.variant_digest, step)
            compiled = (event.data.get("parts") or {}).get("wheels", 0.0)
            again = max(0.0, round(took - compiled, 1))
            before = rows.pop(key, {"took": 0.0, "again": 0.0})
            compiled_before = before["took"] - before["again"]
            had_wheels = compiled < compiled_before * _LEAST
            rows[key] = {
                **dict(zip(_KEY, key, strict=True)),
                "stack": plan.stack,
                "planned": planned.get((node.node, step), 0.0),
                "took": round(again + compiled_before if had_wheels else took, 1),
                "again": again,
            }
        keep(where / NAME, list(rows.values())[-MOST:])
