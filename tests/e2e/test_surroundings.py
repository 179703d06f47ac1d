"""Odd but legal surroundings: a strange path behind a link, a bare environment, another locale, a read-only folder."""

from __future__ import annotations

import pytest

from tests.e2e.world import World, drift
from tests.support.programs import completed


def test_a_prefix_with_a_strange_name_behind_a_link(world: World) -> None:
    world.tiny(environment={"HF_GREETING": "hi"})
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


def test_a_prefix_with_template_marks_is_refused(world: World) -> None:
    world.tiny()
    done = world.provision("--prefix", str(world.top / "{{ lookup('pipe', 'id') }}"))
    assert done.rc == 2
    assert done.code not in ("", "internal", "usage")
    assert list(world.top.glob("*lookup*")) == []


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
