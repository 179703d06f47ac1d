"""The tasks for hand use, without a node: which hosts `-H` and `--limit` choose."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from fabric import Config, Connection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task
from paramiko import SSHConfig

from envbuild.fab import fabfile
from tests.support.programs import completed

NAMES = ("facts", "provision", "smoke", "logs", "clean", "pull_evidence")


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


def test_a_host_is_chosen_by_the_name_that_was_given_and_clean_removes_when_it_is_told_to(
    called: list[list[str]],
) -> None:
    fabfile.facts(_host("me@gpu01:2222"), target="./lab.yaml", exclude="gpu02")
    fabfile.facts(Context(), target="./lab.yaml", limit="gpu[01-04]", to="lab.json")
    assert called == [
        ["doctor", "--target", "./lab.yaml", "--limit", "gpu01", "--exclude", "gpu02", "--facts-out", "facts.json"],
        ["doctor", "--target", "./lab.yaml", "--limit", "gpu[01-04]", "--facts-out", "lab.json"],
    ]
    called.clear()
    fabfile.clean(_host("gpu01"), target="./lab.yaml")
    fabfile.clean(Context(), target="./lab.yaml", keep="12h", yes=True)
    place = ["store", "clean", "--target", "./lab.yaml"]
    assert called == [[*place, "--limit", "gpu01", "--keep", "30d"], [*place, "--keep", "12h", "--yes"]]


def test_d88_fab_finds_the_tasks_in_a_checkout() -> None:
    fab = str(Path(sys.executable).with_name("fab"))
    done = completed([fab, "--list"], cwd=Path(__file__).parents[2], check=True)
    assert all(f"  {name} " in done.stdout for name in ("facts", "logs", "clean", "pull-evidence", "provision"))


@pytest.mark.parametrize(
    "task", [fabfile.facts, fabfile.provision, fabfile.smoke, fabfile.logs, fabfile.clean, fabfile.pull_evidence]
)
@pytest.mark.parametrize("target", ["./lab.yaml", ""])
def test_hosts_and_limit_together_are_refused(called: list[list[str]], task: Task, target: str) -> None:
    with pytest.raises(Exit) as caught:
        task(_host("gpu01"), target=target, limit="gpu02")
    assert (caught.value.code, called) == (2, [])
    assert str(caught.value).startswith("error[fab-hosts-and-limit]: -H gpu01 and --limit gpu02 both choose hosts\n")
