"""What comes with a folder, stack, target or prefix of somebody else runs nothing that the user has not allowed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.catalog.loader import load_target
from envbuild.config import find_project_file
from envbuild.errors import EnvbuildError
from envbuild.node import trust
from envbuild.node.probe.prefix import toolchain_names
from envbuild.provision.contact.payload import uv_tool
from envbuild.provision.survey import hosts
from tests.e2e.world import World
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.programs import executable

FACTS = ("doctor", "--facts-out", "facts.json")
VERBS = [
    ("plan", "./tiny.yaml"),
    FACTS,
    ("status", "--all"),
    ("env", "activate", "tiny"),
    ("verify", "--stack", "./tiny.yaml"),
    ("smoke", "--stack", "./tiny.yaml"),
    ("provision", "--stack", "./tiny.yaml"),
    ("store", "list"),
    ("bench", "megatron-alpa"),
]
SOMEBODY = 4242


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.tiny()
    return made


@pytest.fixture
def ran(world: World) -> Path:
    """A file that the commands of a hostile target make; `work` is the clone of its project."""
    canary = world.top / "ran"
    (world.work / ".git").mkdir()
    (world.work / "envbuild.toml").write_text('target = "evil.yaml"\n')
    hosts = f'{{command: [sh, -c, "id > {canary}; echo localhost"]}}'
    (world.work / "evil.yaml").write_text(f"name: evil\nextends: ssh\nhosts: {hosts}\nprefix: {world.prefix}\n")
    return canary


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `path` somebody else's: by its owner, or, where only root can do that, by who we are."""
    if os.geteuid() == 0:
        os.lchown(path, SOMEBODY, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)


def test_d63_a_command_of_a_clones_target_runs_for_no_verb_unasked_and_is_shown(world: World, ran: Path) -> None:
    for words in VERBS:
        done = world.refused(7, "target-untrusted", *words)
        assert "id > " in done.err
        assert "--trust" in done.err
        assert not ran.exists()
        assert not world.runs.exists()
    assert world.run("plan", "--stack", "./tiny.yaml", "--trust").code != "target-untrusted"
    assert ran.exists()
    ran.unlink()
    assert world.run(*FACTS).code == "target-untrusted", "an allowance is for one command"
    named = world.run(*FACTS, "--target", "./evil.yaml", "--node-timeout", "1s")
    assert ran.exists()
    assert "runs `sh -c" in named.err


def answer(world: World, text: bytes, *words: str) -> tuple[int, str]:
    """`envbuild WORDS` on a terminal on which `text` is typed; its exit code and what it showed."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "envbuild", *words]
    process = subprocess.Popen(command, env=world.env, cwd=world.work, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, text)
    shown = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(ours)
    return process.wait(60), shown.decode()


def test_d63_on_a_terminal_the_answer_is_asked_once_and_again_when_the_target_changes(world: World, ran: Path) -> None:
    rc, shown = answer(world, b"n\n", *FACTS, "--node-timeout", "5s")
    assert (rc, ran.exists()) == (7, False)
    assert "id > " in " ".join(shown.split())
    answer(world, b"y\n", *FACTS, "--node-timeout", "5s")
    assert ran.exists()
    ran.unlink()
    assert world.run(*FACTS, "--node-timeout", "5s").code != "target-untrusted", "the answer was remembered"
    assert ran.exists()
    ran.unlink()
    target = world.work / "evil.yaml"
    target.write_text(target.read_text().replace("id >", "id  >"))
    assert world.run(*FACTS).code == "target-untrusted"
    assert not ran.exists()


def test_d63_everything_of_a_target_that_runs_here_is_asked_for_and_one_that_runs_nothing_is_not(world: World) -> None:
    (world.work / "envbuild.toml").write_text('target = "t.yaml"\n')
    for text in (
        "extends: ssh\nconnection: {kind: ssh, config: ./ssh_config}\nhosts: [a]\n",
        "extends: local\ninterpreter: /home/u/clone/python\n",
        "extends: local\nbase_python: /home/u/clone/python\n",
        "extends: local\nenvironment: {LESSOPEN: '|touch canary'}\n",
        "extends: local\nengine: container\ncontainer: {options: ['--privileged']}\n",
        "extends: local\nengine: container\ncontainer: {mounts: ['/:/host']}\n",
    ):
        (world.work / "t.yaml").write_text(f"name: t\n{text}")
        world.refused(7, "target-untrusted", "plan", "./tiny.yaml")
    # D72: a configuration without end is refused before it is asked for.
    (world.work / "t.yaml").write_text("name: t\nextends: ssh\nhosts: [a]\nconnection: {kind: ssh, config: ./huge}\n")
    os.truncate(os.open(world.work / "huge", os.O_CREAT | os.O_WRONLY), 1 << 40)
    world.refused(2, "file-unreadable", "plan", "./tiny.yaml")
    (world.work / "t.yaml").write_text("name: t\nextends: local\nenvironment: {NCCL_DEBUG: WARN}\n")
    world.good("plan", "./tiny.yaml")


def test_d63_a_program_or_ssh_configuration_that_changes_is_asked_for_again(world: World) -> None:
    target, program, config = (world.work / name for name in ("t.yaml", "hosts.sh", "ssh_config"))
    target.write_text(
        f"name: t\nextends: ssh\nhosts: {{command: [./hosts.sh]}}\nconnection: {{kind: ssh, config: {config}}}\n"
    )
    digests = []
    for one, other in (("echo a", "Host a"), ("echo b", "Host a"), ("echo b", "Host b")):
        program.write_text(one)
        config.write_text(other)
        asked = hosts.trust_question(load_target(str(target)))
        assert asked is not None
        digests.append(asked.digest)
    assert len(set(digests)) == 3


@pytest.mark.parametrize("which", ["envbuild.toml", ".", ".git"])
def test_d63_a_project_of_another_user_is_refused(
    world: World, ran: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    below = world.work / "mine"
    below.mkdir()
    give_away(world.work / which, monkeypatch)
    with fails("project-foreign", 7):
        find_project_file(below)
    if os.geteuid() == 0:
        world.refused(7, "project-foreign", "plan", "--trust")
        assert not ran.exists()


@pytest.mark.parametrize(("which", "mode", "refused"), [
    (".", 0o777, True), (".", 0o1777, False), ("envbuild.toml", 0o666, True), ("envbuild.toml", 0o664, False),
])  # fmt: skip
def test_d63_a_project_that_every_user_can_change_is_refused(
    world: World, ran: Path, which: str, mode: int, refused: bool
) -> None:
    (world.work / which).chmod(mode)
    if refused:
        with pytest.raises(EnvbuildError, match="other users can change"):
            find_project_file(world.work)
    else:
        assert find_project_file(world.work) == world.work / "envbuild.toml"


def test_d63_under_sudo_the_caller_is_trusted_and_the_overflow_user_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", "1000")
    assert trust.ours() == {0, 1000}
    monkeypatch.setenv("SUDO_UID", str(trust.overflow_uid()))
    assert trust.ours() == {0}
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert trust.ours() == {0, 1000}


@pytest.fixture
def planted(world: World) -> Path:
    """A file that the uv makes which somebody has put where envbuild's own would be."""
    canary = world.top / "ran"
    executable(Path(uv_tool().path(str(world.prefix))), f"#!/bin/sh\nid > {canary}\n")
    executable(
        world.prefix / "tools" / "python-0123456789ab" / "python" / "bin" / "python3", f"#!/bin/sh\nid > {canary}\n"
    )
    return canary


def test_d65_a_planted_uv_is_compared_before_it_runs(world: World, planted: Path) -> None:
    shutil.rmtree(world.prefix / "tools" / "python-0123456789ab")  # by our own hand: it would be tried
    hint = world.fails(5, "toolchain-hash-mismatch").error["hint"]
    assert not planted.exists()
    subprocess.run(["sh", "-c", hint.partition("`")[2].partition("`")[0]], check=True)
    assert world.provision().rc == 0, "what the hint says helps"


@pytest.mark.parametrize("which", ["", "tools", "envs", "current", "tools/uv"])
def test_d65_a_prefix_of_another_user_runs_nothing(
    world: World, planted: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    for name in ("envs", "current"):
        (world.prefix / name).mkdir()
    folder = Path(uv_tool().path(str(world.prefix))).parent if which == "tools/uv" else world.prefix / which
    give_away(folder, monkeypatch)
    with fails("prefix-foreign", 7):
        trust.refuse_prefix(str(world.prefix))
    if os.geteuid() != 0:
        return
    for verb in ("plan", "provision"):
        done = world.run(verb, "--target", "local", "--stack", "./tiny.yaml", rc=7)
        assert "prefix-usable" in done.out + done.err
        assert f"belongs to user id {SOMEBODY}" in done.out + done.err
    for words in (("status", "--all"), ("env", "run", "tiny", "true"), ("verify", "--stack", "./tiny.yaml")):
        done = world.run(*words, "--target", "local")
        assert done.rc in (7, 8), done.err
        assert "prefix-foreign" in done.err + done.out
    assert not planted.exists()


def test_d65_a_link_out_of_the_prefix_is_refused_and_one_to_the_prefix_is_not(world: World) -> None:
    elsewhere, link = world.top / "elsewhere", world.top / "link"
    elsewhere.mkdir()
    (world.prefix / "envs").mkdir(parents=True)
    link.symlink_to(world.prefix)
    for name in ("envs/x", "envs", "tools", "current"):
        if (world.prefix / name).is_dir():
            (world.prefix / name).rmdir()
        (world.prefix / name).symlink_to(elsewhere)
        done = world.run("plan", "--target", "local", "--stack", "./tiny.yaml", rc=7)
        assert "prefix-usable" in done.out
        assert "is a link out of the prefix" in done.out
        (world.prefix / name).unlink()
        assert trust.prefix_problem(str(link)) == ""


def test_d65_the_node_program_of_a_prefix_counts_by_its_bytes(world: World) -> None:
    folder = world.prefix / "tools" / "envbuild-node-0123456789ab"
    write_file(folder / "envbuild-node.pyz", "import os")
    assert toolchain_names(str(world.prefix)) == []


def test_d69_a_stack_sets_other_variables_only_when_it_is_trusted_with_them(world: World) -> None:
    place = ("--target", "local", "--stack", "./tiny.yaml")
    for name in ("LESSOPEN", "HTTPS_PROXY", "CUDA_INJECTION64_PATH", "NCCL_NET_PLUGIN", "MAKEFLAGS"):
        world.tiny(environment={name: "|touch canary"})
        for verb in ("plan", "provision"):
            assert name in world.refused(7, "variable-refused", verb, *place).err
        assert not world.prefix.exists()
        world.good("plan", *place, "--trust-environment")


def test_d68_a_stack_holds_no_secret(world: World) -> None:
    for name, value in (("HF_TOKEN", "c4nary-value"), ("HF_NOTE", "https://me:c4nary-value@example.org")):
        stack = world.stack("leaky", environment={name: value})
        done = world.refused(2, "manifest-invalid", "lock", "create", f"./{stack.name}")
        assert "a secret, and everybody reads" in " ".join(done.err.split())
        assert "c4nary" not in done.err


@pytest.mark.parametrize("says", ["prefix = '{work}/p'\n", "target = 'mine.yaml'\n"])
def test_d63_programs_of_a_prefix_that_came_with_the_folder_run_for_nobody_unasked(world: World, says: str) -> None:
    canary, python = world.top / "ran", world.work / "p" / "tools" / "python-0123456789ab" / "bin" / "python3"
    executable(python, f"#!/bin/sh\nid > {canary}\n")
    (world.work / "mine.yaml").write_text(f"name: mine\nextends: local\nprefix: {world.work}/p\n")
    (world.work / "envbuild.toml").write_text(says.format(work=world.work))
    del world.env["ENVBUILD_PREFIX"]
    done = world.refused(7, "target-untrusted", "plan", "./tiny.yaml")
    assert f"runs the programs that lie in {world.work}/p" in done.err
    assert not canary.exists()
    world.run("plan", "--stack", "./tiny.yaml", "--trust")
    assert canary.exists(), "that is what would have run"
