from __future__ import annotations

import pytest

from envbuild.conda.virtual import BASELINE, met, of_facts, solutions
from envbuild.model.conda import CondaSpec
from envbuild.model.facts import DiskFacts, DriverFacts, LibcFacts, NodeFacts, OsFacts


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
