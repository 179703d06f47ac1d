"""The order of a fleet that builds once. Nodes are played by a table; the real ones are in tests/fleet."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.plan import Plan
from envbuild.plan.distribution import Sharing
from envbuild.plan.distribution import spread as plan_spread
from envbuild.provision.contact.first_contact import ContactResult
from envbuild.provision.contact.toolchain import NodeTools
from envbuild.provision.fleet import distribute
from envbuild.provision.run.context import Settings, Work
from envbuild.provision.run.journal import read_journal
from envbuild.provision.run.outcome import NodeFiles, Outcome
from envbuild.provision.run.run_dir import RunDir
from tests.plan.test_planner import planned
from tests.plan.test_shared_builds import lock_with, machine
from tests.provision.ansible.test_play import _prepared, _Silent
from tests.resolve.builders import target

PACK = {"format": "tar", "sha256": "b" * 64, "bytes": 9, "root": "c" * 64}
FAILED = {"ok": False, "error": {"code": "build-failed", "what": "it does not compile", "hint": "read it", "exit": 4}}
FULL = {"ok": False, "error": {"code": "disk-full", "what": "no room", "exit": 75}}
SMOKE = {"ok": True, "result": {"ok": False, "exit": 1, "checks": [{"name": "import", "status": "failed"}]}}
GOOD = {"install": {"ok": True, "result": {}}, "activate": {"ok": True, "result": {}}}


class Stage:
    """Nodes that answer by a table: `bad` by node what ends it; `cut` cannot connect to others; `damaged` by a byte."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *names: str, **where: Any) -> None:
        self.facts = {name: machine(name, cpus=64 - number) for number, name in enumerate(names)}
        self.target = target(**where)
        self.whole = planned(self.facts, lock_with(), where=self.target)
        self.plays: list[dict[str, list[str]]] = []
        self.asked: list[tuple[str, str]] = []
        self.requests: dict[str, dict[str, Any]] = {}
        self.stores: dict[str, str | None] = {}
        self.archived: dict[str, bytes] = {}
        self.bad: dict[str, dict[str, Any]] = {}
        self.cut: set[str] = set()
        self.damaged: set[str] = set()
        self.pack_fails: set[str] = set()
        self.pack: dict[str, Any] = PACK
        self.cannot_send: dict[str, Exception] = {}
        run = RunDir.create(tmp_path / "runs")
        self.journal = run.open_journal()
        self.work = Work(_prepared(tmp_path), Settings(tmp_path / "runs"), run, self.journal, _Silent())
        self.work.survey.facts = dict(self.facts)
        tools = NodeTools((), "python", "pyz", "uv", "/usr/bin/python3.11")
        self.work.tools = dict.fromkeys(names, tools)
        for name in names:
            found = {"reached": f"10.0.0.1 40000 10.0.0.{10 + len(self.work.survey.contacts)} 22"}
            self.work.survey.contacts[name] = ContactResult(name, found, (), None, None)
        monkeypatch.setattr(distribute, "execute_once", self._play)
        monkeypatch.setattr(distribute, "contact", self._contact)
        monkeypatch.setattr(distribute, "receive", self._receive)
        monkeypatch.setattr(distribute, "plan_of", self.plan_of)

    def plan_of(self, work: Work) -> Plan:
        return plan_spread(self.whole, Sharing(self.target, self.facts, {}, tried=work.tried))

    def run(self) -> Outcome:
        plan, files = self._stage(self.work, self.plan_of(self.work))
        _, outcome = distribute.execute_spread(plan, files, self.work, self._stage)
        self.journal.close()
        return outcome

    def _stage(self, work: Work, plan: Plan) -> tuple[Plan, dict[str, NodeFiles]]:
        return plan, {node.node: NodeFiles("python", "pyz") for node in plan.nodes if node.steps}

    def _play(self, plan: Plan, files: Mapping[str, NodeFiles], work: Work) -> Outcome:
        outcome = Outcome()
        self.plays.append({})
        for node in plan.nodes:
            name = node.node
            self.plays[-1][name] = [step.kind for step in node.steps]
            self.requests[name] = {step.kind: step.request["args"] for step in node.steps if step.request}
            self.stores[name] = files[name].store
            archive = files[name].artifacts
            if archive is not None:
                with tarfile.open(archive) as packed:
                    self.archived[name] = packed.extractfile("x.tar").read()  # type: ignore[union-attr]
            verb = "smoke" if self.bad.get(name) is SMOKE else "install"
            outcome.responses[name] = {verb: self.bad[name]} if name in self.bad else dict(GOOD)
        return outcome

    def _contact(self, nodes: Any, request_for: Any, connection: Any, deadline: float = 0, **_: Any) -> dict[str, Any]:
        requests = {node: request_for(node) for node in nodes}
        parents = {child["name"]: node for node, each in requests.items() for child in each["args"].get("children", ())}
        return {node: self._answer(node, each, parents) for node, each in requests.items()}

    def _answer(self, node: str, request: Mapping[str, Any], parents: Mapping[str, str]) -> Any:
        args = request["args"]
        self.asked.append((node, "remove" if args.get("remove") else request["verb"]))

        def error(code: str, number: int) -> ContactResult:
            told = {"ok": False, "error": {"code": code, "what": code, "exit": number}}
            return ContactResult(node, {}, (), told, number)

        if request["verb"] == "pack":
            if node in self.pack_fails:
                return error("pack-leads-out", 7)
            told = {**self.pack, "file": f"{args['folder']}/x.tar"}
            self.pack = PACK
            return ContactResult(node, {}, (), {"ok": True, "result": told}, 0)
        if node in self.damaged:
            return error("transfer-damaged", 5)
        if node in self.cut:
            return error("peer-unreachable", 3)
        if parents.get(node) in self.cut:
            return error("peer-gave-up", 3)
        return ContactResult(node, {}, (), {"ok": True, "result": {}}, 0)

    def _receive(self, node: str, path: str, to: Path, **_: Any) -> None:
        if node in self.cannot_send:
            raise self.cannot_send[node]
        to.write_bytes(f"the pack of {node}".encode())

    def events(self) -> list[dict[str, Any]]:
        events = read_journal(self.work.run.path / "journal.jsonl").events
        return [event.data for event in events if event.kind == "spread"]


BUILDS, TAKES = ["toolchain", "install", "smoke", "activate"], ["unpack", "smoke", "activate"]


def codes(outcome: Outcome) -> dict[str, tuple[str, int]]:
    return {name: (error.code, int(error.exit_code)) for name, error in outcome.errors.items()}


def test_one_builds_then_all_others_take_it_over_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c")
    outcome = on.run()
    assert on.plays == [{"a": BUILDS}, {"b": TAKES, "c": TAKES}]
    assert (outcome.errors, on.work.notes) == ({}, [])
    assert on.asked == [("a", "pack"), ("a", "relay"), ("b", "relay"), ("c", "relay"), ("a", "remove")]
    file = "/data/envbuild/store/packs/x.tar"
    unpack = on.requests["b"]["unpack"]
    assert {key: unpack[key] for key in ("file", "sha256", "format", "root", "remove")} == {
        "file": file, "sha256": "b" * 64, "format": "tar", "root": "c" * 64, "remove": True,
    }  # fmt: skip
    assert on.requests["b"]["activate"]["root"] == "c" * 64, "what is stamped is what was packed"
    (told,) = on.events()
    assert (told["to"], told["sent"], told["bytes"]) == (["b", "c"], [], 9)


def test_where_the_builder_fails_the_next_one_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c", "d")
    on.bad = {"a": SMOKE}
    outcome = on.run()
    assert on.plays == [{"a": BUILDS}, {"b": BUILDS}, {"c": TAKES, "d": TAKES}]
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
    assert on.plays == [{"a": BUILDS}, {"b": BUILDS}, {"c": BUILDS}, {"d": BUILDS}, {"e": TAKES}]
    assert outcome.errors == {}


def test_who_cannot_reach_its_parent_is_sent_it_and_the_ones_below_get_it_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c", "d", "e")
    on.cut = {"b"}
    outcome = on.run()
    assert outcome.errors == {}
    assert on.plays[1:] == [{"b": TAKES, "c": TAKES, "d": TAKES, "e": TAKES}]
    assert {name for name, store in on.stores.items() if store} == {"b"}
    assert on.stores["b"] == "/data/envbuild/store/packs"
    assert on.archived == {"b": b"the pack of a"}
    assert on.work.notes == [
        "this machine sent the environment of a (1 MB) to b, which could not get it from another node"
    ]
    assert on.events()[0]["sent"] == ["b"]
    asked = [node for node, what in on.asked if what == "relay"]
    assert asked.count("d") == 2, "below b in the first tree"
    assert [path.name for path in on.work.run.path.glob("*.tar")] == [], "nothing large stays in the run directory"


def test_nodes_whose_addresses_only_this_machine_can_use_are_sent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c")
    for name in on.facts:
        on.work.survey.contacts[name] = ContactResult(name, {"reached": "127.0.0.1 1 127.0.0.1 22"}, (), None, None)
    assert on.run().errors == {}
    assert on.events()[0]["sent"] == ["b", "c"]
    assert ("b", "relay") not in on.asked


def test_a_damaged_transfer_ends_that_node_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c", "d")
    on.damaged = {"c"}
    outcome = on.run()
    assert codes(outcome) == {"c": ("transfer-damaged", 5)}
    assert on.plays[1:] == [{"b": TAKES, "d": TAKES}]


def test_who_cannot_pack_what_it_has_is_good_and_another_builds_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c")
    on.pack_fails = {"a"}
    outcome = on.run()
    assert on.plays == [{"a": BUILDS}, {"b": BUILDS}, {"c": TAKES}]
    assert outcome.errors == {}
    assert on.work.notes == ["the environment of a could not be handed to b and c: pack-leads-out"]


def test_d47_an_answer_that_nobody_foresaw_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c")
    on.pack = {key: value for key, value in PACK.items() if key != "bytes"}
    outcome = on.run()
    assert on.plays == [{"a": BUILDS}, {"b": BUILDS}, {"c": TAKES}]
    assert outcome.errors == {}
    (note,) = on.work.notes
    assert "the environment of a could not be handed to b and c" in note
    assert "a mistake in envbuild itself: KeyError: 'bytes'" in note


@pytest.mark.parametrize("error", [EnvbuildError("disk-full", "no room here"), OSError("no room here")])
def test_who_has_the_pack_uses_it_though_it_cannot_come_to_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c")
    on.cut, on.cannot_send = {"c"}, {"a": error}
    outcome = on.run()
    assert on.plays == [{"a": BUILDS}, {"b": TAKES}, {"c": TAKES}]
    assert (outcome.errors, on.stores["c"]) == ({}, "/data/envbuild/store/packs"), "b's pack can come here"
    assert [note.partition(": ")[0] for note in on.work.notes[:1]] == ["the environment of a could not be handed to c"]
    assert "no room here" in on.work.notes[0]
    assert [(event["to"], event["sent"]) for event in on.events()] == [(["b"], []), (["c"], ["c"])]
    assert not list(on.work.run.path.glob("*.tar")), "packs are removed here too"


def test_packs_of_one_name_from_two_builders_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c", "d")
    on.cut = {"b", "d"}
    pairs = [[node for node in on.whole.nodes if node.node in names] for names in ("ab", "cd")]
    plans = [
        plan_spread(on.whole.model_copy(update={"nodes": pair}), Sharing(on.target, on.facts, {})) for pair in pairs
    ]
    nodes, classes = ([each for plan in plans for each in getattr(plan, key)] for key in ("nodes", "spreads"))
    monkeypatch.setattr(on, "plan_of", lambda _: plans[0].model_copy(update={"nodes": nodes, "spreads": classes}))
    on.run()
    assert on.archived == {"b": b"the pack of a", "d": b"the pack of c"}


def test_on_one_prefix_the_others_test_what_one_has_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c", placement="shared")
    on.bad = {"a": FAILED}
    outcome = on.run()
    assert on.plays == [{"a": BUILDS}, {"b": BUILDS}, {"c": ["smoke"]}]
    assert (outcome.errors, on.asked) == ({}, [])


def test_who_has_no_answer_of_its_builder_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Stage(tmp_path, monkeypatch, "a", "b", "c")

    def lost(plan: Plan, files: Any, work: Work) -> Outcome:
        played = on._play(plan, files, work)
        for name in ("a", "b"):
            if name in played.responses:
                played.responses.pop(name)
                played.errors[name] = EnvbuildError("node-unreachable", name, exit_code=ExitCode.UNREACHABLE)
        return played

    monkeypatch.setattr(distribute, "execute_once", lost)
    outcome = on.run()
    assert on.plays[-1] == {"c": BUILDS}, "two nodes that died say nothing of the third"
    assert codes(outcome) == {"a": ("node-unreachable", 3), "b": ("node-unreachable", 3)}
