"""The locked archives on this node: from the folder of what was delivered, a local channel, or fetched; each hashed."""

from __future__ import annotations

import os
import threading
from functools import partial

from envbuild.node import hashing, paths, pip_config, proc
from envbuild.node.protocol import Exit, Json, NodeError, log, plural

_AT_ONCE = 8


def check_recorded(variant: Json) -> None:
    """Raise NodeError `conda-unrecorded` (exit 5) where a variant's conda packages were never locked."""
    conda = variant.get("conda") or {}
    if not conda.get("packages"):
        raise NodeError(
            "conda-unrecorded",
            "the lock has no conda packages",
            why=str(conda.get("unrecorded") or ""),
            hint="run `envbuild lock create STACK` on a machine that reaches the channel",
        )


def bring(packages: list[Json], where: Json, folder: str) -> dict[str, str]:
    """Every archive as a local file with the sha256 of the lock; returns name of the package -> path.

    `where`: `folder` that holds `<channel>/<subdir>/<file>`, or `channels` {name: base addresses}. What has to be
    fetched is written to `folder`. Raises NodeError: `hash-mismatch` (exit 5), `package-not-found`, `index-refused`
    (4), `channel-refused` (7), `conda-config-invalid` (2), `network-unreachable` (75); OSError.
    """
    cert = pip_config.read(os.environ).cert
    files = proc.pool_map(partial(_one, where=where, folder=folder, cert=cert), packages, _AT_ONCE)
    archives = {package["name"]: path for package, path in zip(packages, files)}  # noqa: B905 - strict= is of Python 3.10
    log(f"{plural(len(archives), 'conda archive')} with the hashes of the lock")
    return archives


def _one(package: Json, where: Json, folder: str, cert: str) -> str:
    name = paths.checked_name(package["file"], "file")
    below = f"{package['subdir']}/{name}"
    if where.get("folder"):
        local = [os.path.join(where["folder"], package["channel"], below)]
        remote: list[str] = []
    else:
        bases = (where.get("channels") or {}).get(package["channel"]) or []
        local = [os.path.join(place, below) for place in filter(None, map(pip_config.local_path, bases))]
        remote = [f"{base.rstrip('/')}/{below}" for base in bases if not pip_config.local_path(base)]
    for path in local:
        if os.path.isfile(path):
            _check(package, hashing.digest_of(path))
            return path
    kept = os.path.join(folder, f"{package['sha256'][:12]}-{name}")
    if os.path.isfile(kept) and hashing.digest_of(kept) == package["sha256"]:
        return kept
    failure = NodeError(
        "package-not-found",
        f"{name} of the channel {package['channel']} is not available",
        why="nothing says where the channel is" if not local + remote else "it is not in the channel's folder",
        hint="check that the channel has it; offline, check the bundle",
        changed=True,
    )
    for url in remote:
        try:
            return _fetch(package, url, kept, cert)
        except NodeError as error:
            if error.exit_code == Exit.INTEGRITY:
                raise
            failure = error
            if error.details.get("status"):
                failure = NodeError(
                    "channel-refused",
                    f"the channel {package['channel']} denied access to {package['file']}",
                    why=error.why,
                    hint="put its credentials on the node into ~/.netrc or the file that RATTLER_AUTH_FILE names; or "
                    "let the controller fetch with its own: `delivery: controller`",
                    changed=True,
                )
    raise failure


def _fetch(package: Json, url: str, path: str, cert: str) -> str:
    # Every installation would import an HTTP client for what few ask for.
    from envbuild.node.conda import logins
    from envbuild.node.packages import index_client

    asked, authorization = logins.login(url, os.environ)
    half = f"{path}.part-{threading.get_ident()}"
    try:
        with open(half, "wb") as stream:
            digest, _ = hashing.write(index_client.blocks(asked, cert, authorization), stream)
        _check(package, digest)
        os.rename(half, path)
    finally:
        paths.remove_tree(half)
    return path


def _check(package: Json, digest: str) -> None:
    if digest != package["sha256"]:
        raise NodeError(
            "hash-mismatch",
            f"{package['file']} is not the file that the lock names",
            why=f"its sha256 is {digest}, the lock says {package['sha256']}",
            hint="use another channel or mirror; if the change is intended, run `envbuild lock create STACK`",
            changed=True,
        )
