"""Odd but legal surroundings: paths, locales, folders, a broken driver. Two builds of one lock are equal in all."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.e2e.world import MINOR, PYTHON, World, drift
from tests.support.programs import completed, executable


def test_a_prefix_with_a_strange_name_behind_a_link_and_one_with_template_marks(world: World) -> None:
    world.tiny(environment={"HF_GREETING": "hi"})
    done = world.provision("--prefix", str(world.top / "{{ lookup('pipe', 'id') }}"), rc=2)
    assert done.code not in ("", "internal", "usage")
    assert list(world.top.glob("*lookup*")) == []
    (world.top / "real").mkdir()
    (world.top / "link").symlink_to(world.top / "real")
    world.prefix = world.top / "link" / 'it\'s a "place" $(id) é 50% #1 ~ %d'
    world.env["ENVBUILD_PREFIX"] = str(world.prefix)
    assert world.built()["status"] == "ok"
    assert world.provision().json["steps_run"] == 0
    assert drift(world) == (0, {})
    code = world.good("env", "activate", "tiny").out
    shell = f'{code}\nprintf %s "$HF_GREETING" && python -c "import alpha"'
    done = completed(["sh", "-c", shell], env=world.env, cwd=world.top)
    assert (done.returncode, done.stdout) == (0, "hi"), done.stderr


@pytest.mark.slow
def test_a_bare_environment_without_utf8_in_a_folder_that_cannot_be_written(world: World) -> None:
    world.tiny(environment={"HF_GREETING": "grüß"})
    kept = ("PATH", "HOME", "ENVBUILD_PREFIX", "ENVBUILD_RUNS", "PIP_CONFIG_FILE", "PIP_FIND_LINKS")
    world.env = {key: world.env[key] for key in kept}
    # What a user and a scheduler set for their own purposes.
    world.env |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "ANSIBLE_STDOUT_CALLBACK": "json", "JOB_ID": "7.pbs"}
    world.work.chmod(0o555)
    before = sorted(path.name for path in world.work.iterdir())
    done = world.run("provision", "--stack", "./tiny.yaml")
    shown = world.run("run", "show", "last")
    after = sorted(path.name for path in world.work.iterdir())
    world.work.chmod(0o755)
    assert done.rc == 0, done.err
    assert shown.rc == 0, shown.err
    assert after == before


_SCRIPT = {"alpha-tool": "alpha:main"}


@pytest.fixture
def moved_python(tmp_path: Path) -> Path:
    """The interpreter of the tests under another path: a folder of links to everything of the installation."""
    home = Path(completed([PYTHON, "-I", "-c", "import sys; print(sys.base_prefix)"], check=True).stdout.strip())
    place = tmp_path / "elsewhere" / "python"
    (place / "bin").mkdir(parents=True)
    for part in home.iterdir():
        if part.name != "bin":
            (place / part.name).symlink_to(part)
    copied = place / "bin" / f"python{MINOR}"
    shutil.copy(PYTHON, copied)
    said = completed([copied, "-I", "-c", "import sys, ctypes; print(sys.base_prefix)"])
    if said.stdout.strip() != str(place):
        pytest.skip(f"a copy of {PYTHON} does not run on its own: {said.stderr or said.stdout}")
    return copied


@pytest.mark.slow
def test_prefix_umask_cache_wheel_times_and_interpreter_path_do_not_matter(world: World, moved_python: Path) -> None:
    world.wheel(scripts=_SCRIPT)
    world.tiny()
    old = os.umask(0o022)
    try:
        first = world.built("--python", PYTHON, "--cache", str(world.top / "cache-1"))
        for wheel in world.wheels.iterdir():
            os.utime(wheel, (time.time() - 10**7,) * 2)
        os.umask(0o077)
        second = world.built(
            "--prefix", str(world.top / "another" / "place"), "--python", str(moved_python),
            "--cache", str(world.top / "cache-2"),
        )  # fmt: skip
    finally:
        os.umask(old)
    assert first["environment"] != second["environment"]
    tools = [Path(each["environment"]) / "bin" / "alpha-tool" for each in (first, second)]
    assert tools[0].read_bytes() != tools[1].read_bytes(), "console scripts name their interpreter"
    assert [completed([tool]).stdout for tool in tools] == ["1\n", "1\n"]
    links = {os.path.realpath(Path(each["environment"]) / "bin" / "python") for each in (first, second)}
    assert links == {PYTHON, str(moved_python)}
    assert (first["root"], first["variant_digest"]) == (second["root"], second["variant_digest"])


@pytest.mark.slow
def test_d29_a_driver_that_cannot_be_asked_is_said_by_probe_plan_and_doctor(world: World) -> None:
    programs = world.top / "programs"
    executable(programs / "nvidia-smi", "#!/bin/sh\nprintf '\\377\\376 no text'\n")
    world.env["PATH"] = f"{programs}:{world.env['PATH']}"
    said = "nvidia-smi printed bytes that are no text"
    (facts,) = json.loads(world.good("doctor", "--facts-out", "facts.json", "--json").out)["facts"].values()
    assert facts["driver"]["problem"].startswith(said)
    assert said in world.good("doctor", "--facts-out", "facts.json").out
    assert said in world.run("doctor", "--target", "local").out
    assert said in world.run("plan", "--target", "local", "--stack", "torch-smoke").out
