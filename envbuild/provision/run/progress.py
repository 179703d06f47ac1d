"""What nodes do under their steps: asked of them while a run goes, never in its way."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import platformdirs

from envbuild.model.facts import NodeFacts
from envbuild.model.plan import Plan
from envbuild.node import proc
from envbuild.node.read_text import json_lines
from envbuild.provision.run.journal import Event, EventKind
from envbuild.provision.run.run_dir import keep
from envbuild.text import visible

LONGEST = 200  # characters of what a node says on a line
TAIL = 2000  # bytes of a node's file: some seconds of it
SILENCE = 60.0  # seconds without an answer, after which the display says so
_AT_ONCE = 8
_WORDS = ("host", "step", "phase", "what", "unit")
_AMOUNTS = ("done", "total")


@contextlib.contextmanager
def followed(
    ask: Mapping[str, Callable[[], str]], now: Callable[[str, Mapping[str, Any]], None], every: float
) -> Iterator[None]:
    """Until the end of the block, `ask` nodes what they do, every so many seconds at most, and tell `now` what is new.

    A question gives the end of a node's file, or of those of several hosts, and a line feed; one that fails, or gives
    nothing, is asked again. What a node did last is shown again for each minute without an answer (`silent`, in
    seconds).
    """
    nodes = list(ask)
    stop, seen = threading.Event(), dict[Any, object]()
    heard, words = dict.fromkeys(nodes, time.monotonic()), dict[Any, tuple[object, dict[str, Any]]]()

    def answer(node: str) -> str:
        with contextlib.suppress(Exception):
            return "" if stop.is_set() else ask[node]()
        return ""

    def one(node: str) -> None:
        with contextlib.suppress(Exception):  # it only shows a node's work, and must not end it
            if text := answer(node):
                heard[node] = time.monotonic()
            for line in json_lines(text):
                if line.get("seq") is not None:
                    words[node, line.get("host")] = line["seq"], _usable(line)
            silent = (time.monotonic() - heard[node]) // SILENCE * SILENCE
            for (name, host), (number, update) in list(words.items()):
                if name == node and seen.get((node, host)) != (number, silent) and not stop.is_set():
                    seen[node, host] = number, silent
                    now(node, {**update, "silent": silent} if silent else update)

    def work() -> None:
        while not stop.wait(every):
            for first in range(0, len(nodes), _AT_ONCE):
                proc.parallel([partial(one, node) for node in nodes[first : first + _AT_ONCE]])

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()


def is_amount(value: object) -> TypeGuard[float]:
    """Seconds, bytes or a count to reckon with: finite, not negative, 10^15 at most. A node may say anything."""
    return isinstance(value, int | float) and 0 <= value <= 1e15


def _usable(line: Mapping[str, Any]) -> dict[str, Any]:
    """What a node tells: each text as one short line, and amounts."""
    words = {key: visible(line[key])[:LONGEST] for key in _WORDS if isinstance(line.get(key), str)}
    return {**words, **{key: line[key] for key in _AMOUNTS if is_amount(line.get(key))}}


def tail_of(path: Path) -> str:
    """The end of a file of this machine; empty where there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL))
            return stream.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return ""


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
