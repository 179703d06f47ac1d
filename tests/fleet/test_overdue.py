"""A node on which a step hangs: it fails alone, when its time is over, with the step and the last lines of its log."""

from __future__ import annotations

import time

import pytest

from tests.e2e.world import Done
from tests.fleet.fleet_world import FleetWorld
from tests.fleet.nodes import StartNodes
from tests.support.patience import PATIENCE, with_deadline

pytestmark = [pytest.mark.slow, pytest.mark.nodes]
HANGS = "/usr/local/bin/git"


def test_a_hanging_node_is_told_by_step_and_last_lines_and_the_next_run_catches_up(
    fleet: StartNodes, world: FleetWorld
) -> None:
    hanging, good = fleet(2, kind="full", tools=True)
    # Each installs for itself, and the good one is done before: only the hanging one has to meet the deadline.
    world.target([hanging, good])
    world.fleet("provision", "--host", good.address, timeout=200, rc=0)
    hanging.run(["sh", "-c", f"cat > {HANGS} && chmod 755 {HANGS}"], stdin="#!/bin/sh\nexec sleep 1000\n")

    def overdue(deadline: float) -> tuple[float, Done]:
        begun = time.monotonic()
        done = world.fleet("provision", "--step-timeout", f"{deadline:g}s", timeout=400)
        return time.monotonic() - begun, done

    def reached(found: tuple[float, Done]) -> bool:
        return "gamma (" in found[1].err and found[1].statuses[good.address] == "unchanged"

    # The steps before have the same one.
    deadline, (seconds, done) = with_deadline(overdue, 12, reached)
    assert done.rc == 8, done.err
    assert seconds < deadline + PATIENCE
    assert f"{hanging.address}: building the environment – fetching sources 0 of 1 sources: gamma (" in done.err
    found = done.nodes
    assert (found[good.address]["status"], found[hanging.address]["exit"]) == ("unchanged", 3)
    error = found[hanging.address]["error"]
    assert (error["code"], error["details"]["step"]) == ("step-overdue", "install")
    assert error["why"].startswith("the last lines of its log: ")
    assert "gamma" in error["why"]

    hanging.run(["rm", HANGS])
    hanging.run(["pkill", "-f", "sleep 1000"], check=False)
    found = world.fleet("provision", timeout=200, rc=0).nodes
    assert (found[good.address]["status"], found[hanging.address]["status"]) == ("unchanged", "ok")
    assert found[good.address]["root"] == found[hanging.address]["root"]
