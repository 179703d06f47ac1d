"""The tasks for hand use, with the real fab on real nodes: host keys are verified by envbuild's own policy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.world import Done
from tests.fleet.fleet_world import STACK, FleetWorld, listing, stamp
from tests.fleet.nodes import StartNodes
from tests.support.programs import completed

pytestmark = [pytest.mark.slow, pytest.mark.nodes]


def _fab(world: FleetWorld, *words: str, **env: str) -> Done:
    folder = world.good("config", "show", "fabfile").out.strip()
    program = Path(sys.executable).with_name("fab")
    argv = [str(program), "-r", folder, *words]
    done = completed(argv, env={**world.env, **env}, cwd=world.work, timeout=120)
    return Done(done.returncode, done.stdout, done.stderr)


def test_tasks_do_by_hand_what_envbuild_does_and_an_unknown_host_key_is_refused_with_its_fingerprint(
    fleet: StartNodes, world: FleetWorld
) -> None:
    nodes = fleet(2, kind="full")
    world.target(nodes)
    stack = ("--stack", f"./{STACK}.yaml")
    planned = _fab(world, "provision", "-t", "./nodes.yaml", *stack, "--dry-run")
    assert (planned.rc, "  toolchain  " in planned.out) == (0, True), planned.err
    built = _fab(world, "provision", "-t", "./nodes.yaml", *stack)
    assert built.rc == 0, built.err
    first = world.last_run.name
    roots = {node: found["root"] for node, found in world.fleet("verify").nodes.items()}
    # As in Fabric: one host after the other, each a run of its own.
    both = ",".join(node.address for node in nodes)
    tested = _fab(world, "-H", both, "smoke", "-t", "./nodes.yaml", *stack)
    assert (tested.rc, tested.out.count("✓ tiny")) == (0, 2), (tested.out, tested.err)

    probed = _fab(world, "facts", "-t", "./nodes.yaml")
    assert probed.rc == 0, probed.err
    assert "   2 x  no GPU" in probed.out

    logs = _fab(world, "-H", both, "logs", "--lines", "5", "--run", first, ENVBUILD_TARGET="./nodes.yaml")
    assert logs.rc == 0, logs.err
    assert all(f"== {node.address}: /opt/envbuild/logs/{first}.log" in logs.out for node in nodes)
    assert logs.out.count("stamped /opt/envbuild/envs/") == 2

    pulled = _fab(world, "pull-evidence", "-t", "./nodes.yaml", "--to", "found", "--limit", nodes[1].address)
    assert pulled.rc == 0, pulled.err
    (brought,) = (world.work / "found" / nodes[1].address).glob(f"{STACK}-*.stamp.json")
    assert json.loads(brought.read_text()) == stamp(nodes[1])
    (files,) = (world.work / "found" / nodes[1].address).glob(f"{STACK}-*.files.json")
    assert json.loads(files.read_text())["root"] == roots[nodes[1].address]
    assert not (world.work / "found" / nodes[0].address).exists()

    # No task accepts a key that nobody has compared.
    empty = world.work / "known_hosts"
    empty.write_text("")
    world.target(nodes, connection={"known_hosts": str(empty)})
    for task in ("facts", "provision", "smoke", "logs", "pull-evidence"):
        refused = _fab(world, task, "-t", "./nodes.yaml")
        assert refused.rc == 3, (task, refused.err)
        assert "host-key-unknown" in refused.out + refused.err
    # Nor does envbuild, which says whose key it is.
    node, before = nodes[0], listing(nodes[0])
    done = world.fleet("provision", rc=3)
    error = done.nodes[node.address]["error"]
    key = completed(["ssh-keygen", "-l", "-f", str(node.folder / "etc" / "key.pub")], check=True)
    fingerprint = key.stdout.split()[1]
    assert error["code"] == "host-key-unknown"
    assert fingerprint in error["why"]
    assert "ssh -o UserKnownHostsFile=" in error["hint"]
    assert fingerprint in done.err, "people see it too"
    assert empty.read_text() == "", "nothing is accepted on its own"
    assert listing(node) == before
