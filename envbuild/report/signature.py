"""The signature of a report: over the bytes of `evidence.json`, by an SSH key.

`ssh-keygen -Y` makes and checks it, in the namespace `envbuild`.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import tempfile
import textwrap
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.node import proc
from envbuild.regular_file import read_file

NAMESPACE = "envbuild"
_HEAD, _TAIL = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_GOOD = re.compile(r'Good "envbuild" signature (?:for .+ )?with \S+ key (SHA256:[A-Za-z0-9+/]+)')


def sign(data: bytes, key: Path) -> bytes:
    """The armoured signature. `key`: a private key, or the public one of a key that an agent has.

    ssh-keygen asks for a passphrase on the terminal. Raises EnvbuildError `report-not-signed` (exit 2).
    """
    argv = ["ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f", str(key.absolute())]
    try:
        done = subprocess.run(argv, input=data, capture_output=True, check=False)
    except OSError as error:
        raise _missing(error.strerror or str(error)) from error
    if done.returncode != 0:
        raise EnvbuildError(
            "report-not-signed",
            f"ssh-keygen could not sign with {key}",
            why=done.stderr.decode(errors="replace").strip()[-500:],
            hint="give a private SSH key, or the public one of a key that the agent has, with OpenSSH 8.1 or newer",
        )
    return done.stdout


def is_canonical(signature: bytes) -> bool:
    """Whether it is written exactly as ssh-keygen writes it, so that no byte of it can be another."""
    lines = signature.decode("ascii", "replace").split("\n")
    if lines[:1] != [_HEAD] or lines[-2:] != [_TAIL, ""]:
        return False
    try:
        blob = base64.b64decode("".join(lines[1:-2]), validate=True)
    except (binascii.Error, ValueError):
        return False
    return lines[1:-2] == textwrap.wrap(base64.b64encode(blob).decode(), 70)


def check(data: bytes, signature: bytes) -> str | None:
    """The fingerprint (`SHA256:…`) of the key that signed `data`, whoever has it; None if the signature is not valid.

    Raises EnvbuildError `ssh-keygen-missing`.
    """
    if not is_canonical(signature):
        return None
    match = _GOOD.match(_keygen(["-Y", "check-novalidate", "-n", NAMESPACE], signature, data))
    return match.group(1) if match else None


def principal(data: bytes, signature: bytes, signers: Path) -> str | None:
    """The name that `signers` (allowed_signers of ssh-keygen) has for who signed `data`; None where it has none.

    Raises EnvbuildError `file-unreadable` (exit 2) and `ssh-keygen-missing`.
    """
    try:
        read_file(signers)
    except OSError as error:
        raise EnvbuildError(
            "file-unreadable",
            f"cannot read {signers}",
            why=str(error),
            hint="write lines such as: NAME ssh-ed25519 AAAA…",
        ) from error
    file = str(signers.absolute())
    for name in _keygen(["-Y", "find-principals", "-f", file], signature, b"").splitlines():
        if _GOOD.match(_keygen(["-Y", "verify", "-f", file, "-I", name, "-n", NAMESPACE], signature, data)):
            return name
    return None


def _keygen(arguments: list[str], signature: bytes, data: bytes) -> str:
    """What ssh-keygen says on stdout; nothing where it ends badly."""
    with tempfile.NamedTemporaryFile(suffix=".sig") as file:
        file.write(signature)
        file.flush()
        done = proc.run(["ssh-keygen", *arguments, "-s", file.name], stdin=data, timeout=30)
    if done.missing:
        raise _missing("there is no program of that name")
    return done.out if done.ok else ""


def _missing(why: str) -> EnvbuildError:
    return EnvbuildError(
        "ssh-keygen-missing", "ssh-keygen cannot be run", why=why, hint="install OpenSSH's client, 8.1 or newer"
    )
