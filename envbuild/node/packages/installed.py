"""What is installed: dist-info folders, their names and versions, and every file against its RECORD."""

import os
import re

from envbuild.node.protocol import Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from envbuild.node import merkle


def normal_name(name: str) -> str:
    """A package's name in the form that is compared (lower case, runs of `-_.` as one `-`)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required_name(requirement: str) -> str:
    """The name (normal form) of what a requirement asks for, whatever its versions, extras and marker; else empty."""
    found = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    return normal_name(found.group(1)) if found else ""


def normal_version(version: str) -> str:
    """A version in a form that equal versions share: no leading zeros, no trailing `.0`, one separator in the rest."""
    public, _, local = version.strip().lower().lstrip("v").partition("+")
    found = re.match(r"(?:(\d+)!)?(\d+(?:\.\d+)*)(.*)\Z", public)
    if found is None:
        return version.strip().lower()
    numbers = [str(int(part)) for part in found.group(2).split(".")]
    while len(numbers) > 1 and numbers[-1] == "0":
        numbers.pop()
    epoch = int(found.group(1) or 0)
    rest = re.sub(r"[-_.]", "", found.group(3))
    local = re.sub(r"[-_.]", ".", local)
    return ("%d!" % epoch if epoch else "") + ".".join(numbers) + rest + ("+" + local if local else "")


def site_packages(environment: str) -> "list[str]":
    """The site-packages folders of an environment, relative to it."""
    lib = os.path.join(environment, "lib")
    try:
        names = sorted(os.listdir(lib))
    except OSError:
        return []
    found = ["lib/%s/site-packages" % name for name in names if name.startswith("python")]
    return [path for path in found if os.path.isdir(os.path.join(environment, path))]


def installed(environment: str) -> "dict[str, str]":
    """Name (normal form) -> version of every dist-info in the environment.

    A dist-info without readable METADATA counts under its folder's name with version `?`.
    """
    packages = {}
    for site in site_packages(environment):
        for name in sorted(os.listdir(os.path.join(environment, site))):
            if name.endswith(".dist-info"):
                found = _metadata(os.path.join(environment, site, name, "METADATA"))
                packages[normal_name(found[0] or name.split("-")[0])] = found[1] or "?"
    return packages


def requires(environment: str) -> "dict[str, set[str]]":
    """Name -> names of what it requires (both in normal form) of every dist-info; under whatever marker or extra."""
    found: dict[str, set[str]] = {}
    for folder in dist_infos(environment):
        name, wanted = "", set()
        try:
            with open(os.path.join(environment, folder, "METADATA"), encoding="utf-8", errors="replace") as stream:
                for key, value in headers(stream):
                    if key == "name":
                        name = normal_name(value)
                    elif key == "requires-dist":
                        wanted.add(required_name(value))
        except OSError:
            continue
        found.setdefault(name, set()).update(wanted)
    return found


def unwanted(
    names: "Iterable[str]", edges: "dict[str, set[str]]", asked: "Iterable[str]", base: "Iterable[str]"
) -> "list[str]":
    """Those of `names` (sorted) that are not `asked` for and that neither `base` nor what is asked for requires.

    `edges` as from `requires`, `base` what the packages below the environment require. All in normal form.
    """
    reached: set[str] = set()
    found: set[str] = set(asked).union(base)
    while found:
        reached |= found
        found = set().union(*(edges.get(name, set()) for name in found)) - reached
    return sorted(set(names) - reached)


def headers(lines: "Iterable[str]") -> "Iterator[tuple[str, str]]":
    """Key (lower case) and first line of every header of metadata; only a line with nothing at all ends them."""
    for line in lines:
        if not line.strip("\r\n"):
            return
        key, colon, value = line.partition(":")
        if colon and not line[0].isspace():  # else it continues the header before it
            yield key.lower(), value.strip()


def _metadata(path: str) -> "tuple[str, str]":
    """Name and version from the headers of a METADATA file."""
    name = version = ""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            for key, value in headers(stream):
                if key == "name":
                    name = value
                elif key == "version":
                    version = value
                if name and version:
                    break
    except OSError:
        pass
    return name, version


def check(
    environment: str,
    entries: "dict[str, merkle.Entry]",
    known: "dict[str, str] | None" = None,
    others: "Container[str]" = (),
) -> "tuple[int, list[Json]]":
    """Compare every file that a RECORD names with its hash there; returns (files checked, mismatches).

    `known`: path to the sha256 (hex) that stands in the place of RECORD's. `others`: distributions (normal names) that
    somebody else answers for.

    `entries` come from `merkle.scan` of the same environment, so nothing is read twice. A mismatch is `{"package",
    "version", "path", "kind"}` with kind `changed`, `missing`, `outside` or `no-record`.
    """
    # A question about names and versions, as every run asks it, needs none of this.
    from envbuild.node import merkle

    checked = 0
    wrong: list[Json] = []
    known = known or {}
    for folder in dist_infos(environment):
        record = folder + "/RECORD"
        if normal_name(os.path.basename(folder).split("-")[0]) in others:
            continue
        if record not in entries:
            wrong.append(_mismatch(environment, folder, record, "no-record"))
            continue
        for path, digest, _size in merkle.read_record(environment, record):
            truth = merkle.record_digest(known[path]) if path in known else digest
            kind = _compare(environment, path, truth, entries)
            checked += 1 if digest and kind is None else 0
            if kind is not None:
                wrong.append(_mismatch(environment, folder, path, kind))
    return checked, wrong


def dist_infos(environment: str) -> "list[str]":
    """The dist-info folders of an environment, relative to it."""
    found = []
    for site in site_packages(environment):
        names = sorted(os.listdir(os.path.join(environment, site)))
        found += ["%s/%s" % (site, name) for name in names if name.endswith(".dist-info")]
    return found


def _mismatch(environment: str, folder: str, path: str, kind: str) -> Json:
    name, version = _metadata(os.path.join(environment, folder, "METADATA"))
    return {"package": name or os.path.basename(folder), "version": version, "path": path, "kind": kind}


def _compare(environment: str, path: str, digest: str, entries: "dict[str, merkle.Entry]") -> "str | None":
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
    from envbuild.node import merkle

    algorithm, _, expected = digest.partition("=")
    if algorithm == "sha256":
        return None if merkle.record_digest(entry.raw) == digest.rstrip("=") else "changed"
    return None if _other(os.path.join(environment, path), algorithm) == expected.rstrip("=") else "changed"


def _other(path: str, algorithm: str) -> str:
    """Digest by one of the rarer algorithms that RECORD allows, empty when it is none."""
    if algorithm not in ("sha384", "sha512", "sha3_256", "sha3_512", "blake2b", "blake2s"):
        return ""
    import base64
    import hashlib

    total = hashlib.new(algorithm)
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1024 * 1024), b""):
            total.update(block)
    return base64.urlsafe_b64encode(total.digest()).rstrip(b"=").decode("ascii")
