"""The way of one pack from node to node: who has it, who gives it to whom, and who has to get it otherwise."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.provision.contact.first_contact import ContactResult

Answers = Mapping[str, ContactResult]
# Below the range from which Linux takes ports for outgoing connections.
_PORTS = range(20000, 32768)
_PEER = ("peer-unreachable", "peer-gave-up")


@dataclass
class Journey:
    """How far a pack has come: `holders` have it, `sent` get it from this machine, `errors` end the others.

    `left` get none, for it could not come to this machine (`why`).
    """

    pack: Mapping[str, Any]
    holders: list[str]
    waiting: list[str]
    sent: list[str] = field(default_factory=list)
    errors: dict[str, EnvbuildError] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)
    archive: Path | None = None
    left: list[str] = field(default_factory=list)
    why: EnvbuildError | None = None

    def arrives(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that have it, or get it from this machine."""
        return [name for name in names if name not in self.errors and name not in self.left]


def relays(
    drawn: Mapping[str, list[str]], addresses: Mapping[str, str], pack: Mapping[str, Any], deadline: float
) -> dict[str, dict[str, Any]]:
    """The arguments of `relay` for every node of a tree, with a token for each of its edges and one certificate."""
    parents = {child: parent for parent, children in drawn.items() for child in children}
    names = list(dict.fromkeys((*drawn, *parents)))
    ports = {name: random.sample(_PORTS, 4) for name in drawn}
    tokens = {child: secrets.token_hex(32) for child in parents}
    # Every node is contacted by a thread of this process; the last ones begin seconds after the first.
    patience = 15.0 + 0.5 * len(names)
    certificate, key = _certificate()
    found = {}
    for name in names:
        args: dict[str, Any] = {"file": pack["file"], "sha256": pack["sha256"], "bytes": pack["bytes"]}
        args.update(patience=patience, deadline=deadline)
        if name in parents:
            above = parents[name]
            args["parent"] = {"address": addresses[above], "ports": ports[above], "token": tokens[name]}
            args["parent"]["certificate"] = certificate
        if name in drawn:
            args["children"] = [{"name": child, "token": tokens[child]} for child in drawn[name]]
            args["listen"] = {"address": addresses[name], "ports": ports[name], "certificate": certificate, "key": key}
        found[name] = args
    return found


def _certificate() -> tuple[str, str]:
    """A new certificate and its key (PEM). Nothing else is trusted where it is, and nobody keeps the key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "envbuild")])
    # Clocks of nodes may be off by years.
    since, until = (datetime(year, 1, 1, tzinfo=UTC) for year in (1970, 2100))
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), since, until)
    signed = made.sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return signed.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


def note(journey: Journey, drawn: Mapping[str, list[str]], answers: Answers) -> None:
    """Who has the pack now, who tries another parent, whom this machine has to send it to, and who ends."""
    parents = {child: parent for parent, children in drawn.items() for child in children}
    errors = {child: _error(answers.get(child)) for child in parents}
    journey.holders += [child for child, error in errors.items() if error is None]
    lost = {name for name in drawn if _error(answers.get(name)) is not None}
    journey.holders = [name for name in journey.holders if name not in lost]
    for child, error in errors.items():
        if error is None:
            continue
        if error.code not in _PEER:
            journey.errors[child] = error
        elif parents[child] in lost and child not in journey.again:
            journey.again.add(child)  # its parent had nothing to give: that says nothing of the way between them
            continue
        else:
            journey.sent.append(child)
    done = {*journey.holders, *journey.errors, *journey.sent}
    journey.waiting = [name for name in journey.waiting if name not in done]


def _error(answer: ContactResult | None) -> EnvbuildError | None:
    return None if answer is None else answer.failure
