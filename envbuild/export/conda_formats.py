"""A conda variant as conda and conda-lock read it; addresses come from this user's channels, never from the lock."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.lock.variants import conda_unrecorded
from envbuild.model.conda import SUBDIRS, CondaPackage, LockedConda
from envbuild.model.lock import Variant, canonical_json
from envbuild.text import comment

Channels = Mapping[str, Sequence[str]]


def explicit(variant: Variant, header: Sequence[str], channels: Channels) -> str:
    """What `conda create --file` takes: one address with its sha256 a line; wheels and sources are in the comments.

    Raises EnvbuildError `format-not-available` (exit 2), `conda-unrecorded` (exit 5), `address-missing` (exit 75).
    """
    conda = _recorded(variant)
    left = [f"not in this file: {package.name}=={package.version} of pip" for package in variant.packages]
    lines = [comment(line) for line in (*header, *left, f"platform: {SUBDIRS[variant.platform]}")]
    lines.append("@EXPLICIT")
    lines += [f"{_address(each, channels)}#sha256:{each.sha256}" for each in conda.packages]
    return "\n".join(lines) + "\n"


def conda_lock(variant: Variant, header: Sequence[str], channels: Channels, wheels: Mapping[str, str]) -> str:
    """What `conda-lock install` takes (version 1); `wheels`: the address of each locked file. Raises as `explicit`."""
    import yaml

    conda = _recorded(variant)
    platform = SUBDIRS[variant.platform]
    rows = [
        _row(each.name, each.version, "conda", platform, _address(each, channels), each.sha256)
        for each in conda.packages
    ]
    rows += [
        _row(package.name, package.version, "pip", platform, wheels[item.file], item.sha256)
        for package in variant.packages
        for item in package.files[:1]
    ]
    used = list(dict.fromkeys(each.channel for each in conda.packages))
    metadata = {
        "content_hash": {platform: hashlib.sha256(canonical_json(variant.contents())).hexdigest()},
        "channels": [{"url": channels[name][0], "used_env_vars": []} for name in used],
        "platforms": [platform],
        "sources": ["environment.yml"],
    }
    text: str = yaml.safe_dump({"version": 1, "metadata": metadata, "package": rows}, sort_keys=False, width=1000)
    return "".join(f"{comment(line)}\n" for line in header) + text


def _row(name: str, version: str, manager: str, platform: str, url: str, sha256: str) -> dict[str, Any]:
    # The order of the list is that of installation; what needs what is no more to be decided.
    about = {"name": name, "version": version, "manager": manager, "platform": platform, "dependencies": {}}
    return {**about, "url": url, "hash": {"sha256": sha256}, "category": "main", "optional": False}


def _recorded(variant: Variant) -> LockedConda:
    if variant.conda is None:
        raise EnvbuildError(
            "format-not-available",
            f"the variant {variant.id} is made by {variant.engine} and has no conda packages",
            hint="export a variant of the engine conda, or pylock or requirements",
        )
    if variant.conda.unrecorded is not None:
        raise conda_unrecorded(variant)
    return variant.conda


def _address(package: CondaPackage, channels: Channels) -> str:
    if not channels.get(package.channel):
        raise EnvbuildError(
            "address-missing",
            f"the address of the channel {package.channel} is not known",
            why=f"{package.file} is of it, and the stack does not name it any more",
            hint="create the lock again from the stack",
        )
    return f"{channels[package.channel][0]}/{package.subdir}/{package.file}"
