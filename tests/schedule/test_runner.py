"""Programs run with the environment of a fresh login, and through a login host as if they ran here."""

from __future__ import annotations

import subprocess

import pytest

from envbuild.model.target import Connection, Login, Target
from envbuild.node.proc import Finished
from envbuild.schedule import cluster
from envbuild.schedule.cluster import Here


def test_what_a_shell_carries_does_not_reach_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECRET_TOKEN", "PYTHONPATH", "VIRTUAL_ENV", "SLURM_CONF", "https_proxy"):
        monkeypatch.setenv(name, "value")
    said = Here().run(["env"]).out
    assert "SLURM_CONF=value" in said
    assert "https_proxy=value" in said
    for name in ("SECRET_TOKEN", "PYTHONPATH", "VIRTUAL_ENV"):
        assert name not in said


@pytest.mark.parametrize("stdin", [None, b"", b"text\x00with\nall $(id)"])
def test_a_login_host_runs_argument_lists_and_gives_streams_and_exit_code_back(stdin: bytes | None) -> None:
    argv = ["sh", "-c", 'printf "[%s]" "$@"; cat; printf err >&2; exit 3', "x", "$(id)", "it's", "a\nb", ""]
    text = cluster._script(argv, stdin, "0" * 32)
    done = subprocess.run(["/bin/sh", "-s"], input=b"echo noise\n" + text.encode(), capture_output=True, check=False)
    found = cluster._finished(Finished(out=done.stdout.decode(), err=done.stderr.decode()), "0" * 32)
    assert found.rc == 3
    assert found.out == "[$(id)][it's][a\nb][]" + (stdin or b"").decode()
    assert found.err == "err"


def test_an_answer_that_was_cut_off_is_no_success() -> None:
    found = cluster._finished(Finished(out="\nbegin abc\nhalf", timed_out=True), "abc")
    assert (found.rc, found.timed_out, found.ok) == (None, True, False)


def test_jobs_are_submitted_on_the_login_host_of_the_target_or_here() -> None:
    given = {"name": "x", "prefix": "/p", "scheduler": {"kind": "slurm"}, "hosts": {"slurm": "hpc"}}
    here = Target.from_plain({**given, "connection": {"kind": "job"}})
    assert cluster.submit_host(here).host == "localhost"
    login = Login(host="scheduler", user="me", port=2222)
    there = here.model_copy(update={"connection": Connection(kind="job", login=login, identity="~/key")})
    assert cluster.submit_host(there).host == "scheduler"
    connection = cluster.login_connection(there)
    assert connection is not None
    assert (connection.kind, connection.user, connection.port, connection.identity) == ("ssh", "me", 2222, "~/key")
