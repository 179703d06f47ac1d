"""Who builds an environment on a prefix that nodes share, and who tests it: decided from facts alone."""

from __future__ import annotations

from typing import Any

from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock
from envbuild.model.plan import NodePlan, Plan
from envbuild.plan.node_steps import environment_path
from envbuild.plan.planner import ChosenVariants
from envbuild.plan.sharing import Sharing, spread
from tests.plan.test_planner import FakeTool, planned
from tests.plan.test_shared_builds import lock_with, machine
from tests.resolve.builders import compat, resolve_fleet, target
from tests.resolve.test_engine import stamped

PROGRAM = FakeTool("envbuild-node", "envbuild-node-1")
PREFIX = "/data/envbuild"


def spread_over(*facts: NodeFacts, lock: Lock | None = None, where: dict[str, Any] | None = None, **more: Any) -> Plan:
    lock = lock or lock_with()
    fleet = {each.node: each for each in facts}
    place = target(**(where or {}))
    options = {"repair": more.pop("repair", ())}
    plan = planned(fleet, lock, where=place, **options)
    found = resolve_fleet(fleet, lock, place, compat(), None)
    variants = {name: ChosenVariants(lock).of(resolution, fleet[name]) for name, resolution in found.items()}
    return spread(plan, Sharing(place, fleet, variants, dict.fromkeys(fleet, (PROGRAM,)), **more))


def finished(name: str, *, current: bool = True) -> NodeFacts:
    """A node that has the environment of the usual lock."""
    lock = lock_with()
    digest = lock.variants[0].digest
    path = environment_path(PREFIX, lock.stack, lock.profile, digest)
    found = stamped(machine(name), lock, digest, current=current, interpreter=machine(name).pythons[0].path)
    return found.model_copy(update={"environments": (found.environments[0].model_copy(update={"path": path}),)})


def classes(plan: Plan) -> list[tuple[str, tuple[str, ...]]]:
    return [(each.builder, each.nodes) for each in plan.spreads]


def kinds(plan: Plan) -> dict[str, list[str]]:
    return {node.node: [step.kind for step in node.steps] for node in plan.nodes}


def of(plan: Plan, name: str) -> NodePlan:
    return next(node for node in plan.nodes if node.node == name)


def test_one_node_alone_installs_for_itself() -> None:
    plan = spread_over(machine("a"))
    assert plan.spreads == ()
    assert kinds(plan) == {"a": ["toolchain", "install", "smoke", "activate"]}


def test_on_one_prefix_one_node_builds_and_the_others_test() -> None:
    plan = spread_over(machine("a"), machine("b"), machine("c"), where={"placement": "shared"})
    (made,) = plan.spreads
    assert (made.builder, made.nodes, made.finished) == ("a", ("b", "c"), False)
    assert kinds(plan) == {
        "a": ["toolchain", "install", "smoke", "activate"],
        "b": ["toolchain", "smoke"],
        "c": ["toolchain", "smoke"],
    }
    assert of(plan, "b").steps[1].why == "the prefix is shared: a builds"
    over = spread_over(finished("a"), machine("b"), where={"placement": "shared"})
    assert kinds(over) == {"a": [], "b": ["toolchain", "smoke"]}
    assert of(over, "b").steps[1].why == "the prefix is shared: a has built"


def test_on_one_prefix_a_link_is_switched_once() -> None:
    plan = spread_over(finished("a", current=False), finished("b", current=False), where={"placement": "shared"})
    assert kinds(plan) == {"a": ["toolchain", "activate"], "b": []}


def test_nodes_with_a_disk_each_install_each_for_themselves() -> None:
    plan = spread_over(machine("a"), machine("b"))
    assert plan.spreads == ()
    whole = ["toolchain", "install", "smoke", "activate"]
    assert kinds(plan) == {"a": whole, "b": whole}


def test_who_could_not_build_is_asked_no_more_and_the_next_one_builds() -> None:
    plan = spread_over(machine("a"), machine("b"), machine("c"), where={"placement": "shared"}, tried={"a"})
    assert classes(plan) == [("b", ("c",))]
    assert "install" in kinds(plan)["a"]


def test_d101_all_nodes_that_build_again_do_so_under_one_path_and_new_ones_join_those_in_use() -> None:
    second = finished("b").environments[0].model_copy(update={"path": finished("b").environments[0].path + ".2"})
    newer = finished("b").model_copy(update={"environments": (second,)})
    plan = spread_over(finished("a"), newer, repair={"a", "b"})
    assert {each.environment for each in plan.nodes} == {second.path[:-1] + "3"}
    plan = spread_over(newer, machine("c"))
    assert of(plan, "c").environment == second.path
