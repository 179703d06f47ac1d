"""Nodes without nvcc or a compiler where CUDA code is compiled."""

from __future__ import annotations

from typing import Any

from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock
from envbuild.model.plan import Resolution
from tests.resolve.builders import compat, make_lock, node_facts, resolve_fleet, target, torch_package
from tests.resolve.test_engine import rules, stamped

APEX: dict[str, Any] = {
    "name": "apex",
    "git": "https://github.com/NVIDIA/apex",
    "commit": "2" * 40,
    "tree": "3" * 40,
    "build": {"kind": "wheel", "flags": ["--cpp_ext", "--cuda_ext"]},
}


def cuda_lock(*more: dict[str, Any], flavour: str = "cu113", torch: str = "1.11.0", sources: Any = (APEX,)) -> Lock:
    package = torch_package(f"{torch}+{flavour}", "3.9", index=f"pytorch-{flavour}")
    row = {"python": "3.9", "torch": torch, "flavour": flavour, "packages": [package], "sources": list(sources)}
    return make_lock({"id": "cuda", **row}, *more)


def gpu_node(name: str, kind: str = "a100-azure", **facts: Any) -> NodeFacts:
    own = {"cpus": 8, **facts.pop("more", {})}
    return node_facts(kind, more={"node": name, **own}, **facts)


def decided(facts: NodeFacts, lock: Lock | None = None) -> Resolution:
    return resolve_fleet({facts.node: facts}, lock or cuda_lock(), target(), compat())[facts.node]


def test_alone_or_beside_others_a_node_without_nvcc_or_a_compiler_is_refused() -> None:
    fleet = {node.node: node for node in (gpu_node("a"), gpu_node("b", nvcc=[]), gpu_node("c", gcc=[]))}
    got = resolve_fleet(fleet, cuda_lock(), target(), compat())
    assert {name: rules(each, "refuse") for name, each in got.items()} == {
        "a": [], "b": ["nvcc-absent"], "c": ["gcc-range"],
    }  # fmt: skip


def test_what_is_built_on_the_node_already_needs_no_tool() -> None:
    lock = cuda_lock()
    digest = str(decided(gpu_node("gpu01")).variant_digest)
    for lacks in ({"nvcc": []}, {"gcc": []}):
        got = decided(stamped(gpu_node("gpu02", **lacks), lock, digest), lock)
        assert (got.variant_digest, rules(got, "refuse")) == (digest, [])
