"""What is wrong with a driver is said wherever a person looks at a node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.world import World
from tests.support.programs import executable


@pytest.mark.slow
def test_d29_a_driver_that_cannot_be_asked_is_said_by_probe_plan_and_doctor(tmp_path: Path) -> None:
    world = World(tmp_path)
    programs = tmp_path / "programs"
    executable(programs / "nvidia-smi", "#!/bin/sh\nprintf '\\377\\376 no text'\n")
    world.env["PATH"] = f"{programs}:{world.env['PATH']}"
    said = "nvidia-smi printed bytes that are no text"
    (facts,) = json.loads(world.good("doctor", "--facts-out", "facts.json", "--json").out)["facts"].values()
    assert facts["driver"]["problem"].startswith(said)
    assert said in world.good("doctor", "--facts-out", "facts.json").out
    assert said in world.run("doctor", "--target", "local").out
    assert said in world.run("plan", "--target", "local", "--stack", "torch-smoke").out
