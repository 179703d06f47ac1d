"""Rules that once said too little: what is impossible is refused, and what is called patched is carried out."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock
from envbuild.model.plan import Resolution
from envbuild.plan.source_builds import build_request, compiler_variables
from envbuild.resolve.engine import evaluate
from tests.resolve.builders import compat, make_lock, node_facts, resolve, resolve_fleet, target, torch_package
from tests.resolve.test_engine import rules, stamped
from tests.resolve.test_golden import CASES, request_of

APEX = "https://github.com/NVIDIA/apex"


def lock_with_apex(**source: Any) -> Any:
    """torch 1.10.0+cu113 on Python 3.8, and an Apex that is compiled."""
    build = {"kind": "wheel", "flags": ["cpp_ext", "cuda_ext"]}
    apex = {"name": "apex", "git": APEX, "tree": "1" * 40, "build": build, **source}
    torch = torch_package("1.10.0+cu113", "3.8", index="pytorch-stable")
    return make_lock(
        {
            "id": "v",
            "python": "3.8",
            "torch": "1.10.0",
            "flavour": "cu113",
            "packages": [torch],
            "sources": [apex],
        }
    )


def refusals(resolution: Resolution) -> dict[str, str]:
    """Rule to what would work, of all refusals."""
    return {d.rule: d.alternatives for d in resolution.decisions if d.verdict == "refuse"}


def test_d14_a_gcc_that_fits_is_given_to_the_build() -> None:
    lock = lock_with_apex(commit="e2083df5eb96643c61613b9df48dd4eea6b07690", patches=["apex-cuda-check"])
    gccs = ["12.2.0", "9.4.0 at /usr/bin/gcc-9", "9.4.0 at /usr/bin/g++-9"]
    facts = node_facts("a100-azure", nvcc=["11.3"], gcc=gccs)
    found = resolve(facts, lock, target(), compat())
    assert found.gcc == "/usr/bin/gcc-9"
    request = build_request(lock.variants[0], facts, found, store=None, jobs=None, check_rebuild=False)
    assert request["variables"] == {
        "CC": "/usr/bin/gcc-9",
        "CXX": "/usr/bin/g++-9",
        "NVCC_PREPEND_FLAGS": "-ccbin /usr/bin/gcc-9",
    }
    usual = resolve(node_facts("a100-azure", nvcc=["11.3"]), lock, target(), compat())
    assert usual.gcc is None
    assert compiler_variables(usual.gcc) == {}


def test_d14_nothing_is_called_patched_that_nobody_does() -> None:
    """Each such case says in its request, or on its node, who carries it out."""
    hands = ("patches", "build_variables", "variables", "uses", "expected_gpu")
    for row in CASES:
        facts = node_facts(row["node"], **row.get("facts", {}))
        for item in evaluate(facts, request_of(row), compat()):
            if item.verdict == "patch" and item.rule not in ("gcc-range", "nvcc-knows-gpu"):
                assert any(row["request"].get(key) for key in hands), (row["case"], item.rule)


def test_d15_a_gpu_that_the_toolkit_cannot_compile_for_is_refused_though_the_list_is_assumed() -> None:
    torch = torch_package("2.6.0", "3.12")
    lock = make_lock({"id": "v", "python": "3.12", "torch": "2.6.0", "flavour": "cu124", "packages": [torch]})
    found = resolve(node_facts("b200"), lock, target(), compat())
    assert found.refused
    assert "cu128" in refusals(found)["gpu-arch"]


def test_d16_a_flag_that_apex_dropped_is_refused_before_the_build() -> None:
    build = {"kind": "wheel", "flags": ["cpp_ext", "cuda_ext", "fast_multihead_attn"]}
    for commit, refused in (("526871a2c1141375e2beac65b2b7329d4c316b15", True), ("265b451d" + "e" * 32, False)):
        lock = lock_with_apex(commit=commit, patches=["apex-cuda-check"], build=build)
        found = resolve(node_facts("a100-azure"), lock, target(), compat())
        assert ("apex-flags" in refusals(found)) is refused


@pytest.mark.parametrize("name", ["apex", "Apex"])
def test_d19_d99_an_apex_that_stops_at_another_minor_version_is_refused_without_its_patch(name: str) -> None:
    lock = lock_with_apex(name=name, commit="e2083df5eb96643c61613b9df48dd4eea6b07690")
    found = resolve(node_facts("a100-azure"), lock, target(), compat())
    assert "patches: [apex-cuda-check]" in refusals(found)["apex-cuda-check"]


def test_d21_a_cuda_stack_whose_aarch64_wheel_is_a_cpu_build_is_refused() -> None:
    torch = torch_package("2.8.0", "3.12", file="torch-2.8.0-cp312-cp312-manylinux_2_28_aarch64.whl")
    lock = make_lock(
        {
            "id": "v",
            "python": "3.12",
            "platform": "linux_aarch64",
            "torch": "2.8.0",
            "flavour": "cu128",
            "packages": [torch],
        }
    )
    found = resolve(node_facts("h200", arch="aarch64"), lock, target(), compat())
    assert "torch-aarch64" in refusals(found)


def test_d13_a_torch_that_only_the_packages_name_is_asked_about_too() -> None:
    lock = make_lock({"id": "v", "python": "3.12", "packages": [torch_package("2.6.0", "3.12")]})
    found = resolve(node_facts("b200"), lock, target(), compat())
    assert "gpu-arch" in refusals(found)


PLAIN: dict[str, Any] = {
    "name": "apex",
    "git": "https://github.com/NVIDIA/apex",
    "commit": "2" * 40,
    "tree": "3" * 40,
    "build": {"kind": "wheel", "flags": ["--cpp_ext", "--cuda_ext"]},
}


def cuda_lock(*more: dict[str, Any], flavour: str = "cu113", torch: str = "1.11.0", sources: Any = (PLAIN,)) -> Lock:
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
