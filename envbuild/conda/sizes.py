"""What conda archives take on a disk, by the list of files that each has; of a remote one a few ranges are read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote, urlsplit

from rattler import Client
from rattler.package_streaming import PackageArchive

from envbuild.conda.solve import client
from envbuild.model.common import Unpacked
from envbuild.model.conda import CondaPackage
from envbuild.text import few

_AT_ONCE = 8
_LIST = "info/paths.json"


def with_sizes(
    packages: Sequence[CondaPackage], channels: Mapping[str, Sequence[str]], say: Callable[[str], None]
) -> tuple[CondaPackage, ...]:
    """The packages with what they take, where it could be read; what a lock says already is kept.

    `channels`: name to base addresses. `say` is told of how many could not be asked, once.
    """
    lacking = [each for each in packages if each.unpacked is None and channels.get(each.channel)]
    if not lacking:
        return tuple(packages)
    known = asyncio.run(_measure(lacking, channels))
    left = [each.name for each in lacking if known[each.sha256] is None]
    if left:
        say(f"what conda's {few(left)} takes on a disk could not be read")
    return tuple(
        each if each.unpacked else each.model_copy(update={"unpacked": known.get(each.sha256)}) for each in packages
    )


async def _measure(
    packages: Sequence[CondaPackage], channels: Mapping[str, Sequence[str]]
) -> dict[str, Unpacked | None]:
    free, asked = asyncio.Semaphore(_AT_ONCE), client()

    async def one(package: CondaPackage) -> Unpacked | None:
        async with free:
            url = f"{channels[package.channel][0]}/{package.subdir}/{package.file}"
            return await _listed(asked, url)

    found = await asyncio.gather(*map(one, packages))
    return {package.sha256: each for package, each in zip(packages, found, strict=True)}


async def _listed(asked: Client, url: str) -> Unpacked | None:
    """By the list of files in the archive; None where it has none, or only the whole archive would say it."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            archive = await PackageArchive.from_path(unquote(parts.path))
        else:
            archive = await PackageArchive.from_url(asked, url, sparse="require")
        rows = json.loads(await archive.read_file(_LIST) or b"{}").get("paths", [])
        return Unpacked.of({str(row["_path"]): int(row.get("size_in_bytes") or 0) for row in rows}) if rows else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # An archive that cannot be read, or has another list than it should, is an absent size and no failed lock.
        return None
