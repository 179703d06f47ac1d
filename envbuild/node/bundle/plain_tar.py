"""Tar files of plain files: written in one form only, and read with no trust in their names, kinds and sizes.

The reader of everything that comes from others as a tar file, bundles and kits. No member is unpacked by its own word:
who reads gets a checked name, a bounded size and the bytes.
"""

from __future__ import annotations

import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

BLOCK = 512
CHUNK = 4 * 1024 * 1024
END = b"\0" * (2 * BLOCK)
MODE = 0o644
_LONGEST = 4096  # of a name
_NO_TAR = "it is not an uncompressed tar file, or truncated"
_SPECIAL = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX


@dataclass(eq=False)
class HostileError(Exception):
    """What is not read any further: `kind` is `unsafe`, `too-large` or `damaged`; `why`.

    `name` of the member is empty where the whole file is meant.
    """

    kind: str
    name: str
    why: str


class Limits(NamedTuple):
    """What a tar file or folder may hold: names that match `pattern` as a whole, so many files, so many bytes.

    `largest`: bytes of one file, by its name; `alls`: of all together. `exact`: only what `header` and `END` write.
    """

    pattern: Any
    files: int
    largest: Callable[[str], int]
    alls: int
    exact: bool = False


class Names:
    """The names seen so far: each plain, none twice, none another by its case alone, none a folder and a file."""

    def __init__(self, limits: Limits) -> None:
        """Nothing is seen yet."""
        self._limits = limits
        self._files: dict[str, str] = {}
        self._folders: dict[str, str] = {}
        self._bytes = 0

    def file(self, name: str, size: int) -> None:
        """One more file of so many bytes; raises HostileError."""
        self._check(name)
        key = name.lower()
        other = self._files.get(key)
        if other is not None:
            raise _unsafe(name, "it is there twice" if other == name else f"only its case differs from {other}")
        if key in self._folders:
            raise _unsafe(name, "it is a folder and a file")
        self._files[key] = name
        self._parents(name)
        self._bytes += size
        most = self._limits.largest(name)
        if size > most:
            raise HostileError("too-large", name, f"{size:,} bytes, {most:,} are the most")
        if len(self._files) > self._limits.files or self._bytes > self._limits.alls:
            limits = f"more than {self._limits.files:,} files, or more than {self._limits.alls:,} bytes"
            raise HostileError("too-large", name, f"with it there are {limits}")

    def folder(self, name: str) -> None:
        """One more folder; raises HostileError."""
        self._check(name)
        self._parents(name + "/")
        if len(self._folders) > 2 * self._limits.files:
            raise HostileError("too-large", name, f"more than {2 * self._limits.files:,} folders")

    def _parents(self, name: str) -> None:
        parts = name.split("/")[:-1]
        for number in range(len(parts)):
            above = "/".join(parts[: number + 1])
            if above.lower() in self._files:
                raise _unsafe(name.rstrip("/"), f"{above} is a file")
            if self._folders.setdefault(above.lower(), above) != above:
                raise _unsafe(
                    name.rstrip("/"), f"only the case of a folder differs from {self._folders[above.lower()]}"
                )

    def _check(self, name: str) -> None:
        if name.startswith("/") or ".." in name.split("/"):
            raise _unsafe(name, "it leads out of its folder")
        if not self._limits.pattern.fullmatch(name):
            raise _unsafe(
                name, "a name here has letters, digits, dots and dashes, and no part begins with a dot or dash"
            )


def header(name: str, size: int) -> bytes:
    """The one form in which a member is announced: no time, no owner."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, MODE
    return member.tobuf(tarfile.GNU_FORMAT)


def padding(size: int) -> bytes:
    """The zeros behind so many bytes."""
    return b"\0" * (-size % BLOCK)


def write(out: IO[bytes], name: str, size: int, parts: Iterable[bytes]) -> None:
    """Write one member whose parts have `size` bytes in all. Raises OSError, ValueError where they have not."""
    out.write(header(name, size))
    left = size
    for part in parts:
        left -= len(part)
        out.write(part)
    if left:
        raise ValueError(f"{name} has {size - left} bytes, {size} were announced")
    out.write(padding(size))


def members(stream: IO[bytes], limits: Limits) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Name, size and parts of every file in a tar file, each checked before it is handed out; raises HostileError.

    A part that nobody reads is read over. With `limits.exact` every byte is one that `write` and `END` give.
    """
    names = Names(limits)
    while True:
        member, raw = _header(stream)
        if member is None:
            break
        name = member.name if limits.exact else re.sub(r"\A(\./)+", "", member.name)
        if member.isdir() and not limits.exact:
            if name not in ("", "."):
                names.folder(name)
            continue
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise _unsafe(name, f"it is {_KINDS.get(member.type, 'no regular file')}")
        if member.mode & _SPECIAL:
            raise _unsafe(name, "its mode %o is that of another user or group" % member.mode)
        names.file(name, member.size)
        if limits.exact and raw != header(name, member.size):
            raise HostileError("damaged", name, "its header is not the one that belongs to it")
        parts = _parts(stream, name, member.size, limits.exact)
        yield name, member.size, parts
        for _ in parts:
            pass
    if limits.exact and (raw != END[:BLOCK] or stream.read(BLOCK + 1) != END[BLOCK:]):
        raise HostileError("damaged", "", "it does not end where it should")


_KINDS = {
    tarfile.SYMTYPE: "a link",
    tarfile.LNKTYPE: "a link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


def _header(stream: IO[bytes]) -> tuple[tarfile.TarInfo | None, bytes]:
    """The next member and the bytes that announce it; None at the end."""
    raw = _exactly(stream, BLOCK, _NO_TAR)
    if not raw.strip(b"\0"):
        return None, raw
    header = _parsed(raw)
    if header.type != tarfile.GNUTYPE_LONGNAME:
        return header, raw
    if not 0 < header.size <= _LONGEST:
        raise HostileError("damaged", "", f"a name of {header.size} bytes")
    name = _exactly(stream, header.size + len(padding(header.size)), "it is truncated in a name")
    following = _exactly(stream, BLOCK, "it is truncated behind a name")
    header = _parsed(following)
    if header.type == tarfile.GNUTYPE_LONGNAME:
        raise HostileError("damaged", "", "two names of one member")
    header.name = name.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
    return header, raw + name + following


def _parsed(raw: bytes) -> tarfile.TarInfo:
    try:
        header = tarfile.TarInfo.frombuf(raw, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise HostileError("damaged", "", f"{_NO_TAR}: {error}") from None
    if header.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGLINK):
        raise HostileError("damaged", "", "it has headers that plain tar files lack")
    if header.size < 0:
        raise HostileError("damaged", "", f"a file of {header.size} bytes")
    return header


def _exactly(stream: IO[bytes], size: int, why: str) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise HostileError("damaged", "", why)
    return data


def _parts(stream: IO[bytes], name: str, size: int, exact: bool) -> Iterator[bytes]:
    left = size
    while left:
        part = stream.read(min(CHUNK, left))
        if not part:
            raise HostileError("damaged", name, "it ends in the middle")
        left -= len(part)
        yield part
    rest = _exactly(stream, len(padding(size)), f"it is truncated behind {name}")
    if exact and rest.strip(b"\0"):
        raise HostileError("damaged", name, "there is something behind its end")


def tree(top: str | os.PathLike[str], limits: Limits) -> dict[str, int]:
    """Name and size of every file in a folder that somebody unpacked; raises HostileError as `members` does."""
    names, sizes = Names(limits), {}
    for folder, folders, files in os.walk(top, onerror=_stop):
        for entry in sorted(folders + files):
            path = os.path.join(folder, entry)
            name, facts = os.path.relpath(path, top), os.lstat(path)
            if stat.S_ISDIR(facts.st_mode):
                names.folder(name)
                continue
            if not stat.S_ISREG(facts.st_mode):
                names.folder(name)  # a name that cannot be said is the first thing wrong with it
                raise _unsafe(name, "it is %s" % ("a link" if stat.S_ISLNK(facts.st_mode) else "no regular file"))
            if facts.st_mode & _SPECIAL:
                raise _unsafe(name, "its mode is that of another user or group")
            names.file(name, facts.st_size)
            sizes[name] = facts.st_size
    return sizes


def _stop(error: OSError) -> None:
    raise _unsafe(str(error.filename), f"it cannot be read: {error.strerror}")


def _unsafe(name: str, why: str) -> HostileError:
    return HostileError("unsafe", name, why)
