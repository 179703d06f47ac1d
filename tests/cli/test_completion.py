"""The tab key: names of what is there, for each shell, without importing what would be waited for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from envbuild.catalog.loader import list_stacks, list_targets, load_stack
from envbuild.cli.verbs import COMMANDS
from tests.e2e.world import World
from tests.support.need import need
from tests.support.programs import completed, executable


def offered(world: World, line: str) -> list[str]:
    """What bash is offered after `line`, whose last word is begun."""
    words = line.split(" ")
    env = {"_ENVBUILD_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = world.good(env=env)
    assert done.err == ""
    return [name for _, _, name in (each.partition(",") for each in done.out.splitlines())]


def test_verbs_stacks_targets_profiles_and_patches_are_offered(world: World) -> None:
    assert offered(world, "envbuild ") == list(COMMANDS)
    assert offered(world, "envbuild stack show ") == list(list_stacks())
    assert offered(world, "envbuild provision --target ") == list(list_targets())
    assert offered(world, "envbuild provision opt-") == ["opt-175b"]
    profiles = list(load_stack("megatron-alpa").stack.profiles)
    assert offered(world, "envbuild plan megatron-alpa --profile ") == profiles
    assert offered(world, "envbuild plan --profile ") == list(load_stack("torch-smoke").stack.profiles)
    assert offered(world, "envbuild patch apply alcf-hos") == ["alcf-hosfile"]
    assert offered(world, "envbuild plan --facts azure") == ["azure-nd96"]
    assert "--target" in offered(world, "envbuild plan --t")


def test_files_of_a_user_are_offered_with_their_profiles_and_hosts(world: World) -> None:
    (world.work / "mine.yaml").write_text("name: mine\nprofiles:\n    one:\n        python: []\n    two: {}\nlast: 1\n")
    (world.work / "lab.yml").write_text('extends: ssh\nstack: ./mine.yaml\nhosts: ["gpu[08-10]", n1]  # four\n')
    (world.work / "row.yaml").write_text("hosts:\n  - b1\n  - b2\nprefix: /p\n")
    assert offered(world, "envbuild provision mi") == ["mine.yaml"]
    assert offered(world, "envbuild provision ./mine.yaml --profile ") == ["one", "two"]
    assert offered(world, "envbuild provision --target ./lab.yml --profile ") == ["one", "two"]
    assert offered(world, "envbuild verify -t ./lab.yml --limit ") == ["gpu08", "gpu09", "gpu10", "n1"]
    assert offered(world, "envbuild verify -t row.yaml --exclude ") == ["b1", "b2"]
    assert offered(world, "envbuild verify -t ./la") == ["./la"], "the shell's own files"


def test_runs_and_environments_are_offered_and_a_broken_file_writes_nothing(world: World) -> None:
    for name in ("20260101T000000Z-aaaa", "20260102T000000Z-bbbb"):
        (world.runs / name).mkdir(parents=True)
    one = "tiny-exact-000000000001"
    (world.runs / "durations.json").write_text("{}")
    for name in (one, f"{one}.2", f"{one}.trash-5", f"{one}.old-x", "tiny-`id`-000000000000", "notes"):
        (world.prefix / "envs" / name).mkdir(parents=True)
    (world.prefix / "current").mkdir()
    for name in ("tiny", "tiny$(touch pwned)"):
        (world.prefix / "current" / name).symlink_to(f"../envs/{one}")
    assert offered(world, "envbuild run show ") == ["last", "20260102T000000Z-bbbb", "20260101T000000Z-aaaa"]
    assert offered(world, "envbuild env use ") == [one, f"{one}.2"]
    assert offered(world, "envbuild env activate ") == ["tiny"]
    (world.work / "envbuild.toml").write_text("not toml")
    env = {"_ENVBUILD_COMPLETE": "bash_complete", "COMP_WORDS": "envbuild run show ", "COMP_CWORD": "3"}
    done = world.run(env=env)
    assert (done.rc, done.out, done.err) == (1, "", "")


def test_zsh_is_answered_in_its_own_form(world: World) -> None:
    env = {"_ENVBUILD_COMPLETE": "zsh_complete", "COMP_WORDS": "envbuild stack show op", "COMP_CWORD": "3"}
    assert world.good(env=env).out == "plain\nopt-175b\n_\n"
    assert "_ENVBUILD_COMPLETE" in world.good("completion", "zsh").out


ASK = {
    "bash": 'COMP_WORDS=(envbuild stack show o); COMP_CWORD=3; _envbuild_completion envbuild; echo "${COMPREPLY[@]}"',
    "fish": 'complete -C "envbuild stack show o"',
}


@pytest.mark.parametrize("shell", ASK)
def test_a_shell_with_the_script_offers_a_name_at_its_tab_key(world: World, shell: str, tmp_path: Path) -> None:
    need(shell)
    script = world.good("completion", shell).out
    executable(tmp_path / "bin" / "envbuild", f'#!/bin/sh\nexec {sys.executable} -m envbuild "$@"\n')
    env = {**world.env, "PATH": f"{tmp_path}/bin{os.pathsep}{world.env['PATH']}"}
    typed = f"{script}\n{ASK[shell]}\n"
    done = completed([shell], input=typed, env=env, cwd=world.work)
    assert done.stdout.split() == ["opt-175b"], done.stderr
