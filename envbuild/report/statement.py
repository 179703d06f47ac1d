"""What is signed of a report: an in-toto Statement v1 about `evidence.json`, in a DSSE envelope."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from envbuild.model.evidence import Evidence
from envbuild.model.lock import canonical_json
from envbuild.report import evidence_file
from envbuild.report.ssh_signature import is_canonical
from envbuild.report.verdict import make_verdict, node_checks

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
    found: Any = evidence_file.parse(payload)
    try:
        if (found["_type"], found["predicateType"], len(found["subject"])) == (STATEMENT, PREDICATE, 1):
            return str(found["subject"][0]["digest"]["sha256"])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError("it has not the fields of a statement") from error
    raise ValueError("it is a statement of another kind")


def pae(payload: bytes) -> bytes:
    """What is signed: the payload with its type and both lengths (DSSE's pre-authentication encoding)."""
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

    found = evidence_file.parse(data)
    try:
        envelope: Envelope = Envelope.from_dict(found)
        ((key, signature),) = envelope.signatures.items()
        payload, armour = bytes(envelope.payload), bytes.fromhex(signature.signature).decode("ascii")
        # Made anew: the library would keep fields that it does not know.
        canonical = seal(payload, key, armour) == data and is_canonical(armour)
    except Exception as error:
        raise ValueError(f"it is no DSSE envelope with one signature: {type(error).__name__}") from error
    if not canonical:
        raise ValueError("it is not written as `report sign` writes it")
    return payload, str(key), armour
