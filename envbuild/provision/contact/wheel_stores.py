"""One verb of the node program on every node of a target, one contact a node: for `envbuild wheels` and `cache`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from envbuild.errors import EnvbuildError
from envbuild.hostlist import expand_hosts
from envbuild.model.target import Target
from envbuild.provision.contact.first_contact import contact, node_request

# Hashing a store takes a second for some hundred megabytes.
DEADLINE = 3600.0


def ask_each(verb: str, target: Target, args: Mapping[str, Any]) -> dict[str, dict[str, Any] | EnvbuildError]:
    """Node -> result of a verb with `args` (docs/dev/node-verbs-fleets.md), or why there is none."""
    request = node_request(verb, target.prefix, args, f"{verb}-{args.get('action', 'ask')}-{uuid4().hex[:12]}")
    answers = contact(expand_hosts(target.hosts), lambda _: request, target.connection, DEADLINE)
    return {node: answer.failure or answer.result() for node, answer in answers.items()}
