"""Real unprivileged SSH servers on 127.0.0.x, each with its own host key, for tests."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuild.model.target import Connection
from envbuild.transport import ssh_config
from tests.support.patience import PATIENCE, answers, until

SSHD = shutil.which("sshd") or ("/usr/sbin/sshd" if Path("/usr/sbin/sshd").exists() else None)


def require_sshd() -> str:
    """The server's path, or a skip that says what is missing."""
    if SSHD is None or shutil.which("ssh-keygen") is None:
        pytest.skip("sshd or ssh-keygen is not installed: SSH is not proven here")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd refuses to start as root without it
    return SSHD


class Server:
    """One running sshd. `known` is its line for a known_hosts file."""

    def __init__(
        self, root: Path, address: str, client_key: Path, force: str = "", settings: Sequence[str] = (), pam: str = ""
    ) -> None:
        """`settings` stand first in its configuration; `pam` is the text of its PAM service."""
        self.settings, self.pam = settings, pam
        self.address = address
        self.port = _free_port(address)
        self.root = root
        self.home = root / "home"
        self.home.mkdir(parents=True)
        self._force = force
        self._client_key = client_key
        self.key = make_key(root / "host_key")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def known(self) -> str:
        public = self.key.with_suffix(".pub").read_text().split()
        return f"[{self.address}]:{self.port} {public[0]} {public[1]}\n"

    def start(self) -> Server:
        """Start and wait until the port answers."""
        config = self.root / "sshd_config"
        lines = [
            *self.settings,
            f"Port {self.port}",
            f"ListenAddress {self.address}",
            f"HostKey {self.key}",
            f"AuthorizedKeysFile {self._client_key}.pub",
            "PidFile none",
            "UsePAM no",
            "StrictModes no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin yes",
            f"SetEnv HOME={self.home}",
        ]
        if self._force:
            lines.append(f"ForceCommand {self._force}")
        config.write_text("\n".join(lines) + "\n")
        argv = [require_sshd(), "-D", "-e", "-f", str(config)]
        if self.pam:
            (self.root / "pam").write_text(self.pam)
            # A mount that only this server sees: PAM knows no other folder for its services.
            mount = f'mount -t tmpfs none /etc/pam.d && cp {self.root}/pam /etc/pam.d/sshd && exec "$@"'
            argv = ["unshare", "--mount", "sh", "-c", mount, "sh", *argv]
        with (self.root / "log").open("wb") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        process = self._process
        until(lambda: answers(self.address, self.port) or process.poll() is not None)
        if process.poll() is not None:
            pytest.skip(f"sshd did not start here: {(self.root / 'log').read_text()[-300:]}")
        return self

    def stop(self) -> None:
        """End the server that was started, and nothing else."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE)


StartServer = Callable[..., Server]


def make_key(path: Path) -> Path:
    """A new ed25519 key pair without a passphrase."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def servers(folder: Path, client: Path, known: Path | None = None) -> Iterator[StartServer]:
    """What starts servers that take the client's key; their host keys are added to the file `known`."""
    started: list[Server] = []

    def start(address: str = "127.0.0.2", **options: Any) -> Server:
        started.append(Server(folder / f"server{len(started)}", address, client, **options))
        if known is not None:
            with known.open("a") as file:
                file.write(started[-1].known)
        return started[-1].start()

    yield start
    ssh_config.close()
    for server in started:
        server.stop()


def configured(client: Path, text: str, *, key: bool = True) -> Connection:
    """Reaching nodes by a configuration; the user's own is that of the account, whatever HOME says."""
    always = f"Host *\n User {user()}\n UserKnownHostsFile {client.parent}/known_hosts\n"
    always += f" IdentityFile {client}\n" if key else ""
    (client.parent / "config").write_text(text + always)
    return Connection(kind="ssh", config=str(client.parent / "config"))


def user() -> str:
    """The only user whom an unprivileged server can log in."""
    return getpass.getuser()


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as server:
        return int(server.getsockname()[1])


def request(node: str) -> dict[str, Any]:
    """A probe that looks for a Python that no node has."""
    args = {"node": node, "pythons": ["3.99"]}
    return {"protocol": 1, "verb": "probe", "run": "r", "prefix": "{home}/envbuild", "args": args}
