"""Answers of nodes become evidence: how sure it is, and an error for what failed."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.model.evidence import NodeEvidence
from envbuild.provision.run.evidence import coded, inspected_node

UNREAD = {"name": "files", "status": "not-run", "level": "not-checked", "says": "contents not read"}


def failed(name: str, **more: Any) -> NodeEvidence:
    checks = [
        {"name": "smoke/sound", "status": "passed", "says": "fine"},
        {"name": name, "status": "failed", "says": "no"},
    ]
    return NodeEvidence.from_plain({"node": "gpu1", "status": "failed", "exit": 1, "checks": checks, **more})


@pytest.mark.parametrize(
    ("node", "code", "hint"),
    [
        (failed("smoke/training"), "smoke-failed", "again: envbuild smoke --stack x --host gpu1"),
        (failed("smoke/training", exit=6), "below-floor", "again: envbuild smoke --stack x --host gpu1"),
        (failed("files", drift_count=2), "drift", "--repair"),
        (failed("link"), "check-failed", "--repair"),
    ],
)
def test_a_failed_check_has_a_code_and_the_next_command(node: NodeEvidence, code: str, hint: str) -> None:
    error = coded(node, ("envbuild", "smoke", "--stack", "x"), several=True).error
    assert error is not None
    assert (error["code"], error["what"], error["exit"]) == (code, f"gpu1: {node.checks[1].name}: no", node.exit)
    assert hint in error["hint"]


def test_a_single_node_is_tested_again_by_the_same_command() -> None:
    error = coded(failed("smoke/sound"), ("envbuild", "smoke"), several=False).error
    assert error is not None
    assert error["hint"] == "again: envbuild smoke"


def test_an_error_that_is_there_stays() -> None:
    node = failed("smoke/sound", error={"code": "lease-lost", "what": "w", "exit": 75})
    assert coded(node, ("envbuild",), several=False) is node


def test_d31_a_root_is_as_sure_as_the_surest_answer() -> None:
    stamped = {"ok": True, "result": {"root": "a" * 64, "level": "stamped", "checks": [UNREAD]}}
    found = inspected_node("gpu1", {"verify": stamped})
    assert (found.root_level, found.checks[0].level) == ("stamped", "not-checked")
    measured = {"ok": True, "result": {"root": "a" * 64, "level": "measured"}}
    found = inspected_node("gpu1", {"verify": stamped, "activate": measured})
    assert (found.root_level, found.checks[0].status, found.checks[0].level) == ("measured", "passed", "measured")
