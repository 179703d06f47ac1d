"""Stores of built wheels: where a node has its store, and the bundle in which wheels of it come to this machine."""

from __future__ import annotations

import posixpath
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from envbuild.bundle.collect import verify
from envbuild.errors import EnvbuildError, writing
from envbuild.model.facts import NodeFacts
from envbuild.model.target import Connection, Target
from envbuild.provision.contact.first_contact import RunFolder, contact, node_request

# Hashing a store takes a second for some hundred megabytes; packing reads and writes every wheel twice.
DEADLINE = 3600.0
# A wheel of flash-attn is some hundred megabytes; more than this is no pack of wheels.
LIMIT = 16 * 1024**3
IDLE_S = 120.0


def store_of(target: Target, facts: NodeFacts) -> str:
    """Where a node keeps built wheels."""
    return facts.filled(target.store) if target.store else posixpath.join(facts.stage_prefix, "store", "wheels")


def fetch_wheels(
    target: Target, facts: NodeFacts, keys: Mapping[str, str], to: Path, run: RunFolder | None = None
) -> str:
    """Put wheels of a node's store (by source their keys) into a bundle there, and bring it to the new file `to`.

    The bundle's digest; every byte of it is checked here. Raises EnvbuildError of that node, `transfer-cut-off` (exit
    3), `bundle-damaged`, `bundle-unsafe` (5), `output-unwritable` (2), and as `ssh.exchange` does.
    """
    store, connection = store_of(target, facts), target.connection
    # One node can give to several classes at once.
    there = posixpath.join(store, "tmp", f"bundle-{secrets.token_hex(6)}.tar")
    args = {"action": "pack", "store": store, "file": there, "keys": sorted(keys.values())}
    requests = {facts.node: node_request("wheels", facts.stage_prefix, args)}
    size = contact(requests, connection, DEADLINE, run=run)[facts.node].result()["bytes"]
    receive(facts.node, there, to, size, connection)
    return str(verify(to)["digest"])


def receive(node: str, path: str, to: Path, size: int, connection: Connection) -> None:
    """Move the file `path` (absolute, on `node`) of `size` bytes to the new file `to`.

    Raises EnvbuildError `transfer-cut-off` (exit 3), `output-unwritable` (2), and as `ssh.exchange` does.
    """
    with writing(to):
        if connection.kind == "local":
            shutil.move(path, to)
            return
        from envbuild.transport import ssh

        with to.open("xb") as out:
            stderr = ssh.download(node, path, connection, size=min(size, LIMIT), out=out, idle=IDLE_S)
    arrived = to.stat().st_size
    if arrived != size:
        raise EnvbuildError(
            "transfer-cut-off", f"{node}: {arrived} of {size} bytes of {path} arrived", why=stderr.strip()[-300:]
        )
