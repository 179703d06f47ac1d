"""The role `environment` with plain ansible-playbook: an inventory, and the folder that envbuild names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.world import MINOR, World
from tests.support import forked
from tests.support.programs import completed, executable
from tests.support.small_stacks import Shelf
from tests.test_snippets import TOP
from tests.test_snippets_others import shown

pytestmark = pytest.mark.slow
PROGRAMS = Path(sys.executable).parent


def play(world: World, inventory: str, variables: dict[str, object], *more: str) -> subprocess.CompletedProcess[str]:
    """`ansible-playbook -i INVENTORY environment.yml` of the folder that envbuild names."""
    folder = world.good("config", "show", "playbooks").out.strip()
    said = {"environment_command": str(forked.write_program(world.top)), "environment_stack": f"{world.work}/tiny.yaml"}
    argv = [f"{PROGRAMS}/ansible-playbook", "-i", inventory, f"{folder}/environment.yml", *more]
    argv += ["-e", json.dumps({**said, **variables})]
    env = {**world.env, "PATH": f"{PROGRAMS}{os.pathsep}{world.env['PATH']}", "LC_ALL": "C.UTF-8"}
    return completed(argv, env=env, cwd=world.work)


def recap(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The counts of the only host that did anything."""
    return dict(each.partition("=")[::2] for each in done.stdout.rpartition("PLAY RECAP")[2].split() if "=" in each)


def test_the_commands_of_the_page_build_once_and_only_plan_in_check_mode(world: World) -> None:
    """With small contents under the shipped name, so that nothing has to be fetched."""
    shelf = Shelf(world)
    world.wheel()
    exact = {"python": [MINOR], "packages": ["alpha==1.0"], "smoke": [{"name": "sound"}]}
    shelf.put("torch-smoke", profiles={"exact": exact})
    shelf.lock("torch-smoke", "exact")
    small = world.top / "bin" / "envbuild"
    small.parent.mkdir()
    code = f"from tests.support.small_stacks import install; install({str(shelf.catalog)!r}, {str(shelf.lockfiles)!r})"
    lines = [
        "import sys",
        f"sys.path.insert(0, {str(TOP)!r})",
        code,
        "from envbuild.cli.entry import main",
        "sys.exit(main())",
    ]
    executable(small, "\n".join([f"#!{sys.executable}", *lines, ""]))
    (world.work / "hosts.ini").write_text(
        f"here ansible_connection=local ansible_python_interpreter={sys.executable}\n"
    )
    env = {**world.env, "PATH": f"{small.parent}:{PROGRAMS}:{world.env['PATH']}", "LC_ALL": "C.UTF-8"}
    build, check = shown("README.md", "ansible-playbook ")
    for line, changed, there in ((check, "0", False), (build, "1", True), (build, "0", True)):
        done = completed(["bash", "-ec", line], env=env, cwd=world.work)
        assert (done.returncode, recap(done).get("changed")) == (0, changed), done.stdout + done.stderr
        assert world.prefix.exists() == there


def test_hosts_of_an_inventory_are_reached_as_it_says_and_a_failure_is_ansibles(world: World) -> None:
    world.tiny()
    (world.work / "hosts.ini").write_text("[gpu]\ngone ansible_host=127.0.0.1 ansible_port=1 ansible_user=me\n")
    done = play(world, "hosts.ini", {})
    assert done.returncode == 2
    assert "connect to host 127.0.0.1 port 1" in done.stdout
    assert recap(done)["failed"] == "1"
