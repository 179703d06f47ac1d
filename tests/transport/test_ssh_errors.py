"""What `ssh` says, as errors with a next step; tests/transport/test_ssh.py hears it from real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.model.target import Connection
from envbuild.transport.ssh_errors import login_error


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("scheduler", "ssh: Could not resolve hostname scheduler: Name or service not known"),
        (
            "jump.example.org",
            "ssh: Could not resolve hostname jump.example.org: Temporary failure in name resolution\r\n"
            "Connection closed by UNKNOWN port 65535",
        ),
    ],
)
def test_a_name_without_an_address_is_told_with_where_to_give_it_one(name: str, words: str) -> None:
    error = login_error("scheduler", Connection(kind="ssh"), words)
    assert error.code == "node-unreachable"
    assert f"`Host {name}` with `HostName` in ~/.ssh/config" in (error.hint or "")
    assert "; then try `ssh scheduler true`; " in (error.hint or "")


def test_w1_on_a_login_node_the_hint_begins_with_what_a_target_says_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = "ssh: Could not resolve hostname scheduler: no such name"
    error = login_error("scheduler", Connection(kind="ssh", login={"host": "scheduler"}), words)
    assert (error.hint or "").startswith("on the login node itself, write `connection: {login: null}`")
    assert "login: null" not in (login_error("scheduler", Connection(kind="ssh"), words).hint or "")


@pytest.mark.parametrize(
    ("reason", "check"),
    [
        ("connect to host n1 port 22: Connection refused", "check that sshd runs there"),
        ("connect to host n1 port 22: Connection timed out", "check the address, your VPN and firewalls"),
        ("connect to host n1 port 22: No route to host", "check the address, your VPN and firewalls"),
        ("kex_exchange_identification: Connection closed by remote host", "check the limits of the server"),
        ("no reason that is known", "try `ssh"),
    ],
)
def test_a_host_that_does_not_answer_is_told_with_what_to_check_and_how_to_plan_without_it(
    reason: str, check: str
) -> None:
    hint = login_error("n1", Connection(kind="ssh"), f"ssh: {reason}").hint or ""
    assert hint.startswith(check) and "try `ssh n1 true`" in hint
    assert hint.endswith("`envbuild plan --facts FILE|NAME` contacts no host")


def test_the_trial_by_hand_has_the_address_user_port_and_key_of_the_target() -> None:
    node = {"n1": {"address": "10.0.0.1", "port": 2299}}
    given = Connection(kind="ssh", user="bob", identity="/my key", hosts=node)
    error = login_error("n1", given, "ssh: connect to host 10.0.0.1 port 2299: Connection timed out")
    assert "try `ssh -p 2299 -l bob -i '/my key' 10.0.0.1 true`" in (error.hint or "")
