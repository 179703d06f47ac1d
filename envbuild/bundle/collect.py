"""What goes into a bundle, found or fetched on this machine, checked and kept in its cache.

Packages are fetched by pip, so that pip's own configuration (index, find-links, certificate, proxy) applies; of each
package exactly the file that fits the node, by its locked sha256. Conda packages come from their channels, and sources
become git bundles.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.utils import parse_wheel_filename

from envbuild.catalog.indexes import DEFAULT_INDEX, load_indexes
from envbuild.catalog.toolchain import load_toolchain
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.variants import conda_unrecorded, hash_unrecorded
from envbuild.model.lock import ArtifactFile, LockedPackage, LockedSource, LockedSubmodule, Variant
from envbuild.node import pip_config, proc
from envbuild.node.protocol import NodeError
from envbuild.plan.source_builds import bundle_name, bundles
from envbuild.regular_file import sha256_of
from envbuild.text import grouped

if TYPE_CHECKING:
    from envbuild.model.conda import CondaPackage
    from envbuild.model.lock import Variant

_LARGEST = 16 << 30
_DEADLINE_S = 3600.0


def fetch_archives(
    variant: Variant,
    channels: Mapping[str, Sequence[str]],
    cache: Path,
    on_fetch: Callable[[str], None] | None = None,
) -> dict[str, Path]:
    """Every conda package of the variant in `cache`, checked: `<channel>/<subdir>/<file>` to its path.

    `channels`: name to base addresses. Raises EnvbuildError `conda-unrecorded`, `hash-mismatch` (exit 5),
    `package-not-found` (4) and what `download` raises.
    """
    if variant.conda is None:
        return {}
    if not variant.conda.packages:
        raise conda_unrecorded(variant)
    found = {}
    for package in variant.conda.packages:
        path = cache / "packages" / package.sha256 / package.file
        if not (path.is_file() and sha256_of(path) == package.sha256):
            if on_fetch is not None:
                on_fetch(package.file)
            _fetch(package, channels.get(package.channel, ()), path)
        found[f"{package.channel}/{package.subdir}/{package.file}"] = path
    return found


def _fetch(package: CondaPackage, bases: Sequence[str], path: Path) -> None:
    """From the first address that has it; other contents end it."""
    from envbuild.node.conda.logins import login
    from envbuild.transport.download import download

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


Pair = tuple[LockedPackage, ArtifactFile]

_PIP_TIMEOUT_S = 3600
# Halves of files, as a controller that was killed leaves them: of `lock record`, of packages and of bundles. Younger
# ones may belong to another run of this machine.
_HALVES = ("packages/.*.part", "packages/*/.*.tmp", "sources/.*.tmp")
_HALF_AGE_S = 86400.0
# Settings that would contradict what is asked of pip here.
_PIP_DROPPED = (
    "PIP_ONLY_BINARY",
    "PIP_NO_BINARY",
    "PIP_TARGET",
    "PIP_USER",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_REQUIREMENT",
)


class Piece(NamedTuple):
    """One file of a bundle: its path there, the file here, and what the index says of it (`more` beside the usual)."""

    path: str
    source: Path
    sha256: str
    bytes: int
    what: str
    more: Mapping[str, str] = {}

    def row(self) -> dict[str, Any]:
        """Its row of the index."""
        row = {"path": self.path, "sha256": self.sha256, "bytes": self.bytes, "what": self.what}
        return {**row, **self.more}


def piece(
    path: str, source: Path, what: str, sha256: str | None = None, more: Mapping[str, str] | None = None
) -> Piece:
    """A file as it will lie in a bundle; hashed here where its `sha256` is not known."""
    return Piece(path, source, sha256 or sha256_of(source), source.stat().st_size, what, more or {})


def artifact_cache() -> Path:
    """The folder on this machine that keeps what was fetched for nodes: `packages/<sha256>/<file>` and `sources/`."""
    import platformdirs

    return platformdirs.user_cache_path("envbuild") / "artifacts"


def sweep(cache: Path, now: float | None = None) -> None:
    """Remove halves of files that are older than a day; what cannot be removed is left."""
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
    found: dict[str, str | None] = {}
    for package in variant.packages:
        file = _pick(package, variant, glibc, record)
        found[f"wheels/{file.file}"] = file.sha256
    found |= {f"conda/{each.channel}/{each.subdir}/{each.file}": each.sha256 for each in variant.archives}
    return found | {f"sources/{bundle_name(name, each)}": None for name, each in bundles(variant).items()}


@dataclass(frozen=True)
class Collector:
    """Finds the files of bundles: in `cache`, in `folders` (of bundles, or with loose files), then over the network.

    `record`: the command that records a missing hash. `channels`: the addresses of those of conda. Without `fetch`
    nothing is fetched, and what is not here is left out. `on_fetch` hears each name before it is fetched.
    """

    record: str
    cache: Path = field(default_factory=artifact_cache)
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
        found = [*self._packages(chosen, variant.python, "wheels", "wheel")]
        for name, archive in fetch_archives(variant, self.channels, self.cache, self.on_fetch).items():
            found.append(piece(f"conda/{name}", archive, "conda package", archive.parent.name))
        for name, source in bundles(variant).items():
            path = f"sources/{bundle_name(name, source)}"
            bundle = self.cache / path if (self.cache / path).exists() else self.local(path)
            if bundle is None and self.fetch:
                bundle = self._bundle(name, source)
            found += [piece(path, bundle, "source")] if bundle else []
        return tuple(found)

    def uv(self, machine: str, toolchain_file: Path | None = None) -> Iterator[Piece]:
        """uv as a wheel, which an image is made with."""
        uv = next(each for each in load_toolchain(toolchain_file).uv if each.arch == machine)
        file = ArtifactFile(file=uv.file, sha256=uv.sha256)
        package = LockedPackage(name="uv", version=uv.version, index=DEFAULT_INDEX, files=(file,))
        return self._packages([(package, file)], ".".join(map(str, sys.version_info[:2])), "tools", "tool")

    def local(self, path: str, sha256: str | None = None) -> Path | None:
        """A file of the folders by its path in a bundle or its mere name, with these contents where they are known."""
        for folder in self.folders:
            for place in (folder / path, folder / Path(path).name):
                if place.is_file() and sha256 in (None, sha256_of(place)):
                    return place
        return None

    def _packages(self, chosen: Sequence[Pair], python: str, folder: str, what: str) -> Iterator[Piece]:
        links = map(Path, pip_config.folders(pip_config.read(os.environ).find_links))
        here = replace(self, folders=(*self.folders, *links))
        places = {
            file.file: _cached(file, self.cache) or here.local(f"{folder}/{file.file}", file.sha256)
            for _, file in chosen
        }
        missing = [pair for pair in chosen if places[pair[1].file] is None]
        if self.fetch:
            self._download(missing, python)
            places |= {file.file: place(file, self.cache) for _, file in missing}
        for _, file in chosen:
            if found := places[file.file]:
                yield piece(f"{folder}/{file.file}", found, what, file.sha256)

    def _download(self, missing: Sequence[Pair], python: str) -> None:
        """Fetch by index, wheels and source archives apart."""
        groups = grouped(missing, lambda pair: (pair[0].index, not pair[1].file.endswith(".whl")))
        for (index, _), pairs in sorted(groups.items()):
            for package, _file in pairs:
                if self.on_fetch is not None:
                    self.on_fetch(f"{package.name} {package.version}")
            _download(pairs, index, python, self.cache)

    def _bundle(self, name: str, source: LockedSource | LockedSubmodule) -> Path:
        """A git bundle with the commit alone; its tree is compared before anything is kept."""
        from envbuild.lock.readers.git import git_reader

        if self.on_fetch is not None:
            self.on_fetch(f"{name} {source.commit[:12]}")
        path = self.cache / "sources" / bundle_name(name, source)
        with git_reader() as reader:
            tree = reader.tree_id(source.git, source.commit, "files")
            if tree != source.tree:
                raise EnvbuildError(
                    "tree-mismatch",
                    f"source {name} is not what the lock says",
                    why=f"commit {source.commit} has tree {tree}, the lock says {source.tree}",
                    hint="do not use this repository or mirror; if the lock is wrong, create it again",
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


def place(file: ArtifactFile, cache: Path) -> Path:
    """Where the cache keeps a file, whether it has it or not."""
    return cache / "packages" / file.sha256 / file.file


def _cached(file: ArtifactFile, cache: Path) -> Path | None:
    """The cached file, if it is there and still what its hash says; a damaged one is removed."""
    path = place(file, cache)
    if not path.exists():
        return None
    if sha256_of(path) == file.sha256:
        return path
    path.unlink()
    return None


def _keep(found: Path, file: ArtifactFile, cache: Path) -> None:
    """Copy a file into the cache under its digest, whole or not at all; refuse other bytes."""
    digest = sha256_of(found)
    if digest != file.sha256:
        raise _wrong_hash(file.file, f"sha256 is {digest}, the lock says {file.sha256}")
    with _half(place(file, cache)) as half:
        shutil.copyfile(found, half)


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


def _download(pairs: Sequence[Pair], index: str, python: str, cache: Path) -> None:
    """Let pip fetch exactly these files into the cache."""
    with tempfile.TemporaryDirectory(prefix="envbuild-pip-") as folder:
        wanted = Path(folder) / "requirements.txt"
        # `===`, because `==1.0` would take 1.0+local where a find-links folder has it.
        lines = [f"{package.name}==={package.version} --hash=sha256:{file.sha256}" for package, file in pairs]
        wanted.write_text("\n".join(lines) + "\n", encoding="utf-8")
        files = Path(folder) / "files"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "-d", str(files)]
        command += [*_index_options(index), *_platform_options(pairs, python), "-r", str(wanted)]
        _run_pip(command)
        for _, file in pairs:
            found = files / file.file
            if not found.is_file():
                raise _wrong_hash(file.file, "pip fetched a file of another name")
            _keep(found, file, cache)


def _index_options(index: str) -> list[str]:
    """Where else to look. Safe beside the configured indexes, because every file is asked for by its hash."""
    entry = load_indexes().get(index)
    if index == DEFAULT_INDEX or entry is None or not entry.url:
        return []
    return ["--find-links" if entry.kind == "find-links" else "--extra-index-url", entry.url]


def _platform_options(pairs: Sequence[Pair], python: str) -> list[str]:
    """Describe the node to pip by the tags of the very files that were chosen for it."""
    if not pairs[0][1].file.endswith(".whl"):
        # pip asks a source archive for its metadata, with the controller's Python; wheels never run anything.
        return ["--no-binary=:all:", "--ignore-requires-python"]
    platforms, abis = set(), set()
    for _, file in pairs:
        for tag in parse_wheel_filename(file.file)[3]:
            abis.add(tag.abi)
            platforms.add(tag.platform)
    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    options += [f"--platform={platform}" for platform in sorted(platforms)]
    return options + [f"--abi={abi}" for abi in sorted(abis)]


def _run_pip(command: list[str]) -> None:
    env = {key: value for key, value in os.environ.items() if key not in _PIP_DROPPED}
    done = proc.run(command, timeout=_PIP_TIMEOUT_S, env=env)
    if done.timed_out:
        raise _network(f"pip did not end within {_PIP_TIMEOUT_S} s")
    if done.ok:
        return
    from envbuild.node.redact import redact_text

    said = redact_text(done.err.strip())
    if "DO NOT MATCH THE HASHES" in said:
        raise _wrong_hash("a package", said[-800:])
    if any(text in said for text in ("Temporary failure in name", "Connection", "timed out", "Max retries")):
        raise _network(said[-800:])
    raise EnvbuildError(
        "package-not-found",
        "pip cannot fetch what the lock names",
        why=said[-800:],
        hint="check pip's index and find-links (`pip config list`)",
    )


def _wrong_hash(name: str, why: str) -> EnvbuildError:
    return EnvbuildError(
        "hash-mismatch",
        f"{name} is not the file that the lock names",
        why=why,
        hint="do not use this index or mirror; if the lock is wrong, create it again",
    )


def _network(why: str) -> EnvbuildError:
    return EnvbuildError(
        "network-unreachable",
        "the package index cannot be reached",
        why=why,
        hint="check the network, the proxy and pip's configuration, then run the same command again",
    )
