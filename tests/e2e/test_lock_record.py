"""`lock record`: hashes that a lock lacks are recorded once, where the files are; the lock is then like any other."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild.lock.files import read_lock
from tests.e2e.world import World, edit_lock
from tests.support.served import served
from tests.support.small_stacks import Shelf
from tests.support.wheels import sha256, tampered

EVIL = {"beta/__init__.py": b"VERSION = 'another'\n"}
COMMAND = "envbuild lock record ./tiny.yaml"


def lacking(world: World, *names: str) -> Path:
    """A stack of `alpha` and `beta` whose lock lacks the hashes of the wheels `names`; the lock."""
    world.wheel("alpha")
    world.wheel("beta")
    lock = world.lock(world.stack(packages=("alpha==1.0", "beta==1.0")))
    forget(lock, *names)
    return lock


def forget(lock: Path, *names: str) -> None:
    """Take the hashes of these packages' wheels out of a lock."""

    def unrecorded(variant: dict[str, Any]) -> None:
        for package in variant["packages"]:
            if package["name"] in names:
                file = package["files"][0]["file"]
                package["files"] = [{"file": file, "sha256": "unrecorded", "reason": "its index was out of reach"}]

    edit_lock(lock, unrecorded)


def hashes(lock: Path) -> dict[str, str]:
    return {file.file: file.sha256 for variant in read_lock(lock).variants for file in variant.files}


@pytest.mark.slow
def test_d78_a_lock_that_lacks_a_hash_plans_and_provision_says_the_one_command(world: World) -> None:
    """The command is pasted, and what was refused is built."""
    lock = lacking(world, "beta")
    plan = world.run("plan", "--stack", "./tiny.yaml")
    assert plan.rc == 0 and f"`{COMMAND}` records it" in plan.out
    hint = world.fails(5, "hash-unrecorded").error["hint"]
    assert hint.startswith(f"`{COMMAND}`")
    assert not (world.prefix / "envs").exists() and not (world.prefix / "current").exists()
    assert world.run("provision", "--stack", "./tiny.yaml", "--dry-run").rc == 0
    script = world.refused(5, "hash-unrecorded", "provision", "--stack", "./tiny.yaml", "--print-script")
    assert f"`{COMMAND}`" in script.err

    done = world.good(*shlex.split(hint.split("`")[1])[1:], "--json")
    beta = world.wheels / "beta-1.0-py3-none-any.whl"
    assert done.json["changed"] and done.json["lock"] == lock.name
    assert done.json["recorded"] == [{"file": beta.name, "sha256": sha256(beta), "size": beta.stat().st_size}]
    assert hashes(lock)[beta.name] == sha256(beta)
    before = lock.read_bytes()
    assert world.good(*COMMAND.split()[1:]).out.startswith("unchanged: ")
    assert lock.read_bytes() == before, "a second run changes nothing"
    world.good("lock", "check", "./tiny.yaml")
    world.built()
    assert world.provision().json["steps_run"] == 0
    other = {"ENVBUILD_PREFIX": str(world.top / "other")}
    script = world.good("provision", "--stack", "./tiny.yaml", "--print-script", env=other)
    assert f"--hash=sha256:{sha256(beta)}" in script.out

    world.good("lock", "create", "./tiny.yaml")
    assert lock.read_bytes() == before, "what is recorded stays recorded"
    world.wheel("beta", files=EVIL)
    error = world.provision("--repair").error
    assert error["code"] == "hash-mismatch" and world.provision().rc == 0, "another file of that name is not taken"


def test_d78_a_wrong_file_is_not_recorded(world: World) -> None:
    lock = lacking(world, "beta")
    before = lock.read_bytes()
    tampered(world.wheels / "beta-1.0-py3-none-any.whl")
    world.refused(5, "record-mismatch", "lock", "record", "./tiny.yaml")
    assert lock.read_bytes() == before


def test_d78_what_an_interrupted_run_recorded_stays_and_the_next_one_goes_on(world: World) -> None:
    lock = lacking(world, "alpha", "beta")
    folder = world.top / "carried"
    folder.mkdir()
    beta = world.wheels / "beta-1.0-py3-none-any.whl"
    (world.wheels / "alpha-1.0-py3-none-any.whl").rename(folder / "alpha-1.0-py3-none-any.whl")
    beta.rename(world.top / beta.name)
    record = ("lock", "record", "./tiny.yaml", "--from", str(folder))
    world.refused(4, "package-not-found", *record)
    assert sorted(map(len, hashes(lock).values())) == [10, 64], "one is recorded"
    (world.top / beta.name).rename(folder / beta.name)
    assert [row["file"] for row in world.good(*record, "--json").json["recorded"]] == [beta.name]


@pytest.fixture
def index(world: World) -> Iterator[str]:
    """The address of an index over the wheels of the world, which states no hashes."""
    world.wheel("beta")
    for wheel in world.wheels.glob("*.whl"):
        page = world.top / "simple" / wheel.name.partition("-")[0]
        page.mkdir(parents=True)
        wheel.rename(page / wheel.name)
        (page / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    with served(world.top / "simple") as address:
        yield address


def test_d78_of_a_shipped_stack_the_user_gets_a_copy_and_every_verb_takes_and_says_it(world: World, index: str) -> None:
    shelf = Shelf(world)
    shelf.put("torch-smoke", profiles={"exact": {"python": ["3.12"], "packages": ["beta==1.0"]}}, findings=None)
    (beta,) = (world.top / "simple" / "beta").glob("*.whl")
    shipped = shelf.lock("torch-smoke", "exact", "--find-links", str(beta.parent))
    forget(shipped, "beta")
    before = shipped.read_bytes()
    env = {"UV_DEFAULT_INDEX": index, "NO_PROXY": "127.0.0.1"}

    def run(*args: str) -> Any:
        return world.good(*args, env=env, before=shelf.before)

    out = world.work / "elsewhere.toml"
    run("lock", "record", "torch-smoke", "-o", "elsewhere.toml")
    assert hashes(out) == {beta.name: sha256(beta)}
    place = ("torch-smoke", "--target", "local", "--facts", "h200")
    assert "recorded by you" not in run("explain", *place).err, "what `-o` wrote is nobody's lock"
    mine = world.home / ".local" / "share" / "envbuild" / "locks" / shipped.name
    assert run("lock", "record", "torch-smoke", "--json").json["lock"] == str(mine)
    assert (mine.read_bytes(), shipped.read_bytes()) == (out.read_bytes(), before)
    told = f"lock: {mine} (recorded by you)"
    plan = run("plan", "--stack", place[0], *place[1:])
    assert told in plan.err and "hash-unrecorded" not in plan.out
    export = ("lock", "export", "torch-smoke", "--format", "requirements")
    for verb in (("explain", *place), ("lock", "check", "torch-smoke"), export):
        assert told in run(*verb).err, verb
    assert run("lock", "record", "torch-smoke").out == f"unchanged: {mine}; every file has its hash\n"
