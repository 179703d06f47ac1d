"""A lock that was edited so that its digests hold is compared with its stack before anything is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import World, edit_lock, snapshot
from tests.node.env_support import make_wheel

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("edited"))
    world.tiny(environment={"HF_MODE": "fast"})
    return world


@pytest.fixture
def lock(world: World) -> Any:
    path = world.work / "tiny.lock.toml"
    text = path.read_text()
    yield path
    path.write_text(text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda plain: plain["packages"][0].update(version="2.0"), "alpha==1.0 in the stack, alpha 2.0 in the lock"),
        (lambda plain: plain["environment"].update(HF_MODE="slow"), "environment"),
        (lambda plain: plain["environment"].update(SITE_MORE="1"), "environment"),
        (lambda plain: plain.update(imports=["alpha", "os"]), "imports"),
        (lambda plain: plain.update(smoke=[]), "smoke"),
    ],
    ids=["version", "value", "variable", "imports", "smoke"],
)
def test_d23_an_edited_lock_is_refused_though_its_digests_hold(
    world: World, lock: Path, change: Change, says: str
) -> None:
    edit_lock(lock, change)
    before = snapshot(world.prefix)
    for verb in ("provision", "plan"):
        assert says in world.refused(5, "lock-edited", verb, "--target", "local", "--stack", "./tiny.yaml").err
    assert snapshot(world.prefix) == before


def test_d23_an_added_package_that_nothing_requires_is_named(world: World, lock: Path) -> None:
    built = world.built()
    in_use = Path(built["environment"])
    (check,) = [each for each in built["checks"] if each["name"] == "required"]
    assert (check["status"], check["level"]) == ("passed", "measured")
    assert check["says"].startswith("1 package for the stack, 0 that these require")
    extra = make_wheel(world.wheels, "extra")
    edit_lock(lock, lambda plain: plain["packages"].append(extra))
    assert "extra 1.0" in world.fails(5, "package-not-required").error["what"]
    assert world.current == in_use
    assert list(in_use.parent.iterdir()) == [in_use]


def test_d23_a_variable_that_chooses_code_is_refused_by_name_in_stack_and_target(world: World, lock: Path) -> None:
    for name in ("LD_PRELOAD", "PATH", "PYTHONPATH", "BASH_ENV", "GIT_SSH_COMMAND"):
        world.stack("evil", environment={name: "/tmp/x"})
        (world.work / "evil-target.yaml").write_text(f"name: evil\nextends: local\nenvironment: {{{name}: /tmp/x}}\n")
        for words in (("lock", "create", "./evil.yaml"), ("plan", "-t", "./evil-target.yaml", "./tiny.yaml")):
            done = world.refused(2, "manifest-invalid", *words)
            assert name in done.err
            assert "choose by it what they run" in done.err
    lock.write_text(lock.read_text().replace('HF_MODE = "fast"', 'LD_PRELOAD = "/tmp/x.so"'))
    done = world.run("provision", "--target", "local", "--stack", "./tiny.yaml")
    assert done.rc in (2, 5), "it is no lock"
    assert "LD_PRELOAD" in done.err


def test_d23_the_library_path_is_for_a_target_alone_and_of_absolute_folders(world: World) -> None:
    stack = world.stack("evil", environment={"LD_LIBRARY_PATH": "/usr/local/cuda-12.4/compat"})
    assert world.run("lock", "create", f"./{stack.name}").code == "manifest-invalid"
    target = world.work / "site.yaml"
    for value, rc in (("/usr/local/cuda-12.4/compat", 0), ("compat", 2), ("/opt:", 2)):
        target.write_text(f"name: site\nextends: local\nenvironment: {{LD_LIBRARY_PATH: {value!r}}}\n")
        world.run("target", "show", "./site.yaml", rc=rc)
