"""The role `environment` with plain ansible-playbook: an inventory, and the folder that envbuild names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.world import World
from tests.support import forked

pytestmark = pytest.mark.slow
PROGRAMS = Path(sys.executable).parent


def play(world: World, inventory: str, variables: dict[str, object], *more: str) -> subprocess.CompletedProcess[str]:
    """`ansible-playbook -i INVENTORY environment.yml` of the folder that envbuild names."""
    folder = world.good("config", "playbooks").out.strip()
    said = {"environment_command": str(forked.write_program(world.top)), "environment_stack": f"{world.work}/tiny.yaml"}
    argv = [f"{PROGRAMS}/ansible-playbook", "-i", inventory, f"{folder}/environment.yml", *more]
    argv += ["-e", json.dumps({**said, **variables})]
    env = {**world.env, "PATH": f"{PROGRAMS}{os.pathsep}{world.env['PATH']}", "LC_ALL": "C.UTF-8"}
    return subprocess.run(argv, env=env, cwd=world.work, capture_output=True, text=True)


def recap(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The counts of the only host that did anything."""
    return dict(each.partition("=")[::2] for each in done.stdout.rpartition("PLAY RECAP")[2].split() if "=" in each)


def test_the_role_builds_here_changes_nothing_the_second_time_and_only_plans_in_check_mode(world: World) -> None:
    world.tiny()
    local = ("--connection", "local")
    variables = {"ansible_connection": "local"}
    planned = play(world, "localhost,", variables, *local, "--check")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert recap(planned)["changed"] == "0" and not world.prefix.exists()
    built = play(world, "localhost,", variables, *local)
    assert built.returncode == 0, built.stdout + built.stderr
    assert recap(built)["changed"] == "1" and world.current.is_dir()
    again = play(world, "localhost,", variables, *local)
    assert (again.returncode, recap(again)["changed"]) == (0, "0"), again.stdout


def test_hosts_of_an_inventory_are_reached_as_it_says_and_a_failure_is_ansibles(world: World) -> None:
    world.tiny()
    (world.work / "hosts.ini").write_text("[gpu]\ngone ansible_host=127.0.0.1 ansible_port=1 ansible_user=me\n")
    done = play(world, "hosts.ini", {})
    assert done.returncode == 2
    assert "connect to host 127.0.0.1 port 1" in done.stdout
    assert recap(done)["failed"] == "1"
