"""The signature: right, of a key that the reader knows, and over this evidence."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from envbuild import __version__
from envbuild.report import ssh_signature
from envbuild.report.recheck.finding import Finding, checked, not_checked, problem
from envbuild.report.recheck.opened import Opened
from envbuild.report.statement import pae, statement, subject_digest, unseal

_TOPIC = "signature"


def check_signature(report: Opened, signers: Path | None) -> Iterator[Finding]:
    """What is to be said of the signature; `signers` as ssh-keygen's allowed_signers has them."""
    if report.envelope is None:
        if signers is not None:
            yield problem("report-unsigned", _TOPIC, "the report is not signed")
        else:
            yield not_checked(_TOPIC, "there is none: whoever can write these files can make all of them up")
        return
    try:
        payload, key, signature = unseal(report.envelope)
        subject = subject_digest(payload)
    except ValueError as error:
        yield problem("report-envelope-invalid", _TOPIC, str(error))
        return
    found, same = ssh_signature.check(pae(payload), signature), payload == statement(report.text, report.evidence)
    if found is None or found.key != key:
        yield problem("report-signature-invalid", _TOPIC, "it is not right for what it is said to sign")
    elif subject != hashlib.sha256(report.text).hexdigest():
        yield problem("report-signature-of-another", _TOPIC, "it is right, and is over the evidence of another report")
    elif not same and report.evidence.envbuild == __version__:
        yield problem("report-statement-differs", _TOPIC, "the statement does not say what the evidence does")
    else:
        yield from _who(pae(payload), signature, key, signers)
        if not same:
            says = f"envbuild {report.evidence.envbuild} made it, and this is {__version__}, which does not make it so"
            yield not_checked(_TOPIC, f"what its statement says: {says}")


def _who(data: bytes, signature: str, key: str, signers: Path | None) -> Iterator[Finding]:
    if signers is None:
        yield checked(_TOPIC, f"the key {key} signed exactly this evidence")
        yield not_checked(_TOPIC, "whose key that is: `--signers` names a file of those that you trust")
        return
    name = ssh_signature.principal(data, signature, signers)
    if name is None:
        yield problem("report-signer-unknown", _TOPIC, f"{signers.name} does not have the key {key} for this")
    else:
        yield checked(_TOPIC, f"{name} signed exactly this evidence, with the key {key}")
