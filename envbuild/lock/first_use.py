"""This user's record of first uses: files without a hash in the lock, with what was seen when they were trusted.

One file a user (`first-use.toml` in the user's data folder), read by every verb that reads a lock and by `lock
create`. Not beside a lock, because trust is somebody's own decision: a shipped lock is shared and may be read-only, a
lock of one's own is under version control, and its digests would make every first use an edit. A record is never
replaced: a file of the same name with another hash is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.model.first_use import FirstUse, fill_package
from envbuild.model.lock import Lock, LockedPackage, Variant
from envbuild.node import paths
from envbuild.regular_file import read_file

VERSION = 1
MAX_BYTES = 16 * 1024 * 1024
HEADER = (
    "Files that envbuild trusted on first use, because the lock has no hash of them.",
    "From then on they have to have this sha256. Remove an entry to trust anew.",
)


def records_path() -> Path:
    """Where this user's record is."""
    import platformdirs

    return platformdirs.user_data_path("envbuild") / "first-use.toml"


def read_first_uses(path: Path | None = None) -> dict[str, FirstUse]:
    """The recorded first uses by file name; none when there is no record.

    Raises EnvbuildError `first-use-unreadable` (exit 5): what was trusted before is not guessed.
    """
    path = path or records_path()
    try:
        raw = read_file(path, MAX_BYTES)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    import tomli

    try:
        data = tomli.loads(raw.decode("utf-8"))
        uses = [FirstUse.from_plain(row) for row in data.get("file", [])]
    except (TypeError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)[:500]) from error
    if data.get("version") != VERSION:
        raise _unreadable(path, f"it has version {data.get('version')!r}; this envbuild reads {VERSION}")
    if len({use.file for use in uses}) != len(uses):
        raise _unreadable(path, "two entries name the same file")
    return {use.file: use for use in uses}


def add_first_uses(uses: Iterable[FirstUse], path: Path | None = None) -> dict[str, FirstUse]:
    """Record first uses durably; returns all that are recorded then. What is recorded already keeps its date.

    Raises EnvbuildError `hash-mismatch` (exit 5) when one is recorded with another hash, before anything is written;
    `first-use-unreadable` (5), `first-use-unwritable` (2).
    """
    path = path or records_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            known = read_first_uses(path)
            new = {}
            for use in uses:
                before = known.get(use.file)
                if before is not None and before.sha256 != use.sha256:
                    raise hash_mismatch(before, use.sha256, path)
                if before is None:
                    new[use.file] = use
            if new:
                known |= new
                _write(path, known)
            return known
    except OSError as error:
        raise EnvbuildError(
            "first-use-unwritable",
            f"{path} cannot be written",
            why=error.strerror or str(error),
            hint="a first use is trusted only when it can be recorded",
        ) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_suffix(".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _write(path: Path, uses: Mapping[str, FirstUse]) -> None:
    import tomlkit

    document = tomlkit.document()
    for line in HEADER:
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    document.add("version", tomlkit.item(VERSION))
    tables = tomlkit.aot()
    for name in sorted(uses):
        table = tomlkit.table()
        for key, value in uses[name].to_json_dict().items():
            table.add(key, value)
        tables.append(table)
    document.add("file", tables)
    paths.write_whole(str(path), tomlkit.dumps(document).encode(), 0o600)


def fill(lock: Lock, uses: Mapping[str, FirstUse]) -> Lock:
    """The lock with the hashes of first uses; a variant's digest is that of its contents with them.

    So an environment is named by what was really taken: two machines that were given different files never share one.
    Raises EnvbuildError `hash-mismatch` (exit 5) where the lock has another hash for a file of the same index.
    """
    if not uses:
        return lock
    variants = tuple(_filled(lock, variant, dict(uses)) for variant in lock.variants)
    return lock if variants == lock.variants else lock.model_copy(update={"variants": variants})


def _filled(lock: Lock, variant: Variant, uses: dict[str, FirstUse]) -> Variant:
    check_against_uses(variant.packages, uses)
    packages = tuple(fill_package(package, uses) for package in variant.packages)
    if packages == variant.packages:
        return variant
    filled = variant.model_copy(update={"packages": packages})
    return filled.model_copy(update={"digest": filled.compute_digest(lock.stack, lock.profile)})


def check_against_uses(packages: Iterable[LockedPackage], uses: Mapping[str, FirstUse]) -> None:
    """Raise EnvbuildError `hash-mismatch` (exit 5) where a file of the same index was first used with another hash."""
    for package in packages:
        for file in package.files:
            use = uses.get(file.file)
            if use is None or use.index != package.index or file.sha256 in ("unrecorded", use.sha256):
                continue
            raise hash_mismatch(use, file.sha256, records_path(), f"the lock says {file.sha256}")


def hash_mismatch(use: FirstUse, found: str, path: Path, said: str = "") -> EnvbuildError:
    """`hash-mismatch` (exit 5): a file is not the one that was trusted, with both hashes."""
    return EnvbuildError(
        "hash-mismatch",
        f"{use.file} is not the file that was trusted on first use",
        why=f"recorded on {use.first_used[:10]} from {use.found}: sha256 {use.sha256}; "
        f"{said or f'now it has sha256 {found}'}",
        hint=f"find out why it changed; if the new one is right, remove the entry from {path}",
        details={"file": use.file, "recorded": use.sha256, "found": found},
    )


def _unreadable(path: Path, why: str) -> EnvbuildError:
    return EnvbuildError(
        "first-use-unreadable",
        f"{path} is no record of first uses",
        why=why,
        hint="restore the file; removing it means that everything in it is trusted anew",
    )
