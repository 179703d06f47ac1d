"""The order of nodes that compile once, or share a prefix. They are played by a table; real ones are in tests/fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError, ExitCode, writing
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock
from envbuild.model.plan import BuildClass, Plan
from envbuild.plan.sharing import Sharing
from envbuild.plan.sharing import spread as plan_spread
from envbuild.plan.tools import NodeTools
from envbuild.provision.ansible.steps import NodeHost
from envbuild.provision.contact import wheel_stores
from envbuild.provision.contact.first_contact import ContactResult
from envbuild.provision.fleet import sharing
from envbuild.provision.run.context import Outcome, Settings, Work
from envbuild.provision.run.journal import read_journal
from envbuild.provision.run.run_dir import RunDir
from tests.plan.test_planner import planned
from tests.plan.test_shared_builds import COMPILED, finished, lock_with, machine, shared
from tests.provision.ansible.test_play import _prepared
from tests.resolve.builders import target

KEY = "a" * 64
FAILED = {"ok": False, "error": {"code": "build-failed", "what": "it does not compile", "hint": "read it", "exit": 4}}


class Stage:
    """Nodes that answer by a table: `bad` fail their install, `lost` cannot be reached, `has` have the wheel."""

    def __init__(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Plan], facts: Mapping[str, Any]
    ) -> None:
        self.monkeypatch = monkeypatch
        self.plays: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str]] = []
        self.bad: set[str] = set()
        self.lost: set[str] = set()
        self.has: set[str] = set()
        self.received: list[tuple[str, Path]] = []
        self.pack_fails = self.disk_full = self.keyless = False
        self.plan = make()
        run = RunDir.create(tmp_path / "runs")
        self.journal = run.open_journal()
        self.work = Work(Settings(tmp_path / "runs"), run, self.journal, prepared=_prepared(tmp_path))
        self.work.survey.facts = dict(facts)
        self.work.survey.variants = dict.fromkeys(facts, lock_with(COMPILED).variants[0])
        monkeypatch.setattr(sharing, "run_hosts", self._play)
        monkeypatch.setattr(sharing, "plan_of", lambda work: make(tried=work.tried))
        monkeypatch.setattr(sharing, "contact", self._contact)
        monkeypatch.setattr(wheel_stores, "contact", self._contact)
        monkeypatch.setattr(wheel_stores, "receive", self._receive)
        monkeypatch.setattr(wheel_stores, "verify", lambda _: {"digest": "b" * 64})

    def run(self, **files: Any) -> Outcome:
        given = {node.node: NodeHost(node.node, "python", "pyz", **files) for node in self.plan.nodes if node.steps}
        self.monkeypatch.setattr(sharing, "stage", lambda _, plan: (plan, given))
        _, outcome = sharing.SharedRun(self.plan, given, self.work).run()
        self.journal.close()
        return outcome

    def _play(self, requests: Mapping[str, Any], files: Mapping[str, NodeHost], work: Work) -> Outcome:
        self.plays.append({name: (requests[name]["install"]["args"]["build"], files[name]) for name in requests})
        outcome = Outcome()
        for name in requests:
            if name in self.lost:
                outcome.errors[name] = EnvbuildError("node-unreachable", name, exit_code=ExitCode.UNREACHABLE)
                continue
            told = {"sources": [{"name": "ext", "build": {} if self.keyless else {"key": KEY}}]}
            outcome.responses[name] = {"install": FAILED if name in self.bad else {"ok": True, "result": told}}
        return outcome

    def _contact(self, requests: Any, connection: Any, deadline: float = 0, **_: Any) -> dict[str, Any]:
        return {node: self._answer(node, request["args"]) for node, request in requests.items()}

    def _answer(self, node: str, args: Mapping[str, Any]) -> ContactResult:
        self.asked.append((node, args["action"]))
        if args["action"] == "list":
            entries = [{"key": KEY, "state": "unchecked"}] if node in self.has else []
            return ContactResult(node, {}, {"ok": True, "result": {"entries": entries}}, 0)
        if self.pack_fails:
            return ContactResult.failed(node, EnvbuildError("wheel-unknown", "the store has no such wheel"))
        assert args["keys"] == [KEY]
        return ContactResult(node, {}, {"ok": True, "result": {"bytes": 9}}, 0)

    def _receive(self, node: str, path: str, to: Path, *_: Any) -> None:
        self.received.append((path, to))
        with writing(to):
            if self.disk_full:
                raise OSError(28, "No space left on device", str(to))
            to.write_bytes(b"the wheel")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    """A stage of nodes: plain ones by their names, others by their facts."""

    def make(*nodes: str | NodeFacts, lock: Lock | None = None) -> Stage:
        facts = [machine(node) if isinstance(node, str) else node for node in nodes]
        return Stage(tmp_path, monkeypatch, partial(shared, *facts, lock=lock), {each.node: each for each in facts})

    return make


def donor() -> tuple[NodeFacts, Lock]:
    """A node that is finished, and its lock."""
    lock = lock_with(COMPILED)
    return finished("done", lock, [{"name": "ext", "build": {"key": KEY}}]), lock


def handed(play: Mapping[str, Any]) -> dict[str, Any]:
    return {name: build.get("handed") for name, (build, _) in play.items()}


def test_the_first_builds_and_the_others_run_with_what_it_has_built(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    on = stage("a", "b", "c")
    on.has = {"c"}
    sent: list[tuple[str, bytes]] = []
    play = on._play

    def look(requests: Any, files: Any, work: Work) -> Outcome:
        sent.extend((name, path.read_bytes()) for node in requests for name, path in files[node].bundles.items())
        return play(requests, files, work)

    monkeypatch.setattr(sharing, "run_hosts", look)
    outcome = on.run()
    assert [sorted(each) for each in on.plays] == [["a"], ["b", "c"]]
    assert handed(on.plays[0]) == {"a": None}
    told = handed(on.plays[1])
    assert told["c"] == {"by": "a", "keys": {"ext": KEY}}, "c has it already"
    store = on.plays[1]["b"][1].store
    file = f"{store}/built-{'b' * 12}.tar"
    assert told["b"] == {"by": "a", "keys": {"ext": KEY}, "bundle": {"file": file, "digest": "b" * 64}}
    assert sent == [("built-bbbbbbbbbbbb.tar", b"the wheel")]
    assert (outcome.errors, on.work.notes) == ({}, [])
    assert [path.name for path in on.work.run.path.rglob("*.tar")] == [], "nothing large stays in the run directory"
    (event,) = [each for each in read_journal(on.work.run.path / "journal.jsonl").events if each.kind == "handed-over"]
    assert (event.node, event.data["to"], event.data["bytes"]) == ("a", ["b", "c"], 9)
    step = on.plan.nodes[1].steps[1].request
    assert step is not None and "handed" not in step["args"]["build"], "the plan stays what was shown"


@pytest.mark.parametrize("how", ["bad", "lost"])
def test_the_second_tries_when_the_first_fails(stage: Callable[..., Stage], how: str) -> None:
    on = stage("a", "b", "c")
    getattr(on, how).add("a")
    outcome = on.run()
    assert [sorted(each) for each in on.plays] == [["a"], ["b"], ["c"]]
    assert handed(on.plays[2])["c"]["by"] == "b"
    assert set(outcome.errors) == ({"a"} if how == "lost" else set())


def test_two_failures_end_the_class_with_that_error(stage: Callable[..., Stage]) -> None:
    on = stage("a", "b", "c", "d")
    on.bad = {"a", "b"}
    outcome = on.run()
    assert [sorted(each) for each in on.plays] == [["a"], ["b"]]
    for node in ("c", "d"):
        error = outcome.errors[node]
        assert (error.code, error.exit_code) == ("not-built", ExitCode.BUILD_FAILED)
        assert "it does not compile" in error.why
        assert error.hint == "read it"


def test_a_class_whose_builder_failed_does_not_keep_others_from_going_on(stage: Callable[..., Stage]) -> None:
    newer = {"/usr/bin/gcc": "13.1.0"}
    alone = machine("z", compilers={"/usr/bin/gcc": "9.1.0"})
    on = stage("a", "b", machine("x", compilers=newer), machine("y", compilers=newer), alone)
    on.bad = {"x"}
    outcome = on.run()
    assert [sorted(each) for each in on.plays] == [["a", "x", "z"], ["b", "y"]]
    assert outcome.errors == {}


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("pack_fails", "ext of a could not be handed to b, c: the store has no such wheel"),
        ("keyless", "ext of a could not be handed to b, c: nothing was there to hand over"),
        ("disk_full", ".tar cannot be written (No space left on device)"),
    ],
)
def test_what_cannot_be_handed_over_is_built_by_each_and_said(
    stage: Callable[..., Stage], fault: str, why: str
) -> None:
    on = stage("a", "b", "c")
    setattr(on, fault, True)
    outcome = on.run()
    assert [sorted(each) for each in on.plays] == [["a"], ["b", "c"]]
    assert handed(on.plays[1]) == {"b": None, "c": None}
    (note,) = on.work.notes
    assert why in note
    assert outcome.errors == {}


def test_one_node_gives_to_several_classes_at_once(stage: Callable[..., Stage]) -> None:
    done, lock = donor()
    on = stage(done, "b", machine("c", compilers={"/usr/bin/gcc": "13.1.0"}), lock=lock)
    on.run()
    assert [sorted(each) for each in on.plays] == [["b", "c"]]
    assert [told["by"] for told in handed(on.plays[0]).values()] == ["done", "done"]
    assert len(set(on.received)) == 2, "two packs, each with a name of its own"


def test_a_finished_node_gives_before_anything_runs(stage: Callable[..., Stage], tmp_path: Path) -> None:
    done, lock = donor()
    on = stage(done, "b", "c", lock=lock)
    # What is delivered anyway takes the wheels along.
    on.run(bundles={"bundle.tar": tmp_path / "bundle.tar"}, store="/data/envbuild/store/1")
    assert [sorted(each) for each in on.plays] == [["b", "c"]]
    told = handed(on.plays[0])
    assert {name: each["by"] for name, each in told.items()} == {"b": "done", "c": "done"}
    assert told["b"]["bundle"]["file"] == "/data/envbuild/store/1/built-bbbbbbbbbbbb.tar"
    for _, files in on.plays[0].values():
        assert sorted(files.bundles) == ["built-bbbbbbbbbbbb.tar", "bundle.tar"]


@pytest.mark.parametrize("others", ["b", "bc"])
def test_where_a_finished_node_cannot_give_the_first_of_its_class_builds(
    stage: Callable[..., Stage], others: str
) -> None:
    done, lock = donor()
    on = stage(done, *others, lock=lock)
    assert on.plan.builds == (BuildClass(builder="done", nodes=tuple(others), sources=("ext",), finished=True),)
    on.pack_fails = True
    on.run()
    assert [sorted(each) for each in on.plays] == [[name] for name in others]
    assert handed(on.plays[0]) == {"b": None}


FULL = {"ok": False, "error": {"code": "disk-full", "what": "no room", "exit": 75}}
SMOKE = {"ok": True, "result": {"ok": False, "exit": 1, "checks": [{"name": "import", "status": "failed"}]}}
GOOD = {"install": {"ok": True, "result": {}}, "activate": {"ok": True, "result": {}}}
BUILDS, TESTS = ["install", "smoke", "activate"], ["smoke"]


class SpreadStage:
    """Nodes that answer by a table: `bad` by node what ends it."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.facts = {name: machine(name, cpus=64 - number) for number, name in enumerate(names)}
        self.target = target(placement="shared")
        self.whole = planned(self.facts, lock_with(), where=self.target)
        self.plays: list[dict[str, list[str]]] = []
        self.bad: dict[str, dict[str, Any]] = {}
        run = RunDir.create(tmp_path / "runs")
        self.journal = run.open_journal()
        self.work = Work(Settings(tmp_path / "runs"), run, self.journal, prepared=_prepared(tmp_path))
        self.work.survey.facts = dict(self.facts)
        self.work.tools = dict.fromkeys(names, NodeTools((), "python", "pyz", "uv", "/usr/bin/python3.11"))
        monkeypatch.setattr(sharing, "run_hosts", self.play)
        monkeypatch.setattr(sharing, "plan_of", self.plan_of)
        monkeypatch.setattr(sharing, "stage", self._stage)

    def plan_of(self, work: Work) -> Plan:
        return plan_spread(self.whole, Sharing(self.target, self.facts, {}, tried=work.tried))

    def run(self) -> Outcome:
        plan, files = self._stage(self.work, self.plan_of(self.work))
        _, outcome = sharing.SharedRun(plan, files, self.work).run()
        self.journal.close()
        return outcome

    def _stage(self, work: Work, plan: Plan) -> tuple[Plan, dict[str, NodeHost]]:
        return plan, {node.node: NodeHost(node.node, "python", "pyz") for node in plan.nodes if node.steps}

    def play(self, requests: Mapping[str, Any], files: Mapping[str, NodeHost], work: Work) -> Outcome:
        outcome = Outcome()
        self.plays.append({name: list(verbs) for name, verbs in requests.items()})
        for name in requests:
            if self.bad.get(name) is LOST:
                outcome.errors[name] = EnvbuildError("node-unreachable", name, exit_code=ExitCode.UNREACHABLE)
                continue
            verb = "smoke" if self.bad.get(name) is SMOKE else "install"
            outcome.responses[name] = {verb: self.bad[name]} if name in self.bad else dict(GOOD)
        return outcome


@pytest.mark.parametrize(
    ("bad", "plays"),
    [
        ({}, [{"a": BUILDS}, {"b": TESTS, "c": TESTS, "d": TESTS}]),
        # What failed is in the answers of that node.
        ({"a": SMOKE}, [{"a": BUILDS}, {"b": BUILDS}, {"c": TESTS, "d": TESTS}]),
        # What is wrong with a node alone says nothing of the others.
        (dict.fromkeys("ab", FULL), [{"a": BUILDS}, {"b": BUILDS}, {"c": BUILDS}, {"d": TESTS}]),
    ],
)
def test_one_builds_or_the_next_where_it_fails_then_all_others_test_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: dict[str, Any], plays: list[dict[str, list[str]]]
) -> None:
    on = SpreadStage(tmp_path, monkeypatch, "a", "b", "c", "d")
    on.bad = bad
    outcome = on.run()
    assert (on.plays, outcome.errors) == (plays, {})
    assert bad or on.work.notes == []


LOST: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("answer", "last", "codes"),
    [
        (FAILED, {"b": BUILDS}, {"c": ("not-built", 4)}),
        (SMOKE, {"b": BUILDS}, {"c": ("not-built", 1)}),
        # Two nodes that died say nothing of the third.
        (LOST, {"c": BUILDS}, {"a": ("node-unreachable", 3), "b": ("node-unreachable", 3)}),
    ],
    ids=["install", "smoke test", "lost"],
)
def test_what_fails_on_two_nodes_is_not_tried_on_a_third(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: dict[str, Any],
    last: dict[str, list[str]],
    codes: dict[str, tuple[str, int]],
) -> None:
    on = SpreadStage(tmp_path, monkeypatch, "a", "b", "c")
    on.bad = dict.fromkeys("ab", answer)
    outcome = on.run()
    assert on.plays[-1] == last
    assert {name: (error.code, int(error.exit_code)) for name, error in outcome.errors.items()} == codes
    assert answer is not SMOKE or "its smoke test failed: import" in outcome.errors["c"].why


def test_two_builders_on_one_prefix_wait_for_each_other_also_after_one_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = SpreadStage(tmp_path, monkeypatch, "a", "b", "c", "d")
    environments = {"a": "one", "b": "two", "c": "one", "d": "two"}
    nodes = (node.model_copy(update={"environment": environments[node.node]}) for node in on.whole.nodes)
    on.whole = on.whole.model_copy(update={"nodes": tuple(nodes)})
    on.bad = {"a": FULL}
    assert on.run().errors == {}
    assert on.plays == [{"a": BUILDS}, {"b": BUILDS}, {"d": TESTS, "c": BUILDS}]
