"""How text and tables fit a narrow terminal, and stay as they are where there is none."""

from __future__ import annotations

import io
import os
import pty
import sys
from pathlib import Path
from typing import TextIO

import click
import pytest

from envbuild.cli.output import Ui, columns, comments_fitted, failures, fitted, print_error, text_width, write_json
from envbuild.cli.provision_cmd import show_evidence
from envbuild.errors import EnvbuildError
from envbuild.provision.run.run_dir import RunDir
from tests.report.samples import evidence, node


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def sixty(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


def test_a_line_breaks_between_words_and_goes_on_below_its_column(sixty: Terminal) -> None:
    plan = f"    install    {'word ' * 20}\n               because {'why ' * 20}"
    lines = fitted(plan, sixty).split("\n")
    assert max(map(len, lines)) <= 60 and len(lines) == 5
    assert [len(line) - len(line.lstrip()) for line in lines] == [4, 15, 15, 15, 17]
    assert "".join(lines).split() == plan.split()
    assert f"/{'x' * 80}" in fitted(f"the file /{'x' * 80} is there", sixty).split("\n")[1], "a long word stays whole"
    assert fitted("word " * 50, io.StringIO()) == "word " * 50, "a pipe gets the lines as they are"


def test_of_places_that_fail_alike_the_first_one_says_what_helps() -> None:
    errors = {name: EnvbuildError("node-unreachable", "gone", hint=f"try `ssh {name} true`") for name in ("a", "b")}
    lines = failures({"c": EnvbuildError("disk-full", "full", hint="free some"), **errors})
    gone = "error[node-unreachable]: gone"
    assert lines == [
        "c: error[disk-full]: full", "hint: free some", f"a: {gone}", f"b: {gone}", "hint: try `ssh a true`",
    ]  # fmt: skip


def test_of_a_script_only_comments_are_broken_and_stay_comments(sixty: Terminal) -> None:
    command = f"opt-baselines {'--flag value ' * 10}"
    first, *onward, last = comments_fitted(f"# opt-prefix: {'word ' * 30}\n{command}", sixty).split("\n")
    assert last == command and first.startswith("# opt-prefix: ") and len(onward) == 2
    assert all(line.startswith("#   word") and len(line) <= 60 for line in onward)


def test_the_colours_of_an_error_take_no_room_of_its_lines(sixty: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    error = EnvbuildError("image-no-builder", "word " * 20, why="word " * 20, hint="word " * 20)
    plain, coloured = Terminal(), Terminal()
    for no_color, stream in (("1", plain), ("", coloured)):
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setattr("sys.stderr", stream)
        print_error(error)
    assert click.unstyle(coloured.getvalue()) == plain.getvalue() != coloured.getvalue()
    assert coloured.getvalue().count(click.style("why:", fg="cyan")) == 1


def test_running_text_has_the_width_of_the_terminal_behind_a_pager_too(
    sixty: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stdout, stderr, wide in ((sixty, sixty, 60), (io.StringIO(), sixty, 60), (io.StringIO(), io.StringIO(), 100)):
        monkeypatch.setattr("sys.stdout", stdout)
        monkeypatch.setattr("sys.stderr", stderr)
        assert text_width() == wide


def test_a_table_puts_below_what_does_not_fit(sixty: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", sixty)
    row = ("in use", "1 process", "venv", "114e5f489618", "741 MB", "2026-11-23", "2026-11-23", "/a/path")
    told = columns([("STATE", "USED BY", "ENGINE", "ROOT", "SIZE", "STAMPED", "VERIFIED", "PATH"), row])
    assert told.splitlines()[2:] == [
        "in use  1 process  venv    114e5f489618  741 MB  2026-11-23", "    2026-11-23  /a/path",
    ]  # fmt: skip
    assert max(map(len, told.splitlines())) <= 60


def test_a_secret_of_several_words_is_masked_before_its_line_is_broken(
    sixty: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITE_PASSPHRASE", "correct horse battery staple")
    monkeypatch.setattr("sys.stdout", sixty)
    Ui().result({}, lambda: f"{'word ' * 9}correct horse battery staple {'word ' * 9}")
    assert "horse" not in sixty.getvalue() and "battery" not in sixty.getvalue()
    assert max(map(len, sixty.getvalue().splitlines())) <= 60


def test_the_error_of_a_summary_is_not_said_again_in_the_same_terminal_pipe_or_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = node(status="failed", exit=1, error={"code": "gone", "what": "w", "hint": "build it", "exit": 1})

    def shown(out: TextIO, err: TextIO) -> None:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        assert show_evidence(Ui(), evidence(failed, exit=1), RunDir(tmp_path)) == 1

    for err, times in ((Terminal(), 0), (io.StringIO(), 1)):
        shown(out := Terminal(), err)
        assert out.getvalue().count("error[gone]") == 1 and err.getvalue().count("error[gone]") == times
    for other, times in (("a", 1), ("b", 2)):
        with (tmp_path / "a").open("w") as file, (tmp_path / other).open("a") as also:
            shown(file, also)
        assert sum((tmp_path / name).read_text().count("error[gone]") for name in {"a", other}) == times


HOSTILE = "a\x9b31m\x9d0;pwn\x9c\x85\u202e\u2028\x1b[2J\ud800b"


def test_d71_what_a_terminal_or_a_page_shows_has_no_hidden_characters(capsys: pytest.CaptureFixture[str]) -> None:
    ui = Ui()
    ui.result({}, lambda: HOSTILE)
    ui.result({}, lambda: [(HOSTILE, "")])
    ui.note(HOSTILE)
    ui.warn(HOSTILE)
    print_error(EnvbuildError("a-code", HOSTILE, why=HOSTILE, hint=HOSTILE))
    write_json({HOSTILE: HOSTILE})
    shown = "".join(capsys.readouterr())
    assert set(HOSTILE) & set(shown) <= set("a31m0;pwn[2Jb")
    assert shown.count("pwn") == 9


def test_who_loses_its_terminal_goes_on_and_writes_nowhere() -> None:
    # Not `signal.pause`: the signal may come before it.
    code = (
        "import signal, sys, time; from envbuild.cli.output import drop_lost_terminal; lost = []; "
        "signal.signal(signal.SIGHUP, lambda *_: lost.append(drop_lost_terminal())); print('ready', flush=True)\n"
        "while not lost: time.sleep(0.01)\n"
        "print('on', flush=True); sys.exit(3)"
    )
    number, terminal = pty.fork()
    if number == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])
    assert os.read(terminal, 5) == b"ready"
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 3
