"""Who builds an environment and who takes it over: decided from facts alone, and said in the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock
from envbuild.model.plan import NodePlan, Plan, SpreadClass
from envbuild.plan.distribution import Sharing, spread, tree
from envbuild.plan.node_steps import environment_path
from envbuild.plan.planner import ChosenVariants
from envbuild.plan.shared_builds import left_alone, share_builds
from tests.plan.test_planner import FakeTool, planned
from tests.plan.test_shared_builds import COMPILED, lock_with, machine
from tests.resolve.builders import compat, resolve_fleet, target
from tests.resolve.test_engine import stamped
from tests.resolve.test_wheel_providers import cuda_lock, gpu_node

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


def test_equal_nodes_are_built_for_by_one_and_say_so() -> None:
    plan = spread_over(machine("a"), machine("b", cpus=64), machine("c"))
    (made,) = plan.spreads
    assert made == SpreadClass(environment=of(plan, "a").environment, builder="b", nodes=("a", "c"))
    whole, taking = ["toolchain", "install", "smoke", "activate"], ["toolchain", "unpack", "smoke", "activate"]
    assert kinds(plan) == {"a": taking, "b": whole, "c": taking}
    build, unpack = of(plan, "b").steps[1], of(plan, "a").steps[1]
    assert build.why.endswith("; built once for 3 nodes: a and c take it over")
    assert unpack.what == "take over the environment of b"
    assert unpack.why == "the same environment, on an equal interpreter and C library, is built there first"
    assert (build.fetch_bytes > 0, unpack.fetch_bytes) == (True, 0), "each byte comes over the network once"
    assert of(plan, "a").steps[0].what == f"put envbuild-node into {PREFIX}/tools", "who installs nothing needs no uv"


def test_d11_the_pack_lies_beside_the_environment_of_who_gives_and_of_who_takes() -> None:
    plan = spread_over(machine("a"), machine("b"))
    giver, taker = of(plan, "a"), of(plan, "b")
    fetched = sum(step.fetch_bytes for step in giver.steps)
    assert giver.steps[-1].beside_bytes == fetched > 0 == taker.steps[-1].beside_bytes
    assert giver.peak_bytes >= giver.lasting_bytes + fetched
    assert taker.peak_bytes >= taker.lasting_bytes + fetched


def test_the_request_of_a_taker_is_that_of_its_install_without_what_only_installing_needs() -> None:
    plan = spread_over(machine("a"), machine("b"))
    install, unpack = of(plan, "a").steps[1].request, of(plan, "b").steps[1].request
    assert install is not None
    assert unpack is not None
    assert unpack == {
        **install,
        "verb": "unpack",
        "args": {
            key: install["args"][key] for key in ("environment", "stack", "profile", "variant", "controller", "wait")
        },
    }


def test_one_node_alone_installs_for_itself() -> None:
    plan = spread_over(machine("a"))
    assert plan.spreads == ()
    assert kinds(plan) == {"a": ["toolchain", "install", "smoke", "activate"]}


def test_nodes_that_could_not_use_each_others_environment_are_not_of_one_class() -> None:
    home: dict[str, Any] = {"prefix": {"path": "/home/b/envbuild", "writable": True}}
    python: dict[str, Any] = {"pythons": [{"path": "/opt/python/bin/python3.11", "version": "3.11.2"}]}
    newer: dict[str, Any] = {"pythons": [{"path": machine("x").pythons[0].path, "version": "3.11.9"}]}
    plan = spread_over(
        machine("a"), machine("home", **home), machine("place", **python), machine("version", **newer), machine("z")
    )
    assert classes(plan) == [("a", ("z",))]


def test_what_a_newer_c_library_has_built_is_not_given_to_an_older_one() -> None:
    def with_libc(name: str, version: str, **more: Any) -> NodeFacts:
        return machine(name, libc={"kind": "glibc", "version": version}, **more)

    plan = spread_over(with_libc("new", "2.39", cpus=64), with_libc("old", "2.31"), with_libc("mid", "2.36"))
    assert classes(plan) == [("old", ("new", "mid"))], "the oldest builds, because all can use it"
    compiling = lock_with(COMPILED)
    bare: dict[str, Any] = {"compilers": {}}
    plan = spread_over(
        with_libc("new", "2.39"), with_libc("old", "2.31", **bare), with_libc("older", "2.28", **bare), lock=compiling
    )
    assert classes(plan) == [("older", ("old",))], "who can compile cannot give to them; it builds for itself"
    assert "install" in kinds(plan)["new"]


def test_a_node_without_a_c_library_that_is_known_is_left_to_itself() -> None:
    musl: dict[str, Any] = {"libc": {"kind": "musl", "version": "1.2"}}
    assert spread_over(machine("a"), machine("b"), machine("c", **musl)).spreads[0].nodes == ("b",)


def test_who_can_compile_builds() -> None:
    plan = spread_over(machine("bare", cpus=64, compilers={}), machine("able"), lock=lock_with(COMPILED))
    assert classes(plan) == [("able", ("bare",))]


def test_a_finished_node_gives_what_it_has_and_does_nothing_itself() -> None:
    plan = spread_over(machine("a"), finished("done"), machine("b"))
    assert classes(plan) == [("done", ("a", "b"))]
    assert plan.spreads[0].finished
    assert kinds(plan)["done"] == []
    assert of(plan, "a").steps[1].why.endswith("is finished there")
    single = spread_over(finished("done"), machine("b"))
    assert classes(single) == [("done", ("b",))], "one node is enough then"
    assert classes(spread_over(machine("a"), finished("done"), machine("b"), rebuild=True)) == [("a", ("b",))]


def test_a_brief_answer_of_a_finished_node_is_enough() -> None:
    donor = finished("done")
    (environment,) = donor.environments
    checks = ({"name": "stamp", "status": "passed", "details": {"python": donor.pythons[0].version}},)
    brief = donor.model_copy(
        update={"pythons": (), "brief": True, "environments": (environment.model_copy(update={"checks": checks}),)}
    )
    lock = lock_with()
    fleet = {"done": donor, "b": machine("b")}
    plan = planned(fleet, lock)
    fleet["done"] = brief
    assert classes(spread(plan, Sharing(target(), fleet, {}))) == [("done", ("b",))]


def test_who_could_not_give_is_asked_no_more_and_gets_nothing() -> None:
    plan = spread_over(machine("a"), machine("b"), machine("c"), tried={"a"})
    assert classes(plan) == [("b", ("c",))]
    assert "install" in kinds(plan)["a"]


def test_a_repair_is_made_once_too() -> None:
    plan = spread_over(finished("a"), finished("b"), repair={"a", "b"})
    assert classes(plan) == [("a", ("b",))]
    unpack = of(plan, "b").steps[1].request
    assert unpack is not None
    assert unpack["args"]["environment"] == f"{finished('a').environments[0].path}.2"


def test_d101_all_nodes_that_build_again_do_so_under_one_path_and_new_ones_join_those_in_use() -> None:
    second = finished("b").environments[0].model_copy(update={"path": finished("b").environments[0].path + ".2"})
    newer = finished("b").model_copy(update={"environments": (second,)})
    plan = spread_over(finished("a"), newer, repair={"a", "b"})
    assert {each.environment for each in plan.nodes} == {second.path[:-1] + "3"}
    plan = spread_over(newer, machine("c"))
    assert of(plan, "c").environment == second.path
    assert classes(plan) == [("b", ("c",))]


def test_a_target_can_have_each_node_install_for_itself() -> None:
    plan = spread_over(machine("a"), machine("b"), where={"spread": False})
    assert plan.spreads == ()
    assert "install" in kinds(plan)["b"]


def test_on_one_prefix_one_node_builds_and_the_others_test() -> None:
    plan = spread_over(machine("a"), machine("b"), machine("c"), where={"placement": "shared"})
    (made,) = plan.spreads
    assert (made.builder, made.nodes, made.shared, made.finished) == ("a", ("b", "c"), True, False)
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


def test_who_takes_an_environment_over_needs_no_wheels_and_classes_of_builders_still_share_them() -> None:
    lock = lock_with(COMPILED)
    other: dict[str, Any] = {
        "pythons": [{"path": "/opt/python/bin/python3.11", "version": machine("x").pythons[0].version}]
    }
    fleet = {each.node: each for each in (machine("a"), machine("b"), machine("c", **other), machine("d", **other))}
    plan = spread_over(*fleet.values(), lock=lock)
    assert classes(plan) == [("a", ("b",)), ("c", ("d",))]
    found = resolve_fleet(fleet, lock, target(), compat(), None)
    variants = {name: ChosenVariants(lock).of(resolution, fleet[name]) for name, resolution in found.items()}
    shared = share_builds(plan, fleet, variants)
    assert [(each.nodes, each.builders) for each in shared.builds] == [(("a", "c"), ("a", "c"))]
    assert shared.spreads == plan.spreads


@dataclass(frozen=True)
class Draw:
    """A tree drawn, and in how many rounds all have it when a node gives to one at a time."""

    edges: dict[str, list[str]]

    def rounds(self, root: str) -> int:
        return max(
            (1 + number + self.rounds(child) for number, child in enumerate(self.edges.get(root, ()))), default=0
        )


def test_in_each_round_every_node_that_has_it_gives_it_once() -> None:
    names = [f"n{number}" for number in range(1, 8)]
    drawn = tree(["root"], names, {"root", *names}, 64)
    assert drawn == {"root": ["n1", "n2", "n4"], "n1": ["n3", "n5"], "n2": ["n6"], "n3": ["n7"]}
    assert Draw(drawn).rounds("root") == 3
    many = [f"m{number}" for number in range(63)]
    assert Draw(tree(["root"], many, {"root", *many}, 64)).rounds("root") == 6


def test_nodes_that_nobody_can_connect_to_only_take() -> None:
    drawn = tree(["root"], ["deaf", "a", "b"], {"root", "a", "b"}, 64)
    assert drawn == {"root": ["a", "b"], "a": ["deaf"]}
    assert tree(["deaf"], ["a"], {"a"}, 64) == {}


def test_no_more_nodes_take_part_than_are_contacted_at_once() -> None:
    names = [f"n{number}" for number in range(20)]
    drawn = tree(["root"], names, {"root", *names}, 8)
    part = set(drawn) | {child for children in drawn.values() for child in children}
    assert len(part) == 8
    later = tree(sorted(part), sorted(set(names) - part), {"root", *names}, 8)
    assert len(set(later) | {child for children in later.values() for child in children}) == 8


def test_a_node_without_nvcc_takes_the_whole_environment_whatever_its_compiler_is() -> None:
    nodes = [gpu_node("bare", nvcc=[], more={"cpus": 256}), gpu_node("a"), gpu_node("other", nvcc=[], gcc=["10.2.0"])]
    lock = cuda_lock()
    plan = spread_over(*nodes, lock=lock)
    assert classes(plan) == [("a", ("bare", "other"))]
    assert kinds(plan)["bare"] == ["toolchain", "unpack", "smoke", "activate"]
    variants = dict.fromkeys(("bare", "a", "other"), lock.variants[0])
    assert left_alone(plan, variants) == ()
    failed = spread_over(*nodes, lock=lock, tried=("a",))
    assert classes(failed) == []
    assert left_alone(failed, variants) == ("bare", "other"), "without the one that can, nobody builds"


def test_on_a_shared_prefix_a_node_with_nvcc_builds() -> None:
    nodes = [gpu_node("bare", nvcc=[]), gpu_node("a")]
    plan = spread_over(*nodes, lock=cuda_lock(), where={"placement": "shared"})
    assert classes(plan) == [("a", ("bare",))]
    assert kinds(plan)["bare"] == ["toolchain", "smoke"]
    failed = spread_over(*nodes, lock=cuda_lock(), where={"placement": "shared"}, tried=("a",))
    assert left_alone(failed, dict.fromkeys(("bare", "a"), cuda_lock().variants[0])) == ("bare",)
