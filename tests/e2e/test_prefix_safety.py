"""Where an environment may lie, and that nobody else can write what lies there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.e2e.world import World
from tests.support.files import write_file


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.tiny()
    return world


def test_d24_the_root_and_a_colon_are_no_prefix_nor_what_a_placeholder_stands_for(world: World) -> None:
    before = set(os.listdir("/"))
    for prefix, says in (("/", "below /"), ("//", "below /"), ("/.", "below /"), ("/opt/a:b", "':'")):
        done = world.refused(2, "manifest-invalid", "provision", "--stack", "./tiny.yaml", "--prefix", prefix)
        assert says in done.err
    assert set(os.listdir("/")) == before
    home = world.top / "a:b"
    home.mkdir()
    done = world.provision("--prefix", "{home}/envs", env={"HOME": str(home)}, rc=2)
    assert "prefix-invalid" in done.out


def test_a_home_folder_is_no_prefix(world: World) -> None:
    home, link = world.top / "alice", world.top / "link"
    home.mkdir()
    link.symlink_to(home)
    done = world.refused(2, "manifest-invalid", "plan", "--stack", "./tiny.yaml", "--prefix", "{home}/.")
    assert '"{home}/envbuild"' in done.err
    for prefix in (home, link):
        place, env = ("--prefix", str(prefix)), {"HOME": str(home)}
        done = world.run("provision", "--stack", "./tiny.yaml", *place, env=env)
        assert done.rc == 7 and "error[prefix-usable]" in done.err
        assert "it is a home folder" in done.err and "{home}/envbuild" in done.err
        assert "it is a home folder" in world.run("doctor", *place, env=env).out
        done = world.run("store", "clean", "--yes", *place, env=env)
        assert done.rc == 2 and "error[prefix-invalid]" in done.out
    assert os.listdir(home) == []


def test_a_folder_with_files_of_others_is_warned_of_and_one_of_envbuild_is_not(world: World) -> None:
    # A job that asked its nodes, and another probe that tries whether it can write here.
    for name in ("thesis.tex", "jobs/20260101T000000Z-dead/status-1", ".envbuild-0a1b2c3d"):
        write_file(world.prefix / name)
    words = ("plan", "--stack", "./tiny.yaml", "--prefix", str(world.prefix))
    assert "has files that are not envbuild's (thesis.tex)" in world.good(*words).out
    (world.prefix / "tools").mkdir()
    assert "not envbuild's" not in world.good(*words).out


def test_d24_a_folder_above_the_prefix_that_everybody_can_write_is_refused(world: World) -> None:
    above = world.top / "open"
    (above / "mine").mkdir(parents=True)
    above.chmod(0o777)
    done = world.run("provision", "--stack", "./tiny.yaml", "--prefix", str(above / "mine" / "prefix"), rc=7)
    assert "error[prefix-usable]" in done.err
    assert f"everybody can change what is in {above} (mode 777)" in done.err
    assert os.listdir(above / "mine") == []
    above.chmod(0o1777)
    assert world.built("--prefix", str(above / "mine" / "prefix"))["status"] == "ok"


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "mask"), [(0o755, 0o022), (0o2775, 0o002), (0o755, 0o000), (0o700, 0o077)])
def test_d25_nobody_else_can_write_what_lies_below_a_prefix(world: World, mode: int, mask: int) -> None:
    world.prefix.mkdir()
    world.prefix.chmod(mode)
    before = os.umask(mask)
    try:
        done = world.provision("--cache", str(world.prefix / "cache" / "uv"))  # it brings its tools itself
    finally:
        os.umask(before)
    assert done.rc == 0, done.err
    modes = {path: path.lstat().st_mode for path in world.prefix.rglob("*") if not path.is_symlink()}
    assert world.prefix / "cache" / "uv" in modes
    writable = stat.S_IWOTH if mode & stat.S_ISGID else stat.S_IWOTH | stat.S_IWGRP
    assert {str(path): oct(each) for path, each in modes.items() if each & writable} == {}
    if mode & stat.S_ISGID:
        locks = [each for path, each in modes.items() if path.name == ".lock"]
        assert locks
        assert all(each & stat.S_IWGRP for each in locks), "the group of a shared prefix takes the same locks"
