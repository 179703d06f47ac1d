"""What `ssh HOST true` reaches is reached, by our own questions and by Ansible: the ways to log in, on real servers."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from envbuild.model.target import Connection
from envbuild.provision.ansible.adapter import Inventory, configuration, variables, without_user_settings
from envbuild.provision.ansible.steps import NodeHost
from envbuild.provision.contact import first_contact
from envbuild.transport import ssh, ssh_config
from tests.support.patience import PATIENCE, until, with_deadline
from tests.support.programs import completed, executable
from tests.transport.sshd import Server, StartServer, configured, make_key, request, require_sshd, servers, user

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[2]
# A code is good once.
PAM = """\
auth required pam_exec.so expose_authtok quiet {check}
auth required pam_permit.so
account required pam_permit.so
session required pam_permit.so
"""
CHECK = """\
#!/bin/sh
code=$(tr -d '\\000')
[ -e {codes}/"$code" ] && rm {codes}/"$code"
"""
ASKPASS = """\
#!/bin/sh
echo "$1" >> {asked}
ls {codes} | head -n 1
"""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key in a folder for what this user has; nothing of the account's own."""
    require_sshd()
    for name in ("SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    return make_key(tmp_path / "user/id_test")


@pytest.fixture
def start(tmp_path: Path, client: Path) -> Iterator[StartServer]:
    yield from servers(tmp_path, client, client.parent / "known_hosts")


class Codes:
    """A server that wants a key and a code that is good once; `askpass` answers and counts."""

    def __init__(self, start: StartServer, folder: Path) -> None:
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            pytest.skip("a second factor through PAM needs root and unshare")
        if not list(Path("/lib").glob("**/security/pam_exec.so")):
            pytest.skip("pam_exec is not installed: a second factor is not proven here")
        self.codes, self.asked = folder / "codes", folder / "asked"
        self.codes.mkdir()
        for number in range(5):
            (self.codes / f"90210{number}").touch()
        self.askpass = self._program(folder / "askpass", ASKPASS)
        settings = ("UsePAM yes", "KbdInteractiveAuthentication yes", "PrintMotd no")
        settings += ("AuthenticationMethods publickey,keyboard-interactive",)
        check = self._program(folder / "check", CHECK)
        self.server = start("127.0.0.2", settings=settings, pam=PAM.format(check=check))

    def _program(self, path: Path, text: str) -> Path:
        return executable(path, text.format(codes=self.codes, asked=self.asked))

    @property
    def times(self) -> int:
        """How often somebody was asked."""
        return len(self.asked.read_text().splitlines()) if self.asked.exists() else 0

    def used(self) -> int:
        return 5 - len(list(self.codes.iterdir()))


@pytest.fixture
def codes(start: StartServer, tmp_path: Path) -> Codes:
    return Codes(start, tmp_path)


@pytest.fixture
def answered(codes: Codes, monkeypatch: pytest.MonkeyPatch) -> Codes:
    """The same, where somebody answers."""
    monkeypatch.setenv("SSH_ASKPASS", str(codes.askpass))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    return codes


def block(name: str, server: Server, *lines: str) -> str:
    return "\n ".join((f"Host {name}", f"HostName {server.address}", f"Port {server.port}", *lines)) + "\n"


def asked(nodes: list[str], connection: Connection) -> list[str]:
    """What each node answers to our own question: its name, or the code of an error."""
    found = first_contact.contact({node: request(node) for node in nodes}, connection, 2.0 * PATIENCE)
    return [each.error.code if each.error is not None else each.result()["node"] for each in found.values()]


def played(folder: Path, nodes: list[str], connection: Connection) -> list[str]:
    """The nodes that Ansible reaches with the inventory and the settings that a run gives it."""
    folder.mkdir()
    hosts = tuple(NodeHost(node, "/usr/bin/python3", "/nowhere.pyz") for node in nodes)
    Inventory(hosts, connection).write(folder / "inventory.yml")
    (folder / "ansible.cfg").write_text(configuration(folder))
    argv = [str(Path(sys.executable).with_name("ansible")), "-i", str(folder / "inventory.yml"), "all"]
    argv += ["-m", "ansible.builtin.raw", "-a", "echo here"]
    env = {**without_user_settings(os.environ), **variables(folder, "ENVBUILD_TEST", "1")}
    # In a folder of its own: it takes the Python files of the one where it starts for plug-ins, and imports them.
    done = completed(argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, timeout=300)
    return [node for node in nodes if f"{node} | CHANGED | rc=0 >>\nhere" in done.stdout]


def both_ways(tmp_path: Path, nodes: list[str], connection: Connection) -> None:
    found = asked(nodes, connection)
    assert found == nodes, found
    assert played(tmp_path / "ansible", nodes, connection) == nodes


def test_d49_a_code_that_is_good_once_is_asked_for_once_a_run_also_with_many_nodes_behind_its_host(
    answered: Codes, start: StartServer, client: Path, tmp_path: Path
) -> None:
    nodes = {f"n{number}": start(f"127.0.0.{number}") for number in (3, 4, 5)}
    text = "".join(block(name, server, "ProxyJump login") for name, server in nodes.items())
    connection = configured(client, text + block("login", answered.server))
    both_ways(tmp_path, ["login", *nodes], connection)
    assert asked(["login"], connection) == ["login"]
    assert (answered.times, answered.used()) == (1, 1)


def test_d49_a_connection_that_needed_an_answer_lasts_as_long_as_the_run(
    answered: Codes, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_config, "_PERSIST", "5s")
    connection = configured(client, block("login", answered.server))
    assert asked(["login"], connection) == ["login"]
    time.sleep(6)
    assert asked(["login"], connection) == ["login"]
    assert answered.times == 1


def test_d49_the_connection_that_the_user_keeps_open_is_used_and_left_open(
    answered: Codes, start: StartServer, client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = start("127.0.0.3")
    mine = tempfile.mkdtemp(prefix="mine-", dir="/tmp")  # the path of a socket is short
    text = block("login", answered.server, f"ControlPath {mine}/%C") + block("n1", inside, "ProxyJump login")
    connection = configured(client, text)
    program = ["ssh", "-F", str(connection.config)]
    subprocess.run([*program, "-fNM", "login"], check=True, stderr=subprocess.DEVNULL)
    monkeypatch.delenv("SSH_ASKPASS")
    try:
        both_ways(tmp_path, ["login", "n1"], connection)
        ssh_config.close()
        assert subprocess.run([*program, "-O", "check", "login"], capture_output=True, check=False).returncode == 0
    finally:
        subprocess.run([*program, "-O", "exit", "login"], capture_output=True, check=False)
        shutil.rmtree(mine)
    assert (answered.times, answered.used()) == (1, 1)


def _target(tmp_path: Path, connection: Connection) -> list[str]:
    (tmp_path / "target.yaml").write_text(
        f"name: far\nextends: ssh\nhosts: [login]\nprefix: {tmp_path}/prefix\n"
        f"connection: {{kind: ssh, config: {connection.config}}}\n"
    )
    return [
        "-m",
        "envbuild",
        "doctor",
        "--facts-out",
        "facts.json",
        "--json",
        "--target",
        str(tmp_path / "target.yaml"),
    ]


def test_d49_without_a_terminal_the_error_says_what_to_do(codes: Codes, client: Path, tmp_path: Path) -> None:
    argv = [sys.executable, *_target(tmp_path, configured(client, block("login", codes.server)))]
    # A session of its own has no terminal, wherever these tests run.
    done = completed(argv, start_new_session=True, cwd=tmp_path, timeout=PATIENCE)
    assert done.returncode == 3, done.stderr
    error = json.loads(done.stdout)["errors"]["login"]
    assert error["code"] == "login-needs-terminal"
    assert "keyboard-interactive" in error["why"]
    assert "leave that connection open" in error["hint"]
    assert codes.used() == 0


def test_d49_whoever_sits_at_the_terminal_is_asked_and_the_answer_is_shown_nowhere(
    codes: Codes, client: Path, tmp_path: Path
) -> None:
    argv = _target(tmp_path, configured(client, block("login", codes.server)))
    with pexpect.spawn(sys.executable, argv, cwd=str(tmp_path), encoding="utf-8", timeout=PATIENCE) as terminal:
        terminal.expect("Password: ")
        terminal.sendline("902103")
        terminal.expect(pexpect.EOF)
        said = terminal.before
        terminal.close()
    assert terminal.exitstatus == 0, said
    assert "902103" not in said
    assert codes.used() == 1


def test_d49_certificates_only(start: StartServer, client: Path, tmp_path: Path) -> None:
    authority = make_key(tmp_path / "authority")
    server = start("127.0.0.2", settings=(f"TrustedUserCAKeys {authority}.pub", "AuthorizedKeysFile none"))
    connection = configured(client, block("n1", server))
    assert asked(["n1"], connection) == ["ssh-auth-failed"]
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", user(), f"{client}.pub"]
    subprocess.run(sign, check=True)
    both_ways(tmp_path, ["n1"], connection)


def test_d49_a_key_that_only_an_agent_has(
    start: StartServer, client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start("127.0.0.2")
    connection = configured(client, block("n1", server), key=False)
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL) as agent:
        until((tmp_path / "agent").exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        subprocess.run(["ssh-add", "-q", str(client)], check=True)
        client.unlink()
        both_ways(tmp_path, ["n1"], connection)
        agent.terminate()


def test_d49_a_configuration_with_match_include_and_a_proxy_command(
    start: StartServer, client: Path, tmp_path: Path
) -> None:
    inside, gate = start("127.0.0.2"), start("127.0.0.3")
    (tmp_path / "more").write_text(block("gate", gate) + f'Match exec "test %n = inside"\n Port {inside.port}\n')
    proxy = f"ProxyCommand ssh -F {client.parent}/config -W %h:%p gate"
    text = f"Include {tmp_path}/more\nHost inside\n HostName {inside.address}\n {proxy}\n"
    both_ways(tmp_path, ["inside"], configured(client, text))


def _in_an_account(home: Path, *argv: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program where the account's home is another folder than HOME says."""
    account = pwd.getpwuid(os.geteuid())
    entries = Path("/etc/passwd").read_text().splitlines()
    changed = [line.replace(f":{account.pw_dir}:", f":{home}:") if line.startswith(f"{account.pw_name}:") else line
               for line in entries]  # fmt: skip
    (home / "passwd").write_text("\n".join([*changed, ""]))
    mount = f'mount --bind {home}/passwd /etc/passwd && exec "$@"'
    argv = ("unshare", "--mount", "sh", "-c", mount, "sh", *argv)
    return completed(argv, timeout=4 * PATIENCE, **more)


def test_d49_where_home_is_not_that_of_the_account_both_ways_read_what_ssh_reads(
    start: StartServer, client: Path, tmp_path: Path
) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("another home for this account needs root and unshare")
    server = start("127.0.0.2")
    configured(client, block("n1", server))
    account, elsewhere = tmp_path / "account", tmp_path / "elsewhere"
    for home in (account, elsewhere):
        (home / ".ssh").mkdir(parents=True)
    (account / ".ssh/config").write_text((client.parent / "config").read_text())
    (elsewhere / ".ssh/config").write_text("Host n1\n HostName 127.0.0.9\n Port 9\n")
    code = (
        "import sys; from pathlib import Path\n"
        "from envbuild.model.target import Connection\n"
        "from tests.transport.test_ssh_login import both_ways\n"
        "both_ways(Path(sys.argv[1]), ['n1'], Connection(kind='ssh'))\n"
    )
    env = {**os.environ, "HOME": str(elsewhere), "PYTHONPATH": str(REPOSITORY)}
    done = _in_an_account(account, sys.executable, "-c", code, str(tmp_path), env=env)
    assert done.returncode == 0, done.stderr


def test_d49_nothing_of_the_users_configuration_is_lost_but_what_has_to_hold(client: Path, tmp_path: Path) -> None:
    """Security keys of FIDO cannot be had here: what chooses them reaches `ssh` as it stands."""
    text = (
        "Host n1\n HostName there\n SecurityKeyProvider /opt/provider.so\n IdentityAgent /run/agent\n"
        " PubkeyAcceptedAlgorithms sk-ssh-ed25519@openssh.com\n CertificateFile /opt/cert\n"
        " PKCS11Provider /opt/pkcs11\n"
        " ProxyJump a,b\n StrictHostKeyChecking no\n LocalForward 1 h:2\n RequestTTY force\n RemoteCommand sleep 9\n"
    )
    connection = configured(client, text)

    def settings(*argv: str) -> set[str]:
        done = completed(["ssh", *argv, "-G", "n1"], check=True)
        return set(done.stdout.splitlines())

    theirs = settings("-F", str(connection.config))
    for way in ("own", "users", "asking"):
        changed = settings(*ssh_config.arguments(connection, "n1", way)) ^ theirs  # type: ignore[arg-type]
        ours = {
            "stricthostkeychecking", "updatehostkeys", "serveraliveinterval", "serveralivecountmax", "localforward",
            "clearallforwardings", "remotecommand", "requesttty", "batchmode", "loglevel", "connecttimeout",
            "controlmaster", "controlpath", "controlpersist",
        }  # fmt: skip
        assert {line.split(" ")[0] for line in changed} <= ours


_LOGS_IN = """import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background of a shell ignores it
from envbuild.model.target import Connection
from envbuild.transport import ssh; from envbuild.transport import ssh_config
ssh_config._PERSIST = "1s"
ssh.log_in("n1", Connection(kind="ssh", config=sys.argv[1]))
while sys.argv[2] == "held" and (ssh_config.hold(), not ssh_config._run.held)[1]:  # too late on a busy machine
    ssh_config.end_connections()
    ssh.log_in("n1", Connection(kind="ssh", config=sys.argv[1]))
print(ssh_config._run.folder, flush=True)
time.sleep(600)
"""


def _masters(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        found += [words] if words.startswith("ssh") and f"{folder}/" in words else []
    return found


@pytest.mark.parametrize("held", ["held", "idle"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_d49_no_connection_outlives_its_run(
    number: signal.Signals, held: str, start: StartServer, client: Path, tmp_path: Path
) -> None:
    kept = ssh_config._PERSIST.removesuffix("s")  # which the program below replaces
    assert kept.isdecimal() and 0 < int(kept) <= 60, "`yes` and 0 are for ever"
    connection = configured(client, block("n1", start("127.0.0.2")))
    argv = [sys.executable, "-c", _LOGS_IN, str(connection.config), held]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    if held == "held":
        time.sleep(2.0)
        assert _masters(folder), "kept beyond its time"
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    until(lambda: not _masters(folder))


def test_d49_the_path_of_a_socket_fits_wherever_temporary_files_are(
    start: StartServer, client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = tmp_path / ("a" * 60) / ("b" * 60)
    far.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(far))
    assert asked(["n1"], configured(client, block("n1", start("127.0.0.2")))) == ["n1"]
    folder = ssh_config._run.folder
    assert folder is not None
    (path,) = (path for path in folder.iterdir() if path.is_socket())
    assert len(os.fsencode(path)) + len(".0123456789abcdef") < 108


_FOLLOWS = """\
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from envbuild.node import identity
signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[2], "w").close(), os._exit(0)))
identity.follow("ansible.builtin.ssh")
open(sys.argv[2] + "-later", "w").close()
time.sleep(600)
"""


def test_d49_what_runs_on_a_node_ends_with_its_question_though_the_connection_goes_on(
    start: StartServer, client: Path, tmp_path: Path
) -> None:
    connection = configured(client, block("n1", start("127.0.0.2")))
    argv = [sys.executable, "-c", _FOLLOWS, str(REPOSITORY), str(tmp_path / "ended")]
    _, done = with_deadline(
        lambda deadline: ssh.exchange("n1", shlex.join(argv).encode(), connection, deadline, 1000),
        2,
        lambda _: (tmp_path / "ended-later").exists(),
    )
    assert done.timed_out
    until((tmp_path / "ended").exists)
    assert asked(["n1"], connection) == ["n1"]
    assert (tmp_path / "server0/log").read_text().count("Accepted publickey") == 1
