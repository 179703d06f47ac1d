"""`base: system`: an environment on an interpreter with packages of its own, which are recorded and never replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import MINOR, PYTHON, World, drift
from tests.node.env_support import make_wheel, uv_path
from tests.support.files import write_file
from tests.support.programs import completed

PROVIDES = [{"kind": "system", "provides": ["beta>=1.0"]}]


@pytest.fixture(scope="module")
def system_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation of its own, with `beta` 1.5 in its site packages: a copy that shares the standard library."""
    ask = "import sys, sysconfig; print(sys.base_prefix); print(sysconfig.get_path('stdlib'))"
    done = completed([PYTHON, "-I", "-c", ask], check=True)
    base, library = map(Path, done.stdout.split())
    top = tmp_path_factory.mktemp("system")
    home = top / "python"
    for part in base.iterdir():
        if part.name not in ("bin", library.parent.name):
            home.mkdir(parents=True, exist_ok=True)
            (home / part.name).symlink_to(part)
    inside = home / library.parent.name / library.name
    (inside / "site-packages").mkdir(parents=True)
    for part in library.parent.iterdir():
        if part.name != library.name:
            (inside.parent / part.name).symlink_to(part)
    for part in library.iterdir():
        if part.name not in ("site-packages", "EXTERNALLY-MANAGED"):
            (inside / part.name).symlink_to(part)
    python = home / "bin" / f"python{MINOR}"
    write_file(python, Path(PYTHON).read_bytes())
    python.chmod(0o755)
    make_wheel(top / "wheels", "beta", "1.5")
    install = [uv_path(), "pip", "install", "--python", str(python), "--system", "--no-index", "--no-config"]
    done = completed([*install, "--find-links", str(top / "wheels"), "beta"])
    if done.returncode:
        pytest.skip(f"a copy of {PYTHON} is no installation of its own here: {done.stderr[-400:]}")
    return python


def locked(world: World, python: Path, **profile: Any) -> None:
    world.wheel()
    world.stack(**{"bases": PROVIDES, **profile})
    world.good("lock", "create", "./tiny.yaml", "--base-python", str(python))


@pytest.mark.slow
def test_what_the_base_provides_is_recorded_and_part_of_the_identity(world: World, system_python: Path) -> None:
    locked(world, system_python, bases=[{"kind": "none"}, *PROVIDES])
    alone = world.built("--base", "none")
    on_base = world.built("--base", "system", "--python", str(system_python))
    assert on_base["variant_digest"] != alone["variant_digest"]
    assert on_base["environment"] != alone["environment"]
    assert on_base["base_packages"]["beta"] == "1.5"
    assert alone["base_packages"] == {}
    stamp = json.loads((Path(on_base["environment"]) / ".envbuild" / "stamp.json").read_text())
    assert stamp["base_packages"]["beta"] == "1.5"
    assert world.current == Path(on_base["environment"])
    assert world.python("import alpha, beta; print(alpha.VERSION, beta.VERSION)") == "1.0 1.5"
    assert drift(world) == (0, {})
    again = world.provision("--base", "system", "--python", str(system_python))
    assert (again.rc, again.json["steps_run"]) == (0, 0)


def left_to_the_base(world: World, *accepted: str) -> None:
    """A stack with another `beta` than the base has, which accepts some of the base."""
    world.wheel("beta", "2.0")
    world.wheel()
    base = {"kind": "system", "provides": [], **({"accepts": [*accepted]} if accepted else {})}
    world.stack(packages=["alpha==1.0", "beta==2.0"], bases=[base])
    world.good("lock", "create", "./tiny.yaml")


@pytest.mark.slow
def test_what_the_base_has_in_an_accepted_range_is_left_to_it(world: World, system_python: Path) -> None:
    left_to_the_base(world, "beta>=1")
    node = world.provision("--base", "system", "--python", str(system_python), rc=0).node
    assert world.python("import alpha, beta; print(alpha.VERSION, beta.VERSION)") == "1.0 1.5"
    assert "beta" not in node["packages"]
    assert drift(world) == (0, {})


@pytest.mark.parametrize("accepted", [[], ["beta>=1.6"]], ids=["none", "another"])
def test_a_package_of_the_base_is_never_replaced(world: World, system_python: Path, accepted: list[str]) -> None:
    left_to_the_base(world, *accepted)
    error = world.fails(7, "replaces-base-package", "--base", "system", "--python", str(system_python)).error
    assert "beta" in error["what"] + error["why"]
    envs = world.prefix / "envs"
    assert not envs.exists() or list(envs.iterdir()) == []


def test_a_base_that_lacks_what_it_must_provide_is_refused(world: World, system_python: Path) -> None:
    locked(world, system_python)
    refused = world.provision("--base", "system", "--python", PYTHON, rc=7)
    assert refused.error["code"] in ("base-lacks", "python-not-there")
    assert not (world.prefix / "envs").exists()
