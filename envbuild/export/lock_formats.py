"""Exports one variant for other tools: `pylock` (PEP 751), `requirements` (hash-pinned), and what conda reads.

A lock has no addresses. A pylock needs one for each file: a path in a wheelhouse, or the URL that the configured index
gives at that moment. An export is made on request and never shipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuild import __version__
from envbuild.catalog.indexes import IndexEntry
from envbuild.errors import EnvbuildError
from envbuild.export.steps import requirement
from envbuild.lock.packages import offered_files
from envbuild.lock.readers.pylock import ARCHITECTURES, OfferedFile
from envbuild.lock.record import inlined
from envbuild.lock.variants import conda_unrecorded, hash_unrecorded
from envbuild.model.evidence import PackageFile
from envbuild.model.lock import ArtifactFile, Lock, Variant, canonical_json
from envbuild.model.stack import SUBDIRS, CondaPackage, LockedConda
from envbuild.regular_file import sha256_of
from envbuild.report import formats as bom
from envbuild.resolve.request import named_variant
from envbuild.resolve.variant_checks import record_command
from envbuild.text import comment, visible

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

Channels = Mapping[str, Sequence[str]]


def explicit(variant: Variant, header: Sequence[str], channels: Channels) -> str:
    """What `conda create --file` takes: one address with its sha256 a line; wheels and sources are in the comments.

    Raises EnvbuildError `format-not-available` (exit 2), `conda-unrecorded` (exit 5), `address-missing` (exit 75).
    """
    conda = _recorded(variant)
    left = [f"not in this file: {package.name}=={package.version} of pip" for package in variant.packages]
    lines = [comment(line) for line in (*header, *left, f"platform: {SUBDIRS[variant.platform]}")]
    lines.append("@EXPLICIT")
    lines += [f"{_channel_address(package, channels)}#sha256:{package.sha256}" for package in conda.packages]
    return "\n".join(lines) + "\n"


def conda_lock(variant: Variant, header: Sequence[str], channels: Channels, wheels: Mapping[str, str]) -> str:
    """What `conda-lock install` takes (version 1); `wheels`: the address of each locked file. Raises as `explicit`."""
    import yaml

    conda = _recorded(variant)
    platform = SUBDIRS[variant.platform]
    rows = [
        _row(package.name, package.version, "conda", platform, _channel_address(package, channels), package.sha256)
        for package in conda.packages
    ]
    rows += [
        _row(package.name, package.version, "pip", platform, wheels[item.file], item.sha256)
        for package in variant.packages
        for item in package.files[:1]
    ]
    used = list(dict.fromkeys(package.channel for package in conda.packages))
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


def _channel_address(package: CondaPackage, channels: Channels) -> str:
    if not channels.get(package.channel):
        raise EnvbuildError(
            "address-missing",
            f"the address of the channel {package.channel} is not known",
            why=f"{package.file} is from this channel, and the stack no longer names the channel",
            hint="run `envbuild lock create STACK`",
        )
    return f"{channels[package.channel][0]}/{package.subdir}/{package.file}"


def cyclonedx(lock: Lock, variant: Variant) -> str:
    """The document; a package that may be one of several files has no hash. Nothing in it says when it was made."""
    day = datetime.fromtimestamp(0, UTC)
    return bom.document((lock.stack, lock.profile), __version__, variant.digest, day, _components(variant))


def _components(variant: Variant) -> Iterator[Component]:
    for locked in variant.packages:
        file = locked.files[0] if len(locked.files) == 1 else None
        row = None
        if file is not None:
            row = PackageFile(
                name=locked.name, version=locked.version, file=file.file, sha256=file.sha256, index=locked.index
            )
        yield bom.package(locked.name, locked.version, row, same=True)
    for package in variant.archives:
        row = PackageFile(
            name=package.name, version=package.version, file=package.file, sha256=package.sha256,
            index=package.channel, kind="conda", subdir=package.subdir,
        )  # fmt: skip
        yield bom.package(package.name, package.version, row, same=True)
    for name, version in variant.provided.items():
        yield bom.package(name, version, None, same=None, pin="of the base")
    if variant.image is not None:
        digest = variant.image.digest
        yield bom.image(variant.image.name, digest if digest != "unrecorded" else None)
    for source in variant.sources:
        yield bom.source(source.name, source.git, source.commit, source.tree)


@dataclass(frozen=True)
class Places:
    """Where to ask for addresses when there is no wheelhouse: find-links entries, named indexes, conda's channels."""

    find_links: tuple[str, ...] = ()
    indexes: Mapping[str, IndexEntry] | None = None
    channels: Mapping[str, Sequence[str]] = field(default_factory=dict)


def find_variant(lock: Lock, variant_id: str | None) -> Variant:
    """The variant of that id, or the only one. Raises EnvbuildError `variant-unknown` (exit 2)."""
    if variant_id:
        return named_variant(lock, variant_id)
    if len(lock.variants) == 1:
        return lock.variants[0]
    raise EnvbuildError(
        "variant-unknown",
        "the lock has several variants",
        hint=f"name one of: {', '.join(variant.id for variant in lock.variants)}",
    )


def export_lock(
    lock: Lock,
    variant_id: str | None,
    format: str,  # noqa: A002 - the word that the command line uses
    wheelhouse: Path | None = None,
    *,
    places: Places | None = None,
) -> str:
    """Text of one variant in the format of another tool. Raises ValueError for another format, and EnvbuildError:

    `variant-unknown`, `format-not-available`, `wheelhouse-incomplete` (exit 2); `hash-unrecorded`, `conda-unrecorded`,
    `hash-mismatch`, `address-mismatch` (exit 5); `address-missing` (exit 75); what uv's resolution raises.
    """
    variant = find_variant(lock, variant_id)
    record = record_command(lock.stack, lock.profile)
    for item in variant.files:
        if item.sha256 == "unrecorded":
            raise hash_unrecorded(item, record)
    places = places or Places()
    if format == "requirements":
        lines = [comment(line) for line in _header(lock, variant)]
        lines += [requirement(package, record) for package in variant.packages]
        return "\n".join(lines) + "\n"
    if format == "cyclonedx":
        return cyclonedx(lock, variant)
    if format == "conda-explicit":
        return explicit(variant, _header(lock, variant), places.channels)
    where = _in_wheelhouse(variant, wheelhouse) if wheelhouse else _from_index(variant, places)
    if format == "conda-lock":
        wheels = {file: entry.get("url") or Path(entry["path"]).as_uri() for file, entry in where.items()}
        return conda_lock(variant, _header(lock, variant), places.channels, wheels)
    if format != "pylock":
        raise ValueError(f"no export format {format}")
    return _pylock(lock, variant, where)


def _header(lock: Lock, variant: Variant) -> list[str]:
    lines = [f"{lock.stack}, profile {lock.profile}, variant {variant.id}", f"variant digest {variant.digest}"]
    if variant.base.kind != "none":
        lines.append(f"stands on a base: {variant.base.kind} {' '.join(variant.base.provides)}".rstrip())
    lines += [f"not in this file: source {s.name} {s.git} at {s.commit}" for s in variant.sources]
    return lines + [f"not in this file: source {tree.name}, a working tree" for tree in variant.trees]


def _in_wheelhouse(variant: Variant, wheelhouse: Path) -> dict[str, dict[str, str]]:
    missing, where = [], {}
    for item in variant.files:
        path = wheelhouse.resolve() / item.file
        if not path.is_file():
            missing.append(item.file)
            continue
        digest = sha256_of(path)
        if digest != item.sha256:
            raise EnvbuildError(
                "hash-mismatch",
                f"{path} is not the locked file",
                why=f"sha256 {digest} there, {item.sha256} in the lock",
                hint="replace the file",
            )
        where[item.file] = {"path": str(path)}
    if missing:
        raise EnvbuildError(
            "wheelhouse-incomplete",
            f"{wheelhouse} lacks {len(missing)} of the locked files",
            why=", ".join(missing[:10]),
            hint="fill it: pip download --require-hashes --no-deps -r REQUIREMENTS -d DIR",
        )
    return where


def _from_index(variant: Variant, places: Places) -> dict[str, dict[str, str]]:
    """Ask uv where each locked file is. The answer counts only with the same file name and the same sha256."""
    try:
        offered = offered_files(variant, variant.packages, places.find_links, places.indexes)
    except EnvbuildError as error:
        if error.code not in ("resolution-failed", "package-not-found"):
            raise
        raise _no_address(error.why) from error
    return {item.file: {"url": _address(item, offered.get(item.file))} for item in variant.files}


def _address(item: ArtifactFile, offered: OfferedFile | None) -> str:
    if offered is None:
        raise _no_address(f"{item.file} is not offered")
    if offered.sha256 != item.sha256:
        raise EnvbuildError(
            "address-mismatch",
            f"the index has a different {item.file} than the lock",
            why=f"sha256 {offered.sha256 or 'unknown'} there, {item.sha256} in the lock",
            hint="use another mirror, or give a folder with the files: --wheelhouse DIR",
        )
    return offered.url


def _no_address(why: str) -> EnvbuildError:
    return EnvbuildError(
        "address-missing",
        "some locked files have no address on this machine",
        why=why,
        hint="check the index, name a folder that has the files (--wheelhouse DIR), or export `requirements`",
    )


def _pylock(lock: Lock, variant: Variant, where: Mapping[str, Mapping[str, str]]) -> str:
    import tomlkit

    document = tomlkit.document()
    for line in _header(lock, variant):
        document.add(tomlkit.comment(visible(line)))
    document.add("lock-version", tomlkit.item("1.0"))
    machine = ARCHITECTURES[variant.platform]
    document.add("environments", tomlkit.item([f"sys_platform == 'linux' and platform_machine == '{machine}'"]))
    document.add("requires-python", tomlkit.item(f"=={variant.python}.*"))
    document.add("created-by", tomlkit.item("envbuild"))
    packages = tomlkit.aot()
    for package in variant.packages:
        table = tomlkit.table()
        table.update({"name": package.name, "version": package.version})
        sdists = [_entry(item, where) for item in package.files if not item.file.endswith(".whl")]
        wheels = [_entry(item, where) for item in package.files if item.file.endswith(".whl")]
        if sdists:
            table.add("sdist", inlined(sdists[0]))
        if wheels:
            table.add("wheels", inlined(wheels))
        packages.append(table)
    document.add("packages", packages)
    document.add("tool", tomlkit.item({"envbuild": {"variant": variant.id, "digest": variant.digest}}))
    return tomlkit.dumps(document)


def _entry(item: ArtifactFile, where: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    size = {} if item.size is None else {"size": item.size}
    return {"name": item.file, **where[item.file], **size, "hashes": {"sha256": item.sha256}}
