"""First use over several nodes: all see the same file, or nobody uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError
from envbuild.lock.first_use import add_first_uses, read_first_uses
from envbuild.model.first_use import FirstUse
from envbuild.model.lock import ArtifactFile, Lock, LockedPackage, Variant
from envbuild.model.plan import Plan
from envbuild.model.stack import Profile, Stack
from envbuild.model.target import Connection, Target
from envbuild.plan.node_steps import Inputs
from envbuild.plan.planner import make_plan
from envbuild.provision.delivery import first_use
from envbuild.provision.delivery.first_use import Seen, differing
from envbuild.provision.run.context import Settings, Work
from envbuild.provision.run.evidence import deviations, failed_node
from envbuild.provision.run.findings import Choice, Prepared, Survey
from envbuild.provision.run.outcome import Outcome
from envbuild.provision.run.run_dir import RunDir
from envbuild.provision.survey.ask import decide
from tests.provision.ansible.test_play import _Silent
from tests.resolve.builders import node_facts

FILE = "alpha-1.0-py3-none-any.whl"
A, B = "a" * 64, "b" * 64
PREFIX = "/data/envbuild"  # of the recorded facts


def row(sha256: str = A, file: str = FILE) -> dict[str, Any]:
    return {
        "file": file, "sha256": sha256, "size": 7, "index": "pypi", "found": "the index pypi",
        "path": f"{PREFIX}/store/first-use/{sha256}/{file}", "record_checked": 3,
    }  # fmt: skip


class _Tools:
    """A node's tools, all there."""

    tools = ()
    python, pyz, uv, interpreter = "/usr/bin/python3", "/prefix/node.pyz", "/prefix/uv", None

    def missing(self, _there: object) -> tuple[()]:
        return ()


def lock() -> Lock:
    files = (ArtifactFile(file=FILE, sha256="unrecorded", reason="out of reach"),)
    draft = Variant(
        id="v", digest="0" * 64, python="3.11", packages=(LockedPackage(name="alpha", version="1.0", files=files),)
    )
    variant = draft.model_copy(update={"digest": draft.compute_digest("s", "exact")})
    return Lock(stack="s", profile="exact", manifest_digest="0" * 64, variants=(variant,))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def settled(
    home: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str, str | dict[str, Any]], target: Target | None = None
) -> tuple[Work, Plan]:
    """`settle` with what each node answers (a sha256, or an error) in the place of a play; the work and the plan."""
    over_ssh = Target(name="here", prefix="/prefix", hosts=tuple(answers), connection=Connection(kind="ssh"))
    target = target or over_ssh
    stack = Stack(name="s", summary="a test", profiles={"exact": Profile(python=("3.11",))})
    choice = Choice("here", trust_first_use=True)
    prepared = Prepared(stack, "exact", target, lock(), home / "s.lock.toml", "0" * 64, choice)
    run = RunDir.create(home / "runs")
    survey = Survey(facts={node: node_facts("cpu-laptop").model_copy(update={"node": node}) for node in answers})
    tools: Any = {node: _Tools() for node in answers}

    def play(requests: Any, _files: Any, _work: Work) -> Outcome:
        assert {node: list(verbs) for node, verbs in requests.items()} == {node: ["fetch"] for node in answers}
        outcome = Outcome()
        for node, said in answers.items():
            good = {"ok": True, "result": {"files": [row(said)]}} if isinstance(said, str) else None
            outcome.responses[node] = {"fetch": good or {"ok": False, "error": said}}
        return outcome

    monkeypatch.setattr(first_use, "run_hosts", play)
    with run.open_journal() as journal:
        work = Work(prepared, Settings(home / "runs"), run, journal, _Silent(), survey=survey, tools=tools)
        decide(prepared, survey, list(answers))
        first_use.settle(work, plan_of(work))
        return work, plan_of(work)


def plan_of(work: Work) -> Plan:
    resolutions = {node: item for node, item in work.survey.resolutions.items() if node in work.tools}
    inputs = Inputs(run="r", controller={}, pyz_digest="f" * 64, tools=work.tools)
    return make_plan(work.prepared.target, work.prepared.lock, work.survey.facts, resolutions, inputs)


def test_nodes_that_agree_get_one_record_and_a_plan_with_the_hash(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, plan = settled(home, monkeypatch, {"n1": A, "n2": A})
    assert work.survey.errors == {}
    assert {name: use.sha256 for name, use in read_first_uses().items()} == {FILE: A}
    assert [[step.kind for step in node.steps] for node in plan.nodes] == [["install", "smoke", "activate"]] * 2
    assert {node.variant_digest for node in plan.nodes} == {work.prepared.lock.variants[0].digest}
    assert work.prepared.lock.variants[0].digest != lock().variants[0].digest
    request = plan.nodes[0].steps[0].request
    assert request is not None
    assert request["args"]["artifacts"]["find_links"] == [f"{PREFIX}/store/first-use/{A}"], (
        "fetched once, used from there"
    )
    assert request["args"]["variant"]["packages"][0]["files"][0]["sha256"] == A


def test_nodes_that_differ_are_all_refused_and_nothing_is_recorded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, plan = settled(home, monkeypatch, {"n1": A, "n2": A, "n3": B})
    assert {node: (e.code, int(e.exit_code)) for node, e in work.survey.errors.items()} == dict.fromkeys(
        ("n1", "n2", "n3"), ("hash-mismatch", 5)
    )
    why = work.survey.errors["n2"].why
    assert f"n1 got sha256 {A}" in why and f"n3 got sha256 {B}" in why
    assert read_first_uses() == {}
    assert plan.nodes == ()


def test_a_node_that_could_not_fetch_does_not_hold_up_the_others(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {"code": "network-unreachable", "what": "no way there", "exit": 75}
    work, plan = settled(home, monkeypatch, {"n1": gone, "n2": A})
    assert [(node, error.code) for node, error in work.survey.errors.items()] == [("n1", "network-unreachable")]
    assert [node.node for node in plan.nodes] == ["n2"]
    assert read_first_uses()[FILE].sha256 == A


def test_another_record_that_came_in_between_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = FirstUse(
        file=FILE, sha256=B, size=7, package="alpha", version="1.0", index="pypi", found="the index pypi",
        first_used="2026-11-20T10:00:00Z", run="another-run",
    )  # fmt: skip
    add_first_uses([earlier])
    work, plan = settled(home, monkeypatch, {"n1": A})
    error = work.survey.errors["n1"]
    assert (error.code, int(error.exit_code)) == ("hash-mismatch", 5)
    assert A in error.why and B in error.why
    assert plan.nodes == () and read_first_uses() == {FILE: earlier}


def test_nodes_behind_a_scheduler_are_not_asked_to_fetch(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no way to them but a job; SSH would find closed doors, or nodes that do not exist yet."""
    fields: dict[str, Any] = {"delivery": "node"}
    fields |= {"hosts": {"slurm": "gpu"}, "connection": {"kind": "job"}, "scheduler": {"kind": "slurm"}}
    cluster = Target.from_plain({"name": "cluster", "prefix": "/prefix", "placement": "shared", **fields})
    with pytest.raises(EnvbuildError, match="cannot fetch a file on first use") as found:
        settled(home, monkeypatch, {"n1": A}, cluster)
    assert (found.value.code, found.value.exit_code) == ("first-use-through-jobs", 7)
    assert "without `delivery: node`" in found.value.hint
    assert read_first_uses() == {}


def test_only_the_file_that_differs_stops_its_nodes() -> None:
    other = "beta-1.0-py3-none-any.whl"
    seen = [Seen("n1", row(A)), Seen("n2", row(A)), Seen("n2", row(A, other)), Seen("n3", row(B, other))]
    assert sorted(differing(seen)) == ["n2", "n3"]
    assert differing(seen[:2]) == {}


def test_a_run_without_first_uses_has_no_deviation() -> None:
    assert deviations([failed_node("n1", EnvbuildError("x", "y"))]) == ()
