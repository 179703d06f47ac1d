"""What the outermost boundary says of an error that nobody foresaw."""

from __future__ import annotations

import getpass
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli import run as boundary
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.provision.contact import first_contact
from envbuild.provision.run.context import Settings, one_run
from envbuild.provision.run.run_dir import list_runs
from tests.e2e.world import World
from tests.provision.ansible.test_play import unseen
from tests.support.programs import completed

SECRET = "correct-horse-battery"
FACTS = ("doctor", "--facts-out", "facts.json")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert boundary.run(["verify", *words]) == 70
    return capsys.readouterr().err


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command is a run that ends with a mistake of ours."""

    def main(**_: Any) -> None:
        with one_run("verify", Settings(tmp_path), unseen):
            raise ZeroDivisionError(f"with {SECRET}")

    monkeypatch.setenv("MY_PASSWORD", SECRET)
    monkeypatch.setattr(boundary.cli, "main", main)


@pytest.mark.usefixtures("failing")
def test_the_traceback_of_an_internal_error_is_in_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys)
    (run,) = list_runs(tmp_path)
    (kept,) = run.path.glob("traceback-*.txt")
    assert f"hint: report its traceback: {kept}" in said and "Traceback" not in said
    text = kept.read_text()
    assert text.startswith("Traceback (most recent call last):") and "in main\n    raise ZeroDivisionError" in text
    assert SECRET not in text + said and "ZeroDivisionError: with ***" in text
    assert kept.stat().st_mode & 0o777 == 0o600
    assert run.journal.events[-1].data["error"]["hint"] == f"report its traceback: {kept}"
    assert "Traceback (most recent call last):" in told(capsys, "-v")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("envbuild.node.paths.write_whole", full)
    assert "hint: run again with -v" in told(capsys), "a traceback that cannot be kept is no other error"


@pytest.mark.parametrize(
    ("redirection", "exit_code", "says"),
    [
        ("2>&-", 0, "opt-175b"),
        ("<&- >&- 2>&-", 0, ""),
        (">/dev/full", 75, "disk-full"),
        (">/dev/full 2>&1", 75, ""),
        ("--json no-such-stack >/dev/full", 2, "error[usage]"),
    ],
)
def test_d76_streams_that_are_closed_or_full_change_no_exit_code_and_show_no_traceback(
    world: World, redirection: str, exit_code: int, says: str
) -> None:
    line = f"{shlex.quote(sys.executable)} -m envbuild stack show opt-175b {redirection}"
    done = completed(["sh", "-c", line], env=world.env, cwd=world.work)
    assert (done.returncode, "Traceback" in done.stderr) == (exit_code, False), done.stderr
    assert says in done.stdout + done.stderr


def test_d72_a_current_folder_that_is_gone_is_a_coded_error(world: World) -> None:
    line = f"mkdir gone && cd gone && rmdir ../gone && {shlex.quote(sys.executable)} -m envbuild stack list"
    done = completed(["sh", "-c", line], env=world.env, cwd=world.work)
    assert done.returncode == 2
    assert "error[file-unreadable]: the current folder is not there any more" in done.stderr


def test_outside_of_a_run_it_is_said_how_to_get_one_and_a_note_of_somebody_else_is_no_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(**_: Any) -> None:
        error = TypeError("not serializable")
        error.add_note("when serializing dict item 'a'")
        raise error

    monkeypatch.setattr(boundary.cli, "main", main)
    said = told(capsys)
    assert "hint: run again with -v and report the traceback" in said and "Traceback" not in said


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A target whose node cannot be asked, for a mistake of ours; its runs are in a folder of their own."""

    def run_node(*_: Any) -> None:
        raise ZeroDivisionError(f"with {SECRET}")

    monkeypatch.setenv("MY_PASSWORD", SECRET)
    monkeypatch.setenv("ENVBUILD_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(first_contact, "run_node", run_node)
    return "--target", "local", "--prefix", str(tmp_path / "p")


def test_of_a_node_too_the_traceback_is_in_the_folder_of_the_run(
    local: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, *local)
    (run,) = list_runs(tmp_path / "runs")
    (kept,) = run.path.glob("traceback-*.txt")
    assert "error[internal]: localhost was not contacted\nwhy: a bug in envbuild: Zero" in said
    assert f"hint: report its traceback: {kept}" in said and "Traceback" not in said
    assert "in run_node\n    raise ZeroDivisionError" in kept.read_text() and SECRET not in said + kept.read_text()


@pytest.mark.parametrize("verb", [FACTS, ("doctor",), ("status",), ("env", "activate"), ("store", "list")])
def test_of_a_node_that_no_run_asks_debug_shows_it(
    local: tuple[str, ...], verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert boundary.run([*verb, *local]) == 70
    said = capsys.readouterr()
    assert "[internal]: localhost was not contacted" in said.out + said.err and "Traceback" not in said.out + said.err
    assert boundary.run([*verb, *local, "--verbose"]) == 70
    said = capsys.readouterr()
    assert said.err.count("Traceback (most recent call last):") == 1 and "in run_node\n" in said.err
    assert SECRET not in said.out + said.err


@pytest.mark.parametrize("verb", [FACTS, ("status", "--all"), ("store", "list"), ("store", "clean")])
def test_a_table_says_what_helps_where_a_node_could_not_be_asked(
    local: tuple[str, ...], verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_node(node: str, *_: Any, **__: Any) -> Any:
        raise EnvbuildError("node-unreachable", f"no {node}", hint="start it", exit_code=ExitCode.UNREACHABLE)

    monkeypatch.setattr(first_contact, "run_node", run_node)
    assert boundary.run([*verb, *local]) == 3
    said = capsys.readouterr()
    assert (said.out + said.err).count("hint: start it") == 1 and "no environments" not in said.out


def test_a_prefix_without_environments_says_how_one_is_built(world: World) -> None:
    done = world.good("status", "--all")
    assert done.out == "no environments\n"
    assert done.err.startswith("hint: `envbuild provision STACK` builds one")
    absent = world.run("env", "activate", "torch-smoke", "--target", "local")
    assert "hint: build it: envbuild provision torch-smoke --target local; " in absent.err


def test_a_launch_for_a_job_says_whose_name_its_paths_have(world: World) -> None:
    made = world.good("launch", "opt-175b", "--target", "azure-nd96", "--prefix", "/shared/{user}")
    assert (
        "for a machine of the cluster, not for this one; as a job of envbuild: " in made.out
        and f"; {{user}} is {getpass.getuser()}, of this machine: " in made.out
    )
    own = world.top / "own.yaml"
    own.write_text("name: own\nextends: slurm\nhosts: {slurm: gpu}\nexpects: {gpus_per_node: 8}\n")
    assert "{user} is" not in world.good("launch", "opt-175b", "--target", str(own), "--prefix", "/shared").out
    elsewhere = world.run("status", "--all", "--target", str(own), "--prefix", str(world.top / "no"))
    assert f"warning: this machine has no {world.top}/no; if this is not the login node, name it" in elsewhere.err
    assert " --time-limit 2h --submit`" in world.good("launch", "opt-175b", "--target", str(own)).out


@pytest.mark.parametrize(
    ("place", "words", "says"),
    [
        ("click.termui.visible_prompt_func", ["init", "new.yaml"], "asks again"),
        ("envbuild.cli.doctor_cmd.diagnose", ["doctor"], "continues where this one stopped"),
    ],
)
def test_an_interrupt_at_a_question_is_no_work_to_continue(
    place: str, words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupted)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert boundary.run(words) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err.endswith(f"\ninterrupted; the same command {says}\n")
