"""Messages of a failed `ssh -v` as coded errors with a next step."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
import shutil
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.model.target import Connection
from envbuild.regular_file import read_file
from envbuild.text import WITHOUT_CONTACT

_DENIED = re.compile(r"Permission denied \(([a-z0-9,@.-]*)\)|Too many authentication failures")
_UNKNOWN = re.compile(r"No (\S+) host key is known for (\S+) and you have requested strict checking")
_CHANGED = re.compile(r"Host key for (\S+) has changed and you have requested strict checking")
_OFFENDING = re.compile(r"^Offending (?:\S+ )?key in (.+):([0-9]+)$", re.MULTILINE)
_OFFERED = re.compile(r"(\S{1,60}) key sent by the remote host is\s+(SHA256:\S+?)\.?$", re.MULTILINE)
_OFFERS = re.compile(r"^debug1: Server host key: (\S+) (SHA256:\S+)$", re.MULTILINE)
# What `-v` adds, and what is no reason.
_TALK = re.compile(r"debug[0-9]: |OpenSSH_|Authenticated |Transferred: |Bytes per second: |\*\*|Warning: ")
_NAMELESS = re.compile(r"Could not resolve hostname (\S+):")
_ANSWERED = {"keyboard-interactive", "password"}
# What to look at, by what `ssh` says.
_CHECKS = (
    ("Connection refused", "check that sshd runs there and listens on this port; the target sets another with `port:`"),
    ("timed out|[Nn]o route|unreachable|no login within",
     "check the address, your VPN and firewalls; a host behind another one needs `ProxyJump` in ~/.ssh/config"),
    ("[Cc]onnection (closed|reset)", "check the limits of the server: `MaxStartups`, `AllowUsers`, /etc/hosts.deny"),
)  # fmt: skip


def denied(words: str) -> bool:
    """Whether a server was reached and refused the login."""
    return _DENIED.search(words) is not None


def login_error(node: str, options: Connection, words: str) -> EnvbuildError:
    """The error for the output of `ssh -v`."""
    words = words.replace("\r", "")
    if match := _CHANGED.search(words):
        return _changed(node, options, match[1], words)
    if match := _UNKNOWN.search(words):
        return _unknown(node, options, match[2], words)
    if denied(words):
        return _refused(node, words)
    trial = _trial(node, options)
    checks = [check for pattern, check in _CHECKS if re.search(pattern, words)]
    hint = "; then ".join([*checks[:1], f"try `{trial}`"])
    if match := _NAMELESS.search(words):
        # Of shipped targets the name is the document's, of a jump host it is not the node's.
        name = match[1]
        here = options.login and (shutil.which("sbatch") or shutil.which("qsub"))
        login = "; on the login node itself, write `connection: {login: null}` in a target of your own" if here else ""
        hint = (
            f"give {name} an address (`Host {name}` with `HostName` in ~/.ssh/config), or another name in your own "
            f"target; then try `{trial}`{login}"
        )
    return _unreachable(node, "node-unreachable", f"{node} cannot be reached", _last(words), hint)


def _trial(node: str, options: Connection) -> str:
    """The login by hand: to the address, by the user and with the port and files that the target says."""
    address, user, port = options.reaches(node)
    known = options.known_hosts and f"UserKnownHostsFile={options.known_hosts}"
    given = {"-F": options.config, "-p": port, "-l": user, "-i": options.identity, "-o": known}
    words = [str(word) for option, value in given.items() if value for word in (option, value)]
    return shlex.join(["ssh", *words, address, "true"])


def _unreachable(node: str, code: str, what: str, why: str, hint: str, **details: str) -> EnvbuildError:
    return EnvbuildError(code, what, why=why, hint=f"{hint}; {WITHOUT_CONTACT}", details={"node": node, **details})


def _last(words: str) -> str:
    """The last lines: the reason, and what a jump host said."""
    lines = [line.strip() for line in words.splitlines() if line.strip() and not _TALK.match(line)]
    return "; ".join(lines[-3:]) or "ssh gave no reason"


def _unknown(node: str, options: Connection, name: str, output: str) -> EnvbuildError:
    host, _, port = name.removeprefix("[").partition("]:")
    offered = _OFFERS.findall(output.partition("host key is known for")[0])
    kind, shown = offered[-1] if offered else ("a key", "")
    into = f"-o UserKnownHostsFile={shlex.quote(options.known_hosts)} " if options.known_hosts else ""
    return _unreachable(
        node,
        "host-key-unknown",
        f"the host key of {name} is not known",
        f"it offers {kind} {shown}".rstrip() + ", which is in no known_hosts file",
        f"compare the fingerprint, then accept it: `ssh {into}-p {port or 22} {host} true`",
        fingerprint=shown,
    )


def _changed(node: str, options: Connection, name: str, words: str) -> EnvbuildError:
    offered = _OFFERED.search(words)
    kind, shown = (offered[1], offered[2]) if offered else ("a key", "")
    known = next((_fingerprint(Path(path), int(line)) for path, line in _OFFENDING.findall(words)), "")
    where = f" -f {shlex.quote(options.known_hosts)}" if options.known_hosts else ""
    return _unreachable(
        node,
        "host-key-changed",
        f"the host key of {name} is not the one that is known",
        f"known: {known or 'another one'}; offered: {kind} {shown}",
        f"find out why; if it is right, forget the old key: `ssh-keygen -R '{name}'{where}`, then log in once",
        fingerprint=shown,
    )


def _fingerprint(path: Path, line: int) -> str:
    """The fingerprint, as ssh prints it, of the key in one line of a known_hosts file; empty where there is none."""
    try:
        words = read_file(path).decode("utf-8", "replace").splitlines()[line - 1].split()
        key = base64.b64decode(words[3 if words[0].startswith("@") else 2], validate=True)
    except (OSError, IndexError, ValueError):
        return ""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _refused(node: str, words: str) -> EnvbuildError:
    methods = {method for names in _DENIED.findall(words) for method in names.split(",")}
    if methods & _ANSWERED and not can_answer():
        return _unreachable(
            node,
            "login-needs-terminal",
            f"{node}: the login asks a question and there is no terminal",
            _last(words),
            "run envbuild in a terminal. Or give the host a `ControlPath` in ~/.ssh/config, log in and leave that "
            f"connection open (`ssh -fNM {node}`), and run the same command again",
        )
    hint = "check user and identity of the target's `connection:`; `ssh-add` unlocks a key with a passphrase"
    return _unreachable(node, "ssh-auth-failed", f"authentication failed on {node}", _last(words), hint)


def can_answer() -> bool:
    """Whether somebody can answer a question of `ssh`: at the terminal, or through SSH_ASKPASS."""
    if os.environ.get("SSH_ASKPASS") and os.environ.get("SSH_ASKPASS_REQUIRE") == "force":
        return True
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return bool(os.environ.get("SSH_ASKPASS") and os.environ.get("DISPLAY"))
    return True
