"""Who compiles for whom, and how many nodes at once: decided from facts alone, and said in the steps."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock
from envbuild.model.plan import Batches, BuildClass, Plan, Share, parse_share
from envbuild.plan.node_steps import environment_path
from envbuild.plan.planner import ChosenVariants
from envbuild.plan.sharing import Sharing, compiled_wheels, keys_of, share_builds, spread
from tests.plan.test_planner import FakeTool, planned
from tests.resolve.builders import compat, make_lock, node_facts, package, resolve_fleet, target
from tests.resolve.test_engine import stamped
from tests.support.fails import fails

SOURCE: dict[str, Any] = {"name": "ext", "git": "https://example.org/ext", "commit": "1" * 40, "tree": "2" * 40}
COMPILED = {**SOURCE, "build": {}}


def lock_with(*sources: dict[str, Any]) -> Lock:
    return make_lock({"id": "v", "python": "3.11", "packages": [package("a", "1")], "sources": list(sources)})


def machine(name: str, cpus: int = 8, compilers: dict[str, str] | None = None, **more: Any) -> NodeFacts:
    found = {"/usr/bin/gcc": "12.2.0", "/usr/bin/g++": "12.2.0"} if compilers is None else compilers
    rows = [{"path": path, "version": version} for path, version in found.items()]
    return node_facts("cpu-laptop", more={"node": name, "cpus": cpus, "compilers": rows, **more})


def shared(*facts: NodeFacts, lock: Lock | None = None, **options: Any) -> Plan:
    lock = lock or lock_with(COMPILED)
    fleet = {each.node: each for each in facts}
    plan = planned(fleet, lock)
    found = resolve_fleet(fleet, lock, target(), compat(), None)
    variants = {name: ChosenVariants(lock).of(resolution, fleet[name]) for name, resolution in found.items()}
    return share_builds(plan, Sharing(target(), fleet, variants, **options))


def said(plan: Plan) -> dict[str, str]:
    steps = {node.node: step.what for node in plan.nodes for step in node.steps if step.kind == "install"}
    return {name: re.split("; (?=compile|take)", what, maxsplit=1)[-1] for name, what in steps.items()}


def test_equal_nodes_are_one_class_and_the_widest_builds() -> None:
    plan = shared(machine("gpu1"), machine("gpu2", cpus=64), machine("gpu3"), machine("gpu4"))
    assert plan.builds == (BuildClass(builder="gpu2", nodes=("gpu1", "gpu3", "gpu4"), sources=("ext",)),)
    told = said(plan)
    assert told["gpu2"].startswith("compile ext, where the wheel store has no wheel")
    assert told["gpu2"].endswith("; built on gpu2, taken over by gpu1, gpu3 and gpu4")
    assert told["gpu1"] == told["gpu3"] == told["gpu4"] == "take over ext, built on gpu2 first"
    seconds = {node.node: sum(step.seconds for step in node.steps) for node in plan.nodes}
    assert seconds["gpu1"] < seconds["gpu2"], "who takes over compiles nothing"
    eight = shared(*(machine(f"gpu{number}") for number in range(1, 9)))
    assert said(eight)["gpu1"].endswith("built on gpu1, taken over by gpu2, gpu3, gpu4 and 4 more")
    alone = shared(machine("gpu1"))
    assert alone.builds == ()
    assert said(alone)["gpu1"] == "compile ext, where the wheel store has no wheel of it"


def test_nodes_that_would_make_other_wheels_are_other_classes() -> None:
    others = [
        machine("gcc13", compilers={"/usr/bin/gcc": "13.1.0", "/usr/bin/g++": "13.1.0"}),
        machine("glibc", libc={"kind": "glibc", "version": "2.31"}),
        machine("ubuntu", os={"id": "ubuntu", "version": "22.04", "arch": "x86_64"}),
    ]
    plan = shared(machine("one"), *others, machine("two"))
    assert classes(plan) == [("one", ("two",))]
    assert "taken over" not in said(plan)["gcc13"]
    beside = {"/usr/bin/gcc": "12.2.0", "/usr/bin/g++": "12.2.0", "/usr/bin/gcc-9": "9.4.0"}
    assert classes(shared(machine("a"), machine("b", compilers=beside))) == [("a", ("b",))]


def test_a_node_without_a_compiler_takes_from_the_largest_class_and_never_builds() -> None:
    newer = {"/usr/bin/gcc": "13.1.0"}
    plan = shared(machine("old", compilers=newer), machine("bare", cpus=256, compilers={}), machine("x"), machine("y"))
    assert classes(plan) == [("x", ("y", "bare"))]
    alone = shared(machine("x"), machine("bare", cpus=256, compilers={}))
    assert classes(alone) == [("x", ("bare",))]
    without = shared(machine("p", compilers={}), machine("q", compilers={}))
    assert classes(without) == [("p", ("q",))], "a source may need no compiler"


def test_only_compiled_wheels_are_shared() -> None:
    two = [machine("a"), machine("b")]
    in_tree = {**SOURCE, "name": "tree", "install": "path", "build": {"kind": "inplace"}}
    for source in (SOURCE, in_tree):
        assert shared(*two, lock=lock_with(source)).builds == ()
    both = lock_with(COMPILED, in_tree)
    assert compiled_wheels(both.variants[0]) == ("ext",)
    assert said(shared(*two, lock=both))["b"] == "take over ext, built on a first; compile tree in its tree"


def finished(name: str, lock: Lock, sources: list[dict[str, Any]], **more: Any) -> NodeFacts:
    """A node that has the environment, with what its stamp says of sources."""
    digest = lock.variants[0].digest
    path = environment_path("/data/envbuild", lock.stack, lock.profile, digest)
    found = stamped(machine(name), lock, digest, sources=sources, **more)
    return found.model_copy(update={"environments": (found.environments[0].model_copy(update={"path": path}),)})


def test_a_finished_node_gives_what_it_was_made_with() -> None:
    lock = lock_with(COMPILED)
    told = [{"name": "ext", "build": {"key": "a" * 64}}]
    assert keys_of(told) == {"ext": "a" * 64}
    done = finished("done", lock, told)
    plan = shared(done, machine("new"), lock=lock)
    assert plan.builds == (BuildClass(builder="done", nodes=("new",), sources=("ext",), finished=True),)
    assert said(plan) == {"new": "take over ext as built on done"}
    assert shared(done, machine("new"), lock=lock, rebuild=True).builds == ()
    assert shared(finished("done", lock, []), machine("new"), lock=lock).builds == ()
    both = partial(shared, done, machine("n1"), machine("n2"), lock=lock)
    assert classes(both()) == [("done", ("n1", "n2"))]
    assert classes(both(tried={"done"})) == [("n1", ("n2",))], "should the donor's be gone"
    assert classes(both(tried={"done", "n1"})) == []


NODES = tuple(f"n{number}" for number in range(8))
WHOLE = ["toolchain", "install", "smoke", "activate"]


@pytest.mark.parametrize(
    ("text", "total", "nodes"),
    [("4", 8, 4), ("25%", 8, 2), ("25%", 3, 0), ("100%", 3, 3), ("9", 3, 3), (" 50% ", 5, 2)],
)
def test_a_share_is_a_number_of_nodes_rounded_down(text: str, total: int, nodes: int) -> None:
    assert parse_share(text, "--batch", least=1).of(total) == nodes


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "1.5", "4 %", "9999999", "4\n5"])
def test_what_is_no_share_is_refused_by_its_option(text: str) -> None:
    with fails("share-invalid", 2, match="--batch"):
        parse_share(text, "--batch", least=1)


def test_waves_keep_the_order_and_have_one_node_at_least() -> None:
    assert Batches(Share(25, percent=True)).waves(NODES) == [NODES[:2], NODES[2:4], NODES[4:6], NODES[6:]]
    assert Batches(Share(3)).waves(NODES) == [NODES[:3], NODES[3:6], NODES[6:]]
    assert Batches(Share(1, percent=True)).waves(NODES) == [(node,) for node in NODES]
    assert Batches().waves(NODES) == [NODES]
    assert Batches(Share(4)).waves(()) == []


@pytest.mark.parametrize(
    ("most", "failed", "spent"),
    [
        (None, 8, False),
        (Share(1), 1, False),
        (Share(1), 2, True),
        (parse_share("0", "--max-fail", least=0), 1, True),
        (Share(25, percent=True), 2, False),
        (Share(25, percent=True), 3, True),
    ],
)
def test_the_budget_is_spent_when_more_fail_than_it_allows(most: Share | None, failed: int, spent: bool) -> None:
    assert Batches(most=most).spent(failed, 8) is spent


def spread_over(*facts: NodeFacts, lock: Lock | None = None, where: dict[str, Any] | None = None, **more: Any) -> Plan:
    lock = lock or lock_with()
    fleet = {each.node: each for each in facts}
    place = target(**(where or {}))
    options = {"repair": more.pop("repair", ())}
    plan = planned(fleet, lock, where=place, **options)
    found = resolve_fleet(fleet, lock, place, compat(), None)
    variants = {name: ChosenVariants(lock).of(resolution, fleet[name]) for name, resolution in found.items()}
    return spread(
        plan,
        Sharing(place, fleet, variants, dict.fromkeys(fleet, (FakeTool("envbuild-node", "envbuild-node-1"),)), **more),
    )


def in_use(name: str, *, current: bool = True) -> NodeFacts:
    """A node that has the environment of the usual lock."""
    return finished(name, lock_with(), [], current=current, interpreter=machine(name).pythons[0].path)


def classes(plan: Plan) -> list[tuple[str, tuple[str, ...]]]:
    return [(each.builder, each.nodes) for each in plan.builds]


def kinds(plan: Plan) -> dict[str, list[str]]:
    return {node.node: [step.kind for step in node.steps] for node in plan.nodes}


def test_on_one_prefix_one_node_builds_and_the_others_test() -> None:
    def over(*facts: NodeFacts, **more: Any) -> Plan:
        return spread_over(*facts, where={"placement": "shared"}, **more)

    plan = over(machine("a"), machine("b"), machine("c"))
    (made,) = plan.builds
    assert (made.builder, made.nodes, made.finished) == ("a", ("b", "c"), False)
    tests = ["toolchain", "smoke"]
    assert kinds(plan) == {"a": WHOLE, "b": tests, "c": tests}
    assert plan.nodes[0].steps[1].why.endswith("; built once for 3 nodes that share the prefix")
    assert plan.nodes[1].steps[1].why == "the prefix is shared: a builds"
    plan = over(in_use("a"), machine("b"))
    assert kinds(plan) == {"a": [], "b": tests}
    assert plan.nodes[1].steps[1].why == "the prefix is shared: a has built"
    plan = over(in_use("a", current=False), in_use("b", current=False))
    assert kinds(plan) == {"a": ["toolchain", "activate"], "b": []}, "a link is switched once"
    plan = over(machine("a"), machine("b"), machine("c"), tried={"a"})
    assert classes(plan) == [("b", ("c",))], "who could not build is asked no more"
    assert "install" in kinds(plan)["a"]


def test_nodes_with_a_disk_each_install_each_for_themselves() -> None:
    for names in ("a", "ab"):
        plan = spread_over(*map(machine, names))
        assert (plan.builds, kinds(plan)) == ((), dict.fromkeys(names, WHOLE))


def test_d101_all_nodes_that_build_again_do_so_under_one_path_and_new_ones_join_those_in_use() -> None:
    first = in_use("b").environments[0]
    second = first.model_copy(update={"path": f"{first.path}.2"})
    newer = in_use("b").model_copy(update={"environments": (second,)})
    plan = spread_over(in_use("a"), newer, repair={"a", "b"})
    assert {each.environment for each in plan.nodes} == {second.path[:-1] + "3"}
    plan = spread_over(newer, machine("c"))
    assert plan.nodes[1].environment == second.path
