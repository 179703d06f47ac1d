"""What was changed after the build, before it, or on the way, is noticed; a repair that fails changes nothing."""

from __future__ import annotations

import json
import marshal
import subprocess
from typing import Any

import pytest

from envbuild.lock.files import read_lock
from tests.e2e.world import World, drift, edit_lock, site


def test_an_untouched_environment_verifies(built: World) -> None:
    assert drift(built) == (0, {})
    assert drift(built, "--quick") == (0, {})


def test_one_flipped_byte_is_named(built: World) -> None:
    file = site(built.current) / "alpha" / "__init__.py"
    raw = file.read_bytes()
    file.write_bytes(raw[:3] + bytes([raw[3] ^ 1]) + raw[4:])
    name = str(file.relative_to(built.current))
    assert drift(built) == (1, {name: "changed"})
    said = built.run("verify", "--stack", "./tiny.yaml")
    assert (said.rc, name in said.out) == (1, True)
    file.write_bytes(raw)
    assert drift(built) == (0, {})


def test_d31_what_reads_no_contents_says_so_first_and_when_they_were_read(built: World) -> None:
    def note(name: str) -> str:
        return (built.current / ".envbuild" / name).read_text()

    clean = built.run("verify", "--stack", "./tiny.yaml", "--json").node
    assert (clean["root_level"], clean["root"]) == ("measured", json.loads(note("stamp.json"))["root"])
    file = site(built.current) / "alpha" / "__init__.py"
    raw = file.read_bytes()
    file.write_bytes(raw + b"#\n")
    quick = built.run("verify", "--quick", "--stack", "./tiny.yaml")
    assert quick.rc == 0, quick.err
    read = json.loads(note("read.json"))["at"]
    assert f"contents not read; last read on {read}" in quick.out.splitlines()[0]
    assert f"{clean['root'][:12]} (stamped)" in quick.out
    done = built.good("provision", "--stack", "./tiny.yaml")
    assert done.rc == 0, "a provision with nothing to do does not read every file"
    kept = built.provision().node
    assert (kept["status"], kept["root_level"]) == ("unchanged", "stamped")
    assert f"contents not read; last read on {read}" in " ".join(done.out.split())
    assert drift(built)[0] == 1
    again = built.good("provision", "--stack", "./tiny.yaml")
    assert "differed from the stamp then" in " ".join(again.out.split()), "a known drift is not kept quiet"
    assert again.out.startswith("! ") and "next    envbuild provision ./tiny.yaml --repair" in again.out
    file.write_bytes(raw)
    assert drift(built) == (0, {})


def test_a_planted_pyc_is_named(built: World) -> None:
    done = subprocess.run([built.current / "bin" / "python", "-I", "-c", "import alpha"], cwd=built.top)
    assert done.returncode == 0
    (pyc,) = (site(built.current) / "alpha" / "__pycache__").glob("*.pyc")
    assert drift(built) == (0, {}), "bytecode of the source itself is no drift"
    good = pyc.read_bytes()
    evil = compile("import os\nVERSION = 'evil'\n", "alpha", "exec")
    pyc.write_bytes(good[:16] + marshal.dumps(evil))
    assert built.python("import alpha; print(alpha.VERSION)") == "evil", "the planted one would have run"
    code, found = drift(built)
    assert (code, list(found)) == (1, [str(pyc.relative_to(built.current))])
    pyc.unlink()
    assert drift(built) == (0, {})


def test_more_than_twenty_changes_are_counted(built: World) -> None:
    planted = [built.current / f"planted-{number:02}" for number in range(25)]
    for path in planted:
        path.write_text("x")
    node = built.run("verify", "--stack", "./tiny.yaml", "--json").node
    assert (len(node["drift"]), node["drift_count"]) == (20, 25)
    for path in planted:
        path.unlink()


def test_a_removed_package_fails_the_fast_check_and_repair_brings_it_back(built: World) -> None:
    world, root = built, json.loads((built.current / ".envbuild" / "stamp.json").read_text())["root"]
    subprocess.run(["rm", "-r", site(world.current) / "alpha-1.0.dist-info", site(world.current) / "alpha"], check=True)
    code, _ = drift(world)
    assert code == 1
    again = world.provision()
    assert again.rc == 1, "a drifted environment is not passed off as fine"
    assert again.json["steps_run"] == 0
    assert world.built("--repair")["root"] == root
    assert drift(world) == (0, {})


@pytest.mark.slow
def test_a_damaged_copy_in_the_cache_is_noticed_before_anything_is_in_use(world: World) -> None:
    world.tiny()
    cache = world.top / "cache"
    world.built("--cache", str(cache))
    (cached,) = cache.rglob("alpha/__init__.py")
    cached.write_text("VERSION = 'damaged'\n")
    other = world.top / "other"
    done = world.provision("--cache", str(cache), "--prefix", str(other))
    assert (done.rc, done.node["error"]["code"]) == (5, "record-mismatch")
    assert "alpha" in done.node["error"]["what"]
    assert not (other / "current" / "tiny").exists()
    assert list((other / "envs").iterdir()) == []
    assert drift(world) == (0, {}), "the environment that is there does not share files with the cache"
    assert world.built("--cache", str(cache), "--prefix", str(other))["status"] == "ok", "the damaged copy is gone"


def test_a_wrong_hash_in_the_lock_is_refused(world: World) -> None:
    stack = world.tiny()
    lock = stack.with_name("tiny.lock.toml")

    def change(plain: dict[str, Any]) -> None:
        plain["packages"][0]["files"][0]["sha256"] = "0" * 64

    edit_lock(lock, change)
    done = world.provision()
    assert (done.rc, done.node["error"]["code"]) == (5, "hash-mismatch")
    assert not (world.prefix / "current").exists() or not list((world.prefix / "current").iterdir())
    assert list((world.prefix / "envs").iterdir()) == []


def test_a_lock_edited_by_hand_is_refused_before_a_node_is_asked(world: World) -> None:
    lock = world.tiny().with_name("tiny.lock.toml")
    text = lock.read_text()
    digest = read_lock(lock).variants[0].packages[0].files[0].sha256
    lock.write_text(text.replace(digest, "0" * 64))
    done = world.provision()
    assert (done.rc, done.code) == (5, "lock-digest-mismatch")
    assert not world.prefix.exists()


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


@pytest.mark.slow
def test_d38_a_repair_whose_smoke_test_fails_leaves_the_environment_in_use(shared: World) -> None:
    before = stamped(shared)
    (shared.work / "bad").touch()
    done = shared.provision("--repair")
    (shared.work / "bad").unlink()
    assert (done.rc, done.node["status"]) == (1, "failed"), done.err
    check(shared, before)


def test_d38_a_repair_that_is_interrupted_between_two_steps_leaves_the_environment_in_use(shared: World) -> None:
    before = stamped(shared)
    done = shared.run(*COMMAND, before=("tests.e2e.killing:install", "step-finished", "", "interrupt"))
    assert done.rc == 130, done.err
    check(shared, before)
