"""Nodes without nvcc or a compiler beside nodes that have them: facts of a fleet in, whose wheels they get out."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.errors import ExitCode
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock
from envbuild.model.plan import Resolution
from envbuild.plan.planner import ChosenVariants
from envbuild.plan.source_builds import lacking, lacks_tools
from tests.resolve.builders import compat, make_lock, node_facts, resolve_fleet, target, torch_package
from tests.resolve.test_engine import rules, stamped

APEX: dict[str, Any] = {
    "name": "apex",
    "git": "https://github.com/NVIDIA/apex",
    "commit": "2" * 40,
    "tree": "3" * 40,
    "build": {"kind": "wheel", "flags": ["--cpp_ext", "--cuda_ext"]},
}
PLAIN: dict[str, Any] = {**APEX, "name": "plain", "build": {"kind": "wheel"}}


def cuda_lock(*more: dict[str, Any], flavour: str = "cu113", torch: str = "1.11.0", sources: Any = (APEX,)) -> Lock:
    package = torch_package(f"{torch}+{flavour}", "3.9", index=f"pytorch-{flavour}")
    row = {"python": "3.9", "torch": torch, "flavour": flavour, "packages": [package], "sources": list(sources)}
    return make_lock({"id": "cuda", **row}, *more)


def gpu_node(name: str, kind: str = "a100-azure", **facts: Any) -> NodeFacts:
    own = {"cpus": 8, **facts.pop("more", {})}
    return node_facts(kind, more={"node": name, **own}, **facts)


def decided(*nodes: NodeFacts, lock: Lock | None = None, others: tuple[NodeFacts, ...] = ()) -> dict[str, Resolution]:
    fleet = {each.node: each for each in nodes}
    rest = {each.node: each for each in others}
    return resolve_fleet(fleet, lock or cuda_lock(), target(), compat(), others=rest)


def told(resolution: Resolution) -> list[str]:
    return [item.what for item in resolution.decisions if item.rule in ("nvcc-absent", "gcc-range")]


def test_a_node_without_nvcc_gets_the_variant_of_a_node_that_builds_it() -> None:
    got = decided(gpu_node("gpu01"), gpu_node("gpu02", nvcc=[]), gpu_node("gpu03", nvcc=[], gcc=[]))
    builder = got["gpu01"]
    assert (builder.wheels_from, builder.nvcc) == (None, "/usr/local/cuda-11.6/bin/nvcc")
    for name in ("gpu02", "gpu03"):
        taker = got[name]
        assert (taker.variant_digest, taker.arch_list) == (builder.variant_digest, ("8.0",))
        assert (taker.wheels_from, taker.nvcc) == ("gpu01", None)
        assert told(taker) == ["apex must be compiled and there is no nvcc; the wheels come from gpu01"]
        assert rules(taker, "refuse") == []


def test_alone_it_is_refused_as_ever() -> None:
    alone = decided(gpu_node("gpu02", nvcc=[]))["gpu02"]
    assert (alone.refused, alone.wheels_from, rules(alone, "refuse")) == (True, None, ["nvcc-absent"])
    both = decided(gpu_node("gpu02", nvcc=[]), gpu_node("gpu03", nvcc=[]))
    assert {each.refused for each in both.values()} == {True}


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"gpus": "8 x Tesla V100-SXM2-16GB @ 7.0"}, "its code would not run on an A100"),
        ({"arch": "aarch64"}, "another processor"),
        ({"glibc": "2.35"}, "a newer C library"),
        ({"pythons": ["3.8.10 at /usr/bin/python3.8"]}, "it gets nothing itself"),
        ({"nvcc": ["12.1"]}, "its nvcc is of another major"),
        ({"gcc": []}, "it cannot build either"),
    ],
)
def test_a_node_of_another_kind_has_no_wheels_for_it(other: dict[str, Any], why: str) -> None:
    got = decided(gpu_node("gpu01", **other), gpu_node("gpu02", nvcc=[]))
    assert rules(got["gpu02"], "refuse") == ["nvcc-absent"], why


def test_the_gpus_are_those_that_the_others_nvcc_can_compile_for() -> None:
    lock = cuda_lock(flavour="cu118", torch="2.1.0")
    kind: dict[str, Any] = {"pythons": ["3.9.5 at /usr/bin/python3.9"]}
    old = gpu_node("gpu01", "rtx4090", nvcc=["11.0"], gcc=["9.4.0"], **kind)
    got = decided(old, gpu_node("gpu02", "rtx4090", nvcc=[], **kind), lock=lock)
    assert got["gpu01"].arch_list == got["gpu02"].arch_list == ("8.0",)
    assert got["gpu02"].wheels_from == "gpu01"


def test_a_node_with_nvcc_and_no_compiler_takes_too() -> None:
    got = decided(gpu_node("gpu01"), gpu_node("gpu02", gcc=[]))["gpu02"]
    assert (got.wheels_from, told(got)) == ("gpu01", ["the node has no gcc; the wheels come from gpu01"])
    assert rules(decided(gpu_node("gpu02", gcc=[]))["gpu02"], "refuse") == ["gcc-range"]


def test_a_compiler_that_does_not_fit_is_no_missing_tool() -> None:
    got = decided(gpu_node("gpu01"), gpu_node("gpu02", gcc=["14.1.0"]))["gpu02"]
    assert rules(got, "refuse") == ["gcc-range"]


def test_equal_hardware_gets_an_equal_environment_though_the_lock_has_one_without_cuda() -> None:
    small = torch_package("1.11.0+cpu", "3.9", index="pytorch-cpu")
    cpu = {"id": "cpu", "python": "3.9", "torch": "1.11.0", "flavour": "cpu", "packages": [small], "sources": [APEX]}
    lock = cuda_lock(cpu)
    got = decided(gpu_node("gpu01"), gpu_node("gpu02", nvcc=[]), lock=lock)
    assert (got["gpu02"].variant_id, got["gpu02"].wheels_from) == ("cuda", "gpu01")
    assert decided(gpu_node("gpu02", nvcc=[]), lock=lock)["gpu02"].variant_id == "cpu"


def test_the_one_with_most_cores_is_named_and_a_finished_one_before_it() -> None:
    lock = cuda_lock()
    small, large, bare = gpu_node("a"), gpu_node("b", more={"cpus": 64}), gpu_node("bare", nvcc=[])
    got = decided(small, large, bare, lock=lock)
    assert got["bare"].wheels_from == "b"
    done = stamped(small, lock, str(got["a"].variant_digest))
    # Of a node on which nothing has to be done little is known: its toolkit is not.
    brief = done.model_copy(update={"nvcc": (), "compilers": (), "pythons": (), "brief": True})
    assert decided(bare, lock=lock, others=(brief,))["bare"].wheels_from == "a"
    assert decided(large, bare, lock=lock, others=(brief,))["bare"].wheels_from == "a"
    unused = stamped(small, lock, str(got["a"].variant_digest), current=False)
    idle = unused.model_copy(update={"nvcc": (), "compilers": (), "pythons": (), "brief": True})
    assert decided(bare, lock=lock, others=(idle,))["bare"].refused


def test_what_is_built_on_the_node_already_needs_no_tool() -> None:
    lock = cuda_lock()
    digest = str(decided(gpu_node("gpu01"))["gpu01"].variant_digest)
    got = decided(stamped(gpu_node("gpu02", nvcc=[]), lock, digest), lock=lock)["gpu02"]
    assert (got.variant_digest, told(got)) == (
        digest, ["apex must be compiled and there is no nvcc; it is built already"],
    )  # fmt: skip


def test_what_it_lacks_is_said_of_the_sources_that_need_it_and_when_nothing_comes() -> None:
    lock = cuda_lock(sources=(APEX, PLAIN))
    fleet = {each.node: each for each in (gpu_node("gpu01"), gpu_node("gpu02", nvcc=[]), gpu_node("gpu03", gcc=[]))}
    got = decided(*fleet.values(), lock=lock)
    rule = {name: lacking(ChosenVariants(lock).of(got[name], fleet[name]), got[name]) for name in fleet}
    assert rule == {
        "gpu01": {}, "gpu02": {"apex": "nvcc-absent"}, "gpu03": {"apex": "gcc-range", "plain": "gcc-range"},
    }  # fmt: skip
    error = lacks_tools(got["gpu02"], "gpu01 failed")
    assert (error.code, error.exit_code, error.why) == (
        "nvcc-absent", ExitCode.REFUSED, "nvcc absent here; gpu01 failed",
    )  # fmt: skip
    assert error.hint.startswith("a CUDA 11.3 toolkit on the node")
