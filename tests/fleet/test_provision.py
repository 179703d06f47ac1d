"""Whole provisions of one real SSH node, whatever Python it has, or none; secrets that stay at home."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import MINOR
from tests.fleet.faults import wait_for
from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld, checks, listing, stamp
from tests.fleet.nodes import Node, StartNodes
from tests.node.forge import FILES
from tests.node.test_git_source import PROJECT
from tests.support.canary import BACKEND, CANARY, forms, holding

pytestmark = [pytest.mark.slow, pytest.mark.nodes]


def _assert_built(node: Node, evidence: dict[str, Any]) -> None:
    assert (evidence["status"], evidence["exit"]) == ("ok", 0), evidence
    assert set(checks(evidence).values()) == {"passed"}, evidence["checks"]
    assert "smoke/sound" in checks(evidence)
    assert evidence["packages"] == {"alpha": "1.0", "beta": "2.0"}
    assert [(source["name"], source["install"]) for source in evidence["sources"]] == [("gamma", "path")]
    assert evidence["root"] == stamp(node)["root"]
    shell = f'. {PREFIX}/current/{STACK}/.envbuild/activate.sh && python -c "$1" && printf %s "$HF_GREETING"'
    code = "import alpha, beta, gamma; print(alpha.VERSION, beta.VERSION, gamma.VERSION)"
    assert node.run(["sh", "-c", shell, "sh", code]).stdout == "1.0 2.0 3\nhello $(id) 'you'"
    assert node.run([f"{PREFIX}/current/{STACK}/bin/beta-says"]).stdout == "1\n"


def _assert_nothing_to_do(world: FleetWorld, nodes: list[Node]) -> None:
    before = [listing(node) for node in nodes]
    done = world.fleet("provision", rc=0)
    assert {*done.statuses.values()} == {"unchanged"}
    assert "nothing to do" in done.err
    assert (done.json["steps_run"], world.steps) == (0, {})
    assert [listing(node) for node in nodes] == before


def test_a_node_whose_own_python_is_3_6_is_provisioned(fleet: StartNodes, world: FleetWorld) -> None:
    (node,) = fleet(1, kind="py36")
    modules = "import sys, json, ssl, ctypes, zlib, hashlib, bz2; print(sys.version_info[:2])"
    assert node.run(["python3", "-c", modules]).stdout == "(3, 6)\n"
    world.target([node])
    probed = world.fleet("doctor", "--facts-out", "facts.json")
    versions = [python["version"][:4] for python in probed.json["facts"][node.address]["pythons"]]
    assert versions == ["3.6."], "there is no other that the probe could run on"
    _assert_built(node, world.fleet("provision", rc=0).node)
    assert world.steps == {node.address: ["toolchain", "deliver", "install", "smoke", "activate"]}
    assert node.run(["sh", "-c", f"ls -A {PREFIX}/tmp /tmp"]).stdout.split() == [f"{PREFIX}/tmp:", "/tmp:"]
    assert node.run(["stat", "-c", "%a", PREFIX]).stdout == "755\n"
    _assert_nothing_to_do(world, [node])


def _refused(world: FleetWorld, rc: int, code: str) -> dict[str, Any]:
    done = world.fleet("provision", rc=rc)
    assert (done.error["code"], done.error["exit"]) == (code, rc)
    assert f"error[{code}]" in done.err
    return done.error


def test_a_node_without_any_python_gets_one_first_and_what_keeps_it_from_the_node_is_told_with_its_own_code(
    fleet: StartNodes, world: FleetWorld
) -> None:
    (node,) = fleet(1, kind="bare")
    world.target([node])
    before = listing(node)
    looked = world.fleet("provision", "--dry-run", rc=7)
    assert looked.json["errors"][node.address]["code"] == "node-without-python"
    assert "installs Python into the prefix" in looked.json["errors"][node.address]["hint"]
    assert listing(node) == before, "looking changes nothing"

    node.run(["mkdir", PREFIX])
    node.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", PREFIX])
    assert "disk full" in _refused(world, 75, "toolchain-unpack")["what"]
    assert node.run(["ls", "-A", f"{PREFIX}/tools"]).stdout == "", "nothing half-done stays"
    node.run(["umount", PREFIX])
    node.run(["rmdir", PREFIX])

    node.run(["touch", PREFIX])
    _refused(world, 7, "not-writable")
    node.run(["rm", PREFIX])

    node.run(["mv", "/bin/gzip", "/bin/gzip-away"])
    _refused(world, 7, "gzip-missing")
    node.run(["mv", "/bin/gzip-away", "/bin/gzip"])

    world.target([node], tmp="/opt/my-tmp")
    _assert_built(node, world.fleet("provision", rc=0).node)
    assert world.steps == {node.address: ["toolchain", "toolchain", "deliver", "install", "smoke", "activate"]}
    assert node.run(["ls", "-A", "/opt/my-tmp"]).stdout == "", "temporary files went there and are gone"
    assert node.run(["stat", "-c", "%a", PREFIX]).stdout == "755\n"
    _assert_nothing_to_do(world, [node])


FILE = f"{PREFIX}/current/own/lib/python{MINOR}/site-packages/lib/__init__.py"


def test_the_node_builds_on_its_own_python_and_answers_every_verb(
    fleet: StartNodes, tmp_path: Path, standalone_python: Path
) -> None:
    """A stack on the Python that is there, with a wheel, and one built from source on the node."""
    (node,) = fleet(1, kind="full")
    there = node.run(["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).stdout.strip()
    if there != MINOR:
        pytest.skip(f"the node has Python {there}, these tests run on {MINOR}")
    world = FleetWorld(tmp_path, standalone_python)
    source = {**world.repository("lib", PROJECT), "install": "wheel"}
    world.lock(world.stack("own", sources=[source], imports=["alpha", "lib"]))
    world.target([node], stack="./own.yaml")
    planned = world.fleet("plan").json["plan"]["nodes"][0]
    assert planned["python"].startswith("/usr/bin/python3")
    assert [step["kind"] for step in planned["steps"]] == ["toolchain", "deliver", "install", "smoke", "activate"]

    # A prefix that another run holds is left alone.
    owner = {"run": "other", "host": "elsewhere", "boot_id": "x", "pid": 1, "controller": {}, "token": "t"}
    node.run(["mkdir", "-p", PREFIX])
    node.run(["sh", "-c", f"cat > {PREFIX}/lease.json"], stdin=json.dumps(owner))
    error = world.fleet("provision", "--wait", "0s", rc=75).error
    assert error["code"] == "prefix-busy"
    assert "elsewhere" in error["why"]
    assert json.loads(node.run(["cat", f"{PREFIX}/lease.json"]).stdout) == owner
    assert node.run(["ls", "-A", f"{PREFIX}/envs"], check=False).stdout == ""
    node.run(["rm", f"{PREFIX}/lease.json"])

    evidence = world.fleet("provision", rc=0).node
    assert evidence["environment"] == planned["environment"]
    assert set(evidence["packages"]) == {"alpha", "lib"}
    assert node.run([f"{PREFIX}/current/own/bin/python", "-B", "-c", "import lib; print(lib.VALUE)"]).stdout == "41\n"
    assert "python-" not in node.run(["ls", f"{PREFIX}/tools"]).stdout, "no Python was brought"

    assert checks(world.fleet("smoke", rc=0).node) == {"smoke/sound": "passed"}
    listed = world.good("status", "--all", "--target", "./nodes.yaml", "--json")
    assert evidence["environment"] in listed.out
    told = world.good("env", "activate", "own", "--target", "./nodes.yaml", "--json")
    assert told.json["path"] == evidence["environment"]

    node.run(["sed", "-i", "s/41/42/", FILE])
    (drift,) = world.fleet("verify", rc=1).node["drift"]
    assert drift["path"].endswith("lib/__init__.py")
    node.run(["rm", "-r", FILE.removesuffix("/__init__.py")])
    assert "lib" in json.dumps(world.fleet("smoke", rc=1).node["checks"])


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
    more: dict[str, Any] = {"env": secrets, "fresh": True, "timeout": 240}
    failed = world.fleet("provision", "-v", rc=75, **more)
    assert "source gamma cannot be fetched" in failed.err
    assert "network-unreachable" in failed.out
    del secrets["GIT_CONFIG_COUNT"]
    done = world.fleet("provision", "-v", rc=0, **more)
    config = node.folder / "etc" / "sshd_config"  # of several `SetEnv` the first one holds
    config.write_text(f"SetEnv LOGIN_TOKEN={CANARY} SITE_NOTE=the-login\n" + config.read_text())
    node.run(["kill", "-HUP", "1"])
    wait_for("a login with the token", lambda: CANARY in node.run(["env"], check=False).stdout)
    pin = world.repository("quick", {**FILES, "backend.py": BACKEND})
    world.lock(world.stack("telling", interpreters=["standalone"], sources=[{**pin, "install": "wheel"}]))
    told = world.fleet("provision", "--stack", "./telling.yaml", "-v", rc=4, **more)
    log = node.run(["sh", "-c", f"cat {PREFIX}/logs/{world.last_run.name}.log"]).stdout
    assert "PATH=" in log and "the build ends here" in log, "the build was to print what it sees"
    for text in (failed.out, failed.err, done.out, done.err, told.out, told.err):
        assert not holding(text.encode())
    assert [path for path in world.top.rglob("*") if path.is_file() and holding(path.read_bytes())] == []
    words = [word for form in forms(CANARY) for word in ("-e", form.decode())]
    places = ["/opt", "/root", "/tmp", "/var", "/etc", "/dev/shm", "/home"]
    found = node.run(["grep", "-rlaF", *words, *places], check=False)
    assert (found.returncode, found.stdout) == (1, "")
