"""Stores of built wheels and caches of nodes: asked of every node, and wheels that come from one to this machine."""

from __future__ import annotations

import posixpath
import secrets
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.model.facts import NodeFacts
from envbuild.model.target import Connection, Target
from envbuild.provision.contact.first_contact import RunFolder, contact, node_request
from envbuild.regular_file import sha256_of

# Hashing a store takes a second for some hundred megabytes; packing reads and writes every wheel twice.
DEADLINE = 3600.0
# A wheel of flash-attn is some hundred megabytes; more than this is no pack of wheels.
LIMIT = 16 * 1024**3
IDLE_S = 120.0
_SCRIPT = """\
path={path}
trap 'rm -f -- "$path"' EXIT
trap 'exit 1' HUP INT PIPE TERM
printf '\\n%s\\n' {begin}
cat < "$path"
"""


def store_of(target: Target, prefix: str, facts: NodeFacts) -> str:
    """Where a node keeps built wheels."""
    return facts.filled(target.store) if target.store else posixpath.join(prefix, "store", "wheels")


def fetch_wheels(
    node: str, prefix: str, store: str, keys: Mapping[str, str], to: Path, connection: Connection,
    run: RunFolder | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Put wheels of a node's store (by source their keys) into a bundle there, and bring it to the new file `to`.

    Its `digest`, `bytes` and `sha256`. Raises EnvbuildError of that node and as `receive` does.
    """
    # One node can give to several classes at once.
    there = posixpath.join(store, "tmp", f"bundle-{secrets.token_hex(6)}.tar")
    args = {"action": "pack", "store": store, "file": there, "keys": sorted(keys.values())}
    requests = {node: node_request("wheels", prefix, args)}
    bundle = contact(requests, connection, DEADLINE, run=run)[node].result()
    receive(node, there, to, size=bundle["bytes"], sha256=bundle["sha256"], connection=connection)
    return bundle


def receive(node: str, path: str, to: Path, *, size: int, sha256: str, connection: Connection) -> None:
    """Bring the file `path` (absolute, on `node`) to the new file `to`, whole or not at all.

    Raises EnvbuildError `transfer-too-large` (exit 7), `disk-full` (75), `transfer-cut-off` (3), `transfer-damaged` (5)
    and as `ssh.exchange` does.
    """
    if not 0 <= size <= LIMIT:
        raise EnvbuildError(
            "transfer-too-large", f"{node}: {path} has {size} bytes", why=f"the limit is {LIMIT >> 30} GiB"
        )
    if shutil.disk_usage(to.parent).free < size:
        raise EnvbuildError(
            "disk-full",
            f"no room for {size} bytes of {node} in {to.parent}",
            hint="name a larger disk for run directories (config key `runs`)",
        )
    half = to.with_name(f".{to.name}.half")
    try:
        stderr = _copy(node, path, half, size, connection)
        if half.stat().st_size != size:
            raise EnvbuildError(
                "transfer-cut-off",
                f"{node}: {half.stat().st_size} of {size} bytes of {path} arrived",
                why=stderr.strip()[-300:],
            )
        if sha256_of(half) != sha256:
            raise EnvbuildError(
                "transfer-damaged",
                f"{node}: {path} was damaged in transit",
                why=f"its sha256 is not {sha256[:12]}",
            )
        half.replace(to)
    finally:
        half.unlink(missing_ok=True)


def _copy(node: str, path: str, to: Path, size: int, connection: Connection) -> str:
    """What went to stderr meanwhile."""
    with to.open("xb") as out:
        if connection.kind == "local":
            with Path(path).open("rb") as source:
                shutil.copyfileobj(source, out)
            Path(path).unlink()
            return ""
        from envbuild.transport import ssh

        begin = f"===envbuild file {secrets.token_hex(16)}==="
        script = _SCRIPT.format(path=shlex.quote(path), begin=shlex.quote(begin))
        marker = f"\n{begin}\n".encode()
        return ssh.download(node, script.encode(), connection, begin=marker, size=size, out=out, idle=IDLE_S)[1]
