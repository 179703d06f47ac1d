"""The canonical build path: one builder at a time, and what dead builders left is removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from envbuild.node import paths
from envbuild.node.build import build_dir, job_server
from tests.support.programs import completed

DIES = """
import os, sys
from envbuild.node.build.build_dir import folder
made = folder(sys.argv[1], 1, "/", sys.argv[2])
made.__enter__()
os._exit(9)
"""
DIES_WITH_A_BUDGET = """
import os
from envbuild.node.build.job_server import Budget
print(Budget(1).__enter__().fifo, flush=True)
os._exit(9)
"""
DIES_WHILE_IT_REMOVES = """
import os, sys
from envbuild.node.build.build_dir import folder
made, rmdir, left = folder("x-1", 1, "/", sys.argv[1]), os.rmdir, list(range(20))
path = made.__enter__()[0]
for number in left:
    os.mkdir(f"{path}/x{number}")
os.rmdir = lambda *args, **more: rmdir(*args, **more) if left.pop() else os._exit(9)
made.__exit__(None, None, None)
"""


def dead_builder(name: str, top: Path) -> Path:
    """A folder whose builder was killed."""
    subprocess.run([sys.executable, "-c", DIES, name, str(top)], check=False)
    assert (top / name / "owner.json").exists()
    return top / name


def age(path: Path, hours: float) -> None:
    then = time.time() - hours * 3600
    os.utime(path, (then, then))


def test_a_second_builder_of_the_same_source_takes_another_folder(tmp_path: Path) -> None:
    top = str(tmp_path / "top")
    with build_dir.folder("x-1", 10, str(tmp_path), top) as first:
        assert first == (os.path.join(top, "x-1"), True)
        with build_dir.folder("x-1", 10, str(tmp_path), top) as (second, canonical):
            assert not canonical and os.path.dirname(second) == str(tmp_path)
        with build_dir.folder("x-2", 10, str(tmp_path), top) as third:
            assert third[1]
    assert not os.listdir(top)


def test_the_folder_of_a_dead_builder_is_taken_over_one_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    top = tmp_path / "top"
    dead_builder("x-1", top)
    for mode, canonical in ((0o700, True), (0o777, False)):
        top.chmod(mode)
        with build_dir.folder("x-1", 10, str(tmp_path), str(top)) as folder:
            assert folder[1] == canonical


def test_what_dead_builders_of_this_machine_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    top = tmp_path / "top"
    dead = dead_builder("x-1", top)
    # A sweep that was killed itself.
    interrupted = dead_builder("x-2", tmp_path / "elsewhere").rename(top / "x-2.trash-1")
    (dead / "src").mkdir()
    (dead / "src").chmod(0o500)
    far = dead_builder("x-3", top)
    owner = json.loads((far / "owner.json").read_text())
    (far / "owner.json").write_text(json.dumps({**owner, "host": "another"}))
    for name in ("new", "old"):
        (top / name).mkdir()
    age(top / "old", 2)
    (top / "note").write_text("a file")
    (tmp_path / "place").mkdir()
    (top / "link").symlink_to(tmp_path / "place")
    age(tmp_path / "place", 2)
    with build_dir.folder("y-1", 10, str(tmp_path), str(top)) as (living, _):
        assert not dead.exists() and not interrupted.exists()
        with build_dir.folder("y-2", 10, str(tmp_path), str(top)):
            assert os.path.exists(living)
    assert sorted(os.listdir(top)) == ["link", "new", "note", "x-3"]
    assert (tmp_path / "place").exists()


def test_what_was_killed_while_it_removed_its_folder_is_removed_by_the_next(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", DIES_WHILE_IT_REMOVES, str(tmp_path)], check=False)
    assert len(os.listdir(tmp_path / "x-1")) == 2
    build_dir.sweep(str(tmp_path))
    assert not os.listdir(tmp_path)


def test_a_folder_into_which_something_is_still_written_is_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, late = paths.remove_tree, [1, 2]

    def one_more(path: str) -> None:
        if path.endswith("x-1") and late:
            raise OSError(late.pop(), "Directory not empty")
        remove(path)

    monkeypatch.setattr(paths, "remove_tree", one_more)
    with build_dir.folder("x-1", 10, str(tmp_path), str(tmp_path / "top")):
        pass
    assert not late and not os.listdir(tmp_path / "top")


def test_the_job_server_of_a_dead_builder_is_removed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as top:
        monkeypatch.setattr("tempfile.tempdir", top)
        command, env = [sys.executable, "-c", DIES_WITH_A_BUDGET], {**os.environ, "TMPDIR": top}
        left = completed(command, env=env).stdout.strip()
        assert os.path.dirname(os.path.dirname(left)) == top and os.path.exists(left)
        with job_server.Budget(1) as first, job_server.Budget(1) as second:
            assert not os.path.exists(os.path.dirname(left))
            assert os.path.exists(first.fifo) and os.path.exists(second.fifo)
        assert not os.listdir(top)
