from __future__ import annotations

import pytest

from envbuild.model.plan import Batches, Share, parse_share
from tests.support.fails import fails

NODES = tuple(f"n{number}" for number in range(8))


@pytest.mark.parametrize(
    ("text", "total", "nodes"),
    [("4", 8, 4), ("25%", 8, 2), ("25%", 3, 0), ("100%", 3, 3), ("9", 3, 3), (" 50% ", 5, 2)],
)
def test_a_share_is_a_number_of_nodes_rounded_down(text: str, total: int, nodes: int) -> None:
    assert parse_share(text, "--batch", least=1).of(total) == nodes


@pytest.mark.parametrize("text", ["", "0", "0%", "-1", "101%", "1.5", "a", "4 %", "9999999", "4\n5"])
def test_what_is_no_share_is_refused_by_its_option(text: str) -> None:
    with fails("share-invalid", 2, match="--batch"):
        parse_share(text, "--batch", least=1)


def test_no_failure_at_all_can_be_asked_for() -> None:
    assert parse_share("0", "--max-fail", least=0) == Share(0)


def test_waves_keep_the_order_and_have_one_node_at_least() -> None:
    assert Batches(Share(25, percent=True)).waves(NODES) == [NODES[:2], NODES[2:4], NODES[4:6], NODES[6:]]
    assert Batches(Share(3)).waves(NODES) == [NODES[:3], NODES[3:6], NODES[6:]]
    assert Batches(Share(1, percent=True)).waves(NODES) == [(node,) for node in NODES]
    assert Batches().waves(NODES) == [NODES]
    assert Batches(Share(4)).waves(()) == []


def test_the_budget_is_spent_when_more_fail_than_it_allows() -> None:
    assert not Batches().spent(8, 8)
    assert not Batches(most=Share(1)).spent(1, 8)
    assert Batches(most=Share(1)).spent(2, 8)
    assert Batches(most=Share(0)).spent(1, 8)
    assert not Batches(most=Share(25, percent=True)).spent(2, 8)
    assert Batches(most=Share(25, percent=True)).spent(3, 8)
