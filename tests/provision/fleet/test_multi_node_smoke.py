"""Who meets whom in a joint smoke test, and what each is asked: pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from envbuild.model.facts import GpuFacts
from envbuild.model.lock import Variant
from envbuild.model.stack import SmokeItem
from envbuild.model.target import Connection, Target
from envbuild.provision.fleet.multi_node_smoke import (
    Member,
    gpus_of,
    gpus_of_stamp,
    groups,
    meet_args,
    reached_at,
    requests,
)
from tests.provision.survey.test_up_to_date import facts
from tests.resolve.builders import make_variant

MACHINE = (SmokeItem(name="sound"), SmokeItem(name="machine", deadline=90))


def target(**more: Any) -> Target:
    return Target(**{"name": "t", "prefix": "/p", **more})


def variant(**more: Any) -> Variant:
    return make_variant("demo", "exact", id="cu121", python="3.11").model_copy(
        update={"smoke": MACHINE, "torch": "2.1.0", **more}
    )


def members(count: int, **more: Any) -> list[Member]:
    given = {"environment": "/p/envs/e", "variant": variant(), "addresses": ("10.0.0.1",), **more}
    return [Member(node=f"n{index}", **given) for index in range(count)]


def test_nodes_with_one_environment_meet_and_a_node_alone_meets_nobody() -> None:
    both = groups([*members(3), *members(1, variant=variant(digest="d" * 64))], target())
    assert [[member.node for member in group] for group in both] == [["n0", "n1", "n2"]]
    assert groups(members(1), target()) == []
    for most, met in ((None, [4]), (2, [2]), (9, [4]), (0, [])):
        assert [len(group) for group in groups(members(4), target(smoke_nodes=most))] == met
    with pytest.raises(ValidationError, match="needs two nodes"):
        target(smoke_nodes=1)
    # One that does not test machines, and two without torchrun.
    for more in ({"smoke": MACHINE[:1]}, {"torch": "1.8.0a0+17f8c32"}, {"torch": None}):
        assert groups(members(2, variant=variant(**more)), target()) == []


def test_every_node_has_its_rank_and_the_same_of_everything_else() -> None:
    group = members(3, gpus=8)
    group[1] = replace(group[1], gpus=4)
    place = target(floors={"multi_node_busbw_gbps": 100.0, "gemm": 1.0}, environment={"NCCL_DEBUG": "WARN"})
    told = {node: request["args"] for node, request in requests(group, place, "run1").items()}
    assert [args["place"].pop("rank") for args in told.values()] == [0, 1, 2]
    first = told["n0"]
    assert all(args == first for args in told.values())
    assert first["ranks"] == 4, "as many as the node with the fewest"
    assert (first["cuda"], first["deadline"], first["floors"]) == (True, 90.0, {"multi_node_busbw_gbps": 100.0})
    assert first["variables"]["NCCL_DEBUG"] == "WARN"
    assert first["place"]["names"] == ["n0", "n1", "n2"]
    assert len(set(first["place"]["ports"])) == 4
    assert all(10000 <= port < 30000 for port in first["place"]["ports"])
    other = requests(group, place, "run2")["n0"]["args"]
    assert other["token"] != first["token"]
    without = meet_args(variant(), target(), "/p/envs/e", 0)
    assert (without["cuda"], without["ranks"]) == (False, 2), "without GPUs two processes a node take part"


@pytest.mark.parametrize(
    ("here", "variables", "count"),
    [(None, {}, 2), ("1", {}, 1), ("1", {"CUDA_VISIBLE_DEVICES": "0,1"}, 2), (None, {"CUDA_VISIBLE_DEVICES": ""}, 0)],
)
def test_the_gpus_that_take_part_are_those_that_the_ranks_see(
    here: str | None, variables: dict[str, str], count: int
) -> None:
    two = tuple(GpuFacts(index=index, name="NVIDIA H200") for index in range(2))
    node = facts().model_copy(update={"gpus": two, "visible_devices": here})
    assert gpus_of(variant(flavour="cu121"), node, target(environment=variables)) == count


def test_addresses_that_only_the_node_itself_can_use_are_left_out() -> None:
    told = reached_at("node1", ["127.0.0.1", "10.1.0.5", "fe80::1", "169.254.0.1", "10.1.0.5"], Connection(kind="ssh"))
    assert told == ["node1", "10.1.0.5"]
    assert reached_at("127.0.0.1", ["10.1.0.5"], Connection(kind="ssh")) == ["10.1.0.5"]


@pytest.mark.parametrize(
    ("flavour", "hardware", "count"),
    [
        ("cu121", {"driver": "535.1", "gpus": ["H200", "H200"]}, 2),
        ("cpu", {"driver": "535.1", "gpus": ["H200"]}, 0),
        ("cu121", {"driver": None, "gpus": ["H200"]}, 0),
        ("cu121", {}, 0),
    ],
)
def test_the_stamp_says_how_many_gpus_an_environment_was_chosen_for(
    flavour: str, hardware: dict[str, Any], count: int
) -> None:
    built = variant(torch="2.1.0", flavour=flavour)
    assert gpus_of_stamp(built, {"evidence": {"hardware": hardware}}) == count
