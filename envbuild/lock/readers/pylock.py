"""Reads the `pylock.toml` that uv writes and chooses the one file of each package that a variant uses."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from email.message import Message
from pathlib import Path
from urllib.error import URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from packaging.pylock import PackageSdist, PackageWheel, Pylock, PylockValidationError

from envbuild.errors import EnvbuildError
from envbuild.node import pip_config
from envbuild.node.read_text import integer
from envbuild.regular_file import parse_toml
from envbuild.resolve.artifacts import Platform, best_wheel

# What a resolution may assume of a node's C library; torch wheels need 2.28 since 2.7 (compat: glibc floors).
GLIBC_MINOR = 28
ARCHITECTURES = {"linux_x86_64": "x86_64", "linux_aarch64": "aarch64"}


@dataclass(frozen=True)
class OfferedFile:
    """One file of a release as the index offers it; `size` in bytes and `uploaded` if the index states them.

    `url` may be a file:// address.
    """

    file: str
    url: str
    sha256: str
    size: int | None = None
    uploaded: datetime | None = None


@dataclass(frozen=True)
class Offer:
    """One resolved package with the files that it offers; `yanked`: the reason (maybe empty) or None."""

    name: str
    version: str
    wheels: tuple[OfferedFile, ...]
    sdist: OfferedFile | None
    yanked: str | None = None


def uv_platform(platform: str) -> str:
    """The `--python-platform` of a lock platform."""
    return f"{ARCHITECTURES[platform]}-manylinux_2_{GLIBC_MINOR}"


def platform_of(python: str, platform: str) -> Platform:
    """What a lock assumes of the nodes of a lock platform, for CPython `python` (as `3.11`)."""
    return Platform(python, ARCHITECTURES[platform], (2, GLIBC_MINOR))


def _file(file: PackageWheel | PackageSdist) -> OfferedFile:
    where = file.url or file.path or ""
    return OfferedFile(file.filename, where, file.hashes.get("sha256", ""), file.size, file.upload_time)


def parse_pylock(text: str) -> list[Offer]:
    """The packages of a pylock file, by name. Raises EnvbuildError `installation-broken` for what uv never writes."""
    try:
        offers = [
            Offer(
                package.name,
                str(package.version),
                tuple(map(_file, package.wheels or ())),
                _file(package.sdist) if package.sdist else None,
            )
            for package in Pylock.from_dict(parse_toml(text)).packages
        ]
    except (ValueError, RecursionError, PylockValidationError) as error:
        raise EnvbuildError(
            "installation-broken", "envbuild cannot read uv's output", why=f"{type(error).__name__}: {error}"
        ) from error
    return sorted(offers, key=lambda offer: offer.name)


def choose_file(offer: Offer, platform: Platform, *, keep: str | None = None) -> OfferedFile:
    """The one file a variant uses: `keep` where it is still offered, else the best wheel, else the sdist.

    One file and not all acceptable ones, because an equal variant digest must mean equal files.
    Raises EnvbuildError `no-acceptable-file`.
    """
    wheels = {item.file: item for item in offer.wheels}
    best = best_wheel([keep] if keep in wheels else [], platform) or best_wheel(wheels, platform)
    if best:
        return wheels[best]
    if offer.sdist is not None:
        return offer.sdist
    raise EnvbuildError(
        "no-acceptable-file",
        f"{offer.name} {offer.version} has neither a wheel for this platform nor a source distribution",
        hint="choose another version or another Python",
    )


def headers_of(url: str, timeout: float) -> Message | None:
    """What stands at an http(s) address, asked with the environment's proxies and pip's certificates; None: nothing."""
    try:
        request = Request(url, method="HEAD")  # noqa: S310 - addresses of indexes
        trusted = pip_config.trusting(pip_config.read(os.environ).cert)
        with urlopen(request, timeout=timeout, context=trusted) as answer:  # noqa: S310
            headers: Message = answer.headers
            return headers
    except (URLError, OSError, ValueError):
        return None


def size_of(item: OfferedFile) -> int | None:
    """The size of a file, asked for where its index states none: the plan sums sizes, and a lock may lack them."""
    parts = urlsplit(item.url)
    if item.size is not None or parts.scheme not in ("file", "http", "https"):
        return item.size
    if parts.scheme == "file":
        return Path(unquote(parts.path)).stat().st_size
    headers = headers_of(item.url, 10)
    return integer(headers["Content-Length"]) if headers else None
