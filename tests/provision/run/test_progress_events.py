"""What is told of a run is kept beside its journal, and asked of its nodes, without ever being in the way."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envbuild.provision.run import progress_events
from envbuild.provision.run.outcome import Progress
from envbuild.provision.run.progress_events import Recorded, followed, tail_of, told
from envbuild.provision.run.run_dir import RunDir


class Kept(Progress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def tell(self, event: Mapping[str, Any]) -> None:
        """One more."""
        self.events.append(dict(event))


def test_events_are_written_and_told_on_without_secrets_and_escapes(tmp_path: Path) -> None:
    shown, path = Kept(), tmp_path / "progress.jsonl"
    Recorded(path, shown).now("gpu1", {"phase": "fetching https://me:hunter2@example.org/x", "what": "\x1b[2Jquick"})
    (line,) = path.read_text().splitlines()
    assert json.loads(line) == shown.events[0]
    assert "hunter2" not in line and shown.events[0]["what"] == "\\x1b[2Jquick"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_record_that_is_full_or_cannot_be_written_costs_the_record_only(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(progress_events, "LIMIT", 300)
    shown, path = Kept(), tmp_path / "progress.jsonl"
    recorded, nowhere = Recorded(path, shown), Recorded(tmp_path / "no" / "folder", shown)
    for number in range(20):
        recorded.stage(f"stage {number}")
        nowhere.stage("more")
    assert path.stat().st_size <= 300 and len(shown.events) == 40


def test_nodes_are_asked_until_the_end_and_what_is_not_new_is_not_told() -> None:
    answers = {"gpu1": ["", "torn {", '{"seq": "1.1", "step": "install", "phase": "a", "odd": 1}\n'] + ["again"] * 3}
    lines = '{"seq": "1.1", "phase": "a"}\n{"seq": "1.2", "phase": "b", "done": 3, "what": 7}\n'
    seen, asked = [], threading.Event()

    def first() -> str:
        if not answers["gpu1"]:
            asked.set()
            return lines
        said = answers["gpu1"].pop(0)
        if said == "":
            raise OSError("the connection is gone")
        return said

    with followed({"gpu1": first}, lambda node, what: seen.append((node, dict(what))), 0.01):
        assert asked.wait(60)
        while len(seen) < 2:
            asked.wait(0.01)
    assert seen == [("gpu1", {"step": "install", "phase": "a"}), ("gpu1", {"phase": "b", "done": 3})]


def test_what_a_node_tells_is_one_line_each_and_numbers_that_can_be_shown(tmp_path: Path) -> None:
    numbers = ("1e400", "NaN", "-1", "1" + "0" * 400)
    lines = [
        f'{{"seq": {at}, "host": {at}.0, "done": {number}, "total": {number}}}' for at, number in enumerate(numbers)
    ]
    forged = {"host": "h", "seq": 9, "phase": "compiling", "done": 3, "what": "a.cu\ngpu2: smoke test ok" + "x" * 999}
    recorded, shown, seen = Recorded(tmp_path / "progress.jsonl", Kept()), Kept(), threading.Event()

    def now(_: str, told: Mapping[str, Any]) -> None:
        shown.tell(told)
        seen.set() if "host" in told else None

    with followed({"gpu1": lambda: "\n".join([*lines, json.dumps(forged)])}, now, 0.01):
        assert seen.wait(60)
    *odd, last = shown.events
    assert odd == [{}] * 4
    assert (last["phase"], last["done"]) == ("compiling", 3)
    assert last["what"].startswith("a.cu gpu2: smoke test okxxx") and len(last["what"]) == 200
    recorded.step("gpu1", "install", "failed", "no\ngpu2: smoke test ok")
    assert json.loads((tmp_path / "progress.jsonl").read_text())["text"] == "no gpu2: smoke test ok"


def test_the_end_of_a_file_is_read_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * 5000 + "end")
    assert tail_of(tmp_path / "long").endswith("xend") and len(tail_of(tmp_path / "long")) == progress_events.TAIL
    assert tail_of(tmp_path / "missing") == ""


def test_who_attaches_gets_all_events_of_a_run_that_has_ended(tmp_path: Path) -> None:
    run, shown = RunDir.create(tmp_path), Kept()
    recorded = Recorded(run.progress, shown)
    recorded.stage("asking 1 node")
    recorded.step("gpu1", "install", "started")
    assert list(told(run)) == shown.events and len(shown.events) == 2
