"""`--trust-first-use` at the command line: a file that nobody has hashed is taken once, recorded, and held to."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import World, edit_lock, snapshot
from tests.support.wheels import sha256

EVIL = {"beta/__init__.py": b"VERSION = 'another'\n"}
TRUST = "--trust-first-use"


def _unrecorded(variant: dict[str, Any]) -> None:
    for package in variant["packages"]:
        if package["name"] == "beta":
            package["files"] = [
                {"file": package["files"][0]["file"], "sha256": "unrecorded", "reason": "its index was out of reach"}
            ]


@pytest.fixture
def beta(world: World) -> Path:
    """A stack of `alpha`, which is recorded, and `beta`, which is not; the wheel of `beta`."""
    return half_recorded(world)


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, dict[str, Any], Path]:
    """A world where that is built, the evidence of its node, and the wheel, for tests that leave all of it as it is."""
    world = World(tmp_path_factory.mktemp("trusted"))
    wheel = half_recorded(world)
    return world, world.built(TRUST), wheel


def half_recorded(world: World) -> Path:
    world.wheel("alpha")
    wheel = world.wheel("beta")
    edit_lock(world.lock(world.stack(packages=("alpha==1.0", "beta==1.0"))), _unrecorded)
    return wheel


def record(world: World) -> list[dict[str, Any]]:
    """This user's first uses."""
    path = world.home / ".local" / "share" / "envbuild" / "first-use.toml"
    return tomllib.loads(path.read_text())["file"] if path.exists() else []


def refused(world: World, code: str, *args: str, **more: Any) -> dict[str, Any]:
    """Provision ends with exit 5 and that code; what it said."""
    done = world.provision(*args, **more)
    assert (done.rc, done.node["error"]["code"]) == (5, code), done.err[-2000:]
    error = done.node["error"]
    assert isinstance(error, dict)
    return error


def nothing_in_use(world: World) -> bool:
    """No environment was finished or is left half built, and no lease."""
    folders = [world.prefix / name for name in ("envs", "current")]
    return not any(folder.exists() and list(folder.iterdir()) for folder in folders)


def test_it_is_refused_unless_asked_for_and_the_refusal_names_the_flag(world: World, beta: Path) -> None:
    error = refused(world, "hash-unrecorded")
    assert TRUST in error["hint"] and beta.name in error["why"]
    assert nothing_in_use(world) and record(world) == []
    plan = world.run("plan", "--stack", "./tiny.yaml")
    assert plan.rc == 5
    assert "the lock lacks the hash of" in plan.out and TRUST in plan.out


def test_it_is_taken_once_recorded_and_said_everywhere(world: World, beta: Path) -> None:
    world.place_uv()
    done = world.provision(TRUST)
    assert done.rc == 0, done.err[-2000:]
    digest = sha256(beta)
    (use,) = record(world)
    assert {key: use[key] for key in ("file", "sha256", "size", "index", "found")} == {
        "file": beta.name, "sha256": digest, "size": beta.stat().st_size, "index": "pypi",
        "found": "a find-links folder",
    }  # fmt: skip
    assert "://" not in str(use) and str(world.top) not in str(use), "names of places, never addresses"
    evidence = done.json
    assert evidence["deviations"] == ["1 file trusted on first use: the lock has no hash of it"]
    (trusted,) = done.node["first_use"]
    assert (trusted["file"], trusted["sha256"]) == (beta.name, digest)
    assert trusted["witness"] == f"first use on {use['first_used'][:10]} by this user"
    assert [d["verdict"] for d in done.node["resolution"]["decisions"] if d["rule"] == "hash-unrecorded"] == ["warn"]
    assert any("trusted on first use" in text and beta.name in text for text in evidence["warnings"])
    stamp = json.loads((world.current / ".envbuild" / "stamp.json").read_text())
    assert stamp["evidence"]["first_use"] == [trusted]
    run = next(world.runs.iterdir())
    for name in ("report.html", "report.md", "evidence.json"):
        text = (run / name).read_text()
        assert "1 file trusted on first use" in text and digest in text and beta.name in text
    assert [e["data"]["sha256"] for e in world.events() if e["kind"] == "first-use"] == [digest]
    assert stamp["variant_digest"].startswith(world.current.name.rpartition("-")[2])


@pytest.mark.slow
def test_the_shipped_lock_is_left_alone_and_the_environment_is_named_by_what_came(world: World, beta: Path) -> None:
    lock = world.work / "tiny.lock.toml"
    before = lock.read_bytes()
    ours = world.built(TRUST)
    assert lock.read_bytes() == before
    # Another machine, which was given another file of the same name.
    world.wheel("beta", files=EVIL)
    elsewhere = {"XDG_DATA_HOME": str(world.top / "other"), "ENVBUILD_PREFIX": str(world.top / "prefix2")}
    theirs = world.built(TRUST, env=elsewhere)
    assert ours["variant_digest"] != theirs["variant_digest"]
    assert ours["variant_digest"] not in before.decode()


def test_a_second_run_has_nothing_to_do_and_still_says_so(
    trusted: tuple[World, dict[str, Any], Path],
) -> None:
    world, first, beta = trusted
    for more in ((), (TRUST,)):
        done = world.provision(*more)
        assert (done.rc, done.node["status"]) == (0, "unchanged")
        assert done.node["root"] == first["root"]
        assert done.json["steps_run"] == 0
        assert done.json["deviations"] and done.node["first_use"][0]["sha256"] == sha256(beta)
    verified = world.run("verify", "--stack", "./tiny.yaml", "--json")
    assert verified.rc == 0 and verified.json["deviations"]


def test_a_user_without_the_record_finds_the_same_environment_again(
    trusted: tuple[World, dict[str, Any], Path],
) -> None:
    world, first, _ = trusted
    other = {"XDG_DATA_HOME": str(world.top / "other")}
    refused(world, "hash-unrecorded", env=other)
    again = world.built(TRUST, env=other)
    assert (again["environment"], again["status"]) == (first["environment"], "unchanged")


def test_a_file_that_changed_is_refused_and_nothing_new_is_made_current(
    trusted: tuple[World, dict[str, Any], Path],
) -> None:
    world, _, beta = trusted
    honest = beta.read_bytes()
    before, seen = os.readlink(world.prefix / "current" / "tiny"), sha256(beta)
    built = snapshot(world.current)
    world.wheel("beta", files=EVIL)
    for more in (("--repair",), ("--repair", TRUST)):
        error = refused(world, "hash-mismatch", *more)
        assert seen in error["why"] and sha256(beta) in error["why"], "both hashes are named"
        assert "trusted on first use" in error["what"] and "first-use.toml" in error["hint"]
        assert os.readlink(world.prefix / "current" / "tiny") == before
        assert snapshot(world.current) == built
    elsewhere = {"ENVBUILD_PREFIX": str(world.top / "prefix2")}
    refused(world, "hash-mismatch", TRUST, env=elsewhere)
    assert not list((world.top / "prefix2" / "envs").iterdir())
    assert [use["sha256"] for use in record(world)] == [seen]
    beta.write_bytes(honest)


@pytest.mark.slow
def test_only_the_unrecorded_file_is_trusted(world: World, beta: Path) -> None:
    """Canary: the flag opens no other door."""
    world.wheel("alpha", files={"alpha/__init__.py": b"VERSION = 'not the locked one'\n"})
    error = refused(world, "hash-mismatch", TRUST)
    assert "alpha" in error["what"]
    assert nothing_in_use(world)
    world.wheel("alpha")
    world.wheel("gamma")
    world.built(TRUST)
    requests = [json.loads(path.read_text()) for path in world.runs.glob("*/requests/localhost/install.json")]
    assert len(requests) == 2
    for request in requests:
        hashes = [f["sha256"] for p in request["args"]["variant"]["packages"] for f in p["files"]]
        assert len(hashes) == 2 and all(len(each) == 64 for each in hashes), "uv is given a hash for every file"


def test_a_wheel_that_is_not_what_its_record_says_is_never_recorded(world: World, beta: Path) -> None:
    from tests.node.packages.test_fetch_unpinned import tampered

    tampered(beta)
    error = refused(world, "record-mismatch", TRUST)
    assert "beta/__init__.py" in error["what"]
    assert nothing_in_use(world) and record(world) == []
    assert not list((world.prefix / "store" / "first-use").iterdir())


def test_a_dry_run_says_what_would_be_trusted_and_touches_nothing(world: World, beta: Path) -> None:
    done = world.run("provision", "--stack", "./tiny.yaml", TRUST, "--dry-run")
    assert done.rc == 0, done.err
    assert f"fetch {beta.name} once" in done.out and "trusted on first use" in done.out
    assert not world.prefix.exists() and record(world) == []


@pytest.mark.slow
def test_a_script_needs_the_recorded_hash(world: World, beta: Path) -> None:
    script = ("provision", "--stack", "./tiny.yaml", "--print-script")
    done = world.run(*script, TRUST)
    assert (done.rc, done.code) == (5, "hash-unrecorded")
    assert world.run(*script).rc == 5
    world.built(TRUST)
    env = {"ENVBUILD_PREFIX": str(world.top / "prefix2")}
    text = world.good(*script, env=env).out
    assert f"--hash=sha256:{sha256(beta)}" in text


@pytest.mark.slow
def test_the_controller_fetches_it_for_nodes_that_fetch_nothing(world: World, beta: Path) -> None:
    (world.work / "far.yaml").write_text("name: far\nextends: local\ndelivery: controller\n")
    args = ("provision", "--target", "./far.yaml", "--stack", "./tiny.yaml", "--json")
    assert world.run(*args).rc == 5
    done = world.good(*args, TRUST)
    assert done.node["first_use"][0]["sha256"] == sha256(beta)
    assert [use["file"] for use in record(world)] == [beta.name]
    assert world.good(*args).node["status"] == "unchanged"
    world.wheel("beta", files=EVIL)
    kept = world.home / ".cache" / "envbuild" / "artifacts" / "packages" / record(world)[0]["sha256"] / beta.name
    assert kept.is_file()
    world.good(*args, "--repair")
    kept.unlink()
    again = world.run(*args, "--repair")
    assert (again.rc, again.json["error"]["code"]) == (5, "hash-mismatch"), "another file of that name is not taken"


@pytest.fixture
def full_cache(world: World) -> Iterator[None]:
    """The cache of this machine has room for a few hundred bytes."""
    folder = world.home / ".cache" / "envbuild" / "artifacts" / "packages"
    folder.mkdir(parents=True)
    words = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.usefixtures("full_cache")
def test_a_full_disk_of_the_controller_is_told_and_nothing_is_recorded(world: World) -> None:
    world.wheel("beta", files={"beta/__init__.py": b"VERSION = '1.0'\n", "beta/big.bin": os.urandom(100_000)})
    edit_lock(world.lock(world.stack(packages=("beta==1.0",))), _unrecorded)
    (world.work / "far.yaml").write_text("name: far\nextends: local\ndelivery: controller\n")
    done = world.run("provision", "--target", "./far.yaml", "--stack", "./tiny.yaml", "--json", TRUST)
    assert (done.rc, done.node["error"]["code"]) == (75, "disk-full"), done.err[-2000:]
    assert record(world) == []
    assert nothing_in_use(world)


def test_a_cache_that_cannot_be_made_is_told(world: World, beta: Path) -> None:
    (world.home / ".cache").mkdir(exist_ok=True)
    (world.home / ".cache" / "envbuild").write_text("")
    (world.work / "far.yaml").write_text("name: far\nextends: local\ndelivery: controller\n")
    done = world.run("provision", "--target", "./far.yaml", "--stack", "./tiny.yaml", "--json", TRUST)
    assert (done.rc, done.node["error"]["code"]) == (7, "cache-not-writable"), done.err[-2000:]
    assert record(world) == [] and beta.exists()


def test_a_new_lock_may_take_the_recorded_hash_with_its_witness(world: World, beta: Path) -> None:
    world.built(TRUST)
    world.wheel("beta", files=EVIL)
    done = world.run("lock", "create", "./tiny.yaml", "--json")
    assert (done.rc, done.json["error"]["code"]) == (5, "hash-mismatch")
    assert record(world)[0]["sha256"] in done.json["error"]["why"] and sha256(beta) in done.json["error"]["why"]
