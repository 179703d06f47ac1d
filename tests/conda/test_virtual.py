from __future__ import annotations

import platform

import archspec.cpu
import pytest
from archspec.cpu import TARGETS

from envbuild.conda.virtual import BASELINE, met, microarchitecture, of_facts, platform_of, solutions
from envbuild.model.facts import CpuFacts, DiskFacts, DriverFacts, LibcFacts, NodeFacts, OsFacts
from envbuild.model.stack import CondaSpec
from envbuild.node.probe.system import cpu_facts


def facts(**fields: object) -> NodeFacts:
    needed = {"protocol": 1, "node": "n", "hostname": "n", "user": "u", "probed_at": "", "prefix": DiskFacts(path="/p")}
    return NodeFacts(**{"os": OsFacts(), "libc": LibcFacts(), **needed, **fields})  # type: ignore[arg-type]


def test_they_are_what_the_facts_of_a_node_say() -> None:
    node = facts(
        os=OsFacts(kernel="5.15.0-91-generic", arch="x86_64"),
        libc=LibcFacts(kind="glibc", version="2.35"),
        driver=DriverFacts(version="535", cuda_ceiling="12.2"),
    )
    assert of_facts(node) == {
        "__unix": "0", "__linux": "5.15.0", "__glibc": "2.35", "__archspec": "1=x86_64", "__cuda": "12.2",
    }  # fmt: skip
    assert of_facts(facts(libc=LibcFacts(kind="musl", version="1.2"))) == {"__unix": "0", "__linux": "0"}


def test_the_processor_is_called_as_archspec_calls_it_whatever_machine_asks() -> None:
    def named(family: str, **cpu: str) -> str:
        return of_facts(facts(os=OsFacts(arch=family), cpu=CpuFacts(**cpu)))["__archspec"]

    intel, arm = TARGETS["skylake_avx512"], TARGETS["neoverse_n1"]
    assert named("x86_64", vendor=intel.vendor, features=" ".join(intel.features)) == "1=skylake_avx512"
    assert named("x86_64", vendor="Somebody", features=" ".join(intel.features)) == "1=x86_64_v4"
    assert named("aarch64", vendor="0x41", features=" ".join(arm.features), part=arm.cpu_part) == "1=neoverse_n1"
    assert named("x86_64", vendor="GenuineIntel", features="fpu") == "1=x86_64"
    assert named("aarch64") == "1=aarch64"
    assert microarchitecture(platform.machine(), CpuFacts(**cpu_facts())) == archspec.cpu.host().name


def test_the_platform_is_that_of_the_processor() -> None:
    assert platform_of({"__archspec": "1=neoverse_n1"}) == platform_of({"__archspec": "1=aarch64"}) == "linux_aarch64"
    assert platform_of({"__archspec": "1=zen3"}) == platform_of({}) == "linux_x86_64"


@pytest.mark.parametrize(
    ("spec", "holds"),
    [("1 haswell", True), ("1=x86_64_v3", True), ("1 nehalem", True), ("1 skylake", False), ("1 zen2", False)],
)
def test_code_for_an_older_processor_runs_on_a_newer_one(spec: str, holds: bool) -> None:
    assert met(f"__archspec {spec}", {"__archspec": "1=haswell"}) is holds


def test_without_facts_they_stand_on_the_baseline_the_profile_and_the_flavour() -> None:
    assert solutions(CondaSpec(), "cu113") == ({**BASELINE, "__cuda": "11.3"},)
    assert solutions(CondaSpec(), "cpu") == (BASELINE,)
    profile = CondaSpec(virtual=({"__glibc": "2.28", "__cuda": "11.8"}, {"__glibc": "2.17"}))
    assert [(each["__glibc"], each.get("__cuda")) for each in solutions(profile, None)] == [
        ("2.28", "11.8"),
        ("2.17", None),
    ]
    assert all("__cuda" not in each for each in solutions(profile, "cpu"))


def test_those_of_nodes_are_taken_whole_and_once() -> None:
    node = {"__glibc": "2.31"}
    assert solutions(CondaSpec(), "cu118", (node, dict(node))) == (node,)


@pytest.mark.parametrize(
    ("spec", "holds"),
    [
        ("__glibc >=2.28,<3.0.a0", True),
        ("__glibc>=2.36", False),
        ("__glibc", True),
        ("__cuda", False),
        ("__archspec 1 x86_64_v3", False),
        ("__archspec 1 x86_64", True),
    ],
)
def test_a_spec_holds_or_does_not(spec: str, holds: bool) -> None:
    assert met(spec, {"__glibc": "2.35", "__archspec": "1=x86_64"}) is holds
