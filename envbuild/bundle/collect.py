"""Bundles: what goes into one, found or fetched on this machine and checked; written whole or not at all, and read.

Of each package exactly the file that fits the node, by its locked sha256, from whichever index of pip's configuration
has it; no code of a package runs. Conda packages come from their channels, and sources become git bundles.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.utils import canonicalize_name

from envbuild import resources
from envbuild.catalog.indexes import DEFAULT_INDEX, load_indexes
from envbuild.catalog.toolchain import load_toolchain
from envbuild.errors import EnvbuildError, ExitCode, writing
from envbuild.lock.variants import conda_unrecorded, hash_unrecorded
from envbuild.model.lock import ArtifactFile, LockedPackage, LockedSource, LockedSubmodule, Variant
from envbuild.node import pip_config
from envbuild.node.bundle import archive
from envbuild.node.packages import index_client
from envbuild.node.protocol import NodeError
from envbuild.plan.source_builds import bundle_name, bundles
from envbuild.regular_file import sha256_of
from envbuild.transport.download import download

if TYPE_CHECKING:
    from envbuild.model.lock import Variant
    from envbuild.model.stack import CondaPackage

_LARGEST = 16 << 30
_DEADLINE_S = 3600.0


Pair = tuple[LockedPackage, ArtifactFile]

# Halves of files, as a controller that was killed leaves them: of `lock record`, of packages and of bundles. Younger
# ones may belong to another run of this machine.
_HALVES = ("packages/.*.part", "packages/*/.*.tmp", "sources/.*.tmp")
_HALF_AGE_S = 86400.0


class Piece(NamedTuple):
    """One file of a bundle: its path there, the file here, what it is, and further fields of its row in the index."""

    path: str
    source: Path
    what: str
    sha256: str = ""
    more: Mapping[str, str] = {}

    def row(self) -> dict[str, Any]:
        """Its row of the index; hashed here where its `sha256` is not known."""
        sha256 = self.sha256 or sha256_of(self.source)
        return {
            "path": self.path,
            "sha256": sha256,
            "bytes": self.source.stat().st_size,
            "what": self.what,
            **self.more,
        }


def sweep(cache: Path, now: float | None = None) -> None:
    """Remove partial files that are older than a day; a file that cannot be removed stays."""
    before = (time.time() if now is None else now) - _HALF_AGE_S
    for path in [path for pattern in _HALVES for path in cache.glob(pattern)]:
        with suppress(OSError):
            if path.lstat().st_mtime < before:
                path.unlink()


def wanted(variant: Variant, glibc: tuple[int, ...], record: str) -> dict[str, str | None]:
    """What an installation of a variant takes out of a bundle: path to sha256 (None: a git bundle, which git checks).

    `record`: the command that records a missing hash. Raises EnvbuildError `delivery-unfit` (exit 7),
    `hash-unrecorded` (5).
    """
    digests: dict[str, str | None] = {}
    for package in variant.packages:
        file = _pick(package, variant, glibc, record)
        digests[f"wheels/{file.file}"] = file.sha256
    digests |= {
        f"conda/{archive.channel}/{archive.subdir}/{archive.file}": archive.sha256 for archive in variant.archives
    }
    return digests | {f"sources/{bundle_name(name, source)}": None for name, source in bundles(variant).items()}


@dataclass(frozen=True)
class Collector:
    """Finds the files of bundles: in `cache`, in `folders` (of bundles, or with loose files), then over the network.

    `record`: the command that records a missing hash. `channels`: the addresses of those of conda. Without `fetch`
    nothing is fetched, and what is not here is left out. `on_fetch` hears each name before it is fetched.
    """

    record: str
    cache: Path = field(default_factory=resources.artifact_cache)
    channels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()
    fetch: bool = True
    on_fetch: Callable[[str], None] | None = None

    def collect(self, variant: Variant, glibc: tuple[int, ...] = ()) -> tuple[Piece, ...]:
        """Everything that a variant needs, checked; `glibc` of the node (`(2, 36)`) decides between wheels.

        Raises EnvbuildError: `hash-unrecorded`, `hash-mismatch`, `tree-mismatch`, `commit-missing` (exit 5),
        `package-not-found` (4), `delivery-unfit` (7), `source-unreachable`, `network-unreachable` (75).
        """
        sweep(self.cache)
        chosen = [(package, _pick(package, variant, glibc, self.record)) for package in variant.packages]
        pieces = [*self._packages(chosen, "wheels", "wheel"), *self.archives(variant)]
        for name, source in bundles(variant).items():
            path = f"sources/{bundle_name(name, source)}"
            bundle = self.cache / path if (self.cache / path).exists() else self.local(path)
            if bundle is None and self.fetch:
                bundle = self._bundle(name, source)
            pieces += [Piece(path, bundle, "source")] if bundle else []
        return tuple(pieces)

    def archives(self, variant: Variant) -> Iterator[Piece]:
        """The conda packages of a variant, checked.

        Raises EnvbuildError `conda-unrecorded`, `hash-mismatch` (exit 5), `package-not-found` (4), and as `download`.
        """
        if variant.conda is not None and not variant.conda.packages:
            raise conda_unrecorded(variant)
        for package in variant.archives:
            path = self.cache / "packages" / package.sha256 / package.file
            if not (path.is_file() and sha256_of(path) == package.sha256):
                self._say(package.file)
                _fetch(package, self.channels.get(package.channel, ()), path)
            place = f"conda/{package.channel}/{package.subdir}/{package.file}"
            yield Piece(place, path, "conda package", package.sha256)

    def uv(self, machine: str, toolchain_file: Path | None = None) -> Iterator[Piece]:
        """uv as a wheel, for images."""
        uv = next(tool for tool in load_toolchain(toolchain_file).uv if tool.arch == machine)
        file = ArtifactFile(file=uv.file, sha256=uv.sha256)
        package = LockedPackage(name="uv", version=uv.version, index=DEFAULT_INDEX, files=(file,))
        return self._packages([(package, file)], "tools", "tool")

    def _say(self, name: str) -> None:
        if self.on_fetch is not None:
            self.on_fetch(name)

    def local(self, path: str, sha256: str | None = None) -> Path | None:
        """A file of the folders by its path in a bundle or its mere name, with these contents where they are known."""
        for folder in self.folders:
            for place in (folder / path, folder / Path(path).name):
                if place.is_file() and sha256 in (None, sha256_of(place)):
                    return place
        return None

    def _packages(self, chosen: Sequence[Pair], folder: str, what: str) -> Iterator[Piece]:
        config = pip_config.read(os.environ)
        links = [Path(folder) for folder in pip_config.folders(config.find_links)]
        mirrors = [path for url in _indexes(config) if (path := pip_config.local_path(url)) is not None]

        def local(pair: Pair, *, known: bool = True) -> Path | None:
            package, file = pair
            own = [Path(mirror, canonicalize_name(package.name)) for mirror in mirrors]
            # A cached file under the name of its hash that has another is damaged, and fetched anew.
            cached = [resources.artifact(file.sha256, file.file, self.cache).parent] if known else []
            here = replace(self, folders=(*cached, *self.folders, *links, *own))
            return here.local(f"{folder}/{file.file}", file.sha256 if known else None)

        with ThreadPoolExecutor() as pool:  # hashing takes longer than all else
            copies = list(pool.map(local, chosen))
        for (package, file), copy in zip(chosen, copies, strict=True):
            if copy is None and self.fetch:
                self._say(f"{package.name} {package.version}")
                other = local((package, file), known=False)
                wrong = [_wrong_hash(file, f"{other} has another sha256 than the lock")] if other else []
                copy = _downloaded(package, file, resources.artifact(file.sha256, file.file, self.cache), config, wrong)
            if copy is not None:
                yield Piece(f"{folder}/{file.file}", copy, what, file.sha256)

    def _bundle(self, name: str, source: LockedSource | LockedSubmodule) -> Path:
        """A git bundle with the commit alone; its tree is compared before anything is kept."""
        from envbuild.lock.readers.git import git_reader

        self._say(f"{name} {source.commit[:12]}")
        path = self.cache / "sources" / bundle_name(name, source)
        with git_reader() as reader:
            tree = reader.tree_id(source.git, source.commit, "files")
            if tree != source.tree:
                raise EnvbuildError(
                    "tree-mismatch",
                    f"source {name} is not what the lock says",
                    why=f"commit {source.commit} has tree {tree}, the lock says {source.tree}",
                    hint="use another repository or mirror; if the lock is wrong, run `envbuild lock create STACK`",
                )
            with _half(path) as half:
                reader.write_bundle(source.git, source.commit, half)
        return path


def _pick(package: LockedPackage, variant: Variant, glibc: tuple[int, ...], record: str) -> ArtifactFile:
    from envbuild.resolve.artifacts import Platform, fitting_file

    file = fitting_file(package, Platform(variant.python, variant.machine, glibc))
    if file is None:
        raise EnvbuildError(
            "delivery-unfit",
            f"no file of {package.name} {package.version} in the lock fits {variant.platform}, Python {variant.python}",
        )
    if file.sha256 == "unrecorded":
        raise hash_unrecorded(file, record)
    return file


@contextmanager
def _half(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that becomes `path` when all went well."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Two machines with one home may have a process of the same number.
    half = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        yield half
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def _fetch(package: CondaPackage, bases: Sequence[str], path: Path) -> None:
    """From the first address that has it; other contents end it."""
    from envbuild.node.conda.logins import login

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    failure = EnvbuildError(
        "package-not-found",
        f"{package.file} of the channel {package.channel} cannot be fetched",
        why="nothing says where the channel is",
        hint="give the channel a `url` in the stack, or name it in conda's configuration",
    )
    for base in bases:
        try:
            url, authorization = login(f"{base.rstrip('/')}/{package.subdir}/{package.file}", os.environ)
            download(
                url,
                path,
                package.sha256,
                size_cap=package.size or _LARGEST,
                deadline=_DEADLINE_S,
                authorization=authorization,
            )
        except NodeError as error:
            raise EnvbuildError.from_dict(error.as_dict()) from error
        except EnvbuildError as error:
            if error.exit_code == ExitCode.INTEGRITY:
                raise
            failure = error
        else:
            return
    raise failure


def _downloaded(
    package: LockedPackage, file: ArtifactFile, path: Path, config: pip_config.PipConfig, wrong: list[EnvbuildError]
) -> Path:
    """The file from the first page that names it; its sha256 decides, so any index is as good as another.

    `wrong`: what a folder has under its name, the error where no page has the file.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    failures = [
        EnvbuildError(
            "package-not-found",
            f"no index has {file.file}",
            why=f"of {package.name} {package.version}, which the lock names",
            hint="check pip's index and find-links (`pip config list`)",
        ),
        *wrong,
    ]
    for page in _pages(package, config):
        try:
            match = index_client.find(page, file.file, config.cert)
            if match is not None and match.sha256 in ("", file.sha256):
                return download(match.url, path, file.sha256, size_cap=_LARGEST, deadline=_DEADLINE_S).path
            if match is not None:
                failures.append(_wrong_hash(file, f"its index says {match.sha256}, the lock {file.sha256}"))
        except NodeError as error:
            if error.why != "HTTP 404":  # such an index has no project of that name
                failures.append(EnvbuildError.from_dict(error.as_dict()))
        except EnvbuildError as error:
            failures.append(error)
    raise next((error for error in failures if error.exit_code == ExitCode.INTEGRITY), failures[-1])


def _pages(package: LockedPackage, config: pip_config.PipConfig) -> Iterator[str]:
    """What may name its files: the index of the lock, then pages of find-links, then the indexes of pip."""
    below, entry = f"/{canonicalize_name(package.name)}/", load_indexes().get(package.index)
    if entry is not None and entry.url and (entry.kind == "find-links" or not config.no_index):
        yield entry.url if entry.kind == "find-links" else entry.url.rstrip("/") + below
    yield from (link for link in config.find_links if link.startswith(("http://", "https://")))
    yield from (url.rstrip("/") + below for url in _indexes(config) if pip_config.local_path(url) is None)


def _indexes(config: pip_config.PipConfig) -> list[str]:
    if config.no_index:
        return []
    own = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL") or config.index_url or default_index()
    return [url for url in (own, *config.extra_index_urls) if url]


def default_index() -> str:
    """The index that pip asks without configuration; uv may ask another."""
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        return ""
    return str(PyPI.simple_url)


def _wrong_hash(file: ArtifactFile, why: str) -> EnvbuildError:
    return EnvbuildError(
        "hash-mismatch",
        f"{file.file} is not the file that the lock names",
        why=why,
        hint="use another index or mirror; if the lock is wrong, run `envbuild lock create STACK`",
    )


@contextmanager
def coded() -> Iterator[None]:
    """Turns errors of the node program's code into errors of this machine."""
    try:
        yield
    except NodeError as error:
        raise EnvbuildError.from_dict(error.as_dict()) from error


# As of the node program, with errors of this machine: `bundle-damaged`, `bundle-unsafe` (exit 5), `bundle-missing` (2).
read_index, verify = coded()(archive.read_index), coded()(archive.verify)
unpack, extract = coded()(archive.unpack), coded()(archive.extract)


class Contents(NamedTuple):
    """What a bundle says of itself beside its files: machines as `uname -m` has them, labels of variants."""

    stack: str
    profile: str
    machines: tuple[str, ...]
    variants: tuple[str, ...]


def write_bundle(output: Path, contents: Contents, pieces: Iterable[Piece]) -> dict[str, Any]:
    """Write the bundle `output`: a tar file where its name ends in `.tar`, else a folder; returns its index.

    Raises EnvbuildError `output-exists`, `output-unwritable` (exit 2), `hash-mismatch`, `bundle-unsafe` (5).
    """
    if os.path.lexists(output):
        raise EnvbuildError("output-exists", f"{output} is there", hint="remove it, or name another with --output")
    by_path = {piece.path: piece for piece in pieces}
    sources = {path: item.source for path, item in by_path.items()}
    rows = [item.row() for item in by_path.values()]
    half = output.with_name(f".{output.name}.{secrets.token_hex(6)}.part")
    try:
        with coded(), writing(output):
            made = archive.make_index(
                contents.stack, contents.profile, [*contents.machines], [*contents.variants], rows
            )
            if output.suffix == ".tar":
                with half.open("xb") as out:
                    archive.to_tar(out, made, sources)
            else:
                archive.to_folder(half, made, sources)
            half.rename(output)
    finally:
        if half.is_dir():
            shutil.rmtree(half)
        half.unlink(missing_ok=True)
    return made
