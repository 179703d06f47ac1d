"""The user's own folder as a source: used where it lies, told with its commit and changes, and never touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import World, drift, snapshot
from tests.node.env_support import git, make_repository

NANO = {"model.py": "X = 1\n", "data/shakespeare_char/prepare.py": "open('data/train.bin', 'w').write('x')\n"}


IMPORT = "import sys; sys.dont_write_bytecode = True; import model; print(model.X)"


@pytest.fixture
def clone(world: World) -> Path:
    """A clone of the user with one change and one file that is not in git; the stack file lies in it."""
    tree = world.work
    make_repository(tree, NANO)
    (tree / "model.py").write_text("X = 2\n")
    (tree / "data" / "shakespeare_char" / "input.txt").write_text("text")
    world.tiny(sources=[{"name": "nano", "path": "./", "install": "path"}], imports=["model"])
    return tree


def told(node: dict[str, Any]) -> dict[str, Any]:
    (check,) = [check for check in node["checks"] if check["name"] == "working-tree"]
    assert isinstance(check, dict)
    return check


@pytest.mark.slow
def test_d89_a_working_tree_goes_from_lock_to_report_and_stays_as_it_is(world: World, clone: Path) -> None:
    commit, branch = git(clone, "rev-parse", "HEAD"), git(clone, "symbolic-ref", "--short", "HEAD")
    lock = (clone / "tiny.lock.toml").read_text()
    assert "[[variant.working_tree]]" in lock
    assert str(clone) not in lock, "a lock has contents, never locations"
    before = snapshot(clone)
    plan = world.good("plan", "--target", "local", "--stack", "./tiny.yaml", "--json").out
    node = world.built()
    check = told(node)
    state = f"commit {commit[:12]} on {branch}, 1 file changed, 1 not in git: model.py, data/shakespeare_char/input.txt"
    says = f"source nano is a working tree, {state}, not part of the digest"
    assert check["says"] == says
    assert node["facts"]["trees"]["nano"]["commit"] == commit
    assert node["variant_digest"] in plan and node["variant_digest"] in lock, "nor has a digest"
    stamp = json.loads((world.current / ".envbuild" / "stamp.json").read_text())
    (tree,) = stamp["trees"]
    assert (tree["at"], tree["state"]["commit"], tree["state"]["changed"]) == (str(clone), commit, 1)
    assert world.python(IMPORT) == "2"
    assert drift(world) == (0, {})
    report = world.good("report", "show", "last", "--format", "md").out
    assert says in report.replace("\\", "")
    (clone / "model.py").write_text("X = 3\n")
    changed = world.good("provision", "--target", "local", "--stack", "./tiny.yaml").out
    assert changed.startswith("! ") and "1 file of code. The smoke test did not run again." in changed
    assert "model.py changed after the smoke test" in changed
    again = next(line for line in changed.splitlines() if line.startswith("  next "))
    assert again.split(maxsplit=1)[1] == "envbuild smoke ./tiny.yaml --target local", "the code is used where it lies"
    status = world.good("status", "--target", "local").out
    assert "! tiny: model.py of the source nano changed after the smoke test" in status
    smoked = world.good("smoke", "./tiny.yaml", "--target", "local", "--json").node
    assert (smoked["root"], smoked["root_level"], told(smoked)["says"]) == (node["root"], "measured", says)
    made = world.good("report", "kit", "-o", str(world.top / "kit"))
    assert f"- {says}" in (world.top / "kit" / "README.md").read_text().replace("\\", "")
    assert not [path for path in (world.top / "kit").rglob("*.json") if str(clone) in path.read_text()]
    assert "the folder of the source nano is not in the kit" in made.err and "`commit:`" in made.err
    assert "`envbuild lock create ./tiny.yaml`, `envbuild provision ./tiny.yaml`. And make the kit again" in made.err
    kit = str(world.top / "kit" / "tiny.yaml")
    there = world.refused(7, "source-unreachable", "provision", kit, "--target", "local")
    assert "ask the authors for the folder" in there.err
    assert "attachments/stack.yaml" not in made.err and (world.top / "kit" / "tiny.yaml").is_file()
    assert "a folder of the authors, which is not in this kit" in (world.top / "kit" / "README.md").read_text()
    assert drift(world) == (0, {}), "what is in the tree is no drift"
    assert world.python(IMPORT) == "3"
    (clone / "model.py").write_text("X = 2\n")
    world.good("smoke", "./tiny.yaml", "--target", "local")
    again = world.built()
    assert (again["status"], told(again)["says"]) == ("unchanged", check["says"])
    assert world.built("--repair")["root"] == node["root"]
    world.good("env", "remove", world.current.name, "--force", "--yes")
    assert snapshot(clone) == before


def test_d89_a_source_is_a_repository_or_a_folder(world: World) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"path": "./", "install": "wheel"}, "a wheel would be a copy"),
        ({"path": "./", "build": {"kind": "inplace"}}, "is an unknown key"),
        ({"path": "/etc"}, "must be a path relative to the stack file"),
        ({"install": "path"}, "git is missing"),
        ({"path": "sub", "commit": "0" * 40}, "git is missing"),
    ]
    for source, says in wrong:
        world.stack(sources=[{"name": "nano", **source}])
        assert says in world.refused(2, "manifest-invalid", "stack", "show", "./tiny.yaml").err


def test_d89_a_folder_that_is_not_there_and_images_are_refused(world: World, clone: Path) -> None:
    done = world.refused(7, "engine-fits", "image", "dockerfile", "./tiny.yaml", "-o", "out")
    stack = clone / "sub" / "tiny.yaml"
    stack.parent.mkdir()
    text = (clone / "tiny.yaml").read_text().replace("path: ./", "path: ../gone")
    stack.write_text(text)
    shutil.copy(clone / "tiny.lock.toml", stack.with_name("tiny.lock.toml"))
    # The stack file has changed.
    world.refused(2, "lock-stale", "plan", "--target", "local", "--stack", "sub/tiny.yaml")
    world.good("lock", "create", "sub/tiny.yaml")
    locks = [path.with_name("tiny.lock.toml").read_text().split("[[variant]]")[1] for path in (clone / "x", stack)]
    assert locks[0] == locks[1], "where a folder lies is not locked"
    done = world.fails(7, "source-unreachable", stack="sub/tiny.yaml")
    assert str(clone / "gone") in done.err


@pytest.mark.slow
def test_d89_outputs_of_a_source_are_linked_listed_and_stay(world: World) -> None:
    pin = {**world.repository("nano", NANO), "install": "path"}
    world.wheel()
    world.stack(sources=[{**pin, "outputs": ["data"]}])
    done = world.refused(2, "manifest-invalid", "lock", "create", "./tiny.yaml")
    assert "`outputs` names data, which has files of the repository" in done.err
    world.lock(world.stack(sources=[{**pin, "outputs": ["out"]}]))
    world.built()
    (world.current / "src" / "nano" / "out" / "ckpt.pt").write_text("weights")
    kept = world.prefix / "outputs" / "tiny" / "nano"
    assert f"outputs of tiny: {kept}" in world.good("status", "--all").out
    old = world.current
    world.lock(world.stack(sources=[{**pin, "outputs": ["out"]}], environment={"OMP_NUM_THREADS": "1"}))
    world.built()
    assert world.current != old
    assert (world.current / "src" / "nano" / "out" / "ckpt.pt").read_text() == "weights"
    world.good("store", "clean", "--only", "environments", "--keep", "0s", "--yes")
    world.good("env", "remove", world.current.name, "--force", "--yes")
    assert (kept / "out" / "ckpt.pt").read_text() == "weights"
