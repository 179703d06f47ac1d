"""The tasks for hand use, without a node: which hosts `-H` and `--limit` choose."""

from __future__ import annotations

import io

import pytest
from fabric import Config, Connection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task
from paramiko import SSHConfig

from envbuild.fab import fabfile


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that tasks give to envbuild, which does nothing with them."""
    lines: list[list[str]] = []
    monkeypatch.setattr("envbuild.cli.entry.main", lambda argv: lines.append(argv) or 0)
    return lines


def _host(name: str) -> Connection:
    """What fab makes of `-H`, for a user whose ssh has another name for that host."""
    aliases = SSHConfig()
    aliases.parse(io.StringIO("Host gpu01\n  HostName 192.0.2.5\n"))
    return Connection(name, config=Config(ssh_config=aliases))


def test_a_host_is_chosen_by_the_name_that_was_given(called: list[list[str]]) -> None:
    fabfile.facts(_host("me@gpu01:2222"), target="./lab.yaml", exclude="gpu02")
    fabfile.facts(Context(), target="./lab.yaml", limit="gpu[01-04]", to="lab.json")
    assert called == [
        ["doctor", "--target", "./lab.yaml", "--limit", "gpu01", "--exclude", "gpu02", "--facts-out", "facts.json"],
        ["doctor", "--target", "./lab.yaml", "--limit", "gpu[01-04]", "--facts-out", "lab.json"],
    ]


@pytest.mark.parametrize("task", [fabfile.facts, fabfile.provision, fabfile.smoke, fabfile.logs, fabfile.pull_evidence])
@pytest.mark.parametrize("target", ["./lab.yaml", ""])
def test_hosts_and_limit_together_are_refused(called: list[list[str]], task: Task, target: str) -> None:
    with pytest.raises(Exit) as caught:
        task(_host("gpu01"), target=target, limit="gpu02")
    assert (caught.value.code, called) == (2, [])
    assert str(caught.value).startswith("error[fab-hosts-and-limit]: -H gpu01 and --limit gpu02 both choose hosts\n")
