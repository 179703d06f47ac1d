"""Several real SSH nodes: equal environments, refused host keys, and secrets that stay at home."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.faults import wait_for
from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld, by_node, listing
from tests.fleet.nodes import StartNodes
from tests.node.forge import FILES
from tests.support.canary import BACKEND, CANARY, forms, holding
from tests.support.programs import completed

pytestmark = [pytest.mark.slow, pytest.mark.nodes]


def test_different_nodes_get_equal_environments_and_drift_is_named_by_node_and_file(
    fleet: StartNodes, world: FleetWorld
) -> None:
    nodes = [*fleet(1, kind="full"), *fleet(1, kind="bare")]
    world.target(nodes)
    done = world.fleet("provision")
    assert done.rc == 0, done.err
    evidence = by_node(done)
    assert {item["status"] for item in evidence.values()} == {"ok"}
    assert len({item["root"] for item in evidence.values()}) == 1
    assert len({item["environment"] for item in evidence.values()}) == 1

    good, bad = nodes
    file = bad.run(["find", f"{PREFIX}/current/{STACK}/", "-path", "*/alpha/__init__.py"]).stdout.strip()
    bad.run(["sed", "-i", "s/1.0/1.1/", file])
    quick = world.fleet("verify", "--quick")
    assert quick.rc == 0, "no contents are read then"
    assert {item["root_level"] for item in by_node(quick).values()} == {"stamped"}
    deep = world.fleet("verify")
    assert deep.rc == 8, "one node is good and one is not"
    found = by_node(deep)
    assert (found[good.address]["exit"], found[good.address]["drift"]) == (0, [])
    assert found[bad.address]["exit"] == 1
    assert [(item["kind"], item["path"].endswith("alpha/__init__.py")) for item in found[bad.address]["drift"]] == [
        ("changed", True)
    ]
    alone = world.run("verify", "--target", "./nodes.yaml", "--host", bad.address)
    assert alone.rc == 1
    assert bad.address in alone.out
    assert "alpha/__init__.py" in alone.out

    repaired = world.fleet("provision", "--repair", "--host", bad.address)
    assert repaired.rc == 0, repaired.err
    assert by_node(repaired)[bad.address]["root"] == evidence[good.address]["root"]
    assert world.fleet("verify").rc == 0


def test_an_unknown_host_key_is_refused_with_its_fingerprint(
    fleet: StartNodes, world: FleetWorld, tmp_path: Path
) -> None:
    (node,) = fleet(1, kind="bare")
    empty = tmp_path / "known_hosts"
    empty.write_text("")
    world.target([node], connection={"known_hosts": str(empty)})
    before = listing(node)
    done = world.fleet("provision")
    assert done.rc == 3
    error = by_node(done)[node.address]["error"]
    key = completed(["ssh-keygen", "-l", "-f", str(node.folder / "etc" / "key.pub")], check=True)
    fingerprint = key.stdout.split()[1]
    assert error["code"] == "host-key-unknown"
    assert fingerprint in error["why"]
    assert "ssh -o UserKnownHostsFile=" in error["hint"]
    assert fingerprint in done.err, "people see it too"
    assert empty.read_text() == "", "nothing is accepted on its own"
    assert listing(node) == before


def test_d22_secrets_of_controller_and_login_reach_no_output_no_run_directory_and_no_file_of_a_node(
    fleet: StartNodes, world: FleetWorld
) -> None:
    """Also where a build prints its environment, and that of the process that started it, and fails."""
    (node,) = fleet(1, kind="bare")
    world.target([node])
    secrets = {
        "HF_TOKEN": f"hf_{CANARY}",
        "PIP_EXTRA_INDEX_URL": f"https://someone:{CANARY}@index.invalid/simple",
        "UV_INDEX_URL": f"https://someone:{CANARY}@index.invalid/simple",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.https://someone:{CANARY}@git.invalid/gamma.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://git.example.org/gamma",
    }
    failed = world.fleet("provision", "-v", env=secrets, fresh=True, timeout=240)
    assert failed.rc == 75, failed.err
    assert "source gamma cannot be fetched" in failed.err
    assert "network-unreachable" in failed.out
    del secrets["GIT_CONFIG_COUNT"]
    done = world.fleet("provision", "-v", env=secrets, fresh=True, timeout=240)
    assert done.rc == 0, done.err
    config = node.folder / "etc" / "sshd_config"  # of several `SetEnv` the first one holds
    config.write_text(f"SetEnv LOGIN_TOKEN={CANARY} SITE_NOTE=the-login\n" + config.read_text())
    node.run(["kill", "-HUP", "1"])
    wait_for("a login with the token", lambda: CANARY in node.run(["env"], check=False).stdout)
    pin = world.repository("quick", {**FILES, "backend.py": BACKEND})
    world.lock(world.stack("telling", interpreters=["standalone"], sources=[{**pin, "install": "wheel"}]))
    told = world.fleet("provision", "--stack", "./telling.yaml", "-v", env=secrets, fresh=True, timeout=240)
    assert told.rc == 4, told.err
    log = node.run(["sh", "-c", f"cat {PREFIX}/logs/{world.last_run.name}.log"]).stdout
    assert "PATH=" in log and "the build ends here" in log, "the build was to print what it sees"
    for text in (failed.out, failed.err, done.out, done.err, told.out, told.err):
        assert not holding(text.encode())
    assert [path for path in world.top.rglob("*") if path.is_file() and holding(path.read_bytes())] == []
    words = [word for form in forms(CANARY) for word in ("-e", form.decode())]
    places = ["/opt", "/root", "/tmp", "/var", "/etc", "/dev/shm", "/home"]
    found = node.run(["grep", "-rlaF", *words, *places], check=False)
    assert (found.returncode, found.stdout) == (1, "")
