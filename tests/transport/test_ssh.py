"""Contact over SSH with real servers: host keys, noisy and strange shells, broken nodes, jump hosts."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError
from envbuild.model.target import Connection
from envbuild.provision.contact import first_contact
from envbuild.transport import ssh, ssh_config
from envbuild.transport.ssh_errors import login_error
from tests.support.need import need
from tests.support.patience import PATIENCE, with_deadline
from tests.transport.sshd import Server, StartServer, configured, make_key, request, require_sshd, servers, user


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh HOME with one key; returns the private key's path."""
    require_sshd()
    home = tmp_path / "controller"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return make_key(home / ".ssh/id_test")


@pytest.fixture
def start(tmp_path: Path, client: Path) -> Iterator[StartServer]:
    yield from servers(tmp_path, client)


def options(client: Path, server: Server, known: str | None, **more: Any) -> Connection:
    if known is not None:
        (client.parent / "known").write_text(known)
        more["known_hosts"] = str(client.parent / "known")
    return Connection(kind="ssh", user=user(), port=server.port, identity=str(client), connect_timeout=60.0, **more)


def error_of(server: Server, connection: Connection, deadline: float = PATIENCE) -> EnvbuildError:
    found = first_contact.contact({server.address: request(server.address)}, connection, deadline)[server.address].error
    assert found is not None
    assert found.exit_code == 3
    assert found.details["node"] == server.address
    return found


def test_probe_over_ssh_beside_start_up_files_that_print(start: StartServer, client: Path) -> None:
    server = start()
    files = {".bashrc", ".profile", ".zshrc", ".cshrc"}
    for name in files:
        (server.home / name).write_text("echo 'Welcome! python=/evil'\necho noise >&2\n")
    found = first_contact.run_node(server.address, request("n1"), options(client, server, server.known))
    assert found.result()["node"] == "n1"
    assert found.result()["prefix"]["path"] == f"{server.home}/envbuild"
    assert found.findings["prefix"] == f"{server.home}/envbuild"
    assert found.python != "/evil"
    assert {path.name for path in server.home.iterdir()} == files


def test_a_host_is_logged_in_on_once_for_all_questions_of_the_same_options(start: StartServer, client: Path) -> None:
    server = start()
    connection = options(client, server, server.known)
    elsewhere = connection.model_copy(update={"known_hosts": str(client.parent / "nowhere")})
    assert error_of(server, elsewhere).code == "ssh-config-missing"
    assert error_of(server, connection.model_copy(update={"user": "nobody-here"})).code == "ssh-auth-failed"
    for _ in range(3):
        found = first_contact.contact({server.address: request(server.address)}, connection)[server.address]
        assert found.result()["node"] == server.address
    assert (server.root / "log").read_text().count("Accepted publickey") == 1
    ssh_config.close()
    server.stop()
    assert error_of(server, connection).code == "node-unreachable"


def test_forced_noise_before_and_after(start: StartServer, client: Path) -> None:
    server = start(
        force="echo '===envbuild begin ==='; printf 'no newline'; /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"; echo bye"
    )
    assert first_contact.run_node(server.address, request("n1"), options(client, server, server.known)).result()


@pytest.mark.parametrize("shell", ["csh", "tcsh", "fish"])
def test_login_shell_that_is_not_posix(shell: str, start: StartServer, client: Path) -> None:
    need(shell)
    server = start(force=f'{shell} -c "$SSH_ORIGINAL_COMMAND"')
    assert first_contact.run_node(server.address, request("n1"), options(client, server, server.known)).result()


def test_unknown_host_key_is_refused_with_fingerprint_and_what_to_do(start: StartServer, client: Path) -> None:
    server = start()
    error = error_of(server, options(client, server, ""))
    assert error.code == "host-key-unknown"
    assert error.details["fingerprint"].startswith("SHA256:")
    assert error.details["fingerprint"] in error.why
    known = client.parent / "known"
    assert f"ssh -o UserKnownHostsFile={known} -p {server.port} {server.address} true" in error.hint
    assert (client.parent / "known").read_text() == ""


def test_changed_host_key_is_refused(start: StartServer, client: Path) -> None:
    server = start()
    other = make_key(client.parent / "other").with_suffix(".pub").read_text().split()
    error = error_of(server, options(client, server, f"[{server.address}]:{server.port} {other[0]} {other[1]}\n"))
    assert error.code == "host-key-changed"
    assert f"ssh-keygen -R '[{server.address}]:{server.port}'" in error.hint


def test_known_hosts_of_the_configuration_is_used_when_none_is_given(start: StartServer, client: Path) -> None:
    server = start()
    (client.parent / "known_hosts").touch()
    connection = configured(client, f"Host {server.address}\n Port {server.port}\n")
    assert error_of(server, connection).code == "host-key-unknown"
    (client.parent / "known_hosts").write_text(server.known)
    assert first_contact.run_node(server.address, request("n1"), connection).result()


@pytest.mark.slow
def test_broken_nodes_do_not_hold_up_good_ones(
    start: StartServer, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_contact, "OUTPUT_LIMIT", 3_000_000)
    good = start("127.0.0.2")
    flood = start("127.0.0.3", force="yes this never ends")
    asleep = start("127.0.0.4", force="sleep 600")
    garbage = start("127.0.0.5", force="head -c 20000 /dev/urandom")
    servers = [good, flood, asleep, garbage]
    (client.parent / "known_hosts").write_text("".join(server.known for server in servers))
    text = "".join(
        f"Host n{number}\n HostName {server.address}\n Port {server.port}\n" for number, server in enumerate(servers)
    )
    connection = configured(client, text)
    names = [f"n{number}" for number in range(4)]

    def codes(deadline: float) -> list[str]:
        found = first_contact.contact({name: request(name) for name in names}, connection, deadline)
        return [each.error.code if each.error is not None else each.result()["node"] for each in found.values()]

    wanted = ["n0", "contact-failed", "contact-failed", "contact-failed"]
    assert with_deadline(codes, 3, lambda found: found == wanted)[1] == wanted


def test_node_name_that_is_none_is_an_error_of_that_node(client: Path) -> None:
    names = ["a" * 70 + ".invalid", "host:notaport", "unknown.invalid"]
    found = first_contact.contact({name: request(name) for name in names}, Connection(kind="ssh", connect_timeout=3.0))
    assert {each.error.code for each in found.values() if each.error is not None} == {"node-unreachable"}
    assert list(found) == names


def test_host_key_of_every_hop_of_the_users_configuration_is_verified(start: StartServer, client: Path) -> None:
    server, jump = start("127.0.0.2"), start("127.0.0.3")
    text = f"Host inside\n HostName {server.address}\n Port {server.port}\n ProxyJump gate\n"
    connection = configured(client, f"{text}Host gate\n HostName {jump.address}\n Port {jump.port}\n")
    for known, unknown in ((server.known, jump), (jump.known, server)):
        (client.parent / "known_hosts").write_text(known)
        error = first_contact.contact({"inside": request("inside")}, connection)["inside"].error
        assert error is not None
        assert error.code == "host-key-unknown"
        assert unknown.address in error.what
        assert error.details["fingerprint"] in error.why
        assert error.details["fingerprint"].startswith("SHA256:")
    (client.parent / "known_hosts").write_text(server.known + jump.known)
    assert first_contact.run_node("inside", request("n1"), connection).result()["node"] == "n1"


def test_a_glance_goes_through_the_connection_that_is_open_and_opens_none(start: StartServer, client: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        closed.setblocking(False)
        connection = Connection(kind="ssh", port=closed.getsockname()[1])
        assert ssh.glance("127.0.0.1", b"echo there", connection, 5.0, 1000) == ""
        with pytest.raises(BlockingIOError):
            closed.accept()
    server = start()
    connection = options(client, server, server.known)
    ssh.log_in(server.address, connection)
    assert ssh.glance(server.address, b"echo there", connection, PATIENCE, 1000) == "there\n"


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
def test_a_name_without_an_address_is_told_with_where_to_give_it_one(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = login_error("scheduler", Connection(kind="ssh"), words)
    assert error.code == "node-unreachable"
    assert f"`Host {name}` with `HostName` in ~/.ssh/config" in (error.hint or "")
    assert "; then try `ssh scheduler true`; " in (error.hint or "")
    (tmp_path / "sbatch").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "login: null" not in (login_error("scheduler", Connection(kind="ssh"), words).hint or "")
    error = login_error("scheduler", Connection(kind="ssh", login={"host": "scheduler"}), words)
    assert re.match("give .*true`; on the login node itself, write `connection: {login: null}`", error.hint or "")


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
    node = {"n1": {"address": "10.0.0.1", "port": 2299}}
    of_target = Connection(kind="ssh", user="bob", identity="/my key", hosts=node)
    hint = login_error("n1", of_target, f"ssh: {reason}").hint or ""
    assert "try `ssh -p 2299 -l bob -i '/my key' 10.0.0.1 true`" in hint
