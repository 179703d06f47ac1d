"""Bundles through the real command, with the network cut: made, checked, installed from, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuild.node.bundle import archive, plain_tar
from tests.e2e.world import MINOR, PYTHON, World, snapshot
from tests.fleet.standalone import write_toolchain
from tests.node.forge import ACTIVATED, FILES, LOGGED, PATCH, need_compiler
from tests.support.conda import section
from tests.support.no_network import without_network
from tests.support.programs import executable


def created(world: World, *args: str, name: str = "b.tar") -> Path:
    world.good("bundle", "create", "./tiny.yaml", "-o", name, *args)
    return world.work / name


def cut_off(world: World, *folders: Path) -> None:
    """Leave nothing that the bundle was made from, and no network to get it again."""
    for folder in folders or (world.wheels, world.hub, world.home / ".cache" / "envbuild", world.prefix):
        shutil.rmtree(folder, ignore_errors=True)
    world.wheels.mkdir()
    words = without_network()
    if not words:
        pytest.skip("this system does not let a process give up its network")
    if "-r" in words:
        world.command = [*words, sys.executable, "-m", "envbuild"]
    else:
        world.before = ("tests.support.no_network:leave",)


def holds(world: World, *engine: str) -> None:
    """The environment passes its smoke test, and it and its report are verified."""
    for verb in ("smoke", "verify"):
        world.good(verb, "--stack", "./tiny.yaml", *engine)
    world.good("report", "verify", "last")


def test_a_bundle_becomes_an_environment_that_is_tested_verified_and_reported_without_a_network(world: World) -> None:
    world.wheel("beta", "2.0")
    world.wheel()
    world.lock(world.stack(packages=["alpha==1.0", "beta==2.0"], imports=["alpha", "beta"]))
    bundle = created(world)
    online = world.built()["root"]
    cut_off(world)
    listed = world.good("bundle", "verify", "--quick", "b.tar").out
    assert "wheels/alpha-1.0-py3-none-any.whl" in listed
    assert "every file has its sha256" in world.good("bundle", "verify", "b.tar").out
    plan = world.good("provision", "--stack", "./tiny.yaml", "--target", "local", "--bundle", "b.tar", "--dry-run").out
    assert "you gave this bundle, so nothing is fetched" in plan
    node = world.built("--bundle", str(bundle))
    assert (node["status"], node["root"]) == ("ok", online), "the same as from the network"
    holds(world)
    assert [path.name for path in (world.prefix / "store").glob("*")] == [], "what was unpacked goes"
    again = world.built("--bundle", str(bundle))
    assert again["status"] == "unchanged"


@pytest.mark.slow
def test_equal_locks_give_equal_bundles_and_the_folder_is_as_good_as_the_file(world: World) -> None:
    world.tiny(sources=[{**world.repository("lib", {"lib.py": "X = 1\n"}), "install": "path"}])
    first = created(world)
    shutil.rmtree(world.home / ".cache" / "envbuild")
    assert created(world, name="again.tar").read_bytes() == first.read_bytes()
    folder = created(world, name="folder")
    assert archive.verify(str(folder)) == archive.verify(str(first))
    world.refused(2, "output-exists", "bundle", "create", "./tiny.yaml", "-o", "b.tar")
    cut_off(world)
    assert world.built("--bundle", str(folder))["status"] == "ok"


@pytest.mark.slow
def test_a_lost_repository_a_patch_and_a_compiled_wheel_come_out_of_the_bundle(world: World) -> None:
    log, programs = world.top / "compiled", world.top / "programs"
    executable(programs / "cc", LOGGED.format(log=log, compiler=need_compiler()))
    world.env |= {"PATH": f"{programs}:{world.env['PATH']}", "CCACHE_DISABLE": "1"}
    build = {"kind": "wheel", "extensions": ["quick._fast"]}
    pin = {**world.repository("quick", FILES), "ref": "main", "patches": [PATCH], "build": build}
    tree = {**world.repository("lib", {"lib.py": "X = 1\n"}), "install": "path"}
    world.tiny(sources=[pin, tree], imports=["quick._fast", "lib"])
    source_only = created(world, name="sources.tar")
    root = world.built()["root"]
    bundle = created(world)
    kinds = {row["what"] for row in archive.read_index(str(bundle))["files"]}
    assert kinds == {"wheel", "source", "built wheel"}
    cut_off(world)
    before = len(log.read_text().splitlines())
    node = world.built("--bundle", str(bundle))
    assert node["root"] == root
    assert len(log.read_text().splitlines()) == before, "what was compiled once is not compiled again"
    quick, lib = node["sources"]
    assert (quick["build"]["from"], quick["build"]["handed"]["used"]) == ("store", True)
    digest = archive.read_index(str(bundle))["digest"]
    assert (lib["commit"], lib["tree"], lib["bundle"]) == (tree["commit"], tree["tree"], digest)
    assert f"bundle {digest[:12]}" in world.good("report", "show", "last", "--format", "md").out
    holds(world)
    shutil.rmtree(world.prefix)
    node = world.built("--bundle", str(source_only))
    assert (node["root"], node["sources"][0]["build"]["from"]) == (root, "built"), "else it is compiled from its source"


@pytest.mark.slow
def test_a_conda_stack_comes_out_of_a_bundle(world: World, conda_python: Path) -> None:
    need_compiler()
    conda = section(world.top / "forge", conda_python)
    world.wheel(scripts={"alpha-run": "alpha:main"})
    build = {"kind": "wheel", "extensions": ["quick._fast"]}
    pin = {**world.repository("quick", {**FILES, **ACTIVATED}), "ref": "main", "patches": [PATCH], "build": build}
    world.lock(world.stack(conda=conda, sources=[pin], imports=["alpha", "quick._fast", "quick.activated"]))
    bundle = created(world, "--engine", "conda")
    shutil.rmtree(world.top / "forge")
    cut_off(world)
    node = world.built("--engine", "conda", "--bundle", str(bundle))
    assert node["status"] == "ok"
    assert world.python("import alpha, pure; print(alpha.VERSION, pure.VERSION)") == "1.0 1.5"
    holds(world, "--engine", "conda")


def test_the_base_and_the_interpreter_are_in_a_bundle_as_asked(world: World, tmp_path: Path) -> None:
    world.wheel("beta", "2.0")
    world.wheel()
    world.stack(packages=["alpha==1.0", "beta==2.0"], bases=[{"kind": "system", "accepts": ["alpha>=1"]}])
    world.good("lock", "create", "./tiny.yaml", "--base-python", str(PYTHON))
    whole, lean = created(world), created(world, "--base-is-there", name="lean.tar")
    names = [{row["path"] for row in archive.read_index(str(each))["files"]} for each in (whole, lean)]
    assert names[0] - names[1] == {"wheels/alpha-1.0-py3-none-any.whl"}
    # Nothing provides it here.
    cut_off(world)
    world.fails(7, "bundle-incomplete", "--bundle", str(lean))


@pytest.mark.slow
def test_the_python_of_the_lock_travels_in_the_bundle(world: World, standalone_python: Path) -> None:
    toolchain = world.top / "toolchain.yaml"
    world.env["ENVBUILD_TOOLCHAIN"] = write_toolchain(toolchain, standalone_python)
    world.tiny(interpreters=["standalone"])
    bundle = created(world, "--interpreter")
    assert [row["what"] for row in archive.read_index(str(bundle))["files"]] == ["interpreter", "wheel"]
    toolchain.write_text(toolchain.read_text().replace(standalone_python.as_uri(), "file:///nowhere"))
    cut_off(world)
    node = world.built("--bundle", str(bundle))
    assert node["status"] == "ok"
    assert "/tools/python-" in str((world.current / "bin" / "python").readlink())


def altered(world: World, bundle: Path, name: str, change: Any) -> Path:
    """The bundle with another index, which holds together."""
    with bundle.open("rb") as stream:
        files = {each: b"".join(parts) for each, _, parts in plain_tar.members(stream, archive.LIMITS)}
    told = json.loads(files[archive.NAME])
    change(told, files)
    told["digest"] = archive._digest(told)
    files = {archive.NAME: archive.encode_index(told), **{row["path"]: files[row["path"]] for row in told["files"]}}
    path = world.work / name
    with path.open("wb") as out:
        for each, data in files.items():
            plain_tar.write(out, each, len(data), [data])
        out.write(plain_tar.END)
    return path


def test_a_bundle_that_is_not_right_leaves_the_environment_in_use_untouched(world: World) -> None:
    world.wheel("beta", "2.0")
    world.tiny()
    bundle = created(world)
    world.built()
    before = snapshot(world.prefix)
    world.lock(world.stack(packages=["alpha==1.0", "beta==2.0"]))
    wider = created(world, name="wider.tar")
    cut_off(world, world.wheels, world.home / ".cache" / "envbuild")

    cut = world.work / "cut.tar"
    cut.write_bytes(wider.read_bytes()[:-2000])
    world.fails(5, "bundle-damaged", "--bundle", str(cut))
    data = bytearray(wider.read_bytes())
    data[len(data) // 2] ^= 1
    flipped = world.work / "flipped.tar"
    flipped.write_bytes(data)
    world.fails(5, "bundle-damaged", "--bundle", str(flipped))
    world.fails(7, "bundle-incomplete", "--bundle", str(bundle))

    def other_bytes(told: dict[str, Any], files: dict[str, bytes]) -> None:
        name = "wheels/beta-2.0-py3-none-any.whl"
        files[name] = b"PK\x03\x04evil"
        row = next(row for row in told["files"] if row["path"] == name)
        row.update(bytes=len(files[name]), sha256=hashlib.sha256(files[name]).hexdigest())

    sparc = altered(world, wider, "sparc.tar", lambda told, _: told.update(machines=["sparc64"]))
    world.fails(7, "bundle-does-not-fit", "--bundle", str(sparc))
    other = altered(world, wider, "other.tar", lambda told, _: told.update(stack="other"))
    world.fails(7, "bundle-does-not-fit", "--bundle", str(other))
    # A plan from recorded facts reads it too.
    ahead = ("--target", "local", "--facts", "h200", "--dry-run", "--bundle", "other.tar")
    world.refused(7, "bundle-does-not-fit", "provision", "--stack", "./tiny.yaml", *ahead)
    world.fails(7, "bundle-incomplete", "--bundle", str(altered(world, wider, "evil.tar", other_bytes)))
    (world.work / "text.tar").write_text("hello")
    world.fails(5, "bundle-damaged", "--bundle", str(world.work / "text.tar"))
    assert world.run("bundle", "verify", "none.tar").rc == 2
    now = snapshot(world.prefix)
    changed = {path for path, what in before.items() if now.get(path) != what}
    assert [path for path in changed if not path.startswith(("logs", "store"))] == []
    assert world.python("import alpha, sys; print('%d.%d' % sys.version_info[:2])") == MINOR
