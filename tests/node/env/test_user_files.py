"""D89: no verb deletes a file that envbuild did not make; what was moved is at the place that was said."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild.node.env import remove, user_files
from tests.node.env_support import Node, make_variant, make_wheel, pin, redirect_git, site
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.programs import completed

FILES = {"train.py": "print('train')\n", "data/prepare.py": "print('prepare')\n", "run.sh": "#!/bin/sh\nexec true\n"}


@pytest.fixture
def variant(node: Node) -> dict[str, Any]:
    return make_variant([make_wheel(node.wheels)])


def left_alone(node: Node, environment: Path) -> None:
    """It is removed, and nothing of it was a user's."""
    assert remove.run(node.request("remove", environment=str(environment), force=True))[1]["notes"] == []
    assert not (node.prefix / "kept").exists()


def test_what_nobody_wrote_leaves_nothing_and_what_a_user_wrote_changed_or_installed_is_kept(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    redirect_git(monkeypatch, node.top / "hub")
    source = pin(node.top / "hub", "nano", FILES, install="path", generated=["data/**", "out*/**"])
    variant = make_variant([make_wheel(node.wheels)], sources=[source])
    node.install(variant)
    environment = node.environment(variant)
    packages, out = site(environment), environment / "src" / "nano" / "out"
    write_file(out / "helpers.so", "compiled")  # what a build had generated before the stamp is not a user's
    (out / "version.py").write_text("1")
    node.activate(variant)
    os.utime(packages / "alpha" / "__init__.py")
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([environment / "bin/python", "-c", "import alpha, train"], check=True, cwd=node.top, env=env)
    assert any((environment / "src" / "nano").glob("__pycache__/*.pyc"))

    def found() -> list[str]:
        return user_files.check(str(node.prefix), str(environment))

    assert found() == []
    (out / "version.py").write_text("2")
    write_file(packages / "mine" / "__init__.py", "mine")
    true = (packages / "alpha" / "__init__.py").read_bytes()
    (packages / "alpha" / "__init__.py").write_text("changed")
    kept = sorted(str((packages / each).relative_to(environment)) for each in ("mine", "alpha/__init__.py"))
    assert found() == [*kept, "src/nano/out/version.py"]
    (out / "version.py").write_text("1")
    (packages / "alpha" / "__init__.py").write_bytes(true)
    shutil.rmtree(packages / "mine")
    left_alone(node, environment)


def test_without_a_list_of_files_everything_is_kept_and_what_was_never_stamped_is_not(
    node: Node, variant: dict[str, Any]
) -> None:
    environment = node.build(variant)
    (environment / ".envbuild" / "files.json").write_text("torn")
    remove.run(node.request("remove", environment=str(environment), force=True))
    assert list((node.prefix / "kept").glob(f"{environment.name}-*Z*/pyvenv.cfg"))
    shutil.rmtree(node.prefix / "kept")
    half = node.prefix / "envs" / f"demo-exact-{'0' * 12}"
    write_file(half / "lib" / "file", "half built")
    left_alone(node, half)


def test_where_files_cannot_be_moved_the_environment_stays_and_none_is_built_in_its_place(
    node: Node, variant: dict[str, Any]
) -> None:
    environment = node.build(variant)
    (environment / "notes.txt").write_text("notes")
    (node.prefix / "kept").write_text("a file in the place of the folder")
    again = {"environment": f"{environment}.2"}
    node.install(variant, **again)
    (note,) = node.activate(variant, **again)[1]["notes"]
    assert "was replaced and stays" in note and "cannot move" in note
    with fails("user-files-blocked", 7):
        remove.run(node.request("remove", environment=str(environment), force=True))
    assert (environment / ".envbuild" / "stamp.json").exists()
    (environment / ".envbuild" / "stamp.json").write_text("torn")
    with fails("user-files-blocked"):
        node.install(variant)
    assert (environment / "notes.txt").read_text() == "notes"


def test_an_environment_that_a_process_runs_from_stays_and_is_named(node: Node, variant: dict[str, Any]) -> None:
    environment = node.build(variant)
    again = {"environment": f"{environment}.2"}
    code = "import sys; print(flush=True); sys.stdin.read()"
    argv = [str(environment / "bin" / "python"), "-c", code]
    env = {**os.environ, "VIRTUAL_ENV": str(environment)}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        node.install(variant, **again)
        (note,) = node.activate(variant, **again)[1]["notes"]
        process.stdin.close()
    assert f"pid {process.pid}" in note and f"`envbuild env remove {environment.name}`" in note
    assert (node.prefix / "current" / "demo").resolve() == Path(again["environment"])
    assert environment.exists()
    remove.run(node.request("remove", environment=str(environment)))
    assert node.verify(deep=True)["ok"]


def test_on_a_prefix_that_nodes_share_the_generation_that_was_replaced_stays(
    node: Node, variant: dict[str, Any]
) -> None:
    environment = node.build(variant)
    (environment / "notes.txt").write_text("notes")
    half = environment.with_name(f"{environment.name}.3")
    half.mkdir()
    again = {"environment": f"{environment}.2"}
    node.install(variant, **again)
    (note,) = node.activate(variant, shared=True, **again)[1]["notes"]
    assert "other nodes may run from it" in note and f"`envbuild env remove {environment.name}`" in note
    assert (environment / "notes.txt").exists() and not half.exists()


KILLED = """
import importlib, json, os, signal, sys
from envbuild.node import verbs
number = int(sys.argv[1])
importlib.import_module("envbuild.node.env." + verbs.VERBS[sys.argv[2]].split(".")[1])
for name in ("rename", "unlink", "symlink", "rmdir"):
    def counted(*args, _real=getattr(os, name), **more):
        global number
        number -= 1
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return _real(*args, **more)
    setattr(os, name, counted)
verbs.run(sys.argv[2], json.load(sys.stdin))
"""


def killed(request: dict[str, Any], number: int) -> bool:
    """Whether a verb was killed before its n-th change of a name on the disk; else it has ended well."""
    argv = [sys.executable, "-c", KILLED, str(number), request["verb"]]
    done = completed(argv, input=json.dumps(request))
    assert done.returncode in (0, -9), done.stderr
    return done.returncode == -9


def moments() -> Iterator[int]:
    """The first changes one by one, then some: most of them delete one file more."""
    yield from range(1, 15)
    yield from range(15, 1000, 30)


@contextlib.contextmanager
def as_it_was(node: Node) -> Iterator[Callable[[], None]]:
    """What gives the prefix back the state that it has now."""
    saved = node.top / "saved"
    shutil.copytree(node.prefix, saved, symlinks=True)

    def restore() -> None:
        shutil.rmtree(node.prefix)
        shutil.copytree(saved, node.prefix, symlinks=True)

    yield restore
    shutil.rmtree(saved)


def imports(node: Node) -> None:
    python = node.prefix / "current" / "demo" / "bin" / "python"
    subprocess.run([str(python), "-I", "-c", "import alpha"], check=True)


@pytest.mark.slow
def test_d100_a_removal_that_is_killed_anywhere_leaves_no_dangling_link_and_loses_nothing(
    node: Node, variant: dict[str, Any]
) -> None:
    environment = node.build(variant)
    (environment / "notes.txt").write_text("notes")
    request = node.request("remove", environment=str(environment), force=True)
    with as_it_was(node) as restore:
        for number in moments():
            restore()
            going_on = killed(request, number)
            link = node.prefix / "current" / "demo"
            assert link.exists() or not link.is_symlink()
            assert [path.read_text() for path in node.prefix.rglob("notes.txt")] == ["notes"]
            if not going_on:
                break
    assert number > 10 and not environment.exists()


@pytest.mark.slow
def test_d100_a_second_build_whose_end_is_killed_anywhere_is_taken_up_and_the_one_in_use_imports(node: Node) -> None:
    variant = make_variant([make_wheel(node.wheels)])
    again = {"environment": f"{node.environment(variant)}.2"}
    args = {**again, "stack": "demo", "profile": "exact", "variant": variant}
    environment = node.build(variant)
    (environment / "notes.txt").write_text("notes")
    node.run = "run-2"
    node.install(variant, **again)
    # The next step of a run ends the process that holds its lease, which is this test here.
    (node.prefix / "lease.json").unlink()
    request = node.request("activate", **args)
    node.run = "run-3"
    with as_it_was(node) as restore:
        for number in moments():
            restore()
            going_on = killed(request, number)
            imports(node)
            assert [path.read_text() for path in node.prefix.rglob("notes.txt")] == ["notes"]
            # What a later run does: it builds where nothing is finished, and switches.
            node.install(variant, **again)
            node.activate(variant, **again)
            imports(node)
            assert node.verify(deep=True)["ok"]
            assert [path.name for path in (node.prefix / "envs").iterdir()] == [f"{environment.name}.2"]
            if not going_on:
                break
    assert number > 14


@pytest.mark.slow
def test_d100_a_switch_that_is_killed_anywhere_leaves_one_of_both_in_use(node: Node) -> None:
    first, second = (make_variant([make_wheel(node.wheels, version=each)]) for each in ("1.0", "2.0"))
    node.build(first)
    node.build(second)
    request = node.request("use", environment=str(node.environment(first)), stack="demo")
    for number in moments():
        node.activate(second)
        going_on = killed(request, number)
        imports(node)
        if not going_on:
            break
    assert number > 2
    assert (node.prefix / "current" / "demo").resolve() == node.environment(first)
