"""Real SSH nodes on this machine: each has its own network namespace, file system, processes, host name and host key.

A node is an overlay over an unpacked Debian tree, and over what it was given beforehand, on a bridge of its own; it has
no route out. Needs root. Everything is removed again by `Fleet.close`, whatever happened.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envbuild.model.target import Connection
from tests.support.debian import PATH, UnavailableError, unpack_debian
from tests.support.need import why_no_namespaces
from tests.support.programs import completed

Kind = Literal["bare", "py36", "full", "gcc", "podman"]
PROGRAMS = ("ip", "unshare", "mmdebstrap", "sshd", "ssh", "ssh-keygen", "ldd", "chroot")
_COMMON = ("bzip2", "ca-certificates", "git", "iproute2", "openssh-server", "procps")
_PACKAGES: dict[Kind, tuple[str, ...]] = {
    "bare": _COMMON,
    "py36": _COMMON,
    "full": (*_COMMON, "python3", "python3-venv"),
    "gcc": (*_COMMON, "gcc", "libc6-dev"),
    "podman": (*_COMMON, "python3", "podman", "runc"),
}

_START = """\
set -e
mount --make-rprivate /
# Nothing waits for the disk, as in conftest.py; a node that was killed left the mark that says so.
rm -rf "$NODE/work/work/incompat"
mount -t overlay overlay -o volatile,lowerdir="$TREES",upperdir="$NODE/upper",workdir="$NODE/work" "$NODE/root"
cd "$NODE/root"
mkdir -p proc dev sys run tmp nodeetc shared oldroot
mount --rbind /dev dev
mount -t sysfs sysfs sys 2>/dev/null || true
mount -t tmpfs run run
mkdir -p run/sshd
mount --bind "$NODE/etc" nodeetc
mount --bind "$NODE/../shared" shared
pivot_root . oldroot
mount -t proc proc /proc
umount -l /oldroot
hostname "$NODE_NAME"
exec /usr/sbin/sshd -D -e -f /nodeetc/sshd_config
"""

_SSHD = """\
Port 22
ListenAddress {address}
HostKey /nodeetc/key
PidFile none
AuthorizedKeysFile /nodeetc/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
MaxStartups 100:30:200
MaxSessions 100
UseDNS no
SetEnv OMP_NUM_THREADS=1
Subsystem sftp internal-sftp
"""


@dataclass(frozen=True)
class Node:
    """One node that answers. Log in as root with `identity`; its host key is in `known_hosts`."""

    name: str
    address: str
    port: int
    identity: Path
    known_hosts: Path
    folder: Path

    def connection(self) -> Connection:
        """How a target file would say it."""
        return Connection(
            kind="ssh", user="root", port=self.port, identity=str(self.identity), known_hosts=str(self.known_hosts)
        )

    def run(
        self, argv: Sequence[str], *, stdin: str | None = None, check: bool = True, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the node; its words arrive as they are."""
        options = ["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes"]
        options += ["-o", f"UserKnownHostsFile={self.known_hosts}", "-i", str(self.identity), "-p", str(self.port)]
        return completed(
            ["ssh", *options, f"root@{self.address}", "--", shlex.join(argv)],
            input=stdin if stdin is not None else "",
            check=check,
            timeout=timeout,
            env={**os.environ, "PATH": PATH},
        )

    def file(self, path: str) -> Path:
        """Where a file that the node wrote (absolute path there) can be read from here."""
        return self.folder / "upper" / path.lstrip("/")


def why_not() -> str | None:
    """Why nodes cannot be had on this machine, or None."""
    if os.geteuid() != 0:
        return "network namespaces and overlay mounts need root"
    return why_no_namespaces(PROGRAMS, PATH, "--mount", "--uts", "--pid", "--net", "--fork")


def unpack_tree(kind: Kind, folder: Path) -> None:
    """Unpack the tree of a kind into `folder`; for `py36` a CPython 3.6 is put into its /usr/local.

    Raises UnavailableError.
    """
    folder.mkdir(parents=True)
    unpack_debian(_PACKAGES[kind], _suite(), folder)
    if kind == "py36":
        _add_python(folder, find_python("3.6"))


def find_python(version: str) -> Path:
    """The prefix of a CPython of that minor version on this machine.

    Looked for: `ENVBUILD_TEST_PYTHON<xy>`, PATH, and pyenv's folder. Raises UnavailableError.
    """
    candidates = [os.environ.get(f"ENVBUILD_TEST_PYTHON{version.replace('.', '')}"), shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("ENVBUILD_TEST_PYENV", "~/.pyenv")).expanduser()
    candidates += [str(path) for path in sorted(pyenv.glob(f"versions/{version}*/bin/python{version}"))]
    code = "import sys; print('%d.%d' % sys.version_info[:2], sys.base_prefix)"
    for candidate in filter(None, candidates):
        done = completed([candidate, "-c", code])
        if done.returncode == 0 and done.stdout.startswith(f"{version} "):
            return Path(done.stdout.strip().partition(" ")[2])
    raise UnavailableError(f"there is no Python {version} on this machine (pyenv, PATH or ENVBUILD_TEST_PYTHON...)")


StartNodes = Callable[..., list[Node]]


class Fleet:
    """Some nodes on one bridge, with one folder that all have as `/shared`.

    `gateway` is this machine's address on the bridge: what listens on it, nodes can reach.
    """

    def __init__(self) -> None:
        """Make the bridge."""
        self.number, self.gateway = new_bridge()
        self._folder = Path(tempfile.mkdtemp(prefix="envbuild-fleet-"))
        (self._folder / "shared").mkdir(mode=0o755)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._trees: dict[str, Sequence[Path]] = {}
        self._namespaces: list[str] = []
        self.nodes: list[Node] = []

    def start(self, count: int, *trees: Path) -> list[Node]:
        """Start `count` more nodes on trees, the first one on top, and wait until they answer.

        Raises UnavailableError with their log.
        """
        identity = self._folder / "id"
        if not identity.exists():
            _keygen(identity)
        new = [self._start_one(len(self.nodes) + i + 1, trees, identity) for i in range(count)]
        for node in new:
            _await_port(node, self._processes[node.name])
        self.nodes += new
        return new

    def plug(self, node: Node, state: Literal["up", "down"]) -> None:
        """Plug its network cable in or out."""
        ip("link", "set", f"ebv{self.number}x{node.name.removeprefix('node')}", state)

    def kill(self, node: Node) -> None:
        """End everything that runs on a node, as a loss of power does; its disk stays."""
        process = self._processes[node.name]
        process.kill()
        process.wait()
        _end(self.pids(node))

    def pids(self, node: Node) -> list[int]:
        """Everything that runs on a node."""
        return _pids(self._namespace(node.name))

    def boot(self, node: Node) -> None:
        """Start a killed node again and wait until it answers."""
        self._boot(node)
        _await_port(node, self._processes[node.name])

    def _start_one(self, index: int, trees: Sequence[Path], identity: Path) -> Node:
        name, address = f"node{index}", f"10.77.{self.number}.{10 + index}"
        namespace, cable = self._namespace(name), f"ebv{self.number}x{index}"
        folder = self._folder / name
        for part in ("etc", "upper", "work", "root"):
            (folder / part).mkdir(parents=True)
        # Overlay gives the root folder of a node the mode of its upper folder.
        (folder / "upper").chmod(0o755)
        self._namespaces.append(namespace)
        connect(namespace, cable, self.number, address)
        _keygen(folder / "etc" / "key")
        (folder / "etc" / "sshd_config").write_text(_SSHD.format(address=address))
        keys = folder / "etc" / "authorized_keys"
        keys.write_text(identity.with_suffix(".pub").read_text())
        keys.chmod(0o600)
        known_hosts = self._folder / "known_hosts"
        kind, key = (folder / "etc" / "key.pub").read_text().split()[:2]
        with known_hosts.open("a") as out:
            out.write(f"{address} {kind} {key}\n")
        node = Node(name, address, 22, identity, known_hosts, folder)
        self._trees[name] = trees
        self._boot(node)
        return node

    def _namespace(self, name: str) -> str:
        return f"ebn{self.number}x{name.removeprefix('node')}"

    def _boot(self, node: Node) -> None:
        """Start the first process of a node; it is over when `unshare` is."""
        command = ["ip", "netns", "exec", self._namespace(node.name)]
        command += ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "bash", "-c", _START]
        environment = {
            "PATH": PATH,
            "TREES": ":".join(map(str, self._trees[node.name])),
            "NODE": str(node.folder),
            "NODE_NAME": node.name,
        }
        with (node.folder / "log").open("ab") as log:
            self._processes[node.name] = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def close(self) -> None:
        """End all nodes and remove every trace of them."""
        for process in self._processes.values():
            # `unshare` waits through SIGTERM; when it is killed, so is the first process of the node, and with it all.
            process.kill()
            process.wait()
        for namespace in self._namespaces:
            # What logged-in processes left behind; usually the node's end has taken them along.
            _end(_pids(namespace))
            ip("netns", "del", namespace)
            # The kernel takes a namespace apart when it has time for it; the name of the cable is needed again at once.
            cable = namespace.replace("ebn", "ebv")
            subprocess.run(["ip", "link", "del", cable], check=False, capture_output=True, env={"PATH": PATH})
        ip("link", "del", f"ebr{self.number}")
        shutil.rmtree(self._folder, ignore_errors=True)


def ip(*arguments: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, env={"PATH": PATH})


def connect(namespace: str, cable: str, bridge: int, address: str) -> None:
    """Make a network namespace with one cable to a bridge."""
    ip("netns", "add", namespace)
    ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    ip("link", "set", cable, "master", f"ebr{bridge}", "up")
    ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
    for device in ("eth0", "lo"):
        ip("-n", namespace, "link", "set", device, "up")


def _pids(namespace: str) -> list[int]:
    """Processes in a network namespace."""
    done = completed(["ip", "netns", "pids", namespace], env={"PATH": PATH})
    return [int(pid) for pid in done.stdout.split()]


def _end(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def new_bridge() -> tuple[int, str]:
    """A bridge with the first free number; making one is atomic, so parallel test runs do not clash."""
    last = ""
    for number in range(1, 250):
        done = completed(["ip", "link", "add", f"ebr{number}", "type", "bridge"], env={"PATH": PATH})
        if done.returncode == 0:
            gateway = f"10.77.{number}.1"
            ip("addr", "add", f"{gateway}/24", "dev", f"ebr{number}")
            ip("link", "set", f"ebr{number}", "up")
            return number, gateway
        last = done.stderr.strip()
    raise UnavailableError(f"cannot make a network bridge: {last}")


def _keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _await_port(node: Node, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            with socket.create_connection((node.address, node.port), timeout=1):
                return
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.02)
    raise UnavailableError(f"{node.name} did not start: {(node.folder / 'log').read_text()[-400:]}")


def _suite() -> str:
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return release.get("VERSION_CODENAME", "bookworm") if release.get("ID") == "debian" else "bookworm"


def _add_python(tree: Path, prefix: Path) -> None:
    """Copy a CPython into the tree's /usr/local, with the shared libraries that the tree lacks."""
    local = tree / "usr" / "local"
    version = next(path.name for path in (prefix / "lib").glob("python3.*") if path.is_dir())
    copy_python(prefix, version, local)
    for name in ("python3", "python"):
        (local / "bin" / name).unlink(missing_ok=True)
    (local / "bin" / "python3").symlink_to(version)
    for library in libraries_of(local):
        found = any(
            (tree / folder / library.name).exists() for folder in ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")
        )
        if not found and not (local / "lib" / library.name).exists():
            shutil.copy2(library, local / "lib" / library.name)
    subprocess.run(["chroot", str(tree), "/sbin/ldconfig"], check=True)


def copy_python(prefix: Path, version: str, to: Path) -> None:
    """Copy interpreter, standard library and shared libpython (`version` as `python3.11`), without what tests need."""
    (to / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy2((prefix / "bin" / version).resolve(), to / "bin" / version)
    leave = shutil.ignore_patterns(
        "test", "tests", "__pycache__", "idlelib", "site-packages", "config-3*", "lib2to3", "*.a",
        "ensurepip", "pydoc_data", "tkinter", "turtledemo", "_tkinter.*",
    )  # fmt: skip
    shutil.copytree(prefix / "lib" / version, to / "lib" / version, symlinks=True, ignore=leave, dirs_exist_ok=True)
    (to / "lib" / version / "site-packages").mkdir(exist_ok=True)
    for library in (prefix / "lib").glob("libpython3*.so*"):
        shutil.copy2(library, to / "lib" / library.name, follow_symlinks=False)


def libraries_of(root: Path) -> set[Path]:
    """Shared libraries outside glibc that the programs and extension modules under `root` need."""
    binaries = [*(root / "bin").glob("python3*"), *root.glob("lib/python3*/lib-dynload/*.so")]
    done = completed(["ldd", *map(str, binaries)])
    found = {Path(line.split()[2]) for line in done.stdout.splitlines() if " => /" in line}
    glibc = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libutil.so", "ld-linux", "libpython")
    return {path for path in found if not path.name.startswith(glibc)}
