"""A wheel as a file: whether it is the package of its name, and contains what its own RECORD says.

Unpacks and runs nothing.
"""

from __future__ import annotations

import csv
import io
import os
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from packaging.metadata import parse_email
from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError
from envbuild.model.common import Unpacked
from envbuild.model.lock import LockedPackage
from envbuild.node import hashing, pip_config
from envbuild.node.packages import index_client, uv
from envbuild.node.protocol import NodeError
from envbuild.resolve.artifacts import same_version

Answer = TypeVar("Answer")
# The listing is the end of a wheel: that of most lies in the first length, that of torch (12,248 files) in the second.
_TAILS = (1 << 16, 1 << 22, 1 << 26)


def of_wheel(url: str) -> Unpacked | None:
    """The disk space of a wheel at an http(s) or file URL; None if it cannot be read, which a lock may leave out."""
    files = members(url)
    return None if files is None else Unpacked.of({path: file.file_size for path, file in files.items()})


def members(url: str) -> dict[str, zipfile.ZipInfo] | None:
    """The files of a wheel at an http(s) or file URL, from its listing; None as `of_wheel`."""
    return _read(url, lambda archive: {file.filename: file for file in archive.infolist() if not file.is_dir()})


def speaks_of(url: str, module: str, name: str) -> bool:
    """Whether the code of a module in a wheel says a name, or has a module of it; no where it cannot be asked."""
    base, word = module.replace(".", "/"), re.compile(rf"\b{re.escape(name)}\b".encode())

    def says(archive: zipfile.ZipFile) -> bool:
        inside = [path for path in archive.namelist() if path.startswith((f"{base}/", f"{base}."))]
        if any(path.startswith((f"{base}/{name}/", f"{base}/{name}.")) for path in inside):
            return True
        return any(word.search(archive.read(path)) for path in inside if path.endswith(".py"))

    return bool(_read(url, says))


def _read(url: str, read: Callable[[zipfile.ZipFile], Answer]) -> Answer | None:
    parts = urlsplit(url)
    if not parts.path.endswith(".whl"):
        return None
    try:
        if parts.scheme == "file":
            with zipfile.ZipFile(Path(unquote(parts.path))) as archive:
                return read(archive)
        return _remote(url, read) if parts.scheme in ("http", "https") else None
    except (NodeError, OSError, ValueError, zipfile.BadZipFile, NotImplementedError):  # the last: of zipfile
        return None


def _remote(url: str, read: Callable[[zipfile.ZipFile], Answer]) -> Answer | None:
    certificates = pip_config.read(os.environ).cert
    for length in _TAILS:
        tail = index_client.tail(url, length, certificates, timeout=10)
        if tail is None:
            return None
        try:
            with zipfile.ZipFile(io.BytesIO(tail)) as archive:
                return read(archive)
        except (ValueError, zipfile.BadZipFile):  # what is asked for lies before that part
            continue
    return None


_ALGORITHMS = ("sha256", "sha384", "sha512")
_TEXT_LIMIT = 64 << 20


def check(path: Path, file: str, package: LockedPackage, say: Callable[[str], None]) -> int:
    """Compare every member that RECORD names with its hash there; returns how many agree.

    `file`: the wheel's name. `say` hears of a RECORD that is wrong about the wheel's own metadata: torch's was written
    before its wheels were renamed. Raises EnvbuildError `artifact-damaged`, `record-mismatch`, `wheel-unsafe` (exit 5).
    """
    try:
        uv.refuse_unsafe(str(path))
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if len(set(names)) != len(names):
                raise _damaged(file, "a member is in it twice")
            records = [name for name in names if name.count("/") == 1 and name.endswith(".dist-info/RECORD")]
            if len(records) != 1:
                raise _damaged(file, f"it has {len(records)} RECORD files")
            folder = records[0].rpartition("/")[0]
            _check_identity(archive, folder, file, package)
            return _check_members(archive, folder, file, say)
    except NodeError as error:
        raise EnvbuildError.from_dict(error.as_dict()) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, NotImplementedError) as error:
        raise _damaged(file, f"{type(error).__name__}: {str(error)[:200]}") from error


def _text(archive: zipfile.ZipFile, name: str, file: str) -> str:
    if archive.getinfo(name).file_size > _TEXT_LIMIT:
        raise _damaged(file, f"{name} is larger than {_TEXT_LIMIT >> 20} MiB")
    return archive.read(name).decode("utf-8", "replace")


def _check_identity(archive: zipfile.ZipFile, folder: str, file: str, package: LockedPackage) -> None:
    """METADATA names the package and the version that the lock has."""
    metadata, _ = parse_email(_text(archive, f"{folder}/METADATA", file))
    name, version = metadata.get("name", ""), metadata.get("version", "")
    if canonicalize_name(name) != canonicalize_name(package.name) or not same_version(version, package.version):
        raise EnvbuildError(
            "record-mismatch",
            f"{file} says that it is {name or 'nothing'} {version}",
            why=f"the lock asks for {package.name} {package.version}",
            hint="use another index or mirror",
        )


def _check_members(archive: zipfile.ZipFile, folder: str, file: str, say: Callable[[str], None]) -> int:
    members = set(archive.namelist())
    agree, wrong = 0, []
    for row in csv.reader(io.StringIO(_text(archive, f"{folder}/RECORD", file))):
        if len(row) < 2 or not row[1] or row[0].endswith(".pyc"):
            continue
        algorithm, _, expected = row[1].partition("=")
        if row[0] not in members or algorithm not in _ALGORITHMS:
            wrong.append(f"{row[0]} ({'missing' if row[0] not in members else algorithm})")
        elif _digest(archive, row[0], algorithm) == expected.rstrip("="):
            agree += 1
        elif row[0].startswith(f"{folder}/"):
            say(f"{file}: its own RECORD is wrong about {row[0]}")
        else:
            wrong.append(f"{row[0]} (changed)")
    if wrong:
        raise EnvbuildError(
            "record-mismatch",
            f"{file} differs from its own RECORD: {wrong[0]}",
            why=f"{len(wrong)} of {len(wrong) + agree} members differ",
            hint="fetch it again, or use another index or mirror: it was damaged or changed in transit",
            details={"members": wrong[:20]},
        )
    return agree


def _digest(archive: zipfile.ZipFile, name: str, algorithm: str) -> str:
    with archive.open(name) as member:
        return hashing.for_record(hashing.digest_of_stream(member, algorithm))


def _damaged(file: str, why: str) -> EnvbuildError:
    return EnvbuildError("artifact-damaged", f"invalid wheel {file}", why=why, hint="fetch it again")
