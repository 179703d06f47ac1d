"""One entry of the wheel store: a folder with a wheel and its build.json, read with every check and written durably."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from typing import Any

from envbuild.node import paths, protocol, trust
from envbuild.node.protocol import Json
from envbuild.node.wheels.build_key import build_key

VERSION = 1
BUILD = "build.json"
_WHEEL = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl\Z")
_BLOCK = 1024 * 1024


class UnusableEntryError(Exception):
    """An entry that is not used: `kind` is `gone`, `untrusted` or `damaged`; `why` in words."""

    def __init__(self, kind: str, why: str) -> None:
        """Plain data."""
        super().__init__(why)
        self.kind = kind
        self.why = why


class Entry:
    """A wheel: `key`, `wheel` (its path), `sha256`, `size`, `inputs`, `facts`, `builder`, `built_at`, `last_used`.

    `stored` is False for a wheel that was built and could not be put into the store. Times in seconds since 1970.
    """

    def __init__(self, wheel: str, data: Json, stored: bool, last_used: float = 0.0) -> None:
        """`data` as in build.json."""
        self.data = data
        self.key: str = data["key"]
        self.wheel = wheel
        self.sha256: str = data["sha256"]
        self.size: int = data["size"]
        self.inputs: Json = data["inputs"]
        self.facts: Json = data["facts"]
        self.builder: Json = data.get("builder") or {}
        self.built_at = float(data.get("built_at") or 0)
        self.stored = stored
        self.last_used = last_used


def is_wheel_name(name: str) -> bool:
    """True for a plain file name that ends in `.whl`."""
    return _WHEEL.match(name) is not None


def check(folder: str, trusted: frozenset[int], into: str | None = None) -> Entry:
    """The entry in `folder` after its owner (one of `trusted`), its record and every byte of its wheel were checked.

    With `into` the wheel is copied to that folder and the Entry names the copy. Raises UnusableEntryError, and
    OSError where the copy cannot be written.
    """
    data, last_used = read(folder, trusted)
    wheel = source = os.path.join(folder, data["wheel"])
    out = -1
    if into is not None:
        wheel = os.path.join(into, data["wheel"])
        out = os.open(wheel, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    try:
        digest, size = _hash(_open(source, trusted), source, out)
    finally:
        if out >= 0:
            os.close(out)
    if (digest, size) != (data["sha256"], data["size"]):
        raise UnusableEntryError(
            "damaged",
            (
                f"{data['wheel']} has sha256 {digest:.12} and {size} bytes, {BUILD} says "
                f"{data['sha256']:.12} and {data['size']}"
            ),
        )
    return Entry(wheel, data, True, last_used)


def _hash(handle: int, path: str, out: int) -> tuple[str, int]:
    """sha256 and bytes of an open file, its content also written to the descriptor `out` (-1: nowhere)."""
    total, size = hashlib.sha256(), 0
    try:
        while True:
            try:
                block = os.read(handle, _BLOCK)
            except OSError as error:
                raise _unreadable(path, error) from None
            if not block:
                return total.hexdigest(), size
            total.update(block)
            size += len(block)
            if out >= 0:
                protocol.write_all(out, block)
    finally:
        os.close(handle)


def _open(path: str, trusted: frozenset[int]) -> int:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(path, error) from None
    why = trust.problem(os.fstat(handle), trusted, folder=False)
    if why:
        os.close(handle)
        raise UnusableEntryError("untrusted", f"{os.path.basename(path)}: {why}")
    return handle


def read(folder: str, trusted: frozenset[int]) -> tuple[Json, float]:
    """The build.json in `folder` and its last use; the wheel is not read. Raises UnusableEntryError."""
    try:
        facts = os.lstat(folder)
    except OSError:
        raise UnusableEntryError("gone", "it is not there") from None
    why = trust.problem(facts, trusted, folder=True)
    if why:
        raise UnusableEntryError("untrusted", why)
    handle = _open(os.path.join(folder, BUILD), trusted)
    with os.fdopen(handle, "rb") as stream:
        last_used = os.fstat(handle).st_mtime
        try:
            data = json.loads(stream.read(16 * _BLOCK).decode("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UnusableEntryError("damaged", f"{BUILD} cannot be read: {str(error)[:200]}") from None
    why = malformed(data, os.path.basename(folder))
    if why:
        raise UnusableEntryError("damaged", f"{BUILD}: {why}")
    return data, last_used


def write(folder: str, data: Json, wheel: str) -> None:
    """Fill the new folder `folder` with a copy of `wheel` and build.json, durably; `data` gets `sha256` and `size`.

    Nobody but us can write the files, whatever the umask. Raises OSError.
    """
    with open(wheel, "rb") as source, open(os.path.join(folder, data["wheel"]), "xb") as out:
        digest, size = _hash(os.dup(source.fileno()), wheel, out.fileno())
        _finish(out)
    data.update(sha256=digest, size=size)
    with open(os.path.join(folder, BUILD), "xb") as out:
        out.write(json.dumps(data, sort_keys=True, indent=1, ensure_ascii=True).encode("ascii") + b"\n")
        _finish(out)
    os.chmod(folder, 0o755)  # noqa: S103 - mkdtemp made it 0700, and others are to read it
    paths.sync_dir(folder)


def _finish(out: Any) -> None:
    out.flush()
    os.fchmod(out.fileno(), 0o644)
    os.fsync(out.fileno())


def _unreadable(path: str, error: OSError) -> UnusableEntryError:
    if error.errno == errno.ESTALE or (error.errno == errno.ENOENT and not os.path.isdir(os.path.dirname(path))):
        return UnusableEntryError("gone", "it was removed meanwhile")
    kind = "untrusted" if error.errno in (errno.EACCES, errno.EPERM) else "damaged"
    return UnusableEntryError(kind, f"{os.path.basename(path)} cannot be read: {error.strerror}")


def malformed(data: object, name: str) -> str:
    """What is wrong with the content of a build.json in the folder `name`; empty when nothing is."""
    kinds = (("key", str), ("inputs", dict), ("wheel", str), ("sha256", str), ("size", int), ("facts", dict))
    if not isinstance(data, dict) or data.get("version") != VERSION:
        return f"not of version {VERSION}"
    for key, kind in kinds:
        if not isinstance(data.get(key), kind):
            return f"`{key}` is missing"
    try:
        given = build_key(data["inputs"])
    except (TypeError, ValueError) as error:
        return f"its inputs: {error}"
    if data["key"] != given or not name.startswith(given):
        return f"it is of key {data['key']:.12}, its inputs give {given:.12}"
    return "" if is_wheel_name(data["wheel"]) else f"not the name of a wheel: {data['wheel'][:100]!r}"
