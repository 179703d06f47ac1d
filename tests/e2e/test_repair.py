"""`provision --repair` that fails or is interrupted: what was in use is in use when the run is over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.world import World, drift

COMMAND = ("provision", "--target", "local", "--stack", "./tiny.yaml", "--repair")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> World:
    """An environment in use whose module cannot be imported while `work/bad` is there."""
    world = World(tmp_path_factory.mktemp("repair"))
    code = f"import os\nif os.path.exists({str(world.work / 'bad')!r}):\n    raise OSError('a broken driver')\n"
    world.wheel(files={"alpha/__init__.py": code.encode()})
    world.tiny(imports=["alpha"], smoke=[{"name": "sound"}])
    world.built()
    return world


def stamped(world: World) -> dict[str, Any]:
    found = json.loads((world.current / ".envbuild" / "stamp.json").read_text())
    assert isinstance(found, dict)
    return found


def check(world: World, before: dict[str, Any]) -> None:
    assert stamped(world) == before
    assert drift(world) == (0, {})


def test_d38_a_repair_whose_smoke_test_fails_leaves_the_environment_in_use(shared: World) -> None:
    before = stamped(shared)
    (shared.work / "bad").touch()
    done = shared.provision("--repair")
    (shared.work / "bad").unlink()
    assert (done.rc, done.node["status"]) == (1, "failed"), done.err
    check(shared, before)


def test_d38_a_repair_that_is_interrupted_between_two_steps_leaves_the_environment_in_use(shared: World) -> None:
    before = stamped(shared)
    done = shared.run(*COMMAND, before=("tests.e2e.killing:install", "step-finished", 1, "interrupt"))
    assert done.rc == 130, done.err
    check(shared, before)
