"""The signed statement of a report: an in-toto Statement v1 about `evidence.json` in a DSSE envelope, by SSH keys.

`ssh-keygen -Y` makes and checks the signatures, in the namespace `envbuild`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import subprocess
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.model.evidence import Evidence
from envbuild.model.lock import canonical_json
from envbuild.node import proc
from envbuild.regular_file import read_file
from envbuild.report import evidence_file
from envbuild.report.verdict import make_verdict, node_checks

NAMESPACE = "envbuild"
_HEAD, _TAIL = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_GOOD = re.compile(r'Good "envbuild" signature (?:for .+ )?with \S+ key (SHA256:[A-Za-z0-9+/]+)')


@dataclass(frozen=True)
class Signed:
    """A valid signature: `key` is the fingerprint of its key (`SHA256:…`)."""

    key: str


def sign(data: bytes, key: Path) -> str:
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
    return done.stdout.decode("ascii")


def is_canonical(signature: str) -> bool:
    """Whether it is written exactly as ssh-keygen writes it, so that no byte of it can be another."""
    lines = signature.split("\n")
    if lines[:1] != [_HEAD] or lines[-2:] != [_TAIL, ""]:
        return False
    try:
        blob = base64.b64decode("".join(lines[1:-2]), validate=True)
    except (binascii.Error, ValueError):
        return False
    return lines[1:-2] == textwrap.wrap(base64.b64encode(blob).decode(), 70)


def check(data: bytes, signature: str) -> Signed | None:
    """The signer of `data`, whoever that is; None if the signature is not valid. Raises `ssh-keygen-missing`."""
    match = _GOOD.match(_keygen(["-Y", "check-novalidate", "-n", NAMESPACE], signature, data))
    return Signed(match.group(1)) if match else None


def principal(data: bytes, signature: str, signers: Path) -> str | None:
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


def _keygen(arguments: list[str], signature: str, data: bytes) -> str:
    """What ssh-keygen says on stdout; nothing where it ends badly."""
    with tempfile.NamedTemporaryFile("w", suffix=".sig", encoding="ascii") as file:
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


STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
# Extensions of a predicate are named by a URI; readers that do not know it pass it over.
OWN = "urn:envbuild:report:1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_RESULTS = {"good": "PASSED", "partial": "WARNED", "bad": "FAILED"}
_OWN_FIELDS = {"envbuild", "verb", "run", "started", "finished", "stack", "profile", "target", "exit"}


def statement(text: bytes, evidence: Evidence) -> bytes:
    """The statement about evidence whose bytes are `text`: the same for everybody who makes it."""
    tests: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": [], "not-run": []}
    for node, check in node_checks(evidence):
        tests[check.status].append(f"{node.node}/{check.name}")
    predicate = {
        "result": _RESULTS[make_verdict(evidence).tone],
        "configuration": [
            {"name": f"{evidence.stack}.{evidence.profile}.lock.toml", "digest": {"sha256": evidence.lock_digest}}
        ],
        "passedTests": tests["passed"],
        "warnedTests": tests["skipped"] + tests["not-run"],
        "failedTests": tests["failed"],
        OWN: evidence.model_dump(mode="json", include=_OWN_FIELDS),
    }
    subject = {"name": "evidence.json", "digest": {"sha256": hashlib.sha256(text).hexdigest()}}
    about = {"_type": STATEMENT, "subject": [subject], "predicateType": PREDICATE}
    return canonical_json({**about, "predicate": predicate})


def subject_digest(payload: bytes) -> str:
    """The sha256 that a statement is about. Raises ValueError for what is no statement of ours."""
    statement: Any = evidence_file.parse(payload)
    try:
        if (statement["_type"], statement["predicateType"], len(statement["subject"])) == (STATEMENT, PREDICATE, 1):
            return str(statement["subject"][0]["digest"]["sha256"])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError("it has not the fields of a statement") from error
    raise ValueError("it is a statement of another kind")


def pae(payload: bytes) -> bytes:
    """The bytes that are signed: the payload with its type and both lengths (DSSE's pre-authentication encoding)."""
    from securesystemslib.dsse import Envelope

    return bytes(Envelope(payload, PAYLOAD_TYPE, {}).pae())


def seal(payload: bytes, key: str, signature: str) -> bytes:
    """The envelope as it is written; `key` is the fingerprint of the key, `signature` armoured."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import Signature  # type: ignore[attr-defined]

    envelope = Envelope(payload, PAYLOAD_TYPE, {key: Signature(key, signature.encode().hex())})
    return json.dumps(envelope.to_dict(), sort_keys=True, separators=(",", ":")).encode() + b"\n"


def unseal(data: bytes) -> tuple[bytes, str, str]:
    """Payload, fingerprint and armoured signature.

    Raises ValueError for an envelope that is not written as `seal` does, has no signature, or more than one.
    """
    from securesystemslib.dsse import Envelope

    fields = evidence_file.parse(data)
    try:
        envelope: Envelope = Envelope.from_dict(fields)
        ((key, signature),) = envelope.signatures.items()
        payload, armour = bytes(envelope.payload), bytes.fromhex(signature.signature).decode("ascii")
        # Made anew: the library would keep fields that it does not know.
        canonical = seal(payload, key, armour) == data and is_canonical(armour)
    except Exception as error:
        raise ValueError(f"it is no DSSE envelope with one signature: {type(error).__name__}") from error
    if not canonical:
        raise ValueError("it is not written as `report sign` writes it")
    return payload, str(key), armour
