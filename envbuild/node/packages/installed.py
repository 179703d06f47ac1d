"""What is installed: dist-info folders, their names and versions, and every file against its RECORD."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING

from envbuild.node import hashing
from envbuild.node.protocol import Json
from envbuild.node.read_text import names, opened

if TYPE_CHECKING:
    from envbuild.node import merkle


_RARE = ("sha384", "sha512", "sha3_256", "sha3_512", "blake2b", "blake2s")  # what RECORD allows beside sha256


def normal_name(name: str) -> str:
    """A package's name in the form that is compared (lower case, runs of `-_.` as one `-`)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required_name(requirement: str) -> str:
    """The name (normal form) of what a requirement asks for, whatever its versions, extras and marker; else empty."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    return normal_name(match.group(1)) if match else ""


def normal_version(version: str) -> str:
    """A version in a form that equal versions share: no leading zeros, no trailing `.0`, one separator in the rest."""
    public, _, local = version.strip().lower().lstrip("v").partition("+")
    match = re.match(r"(?:(\d+)!)?(\d+(?:\.\d+)*)(.*)\Z", public)
    if match is None:
        return version.strip().lower()
    numbers = [str(int(part)) for part in match.group(2).split(".")]
    while len(numbers) > 1 and numbers[-1] == "0":
        numbers.pop()
    epoch = int(match.group(1) or 0)
    rest = re.sub(r"[-_.]", "", match.group(3))
    local = re.sub(r"[-_.]", ".", local)
    return ("%d!" % epoch if epoch else "") + ".".join(numbers) + rest + ("+" + local if local else "")


def same_version(one: str | None, other: str) -> bool:
    """Whether both are one version, however they are written; a package that is not there (None) has none."""
    return one is not None and normal_version(one) == normal_version(other)


def site_packages(environment: str) -> list[str]:
    """The site-packages folders of an environment, relative to it; conda's link lib/python3.1 is none of its own."""
    lib = os.path.join(environment, "lib")
    libraries = [
        name for name in names(lib) if name.startswith("python") and not os.path.islink(os.path.join(lib, name))
    ]
    folders = [f"lib/{name}/site-packages" for name in libraries]
    return [path for path in folders if os.path.isdir(os.path.join(environment, path))]


def installed(environment: str) -> dict[str, str]:
    """Name (normal form) -> version of every dist-info in the environment.

    A dist-info without readable METADATA counts under its folder's name with version `?`.
    """
    packages = {}
    for folder in dist_infos(environment):
        name, version = _identity(environment, folder)
        packages[normal_name(name or os.path.basename(folder).split("-")[0])] = version or "?"
    return packages


def requires(environment: str) -> dict[str, set[str]]:
    """Name -> names of what it requires (both in normal form) of every dist-info; under whatever marker or extra."""
    requirements: dict[str, set[str]] = {}
    for folder in dist_infos(environment):
        name, wanted = "", set()
        for key, value in _metadata(environment, folder):
            if key == "name":
                name = normal_name(value)
            elif key == "requires-dist":
                wanted.add(required_name(value))
        if name or wanted:
            requirements.setdefault(name, set()).update(wanted)
    return requirements


def unwanted(
    present: Iterable[str], edges: dict[str, set[str]], asked: Iterable[str], base: Iterable[str]
) -> list[str]:
    """What is in `present` (sorted) that is not `asked` for and that neither `base` nor what is asked for requires.

    `edges` as from `requires`, `base` what the packages below the environment require. All in normal form.
    """
    reached: set[str] = set()
    level: set[str] = set(asked).union(base)
    while level:
        reached |= level
        level = set().union(*(edges.get(name, set()) for name in level)) - reached
    return sorted(set(present) - reached)


def headers(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Key (lower case) and first line of every header of metadata; only a line with nothing at all ends them."""
    for line in lines:
        if not line.strip("\r\n"):
            return
        key, colon, value = line.partition(":")
        if colon and not line[0].isspace():  # else it continues the header before it
            yield key.lower(), value.strip()


def _metadata(environment: str, folder: str) -> Iterator[tuple[str, str]]:
    """The headers of the METADATA in a dist-info folder; none where it cannot be read."""
    try:
        with opened(os.path.join(environment, folder, "METADATA")) as stream:
            yield from headers(io.TextIOWrapper(stream, encoding="utf-8", errors="replace"))
    except OSError:
        return


def _identity(environment: str, folder: str) -> tuple[str, str]:
    """Name and version by the METADATA in a dist-info folder; empty where it does not say one."""
    headers: dict[str, str] = {}
    for key, value in _metadata(environment, folder):
        if value and key in ("name", "version"):
            headers[key] = value
            if len(headers) == 2:
                break
    return headers.get("name", ""), headers.get("version", "")


def check(
    environment: str,
    entries: dict[str, merkle.Entry],
    known: dict[str, str] | None = None,
    others: Container[str] = (),
) -> tuple[int, list[Json]]:
    """Compare every file that a RECORD names with its hash there; returns (files checked, mismatches).

    `known`: path to the sha256 (hex) that stands in the place of RECORD's. `others`: distributions (normal names) that
    somebody else answers for.

    `entries` come from `merkle.scan` of the same environment, so nothing is read twice. A mismatch is `{"package",
    "version", "path", "kind"}` with kind `changed`, `missing`, `outside` or `no-record`. A file that several packages
    hold agrees where it is as one of them says.
    """
    # A question about names and versions, as every run asks it, needs none of this.
    from envbuild.node import merkle

    checked = 0
    wrong: list[Json] = []
    known = known or {}
    owners = shared(environment, others)
    for folder in dist_infos(environment):
        record = folder + "/RECORD"
        if normal_name(os.path.basename(folder).split("-")[0]) in others:
            continue
        if record not in entries:
            wrong.append(_mismatch(environment, folder, record, "no-record"))
            continue
        for path, digest, _size in merkle.read_record(environment, record):
            truth = "sha256=" + hashing.for_record(known[path]) if known.get(path) else digest
            kind = _compare(environment, path, truth, entries)
            others_say = owners.get(path, {}).values() if kind else ()
            if any(_compare(environment, path, other, entries) is None for other in others_say):
                kind = None
            checked += 1 if digest and kind is None else 0
            if kind is not None:
                wrong.append(_mismatch(environment, folder, path, kind))
    return checked, wrong


def shared(environment: str, others: Container[str] = ()) -> dict[str, dict[str, str]]:
    """Path -> {package: hash} of every file that RECORDs of several packages name with different contents.

    `others` as of `check`.
    """
    from envbuild.node import merkle

    digests: dict[str, dict[str, str]] = {}
    for folder in dist_infos(environment):
        name = normal_name(os.path.basename(folder).split("-")[0])
        if name not in others and os.path.isfile(os.path.join(environment, folder, "RECORD")):
            for path, digest, _size in merkle.read_record(environment, folder + "/RECORD"):
                if digest:
                    digests.setdefault(path, {})[name] = digest
    return {path: owners for path, owners in digests.items() if len(set(owners.values())) > 1}


def overwritten(environment: str, entries: dict[str, merkle.Entry], others: Container[str] = ()) -> list[Json]:
    """Which packages hold the same files with other contents: `{"packages", "files", "first", "there"}` of each set.

    `there`: those of them whose contents the files have. `entries` and `others` as of `check`.
    """
    sets: dict[tuple[str, ...], Json] = {}
    for path, owners in sorted(shared(environment, others).items()):
        row = sets.setdefault(tuple(sorted(owners)), {"files": 0, "first": path, "there": []})
        row["files"] += 1
        won = {name for name, digest in owners.items() if _compare(environment, path, digest, entries) is None}
        row["there"] = sorted(won.union(row["there"]))
    return [{"packages": list(names), **row} for names, row in sets.items()]


def dist_infos(environment: str) -> list[str]:
    """The dist-info folders of an environment, relative to it."""
    return [
        f"{site}/{name}"
        for site in site_packages(environment)
        for name in names(os.path.join(environment, site))
        if name.endswith(".dist-info")
    ]


def _mismatch(environment: str, folder: str, path: str, kind: str) -> Json:
    name, version = _identity(environment, folder)
    return {"package": name or os.path.basename(folder), "version": version, "path": path, "kind": kind}


def _compare(environment: str, path: str, digest: str, entries: dict[str, merkle.Entry]) -> str | None:
    if path.startswith(("../", "/")):
        return "outside"
    entry = entries.get(path)
    if entry is None:
        # Byte code comes and goes; everything else that is named must be there.
        if path.endswith(".pyc") or os.path.lexists(os.path.join(environment, path)):
            return None
        return "missing"
    if not digest:
        return None
    algorithm, _, expected = digest.partition("=")
    actual = ""
    if algorithm == "sha256":
        actual = entry.raw
    elif algorithm in _RARE:
        with opened(os.path.join(environment, path)) as stream:
            actual = hashing.digest_of_stream(stream, algorithm)
    return None if actual and hashing.for_record(actual) == expected.rstrip("=") else "changed"
