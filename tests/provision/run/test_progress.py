"""What nodes do is asked of them, without ever being in the way."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envbuild.provision.run import progress
from envbuild.provision.run.progress import followed, tail_of


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


def test_what_a_node_tells_is_one_line_each_and_numbers_that_can_be_shown() -> None:
    numbers = ("1e400", "NaN", "-1", "1" + "0" * 400)
    lines = [
        f'{{"seq": {at}, "host": {at}.0, "done": {number}, "total": {number}}}' for at, number in enumerate(numbers)
    ]
    forged = {"host": "h", "seq": 9, "phase": "compiling", "done": 3, "what": "a.cu\ngpu2: smoke test ok" + "x" * 999}
    shown: list[dict[str, Any]] = []
    seen = threading.Event()

    def now(_: str, told: Mapping[str, Any]) -> None:
        shown.append(dict(told))
        seen.set() if "host" in told else None

    with followed({"gpu1": lambda: "\n".join([*lines, json.dumps(forged)])}, now, 0.01):
        assert seen.wait(60)
    *odd, last = shown
    assert odd == [{}] * 4
    assert (last["phase"], last["done"]) == ("compiling", 3)
    assert last["what"].startswith("a.cu gpu2: smoke test okxxx") and len(last["what"]) == 200


def test_the_end_of_a_file_is_read_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * 5000 + "end")
    assert tail_of(tmp_path / "long").endswith("xend") and len(tail_of(tmp_path / "long")) == progress.TAIL
    assert tail_of(tmp_path / "missing") == ""
