"""The parts of provisioning through jobs that need no scheduler: shared plans, known facts, what a job asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import ExitCode
from envbuild.model.lock import Variant
from envbuild.model.plan import NodePlan, Plan, Resolution, Step
from envbuild.model.target import Target
from envbuild.plan.sharing import builder_of, in_job
from envbuild.provision.contact.first_contact import ContactResult
from envbuild.provision.contact.toolchain import node_tools
from envbuild.provision.environments import Environments
from envbuild.provision.jobs import survey as job_look
from envbuild.provision.jobs.site import JobSite
from envbuild.provision.jobs.survey import facts_file, keep_answers, read_answers, read_facts, write_facts
from envbuild.provision.run.context import Settings, Work
from envbuild.provision.run.run_dir import RunDir
from envbuild.schedule.cluster import Runner
from envbuild.schedule.job import JobStep
from envbuild.schedule.slurm import Partition, Slurm
from tests.provision.survey.test_up_to_date import facts, prepared
from tests.resolve.builders import make_variant
from tests.support.fails import fails


def node_plan(node: str, *kinds: str, environment: str = "/p/envs/a", python: str | None = None) -> NodePlan:
    steps = tuple(Step(kind=kind, what="w", why="y") for kind in kinds)  # type: ignore[arg-type]
    resolution = Resolution(node=node, stack="s", profile="exact", variant_id="v", decisions=(), candidates=())
    return NodePlan(
        node=node, environment=environment, variant_digest="0" * 64, python=python, steps=steps, resolution=resolution
    )


def plan(*nodes: NodePlan) -> Plan:
    return Plan(stack="s", profile="exact", target="t", nodes=nodes)


ALL = ("toolchain", "deliver", "install", "smoke", "activate")


def test_on_a_shared_prefix_one_node_builds_and_all_others_test() -> None:
    shared = in_job(plan(node_plan("n1", *ALL), node_plan("n2", *ALL), node_plan("n3", *ALL)))
    assert [[step.kind for step in node.steps] for node in shared.nodes] == [list(ALL), ["smoke"], ["smoke"]]
    assert shared.nodes[1].steps[0].why == "the prefix is shared: n1 builds"
    assert builder_of(shared).node == "n1"
    assert in_job(plan(node_plan("n1"), node_plan("n2"))).nothing_to_do


def test_nodes_that_would_get_different_environments_are_refused_with_what_differs() -> None:
    def on_base(**provided: str) -> Variant:
        return make_variant(
            "s", "exact", id="v", python="3.11", base={"kind": "system"}, packages=[], provided=provided
        )

    one, other = node_plan("n1", *ALL), node_plan("n2", *ALL, environment="/p/envs/b")
    variants = {"n1": on_base(beta="1.5", numpy="2.0"), "n2": on_base(beta="1.6")}
    with fails("nodes-differ", ExitCode.REFUSED) as caught:
        in_job(plan(one, other), variants)
    assert caught.value.why == "n1: v, n2: beta 1.6 (not 1.5) and numpy is not there (not 2.0)"
    assert caught.value.hint.endswith("or make the base the same on all nodes")
    both = plan(node_plan("n1", *ALL, python="/opt/a/bin/python3"), node_plan("n2", *ALL, python="/opt/b/bin/python3"))
    with fails("nodes-differ") as caught:
        in_job(both, dict.fromkeys(("n1", "n2"), variants["n1"]))
    assert "n2: /opt/b/bin/python3 (not /opt/a/bin/python3)" in caught.value.why
    on_none = make_variant("s", "exact", id="v", python="3.11", packages=[])
    in_job(both, dict.fromkeys(("n1", "n2"), on_none))


def target(**more: Any) -> Target:
    given = {"name": "hpc", "prefix": "/p", "hosts": {"slurm": "gpu"}, "connection": {"kind": "job"}}
    return Target.from_plain({**given, "scheduler": {"kind": "slurm", **more.pop("scheduler", {})}, **more})


def site(states: dict[str, int], gpus: dict[tuple[str, str | None], int] | None = None, **more: Any) -> JobSite:
    partition = Partition("gpu", sum(states.values()), states, gpus or {}, knows_gpus=bool(gpus))
    return JobSite(target(**more), Runner(), Slurm(Runner()), partition)


def test_a_job_takes_all_nodes_of_a_partition_that_take_jobs() -> None:
    assert site({"idle": 5, "allocated": 2, "drained": 1, "down*": 1, "idle~": 3}).nodes == 10
    assert site({"idle": 5}, scheduler={"nodes": 2}).nodes == 2
    with fails("partition-out-of-service", ExitCode.TRY_AGAIN):
        _ = site({"drained": 2, "maint": 1}).nodes


def test_a_job_asks_for_gpus_as_the_site_calls_them_and_for_as_many_as_the_target_expects() -> None:
    steps = [JobStep(argv=("true",))]
    made = site({"idle": 2}, {("gpu", "a100"): 8}, scheduler={"exclusive": True, "account": "me"}).job(
        "x", steps, "/o", 60
    )
    assert (made.gpus_per_node, made.gres and made.gres.type, made.queue, made.account) == (8, "a100", "gpu", "me")
    shared = site({"idle": 2}, {("gpu", "a100"): 8}, expects={"gpus_per_node": 4})
    shared = replace(shared, pool=replace(shared.pool, kinds=frozenset({(96, 8)})))
    four = shared.job("x", steps, "/o", 60)
    assert (four.gpus_per_node, four.cpus_per_node) == (4, 48)
    said = shared.target.scheduler.model_copy(update={"cpus_per_node": 10})
    own = replace(shared, target=shared.target.model_copy(update={"scheduler": said})).job("x", steps, "/o", 60)
    assert "#SBATCH --cpus-per-task=10\n" in Slurm.render(own)
    blind = site({"idle": 2}, expects={"gpus_per_node": 8}).job("x", steps, "/o", 60)
    assert blind.whole_nodes
    assert blind.warnings()
    with fails("job-invalid") as caught:  # what no directive can carry is an error of the target
        site({"idle": 2}).job("x", steps, "/o\n#SBATCH --hold", 60)
    assert "output" in caught.value.why


def test_what_nodes_said_is_kept_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "nodes" / "x.json"
    known = {"n1": facts(), "n2": facts(node="n2")}
    write_facts(path, known)
    assert read_facts(path) == known
    answers = {"n1": {"facts": known["n1"].to_json_dict(), "containers": {"runtimes": {}}}}
    keep_answers(path, answers)
    assert read_answers(path) == answers
    for text in ("{", "[1]", '{"n1": 1}', '{"n1": {}}', '{"n1": {"facts": {"protocol": 1}}}'):
        path.write_text(text)
        assert (read_facts(path), read_answers(path)) == ({}, {}), text
    keep_answers(path, {})
    assert not path.exists()


def test_facts_are_kept_apart_by_what_the_nodes_were_asked_for_by() -> None:
    loaded = target(scheduler={"modules": {"load": ["conda"]}})
    targets = [target(), target(scheduler={"nodes": 2}), target(hosts={"slurm": "other"}), target(prefix="/q"), loaded]
    names = {facts_file(each, "localhost") for each in targets} | {facts_file(target(), "login")}
    assert len(names) == 6


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Work, JobSite]]:
    """A run on two nodes of a partition, whose login host is this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    given = {"prefix": str(tmp_path / "p"), "hosts": {"slurm": "gpu"}, "connection": {"kind": "job"}}
    ready = prepared(**given, scheduler={"kind": "slurm"}, placement="shared")
    partition = Partition("gpu", 2, {"idle": 2}, {}, knows_gpus=False)
    run = RunDir.create(tmp_path / "runs")
    with run.open_journal() as journal:
        work = Work(Settings(tmp_path / "runs"), run, journal, prepared=ready)
        yield work, JobSite(ready.target, Runner(), Slurm(Runner()), partition)


@pytest.mark.parametrize("repair", [True, False])
def test_a_script_is_made_of_what_is_known_and_never_submits_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repair: bool, cluster: tuple[Work, JobSite]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without sbatch
    work, where = cluster
    work.settings = replace(work.settings, repair=repair, script=True)
    with fails("nodes-unknown", ExitCode.REFUSED) as caught:
        job_look.survey_jobs(work, where)
    assert "--dry-run" in caught.value.hint
    write_facts(facts_file(where.target, where.login), {"n1": facts(node="n1")})
    survey = job_look.survey_jobs(work, where)
    assert set(survey.resolutions) == {"n1"}
    assert survey.facts["n1"].prefix.path == str(tmp_path / "p"), "what the login host sees now"


def test_a_refusal_by_what_an_earlier_job_has_seen_says_when_and_how_to_ask_again(
    cluster: tuple[Work, JobSite],
) -> None:
    work, where = cluster
    old = facts(node="n1", pythons=[], environments=[], probed_at="2026-11-29T08:00:00Z")
    write_facts(facts_file(where.target, where.login), {"n1": old})
    work.survey = job_look.survey_jobs(work, where)
    Environments().plan(work)
    says = "; this is of 2026-11-29: after a change of the node, `envbuild provision --dry-run --repair` asks it again"
    assert work.survey.errors["n1"].hint.endswith(says)


def bare(node: str) -> ContactResult:
    return ContactResult(node, {"arch": "x86_64", "libc": "glibc 2.31", "user": "u"}, None, None)


@pytest.mark.parametrize("bring", [True, False])
def test_nodes_that_stay_without_python_are_errors_and_nothing_is_kept_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bring: bool, cluster: tuple[Work, JobSite]
) -> None:
    (work, where), folders, staged = cluster, [], []

    def asked(*given: Any) -> dict[str, Any]:
        folders.append(Path(given[2].folder).name)
        return {node: {"probe": bare(node)} for node in ("n1", "n2")}

    def brought(_: Any, __: Any, top: str, nodes: dict[str, Any]) -> dict[str, str]:
        staged.append((top, sorted(nodes)))
        return dict.fromkeys(nodes, "/staged/python3")

    monkeypatch.setattr(job_look, "ask_in_job", asked)
    monkeypatch.setattr(job_look, "stage_python", brought)
    survey = job_look.survey_jobs(work, where, bring_python=bring)
    assert survey.without_python == ["n1", "n2"]
    assert (survey.facts, read_facts(facts_file(where.target, where.login))) == ({}, {})
    if bring:
        assert folders == [work.run.id, f"{work.run.id}-again"]
        assert staged == [(str(tmp_path / "p"), ["n1", "n2"])]
        assert {error.code for error in survey.errors.values()} == {"toolchain-python-broken"}
        assert "/staged/python3" in survey.errors["n1"].why
    else:
        assert (folders, staged, survey.errors) == ([work.run.id], [], {})


def test_what_only_one_disk_has_runs_no_node_program_of_a_job() -> None:
    own = {"path": "/p/tools/python-x/python/bin/python3.13", "version": "3.13.1", "implementation": "cpython"}
    ours = {**own, "path": "/usr/bin/python3.11", "version": "3.11.2"}
    found = facts(pythons=[own, ours])
    variant = prepared().lock.variants[0]

    def runner(shared: str) -> str:
        there = found.model_copy(update={"shared": shared})
        return node_tools(there, variant, "/usr/bin/python3.11", folder=None, toolchain_file=None).python

    assert runner("") == own["path"]
    assert runner("/shared") == ours["path"]
