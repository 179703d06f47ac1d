"""Asks py-rattler's solver which archives a profile needs; the answer depends on its inputs and on nothing of here.

Also what archives take on a disk, by the list of files that each has: of a remote one a few ranges are read.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from time import monotonic
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

import rattler
from pydantic import ValidationError
from rattler import Channel, Client, Config, Gateway, MatchSpec, RepoDataRecord
from rattler.exceptions import (
    AuthenticationStorageError,
    ConfigError,
    GatewayError,
    InvalidChannelError,
    InvalidMatchSpecError,
    SolverError,
)
from rattler.package_streaming import PackageArchive
from rattler.repo_data.multi_source import MultiSource

from envbuild.conda.channels import Place
from envbuild.conda.virtual import met, name_of
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.common import Unpacked, mistakes
from envbuild.model.stack import CondaPackage
from envbuild.node.conda.logins import rattler_files, without_login
from envbuild.node.redact import redact_text
from envbuild.text import few, grouped

_Made = TypeVar("_Made")

MOST_LINES = 10
VIRTUAL = "__"
# Channels that a channel names for itself are not followed: the stack says which there are.
ALONE: Final = "disabled"
NEWEST = "9999"
# Seconds to look for the nearest solution: a list of a whole environment has hundreds of specs.
PATIENCE = 20.0
# Archives that are asked at once, and where their lists are.
_AT_ONCE = 8
_LIST = "info/paths.json"
_SAYS = "Cannot solve the request because of: "
_REFUSED = re.compile(r"HTTP status client error \((401|403|407)")
_MISSING = re.compile(r"could not find subdir|HTTP status client error \((404|410)")
_NETWORK = re.compile(
    r"error sending request|HTTP status server error|client error \((408|429|Connect)|tcp connect|dns error|timed out"
    r"|connection (reset|closed)|error reading a body",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Wish:
    """One solution to find: match specs, channels by priority, virtual packages, and what a previous lock has."""

    specs: tuple[str, ...]
    places: tuple[Place, ...]
    virtual: Mapping[str, str]
    subdir: str = "linux-64"
    as_of: str | None = None
    keep: tuple[CondaPackage, ...] = field(default=())


def solve(wish: Wish, say: Callable[[str], None] = lambda _: None) -> tuple[CondaPackage, ...]:
    """The archives in order of installation. `say` gets a sentence for each choice that is arbitrary or undated.

    Raises EnvbuildError `conda-spec-invalid`, `conda-config-invalid` (exit 2); `conda-unsatisfiable`,
    `channel-missing`, `channel-refused`, `channel-not-a-channel` (exit 7); `channel-unreachable` (exit 75); and
    `package_of`'s.
    """
    for text in wish.specs:
        match_spec(text)
    return asyncio.run(_Solver(wish, say).run())


def offered(packages: Sequence[CondaPackage], places: Sequence[Place]) -> dict[tuple[str, str, str], str]:
    """What the channels have now under the names of packages: channel, subdir and file to sha256 ("" without one).

    Raises EnvbuildError as `solve` does for channels.
    """
    return asyncio.run(_Solver(Wish((), tuple(places), {}, keep=tuple(packages)), lambda _: None).offered())


def match_spec(text: str) -> MatchSpec:
    """A match spec as conda reads it. Raises EnvbuildError `conda-spec-invalid` (exit 2)."""
    try:
        return MatchSpec(text)
    except InvalidMatchSpecError as error:
        raise EnvbuildError("conda-spec-invalid", f"{text!r} is not a conda match spec", why=str(error)) from error


def _configured(make: Callable[[Config], _Made]) -> _Made:
    files = rattler_files(os.environ)
    try:
        return make(Config.load_from_locations([(path, True) for path in reversed(files)]))
    except ConfigError as error:
        named = ", ".join(map(str, files))
        raise EnvbuildError("conda-config-invalid", f"rattler cannot read {named}", why=str(error)) from error
    except AuthenticationStorageError as error:
        raise EnvbuildError(
            "conda-config-invalid",
            "rattler cannot read its credentials file",
            why=str(error).partition(": ")[0],  # what follows may be a secret at the wrong place
            hint="correct the file that RATTLER_AUTH_FILE names, or ~/.rattler/credentials.json",
        ) from error


class _Solver:
    """One wish and the channels that answered."""

    def __init__(self, wish: Wish, say: Callable[[str], None]) -> None:
        self.wish, self.gateway, self.say = wish, _configured(Gateway.from_config), say
        self.platforms = [
            rattler.Subdir(subdir) for subdir in dict.fromkeys((wish.subdir, "noarch", *(p.subdir for p in wish.keep)))
        ]
        self.sources: list[MultiSource] = []
        self.names: dict[str, str] = {}

    async def run(self) -> tuple[CondaPackage, ...]:
        await self._connect()
        locked = await self._kept()
        try:
            solved = await self._solve(self.wish, locked)
        except SolverError as error:
            raise await self._unsatisfiable(str(error)) from error
        solved = await self._settled(solved)
        for record in solved:
            made = record.timestamp
            if isinstance(made, datetime) and made >= datetime.now(UTC) + timedelta(days=1):
                complaint = f"{record.file_name} says it was made on {made.date()}, after today"
                self.say(f"{complaint}: `as_of` cannot be held against it")
        by_name = {record.name.normalized: record for record in sorted(solved, key=lambda item: item.name.normalized)}
        order = rattler.PackageRecord.sort_topologically(list(by_name.values()))
        records = [by_name[record.name.normalized] for record in order]
        return tuple(package_of(record, self._channel(record), self.wish.subdir) for record in records)

    async def offered(self) -> dict[tuple[str, str, str], str]:
        await self._connect()
        records = await self._all(package.name for package in self.wish.keep)
        return {
            (self._channel(record), record.subdir, record.file_name): record.sha256.hex() if record.sha256 else ""
            for record in records
        }

    def _channel(self, record: RepoDataRecord) -> str:
        """The name of its channel, in whose address rattler masks a token or a password."""
        return self.names[without_login(record.channel or "")]

    async def _connect(self) -> None:
        """To channels whose parts all answer, each through the first of its mirrors that does."""
        for place in self.wish.places:
            parts = [await self._answering(place.name, mirrors) for mirrors in place.parts]
            self.sources.append(MultiSource(place.name, parts))

    async def _answering(self, name: str, mirrors: Sequence[str]) -> Channel:
        failed: EnvbuildError | None = None
        for url in mirrors:
            try:
                channel = Channel(url)
                await self.gateway.names([channel], self.platforms, channel_relations=ALONE)
            except (GatewayError, InvalidChannelError) as error:
                failed = failed or _channel_error(name, url, str(error))
            else:
                self.names[without_login(channel.base_url)] = name
                return channel
        raise failed or EnvbuildError("channel-missing", f"the channel {name} has no address")

    async def _solve(self, wish: Wish, locked: Sequence[RepoDataRecord] = ()) -> list[RepoDataRecord]:
        parts = [(name, *value.partition("=")) for name, value in wish.virtual.items()]
        virtual = [
            rattler.GenericVirtualPackage(
                rattler.PackageName(name), rattler.Version(version), rattler.BuildString(build or "0")
            )
            for name, version, _, build in parts
        ]
        end = datetime.combine(date.fromisoformat(wish.as_of), time.max, UTC) if wish.as_of else None
        try:
            return await rattler.solve(
                sources=self.sources,
                specs=[match_spec(text) for text in wish.specs],
                gateway=self.gateway,
                platforms=self.platforms,
                locked_packages=locked,
                virtual_packages=virtual,
                exclude_newer=end,
                channel_relations=ALONE,
            )
        except GatewayError as error:
            raise self._unreadable(error) from error

    async def _kept(self) -> list[RepoDataRecord]:
        """The records of the previous lock that the channels still have."""
        kept = {(package.channel, package.subdir, package.file) for package in self.wish.keep}
        records = await self._all(package.name for package in self.wish.keep)
        return [record for record in records if (self._channel(record), record.subdir, record.file_name) in kept]

    async def _all(self, names: Iterable[str]) -> list[RepoDataRecord]:
        """Every record of these names."""
        specs = [MatchSpec(name) for name in sorted(set(names))]
        if not specs:
            return []
        try:
            answers = await self.gateway.query(
                self.sources, self.platforms, specs, recursive=False, channel_relations=ALONE
            )
        except GatewayError as error:
            raise self._unreadable(error) from error
        return [record for records in answers for record in records]

    def _unreadable(self, error: Exception) -> EnvbuildError:
        """Of a channel that answered before; which one, the error may say."""
        return _channel_error(", ".join(dict.fromkeys(self.names.values())), "", str(error))

    async def _settled(self, records: list[RepoDataRecord]) -> list[RepoDataRecord]:
        """The same with the first build string of those between which nothing but the order of an index decides."""
        candidates = await self._all(record.name.normalized for record in records)
        alike = grouped(candidates, lambda record: (record.name.normalized, str(record.version)))
        settled, kept = list(records), {package.file for package in self.wish.keep}
        for place, record in enumerate(records):
            if record.file_name in kept:
                continue
            same_version = alike[record.name.normalized, str(record.version)]
            twins = [candidate for candidate in same_version if _is_twin(candidate, record)]
            best = min((record, *twins), key=lambda candidate: (str(candidate.build), candidate.file_name))
            if twins and self._accepts(best, [*settled[:place], *settled[place + 1 :]]):
                settled[place] = best
                builds = ", ".join(sorted({str(candidate.build) for candidate in (record, *twins)}))
                name = f"{record.name.normalized} {record.version}"
                self.say(f"{name} has equal builds {builds}: {best.build} was taken, the first by name")
        return settled

    def _accepts(self, record: RepoDataRecord, others: Sequence[RepoDataRecord]) -> bool:
        """Whether the wish and the other packages take this build too."""
        name = record.name.normalized
        texts = [*self.wish.specs, *(text for other in others for text in other.depends)]
        limits = [text for other in others for text in other.constrains]
        specs = [spec for spec in map(match_spec, (*texts, *limits)) if str(spec.name.normalized) == name]
        return all(spec.matches(record) for spec in specs)

    async def _unsatisfiable(self, why: str) -> EnvbuildError:
        lines = why.replace(_SAYS, "", 1).strip().splitlines()
        shown = lines[:MOST_LINES] + ([f"... {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else [])
        nearest = await self._nearest()
        return EnvbuildError(
            "conda-unsatisfiable",
            "no set of conda packages fits the specs",
            why="\n".join(shown),
            hint=nearest or "no single spec is the cause; loosen several specs, or add channels",
        )

    async def _nearest(self) -> str:
        """The first change of one thing with which there is a solution, in words; empty where none helps."""
        end = monotonic() + PATIENCE
        for words, name, wish in _relaxed(self.wish):
            if monotonic() > end:
                break
            try:
                records = await self._solve(wish)
            except SolverError:
                continue
            if name.startswith(VIRTUAL):
                wanted = {text for record in records for text in record.depends if name_of(text) == name}
                return f"{words} ({', '.join(sorted(text for text in wanted if not met(text, self.wish.virtual)))})"
            version = next((str(record.version) for record in records if record.name.normalized == name), None)
            return words + (f" (to {name} {version})" if version else "")
        return ""


def _relaxed(wish: Wish) -> Iterator[tuple[str, str, Wish]]:
    """What can be changed alone: a spec's version, what the node has, a whole spec. In words, its name, the wish."""
    names = {text: str(match_spec(text).name.normalized) for text in wish.specs}
    for text, name in names.items():
        if text != name:
            specs = tuple(name if spec == text else spec for spec in wish.specs)
            yield f"there is a solution where `{text}` is loosened", name, replace(wish, specs=specs)
    for name in ("__glibc", "__cuda", "__linux"):
        words = f"there is a solution for nodes with another {name} than {wish.virtual.get(name, 'none')}"
        yield words, name, replace(wish, virtual={**wish.virtual, name: NEWEST})
    for text, name in names.items() if len(names) > 1 else ():
        specs = tuple(spec for spec in wish.specs if spec != text)
        yield f"there is a solution without `{text}`", name, replace(wish, specs=specs)


def package_of(record: RepoDataRecord, channel: str, subdir: str) -> CondaPackage:
    """The record as a lock has it. Raises EnvbuildError `conda-record-invalid`, `hash-unrecorded` (exit 5)."""
    file = record.file_name
    if record.sha256 is None:
        raise EnvbuildError(
            "hash-unrecorded",
            f"{file} has no recorded sha256",
            why=f"the repodata of {channel} has no sha256 for it",
            hint="index the channel again: `rattler-index` and `conda index` write sha256",
        )
    if record.subdir not in (subdir, "noarch"):
        raise _invalid(file, channel, f"it is for {record.subdir}, and {subdir} was asked for")
    try:
        return CondaPackage.from_plain(
            {
                "name": record.name.normalized,
                "version": str(record.version),
                "build": str(record.build),
                "channel": channel,
                "subdir": record.subdir,
                "file": file,
                "sha256": record.sha256.hex(),
                "size": record.size,
                "requires": sorted(text for text in record.depends if text.startswith(VIRTUAL)),
            }
        )
    except ValidationError as error:
        raise _invalid(file, channel, "; ".join(mistakes(error))) from error


def _invalid(file: str, channel: str, why: str) -> EnvbuildError:
    return EnvbuildError(
        "conda-record-invalid",
        f"the repodata of {channel} has an invalid record of {file}",
        why=why,
        hint="report it to the channel's maintainer, or use another channel; envbuild used nothing from it",
    )


def _is_twin(one: RepoDataRecord, other: RepoDataRecord) -> bool:
    """Whether nothing but the build string and the file tells two records of one name and version apart."""
    same = ("channel", "subdir", "build_number", "depends", "constrains", "timestamp", "track_features")
    return one.file_name != other.file_name and all(getattr(one, key) == getattr(other, key) for key in same)


def _channel_error(name: str, url: str, output: str) -> EnvbuildError:
    """What a channel answered, as a coded error."""
    what, why = f"the channel {name}", redact_text(f"{url}: {output}" if url else output)
    if _MISSING.search(output):
        return EnvbuildError(
            "channel-missing",
            f"{what} is not there",
            why=why,
            hint="check its name, and the aliases in .condarc; a channel needs a folder `noarch`",
            exit_code=ExitCode.REFUSED,
        )
    if _REFUSED.search(output):
        return EnvbuildError(
            "channel-refused",
            f"{what} refused the login",
            why=why,
            hint="put its credentials into ~/.netrc or the file that RATTLER_AUTH_FILE names",
        )
    if _NETWORK.search(output):
        return EnvbuildError(
            "channel-unreachable",
            f"{what} could not be reached",
            why=why,
            hint="check the address, the proxy and the certificates, then try again",
        )
    return EnvbuildError(
        "channel-not-a-channel",
        f"{what} does not return repodata",
        why=why,
        hint="open the address in a browser: a proxy may show its login page",
    )


def with_sizes(
    packages: Sequence[CondaPackage], channels: Mapping[str, Sequence[str]], say: Callable[[str], None]
) -> tuple[CondaPackage, ...]:
    """The packages with what they take, where it could be read; what a lock says already is kept.

    `channels`: name to base addresses. `say` gets one line with how many could not be reached.
    """
    lacking = [package for package in packages if package.unpacked is None and channels.get(package.channel)]
    if not lacking:
        return tuple(packages)
    known = asyncio.run(_measure(lacking, channels))
    left = [package.name for package in lacking if known[package.sha256] is None]
    if left:
        say(f"what conda's {few(left)} takes on a disk could not be read")
    return tuple(
        package if package.unpacked else package.model_copy(update={"unpacked": known.get(package.sha256)})
        for package in packages
    )


async def _measure(
    packages: Sequence[CondaPackage], channels: Mapping[str, Sequence[str]]
) -> dict[str, Unpacked | None]:
    """By the list of files in each archive; None where it has none, or only the whole archive would say it."""
    free, asked = asyncio.Semaphore(_AT_ONCE), _configured(Client.from_config)

    async def listed(package: CondaPackage) -> Unpacked | None:
        url = f"{channels[package.channel][0]}/{package.subdir}/{package.file}"
        parts = urlsplit(url)
        try:
            async with free:
                if parts.scheme == "file":
                    archive = await PackageArchive.from_path(unquote(parts.path))
                else:
                    archive = await PackageArchive.from_url(asked, url, sparse="require")
                rows = json.loads(await archive.read_file(_LIST) or b"{}").get("paths", [])
            sizes = {str(row["_path"]): int(row.get("size_in_bytes") or 0) for row in rows}
            return Unpacked.of(sizes) if sizes else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # An archive that cannot be read, or has another list than it should, is an absent size and no failed lock.
            return None

    sizes = await asyncio.gather(*map(listed, packages))
    return {package.sha256: size for package, size in zip(packages, sizes, strict=True)}
