"""The order of nodes that share a prefix. They are played by a table; the real ones are in tests/fleet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.plan import Plan
from envbuild.plan.sharing import Sharing
from envbuild.plan.sharing import spread as plan_spread
from envbuild.provision.ansible.steps import NodeHost
from envbuild.provision.contact.toolchain import NodeTools
from envbuild.provision.fleet import sharing
from envbuild.provision.run.context import Outcome, Settings, Work
from envbuild.provision.run.run_dir import RunDir
from tests.plan.test_planner import planned
from tests.plan.test_shared_builds import lock_with, machine
from tests.provision.ansible.test_play import _prepared
from tests.resolve.builders import target

FAILED = {"ok": False, "error": {"code": "build-failed", "what": "it does not compile", "hint": "read it", "exit": 4}}
FULL = {"ok": False, "error": {"code": "disk-full", "what": "no room", "exit": 75}}
SMOKE = {"ok": True, "result": {"ok": False, "exit": 1, "checks": [{"name": "import", "status": "failed"}]}}
GOOD = {"install": {"ok": True, "result": {}}, "activate": {"ok": True, "result": {}}}
BUILDS, TESTS = ["toolchain", "install", "smoke", "activate"], ["smoke"]


class Stage:
    """Nodes that answer by a table: `bad` by node what ends it."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.facts = {name: machine(name, cpus=64 - number) for number, name in enumerate(names)}
        self.target = target(placement="shared")
        self.whole = planned(self.facts, lock_with(), where=self.target)
        self.plays: list[dict[str, list[str]]] = []
        self.bad: dict[str, dict[str, Any]] = {}
        run = RunDir.create(tmp_path / "runs")
        self.journal = run.open_journal()
        self.work = Work(_prepared(tmp_path), Settings(tmp_path / "runs"), run, self.journal)
        self.work.survey.facts = dict(self.facts)
        self.work.tools = dict.fromkeys(names, NodeTools((), "python", "pyz", "uv", "/usr/bin/python3.11"))
        monkeypatch.setattr(sharing, "execute_once", self.play)
        monkeypatch.setattr(sharing, "plan_of", self.plan_of)

    def plan_of(self, work: Work) -> Plan:
        return plan_spread(self.whole, Sharing(self.target, self.facts, {}, tried=work.tried))

    def run(self) -> Outcome:
        plan, files = self._stage(self.work, self.plan_of(self.work))
        _, outcome = sharing.execute_spread(plan, files, self.work, self._stage)
        self.journal.close()
        return outcome

    def _stage(self, work: Work, plan: Plan) -> tuple[Plan, dict[str, NodeHost]]:
        return plan, {node.node: NodeHost(node.node, "python", "pyz") for node in plan.nodes if node.steps}

    def play(self, plan: Plan, files: Mapping[str, NodeHost], work: Work) -> Outcome:
        outcome = Outcome()
        self.plays.append({})
        for node in plan.nodes:
            name = node.node
            self.plays[-1][name] = [step.kind for step in node.steps]
            verb = "smoke" if self.bad.get(name) is SMOKE else "install"
            outcome.responses[name] = {verb: self.bad[name]} if name in self.bad else dict(GOOD)
        return outcome


def codes(outcome: Outcome) -> dict[str, tuple[str, int]]:
    return {name: (error.code, int(error.exit_code)) for name, error in outcome.errors.items()}


def test_one_builds_then_all_others_test_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c")
    outcome = on.run()
    assert on.plays == [{"a": BUILDS}, {"b": TESTS, "c": TESTS}]
    assert (outcome.errors, on.work.notes) == ({}, [])


def test_where_the_builder_fails_the_next_one_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c", "d")
    on.bad = {"a": SMOKE}
    outcome = on.run()
    assert on.plays == [{"a": BUILDS}, {"b": BUILDS}, {"c": TESTS, "d": TESTS}]
    assert outcome.errors == {}, "what failed is in the answers of that node"


def test_what_fails_on_two_nodes_is_not_tried_on_a_third(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c", "d")
    on.bad = {"a": FAILED, "b": FAILED}
    outcome = on.run()
    assert on.plays == [{"a": BUILDS}, {"b": BUILDS}]
    assert codes(outcome) == {"c": ("not-built", 4), "d": ("not-built", 4)}
    on = Stage(tmp_path, monkeypatch, "a", "b", "c")
    on.bad = {"a": SMOKE, "b": SMOKE}
    outcome = on.run()
    assert codes(outcome) == {"c": ("not-built", 1)}
    assert "its smoke test failed: import" in outcome.errors["c"].why


def test_what_is_wrong_with_a_node_alone_says_nothing_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c", "d", "e")
    on.bad = {"a": FULL, "b": FULL, "c": FULL}
    outcome = on.run()
    assert on.plays == [{"a": BUILDS}, {"b": BUILDS}, {"c": BUILDS}, {"d": BUILDS}, {"e": TESTS}]
    assert outcome.errors == {}


def test_who_has_no_answer_of_its_builder_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c")

    def lost(plan: Plan, files: Any, work: Work) -> Outcome:
        played = on.play(plan, files, work)
        for name in ("a", "b"):
            if name in played.responses:
                played.responses.pop(name)
                played.errors[name] = EnvbuildError("node-unreachable", name, exit_code=ExitCode.UNREACHABLE)
        return played

    monkeypatch.setattr(sharing, "execute_once", lost)
    outcome = on.run()
    assert on.plays[-1] == {"c": BUILDS}, "two nodes that died say nothing of the third"
    assert codes(outcome) == {"a": ("node-unreachable", 3), "b": ("node-unreachable", 3)}
