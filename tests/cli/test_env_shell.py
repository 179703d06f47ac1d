"""Inside an environment of this machine: one command, a shell, a Jupyter kernel, code for the shell that calls."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import sys
import time
from pathlib import Path

import pytest

from envbuild.cli.env_cmd import add_kernel
from tests.e2e.world import World, drift
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.need import need

SAYS = "import os, sys; print(os.environ['ENVBUILD_STACK'], sys.argv[1:], os.environ.get('HF_MINE')); sys.exit(3)"
# As ipykernel does it: `install` writes a kernel for the user and says where.
KERNEL = """
import json, os, sys
words = sys.argv[1:]
told = {words[i + 1]: words[i + 2] for i, word in enumerate(words) if word == "--env"}
folder = os.path.join(os.environ["HOME"], "kernels", words[words.index("--name") + 1])
os.makedirs(folder)
with open(os.path.join(folder, "kernel.json"), "w") as out:
    json.dump({"argv": [sys.executable], "env": told}, out)
print("Installed kernelspec %s in %s" % (os.path.basename(folder), folder))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world with an environment in use that has an ipykernel, and one variable; no test changes it."""
    world = World(tmp_path_factory.mktemp("world"))
    world.wheel("ipykernel", "7.0", files={"ipykernel/__init__.py": "", "ipykernel/__main__.py": KERNEL})
    world.wheel()
    world.stack(packages=("alpha==1.0", "ipykernel==7.0"), environment={"HF_MINE": "it's $x"})
    world.lock(world.work / "tiny.yaml")
    world.built()
    return world


@pytest.mark.slow
def test_d96_exec_is_the_command_itself_with_the_variables_of_the_stack(built: World) -> None:
    done = built.run("env", "run", "tiny", "--", "python", "-c", SAYS, "-q", "--json", fresh=True)
    assert (done.rc, done.out) == (3, "tiny ['-q', '--json'] it's $x\n"), done.err
    same = built.run("env", "run", "tiny", "python", "-c", SAYS, fresh=True)
    assert (same.rc, same.out) == (3, "tiny [] it's $x\n")
    killed = built.run("env", "run", "tiny", "--", "sh", "-c", "kill -TERM $$", fresh=True)
    assert killed.rc == -15, "the process is the command, so its signal is seen"
    other = built.run("env", "run", "other", "--", "true")
    assert other.code == "environment-unknown"
    assert "envbuild provision FILE" in other.err and "in use: tiny" in other.err, "no stack of that name is shipped"
    (built.work / "other.yaml").write_text("")
    assert "envbuild provision ./other.yaml" in built.run("env", "run", "other", "--", "true").err
    (built.work / "other.yaml").unlink()
    assert drift(built) == (0, {})


def test_env_list_tells_what_runs_from_an_environment_and_when_it_was_read(built: World) -> None:
    assert built.good("status", "--all", "--json").json["environments"][0]["processes"] == []
    assert drift(built) == (0, {})
    process = built.start("env", "run", "tiny", "--", "sleep", "600")
    try:
        deadline = time.monotonic() + 100
        while True:
            (row,) = built.good("status", "--all", "--json").json["environments"]
            if row["processes"] or time.monotonic() > deadline:
                break
        assert row["processes"] == [str(process.pid)]
        assert row["read"] >= row["stamp"]["stamped_at"] and row["differed"] == 0
        assert "1 process" in built.good("status", "--all").out
    finally:
        process.kill()
        process.communicate()


def test_a_kernel_is_registered_for_the_environment_in_use_and_changes_nothing_in_it(built: World) -> None:
    told = built.good("env", "kernel", "tiny", "--json").json
    spec = json.loads((Path(told["kernel"]) / "kernel.json").read_text())
    place = str(built.prefix / "current" / "tiny")
    assert spec["argv"] == [f"{place}/bin/python"]
    assert spec["env"] | {"HF_MINE": "it's $x", "VIRTUAL_ENV": place, "PATH": f"{place}/bin:${{PATH}}"} == spec["env"]
    assert drift(built) == (0, {})


def test_a_stack_without_ipykernel_says_how_to_add_it(tmp_path: Path) -> None:
    write_file(tmp_path / ".envbuild" / "variables.json", "{}")
    with fails("kernel-missing", 1, match="no ipykernel") as caught:
        add_kernel(sys.executable, str(tmp_path), "tiny")
    assert "`packages` of the stack" in caught.value.hint


def test_variables_that_are_half_written_are_said_and_no_mistake_of_envbuild(tmp_path: Path) -> None:
    (tmp_path / "tiny-exact-0123" / ".envbuild").mkdir(parents=True)
    (tmp_path / "tiny-exact-0123" / ".envbuild" / "variables.json").touch()
    (tmp_path / "tiny").symlink_to("tiny-exact-0123")
    with fails("variables-unreadable", 1) as caught:
        add_kernel(sys.executable, str(tmp_path / "tiny"), "tiny")
    assert "`envbuild env use tiny-exact-0123`" in caught.value.hint


def typed(world: World, shell: str, text: str, until: str) -> str:
    """What a terminal shows of `env run STACK` when `text` is typed, as soon as it holds `until`."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(world.work)
        os.execve(
            sys.executable,
            [sys.executable, "-m", "envbuild", "env", "run", "tiny"],
            {**world.env, "SHELL": shutil.which(shell) or "", "TERM": "dumb"},
        )
    shown, deadline = "", time.monotonic() + 100
    os.write(terminal, text.encode())
    while until not in shown and time.monotonic() < deadline:
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                shown += os.read(terminal, 4096).decode(errors="replace")
            except OSError:
                break  # the shell has ended
    os.close(terminal)
    os.waitpid(pid, 0)
    return shown


@pytest.mark.parametrize("shell", ["bash", "fish", "dash"])
def test_a_shell_has_the_environment_after_the_users_own_start_up_files(built: World, shell: str) -> None:
    need(shell)
    (built.home / ".bashrc").write_text("export PATH=/usr/bin:/bin OWN=mine; PS1='> '\n")
    built.env["OWN"] = "mine"  # for the others, whose start-up files may change what is set
    wanted = f"<mine it's $x {built.current}/bin:"
    shown = typed(built, shell, 'printf "<%s %s %s>\\n" "$OWN" "$HF_MINE" "$PATH"\nexit\n', wanted)
    assert wanted in shown
    assert shell != "bash" or "(tiny) > " in shown


def test_d99_an_environment_that_failed_can_be_entered(world: World) -> None:
    world.tiny(imports=["nowhere"])
    assert world.run("env", "run", "--failed", "tiny", "--", "true").code == "environment-unknown"
    assert world.provision().rc != 0
    said = world.run("env", "run", "--failed", "tiny", "--", "python", "-c", "import alpha, sys; print(sys.prefix)")
    assert said.rc == 0, said.err
    assert said.out.startswith(str(world.prefix / "envs" / "tiny-"))
    assert "half built" in said.err
