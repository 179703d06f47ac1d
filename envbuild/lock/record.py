"""Records the hashes that a lock lacks: each file is fetched once, compared with its own RECORD, and hashed.

Also writes locks: TOML for people, the same bytes every time, written atomically.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from packaging.utils import canonicalize_name

from envbuild.catalog.indexes import DEFAULT_INDEX, load_indexes
from envbuild.errors import EnvbuildError, ExitCode, writing
from envbuild.lock.files import NESTED, TABLES
from envbuild.lock.readers import wheel_record
from envbuild.lock.readers.wheel_record import of_wheel
from envbuild.model.lock import ArtifactFile, Lock, LockedPackage
from envbuild.node import paths, pip_config
from envbuild.node.packages import index_client
from envbuild.node.protocol import NodeError
from envbuild.transport.download import download

Known = Mapping[tuple[str, str], ArtifactFile]
"""files with their hashes, by the name of the index and of the file"""
_LARGEST = 16 << 30
_DEADLINE_S = 7200.0


@dataclass(frozen=True)
class Origin:
    """Where files come from: `folders` first, then the index that the lock names (never with `only_folders`).

    `indexes`: other addresses of named indexes. `cache` keeps fetched files, as `<sha256>/<file>`.
    """

    folders: Sequence[str]
    cache: Path
    indexes: Mapping[str, str]
    only_folders: bool = False


def _files(lock: Lock) -> Iterator[tuple[LockedPackage, ArtifactFile]]:
    for package in (package for variant in lock.variants for package in variant.packages):
        yield from ((package, file) for file in package.files)


def unrecorded(lock: Lock) -> list[tuple[LockedPackage, ArtifactFile]]:
    """The files of a lock without a hash, each once, with their packages."""
    lacking = ((package, file) for package, file in _files(lock) if file.sha256 == "unrecorded")
    return list({(package.index, file.file): (package, file) for package, file in lacking}.values())


def recorded(lock: Lock) -> Known:
    """The files of a lock with a hash."""
    return {(package.index, file.file): file for package, file in _files(lock) if file.sha256 != "unrecorded"}


def filled(lock: Lock, known: Known) -> Lock:
    """The lock with known hashes filled in, and its variant digests computed anew."""

    def with_hashes(package: LockedPackage) -> LockedPackage:
        files = (known.get((package.index, file.file), file) if file.sha256 == "unrecorded" else file
                 for file in package.files)  # fmt: skip
        return package.model_copy(update={"files": tuple(files)})

    variants = tuple(
        variant.with_fields(lock.stack, lock.profile, packages=tuple(map(with_hashes, variant.packages)))
        for variant in lock.variants
    )
    return lock.model_copy(update={"variants": variants})


def record_data(path: Path, lock: Lock, name: str, sha256: str) -> Lock:
    """Write a lock that knows one more file of data to `path`, and return it."""
    known = lock.model_copy(update={"data": {**lock.data, name: sha256}})
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_lock(path, known)
    return known


def fetch(package: LockedPackage, file: ArtifactFile, origin: Origin, say: Callable[[str], None]) -> ArtifactFile:
    """One file as it is now, with sha256, size and what it takes unpacked; `say` hears where it comes from.

    Raises EnvbuildError `hash-mismatch` (not what its index states), `record-mismatch`, `artifact-damaged`,
    `wheel-unsafe` (exit 5), `package-not-found`, `index-refused`, `index-unknown` (4), `network-unreachable` (75),
    and what `download` raises.
    """
    url, stated, words = _place(package, file, origin)
    say(f"fetching {file.file} from {words}")
    half = origin.cache / f".{secrets.token_hex(6)}.part"
    with writing(origin.cache):
        origin.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            got = download(url, half, stated or None, size_cap=_LARGEST, deadline=_DEADLINE_S)
            if file.file.endswith(".whl"):
                wheel_record.check(half, file.file, package, say)
            kept = origin.cache / got.sha256 / file.file
            kept.parent.mkdir(mode=0o700, exist_ok=True)
            half.replace(kept)
        finally:
            half.unlink(missing_ok=True)
    return ArtifactFile(file=file.file, sha256=got.sha256, size=got.size, unpacked=of_wheel(kept.as_uri()))


def _place(package: LockedPackage, file: ArtifactFile, origin: Origin) -> tuple[str, str, str]:
    """The address of a file, the sha256 that its index states (else empty), and in words where that is."""
    for folder in origin.folders:
        path = Path(folder, file.file).absolute()
        if path.is_file():
            return path.as_uri(), "", f"the folder {folder}"
    config = pip_config.read(os.environ)
    for page in () if origin.only_folders else _pages(package, file, origin, config):
        try:
            match = index_client.find(page, file.file, config.cert)
        except NodeError as error:
            if error.why == "HTTP 404":  # such an index has no project of that name
                continue
            if error.code == "network-unreachable":
                error.hint = f"run it where the index is reached, or name a folder that has {file.file}: `--from DIR`"
            raise EnvbuildError.from_dict(error.as_dict()) from error
        if match is not None:
            plain = ", unencrypted" if match.url.startswith("http:") else ""
            return match.url, match.sha256, f"the index {package.index}{plain}"
    places = [*origin.folders, *([] if origin.only_folders else [f"the index {package.index}"])]
    raise EnvbuildError(
        "package-not-found",
        f"{file.file} is not available",
        why=f"no file of that name is in {', '.join(places)}",
        hint="give a folder with `--from DIR`, or another address of the index with `--index NAME=URL`",
    )


def _pages(package: LockedPackage, file: ArtifactFile, origin: Origin, config: pip_config.PipConfig) -> Iterator[str]:
    """The pages that may name a file: of the index that the lock names, as without a hash no other is as good."""
    below = f"/{canonicalize_name(package.name)}/"
    entry = load_indexes().get(package.index)
    url = origin.indexes.get(package.index) or (entry.url if entry else "")
    if url:
        yield url if entry is not None and entry.kind == "find-links" else url.rstrip("/") + below
        return
    asked = [os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL") or config.index_url]
    urls = [url for url in (*asked, *config.extra_index_urls) if url and pip_config.local_path(url) is None]
    if package.index != DEFAULT_INDEX or not urls:
        raise EnvbuildError(
            "index-unknown",
            f"the index `{package.index}` has no address",
            why=f"{file.file} has no recorded hash, so envbuild takes it only from the index that the lock names",
            hint=f"add `--index {package.index}=URL`, or give a folder that has the file with `--from DIR`",
            exit_code=ExitCode.BUILD_FAILED,
        )
    yield from (url.rstrip("/") + below for url in urls)


HEADER = (
    "A lock of envbuild: exact contents and their sha256, no addresses.",
    "Written by `envbuild lock create`; the digests make an edit by hand an error.",
)
_NAMED = ("created_with", "data", "manifest_fields", "environment", "provided")
# Sub-tables come last: a plain key after one would belong to it.
_LAST = (*_NAMED, NESTED, *TABLES)


def render_lock(lock: Lock) -> str:
    """The text of a lock file: fields in the order of the model, names sorted, no empty fields."""
    document = tomlkit.document()
    for line in HEADER:
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    return tomlkit.dumps(_filled(document, lock.to_json_dict()))


def _filled(table: Any, data: dict[str, Any]) -> Any:
    for key in [key for key in data if key not in _LAST] + [key for key in _LAST if key in data]:
        value = data[key]
        # That a scan found nothing is not that nobody looked.
        if value in ({}, []) and key != "uses":
            continue
        if key in TABLES:
            rows = tomlkit.aot()
            for item in value:
                rows.append(_filled(tomlkit.table(), item))
            table.add(TABLES[key], rows)
        elif key == NESTED:
            table.add(key, _filled(tomlkit.table(), value))
        elif key in _NAMED:
            names = tomlkit.table()
            for name in sorted(value):
                names.add(name, inlined(value[name]))
            table.add(key, names)
        else:
            table.add(key, inlined(value))
    return table


def inlined(value: Any) -> Any:
    """Plain data as they stand in one line of TOML; tables of a list have one each."""
    if isinstance(value, dict):
        inline = tomlkit.inline_table()
        for key, item in value.items():
            if item not in ({}, []):
                inline.append(key, inlined(item))
        return inline
    if isinstance(value, list):
        array = tomlkit.array()
        array.extend(inlined(item) for item in value)
        return array.multiline(bool(value) and isinstance(value[0], dict))
    return value


def write_lock(path: Path, lock: Lock) -> None:
    """Write a lock file, whole or not at all. Raises EnvbuildError `output-unwritable` (exit 2)."""
    with writing(path):
        paths.write_whole(str(path), render_lock(lock).encode())
