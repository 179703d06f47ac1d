"""When each step began on a node and how long it took, from the events of a journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from envbuild.model.evidence import StepTime


def steps(events: Iterable[Mapping[str, Any]]) -> dict[str, tuple[StepTime, ...]]:
    """By node, in the order in which they began; `events` are lines of a journal, the first one begins the run.

    Raises ValueError, KeyError or TypeError for what is no journal.
    """
    found: dict[str, list[StepTime]] = {}
    zero: datetime | None = None
    for event in events:
        now = datetime.fromisoformat(event["t"])
        zero = zero or now
        kind, data = event["kind"], event.get("data", {})
        if kind not in ("step-started", "step-finished"):
            continue
        of_node = found.setdefault(str(event["node"]), [])
        after = round((now - zero).total_seconds(), 3)
        if kind == "step-started":
            of_node.append(StepTime(name=data["step"], status="started", began=max(0.0, after)))
            continue
        at = next((i for i, each in enumerate(of_node) if (each.name, each.status) == (data["step"], "started")), None)
        took = data.get("seconds")
        began = of_node.pop(at).began if at is not None else max(0.0, round(after - (took or 0), 3))
        took = round(after - began if took is None else took, 3)
        ended = {"name": data["step"], "status": data["status"], "began": began, "seconds": max(0.0, took)}
        of_node.append(StepTime.from_plain({**ended, "parts": data.get("parts") or {}}))
    return {node: tuple(sorted(each, key=lambda step: step.began)) for node, each in found.items()}
