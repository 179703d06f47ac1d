"""What was changed after the build, before it, or on the way, is noticed; a repair that fails changes nothing."""

from __future__ import annotations

import json
import marshal
import subprocess
from collections.abc import Iterator

import pytest

from envbuild.lock.files import read_lock
from tests.e2e.world import World, drift, edit_lock, site


def test_an_untouched_environment_verifies_and_one_flipped_byte_is_named(built: World) -> None:
    assert drift(built) == (0, {})
    assert drift(built, "--quick") == (0, {})
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
    quick = built.run("verify", "--quick", "--stack", "./tiny.yaml", rc=0)
    read = json.loads(note("read.json"))["at"]
    assert f"contents not read; last read on {read}" in quick.out.splitlines()[0]
    assert f"{clean['root'][:12]} (stamped)" in quick.out
    # A provision with nothing to do does not read every file.
    done = built.good("provision", "--stack", "./tiny.yaml")
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
    assert drift(world)[0] == 1
    # A drifted environment is not passed off as fine.
    assert world.provision(rc=1).json["steps_run"] == 0
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
    done = world.fails(5, "record-mismatch", "--cache", str(cache), "--prefix", str(other))
    assert "alpha" in done.error["what"]
    assert not (other / "current" / "tiny").exists()
    assert list((other / "envs").iterdir()) == []
    assert drift(world) == (0, {}), "the environment that is there does not share files with the cache"
    assert world.built("--cache", str(cache), "--prefix", str(other))["status"] == "ok", "the damaged copy is gone"


def test_a_wrong_hash_in_the_lock_is_refused(world: World) -> None:
    lock = world.tiny().with_name("tiny.lock.toml")
    text = lock.read_text()
    digest = read_lock(lock).variants[0].packages[0].files[0].sha256
    lock.write_text(text.replace(digest, "0" * 64))
    world.fails(5, "lock-digest-mismatch")
    assert not world.prefix.exists()

    lock.write_text(text)
    edit_lock(lock, lambda plain: plain["packages"][0]["files"][0].update(sha256="0" * 64))
    world.fails(5, "hash-mismatch")
    assert not (world.prefix / "current").exists() or not list((world.prefix / "current").iterdir())
    assert list((world.prefix / "envs").iterdir()) == []


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> World:
    """An environment in use whose module cannot be imported while `work/bad` is there."""
    world = World(tmp_path_factory.mktemp("repair"))
    code = f"import os\nif os.path.exists({str(world.work / 'bad')!r}):\n    raise OSError('a broken driver')\n"
    world.wheel(files={"alpha/__init__.py": code.encode()})
    world.tiny(imports=["alpha"], smoke=[{"name": "sound"}])
    world.built()
    return world


@pytest.fixture
def kept(shared: World) -> Iterator[World]:
    """The same; whatever a test does, the environment in use stays as it is."""
    stamp = (shared.current / ".envbuild" / "stamp.json").read_bytes()
    yield shared
    assert (shared.current / ".envbuild" / "stamp.json").read_bytes() == stamp
    assert drift(shared) == (0, {})


@pytest.mark.slow
def test_d38_a_repair_whose_smoke_test_fails_leaves_the_environment_in_use(kept: World) -> None:
    (kept.work / "bad").touch()
    done = kept.provision("--repair", rc=1)
    (kept.work / "bad").unlink()
    assert done.node["status"] == "failed", done.err


def test_d38_a_repair_that_is_interrupted_between_two_steps_leaves_the_environment_in_use(kept: World) -> None:
    words = ("provision", "--target", "local", "--stack", "./tiny.yaml", "--repair")
    kept.run(*words, before=("tests.e2e.killing:install", "step-finished", "", "interrupt"), rc=130)
