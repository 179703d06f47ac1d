"""`kit.json`, and a kit as it comes from somebody: a folder, or a tar file, with no trust in its names and sizes.

`kit.json` has what a kit is made of, and every other file of it by size and sha256.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from envbuild import regular_file
from envbuild.errors import EnvbuildError
from envbuild.model.common import Sha256, StrictModel, Text, first_mistake
from envbuild.node.bundle import plain_tar
from envbuild.report import evidence_file
from envbuild.report.recheck.opened import Finding, judged, problem, read_attachment
from envbuild.text import visible

NAME = "kit.json"
REPORT = "report"
# The report of the run that measured the environment, where the other one has its contents from the stamp.
MEASURED = "environment"
KIT_VERSION = "2.0"
MOST_FILES = 2000
LARGEST, LARGEST_MANIFEST, LARGEST_ALL = 64 * 2**20, 2**20, 512 * 2**20
# As envbuild names files. No part begins with a dot or a dash: no `..`, nothing hidden, no option of a program.
PATH = r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}(/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}){0,7}$"
KitPath = Annotated[str, StringConstraints(pattern=PATH)]


class KitFile(StrictModel):
    """One file, `path` below the folder of the kit."""

    path: KitPath
    sha256: Sha256
    bytes: Annotated[int, Field(ge=0, le=LARGEST)]


class Manifest(StrictModel):
    """`form`: `published` with the public fields of the report only.

    `commit`, `address`: of the envbuild that made it. Without an address, the kit has its wheel.
    """

    schema_version: Literal["2.0"] = "2.0"
    envbuild: Text
    commit: Annotated[str, Field(pattern=r"^([0-9a-f]{40})?$")] = ""
    address: Annotated[str, Field(pattern=r"^(https://[\w.:/~+-]+)?$")] = ""
    form: Literal["published", "full"]
    files: Annotated[tuple[KitFile, ...], Field(max_length=MOST_FILES)] = ()


def listed(files: Mapping[str, bytes]) -> tuple[KitFile, ...]:
    """The rows of a manifest, by path."""
    return tuple(
        KitFile(path=path, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
        for path, data in sorted(files.items())
    )


def render(manifest: Manifest) -> bytes:
    """`kit.json` as it is written."""
    return json.dumps(manifest.to_json_dict(), indent=1).encode() + b"\n"


def parse(data: bytes) -> Manifest:
    """The manifest. Raises EnvbuildError `kit-invalid` (exit 5), for another schema too."""
    try:
        plain = evidence_file.parse(data)
    except ValueError as error:
        raise invalid(NAME, str(error)) from error
    version = plain.get("schema_version") if isinstance(plain, dict) else None
    if version is not None and version != KIT_VERSION:
        raise EnvbuildError(
            "kit-invalid",
            f"{NAME} has the schema {str(version)[:40]!r}",
            why=f"this envbuild reads {KIT_VERSION}",
            hint="use the envbuild version that wrote it (see its field `envbuild`)",
        )
    try:
        manifest = Manifest.from_plain(plain)
    except ValidationError as error:
        raise invalid(NAME, first_mistake(error)) from error
    paths = [file.path for file in manifest.files]
    if paths != sorted({*paths} - {NAME}):
        raise invalid(NAME, "its files are not each listed once, by path")
    return manifest


def invalid(name: str, why: str) -> EnvbuildError:
    """The error for an invalid kit; `name` is the file that shows it."""
    return EnvbuildError(
        "kit-invalid",
        f"{name} is not the manifest of a kit",
        why=why,
        hint="give the folder or the tar file that `envbuild report kit` wrote",
    )


_PATH = re.compile(PATH)


def is_kit(path: Path) -> bool:
    """Whether a path is meant as a kit, even a broken one."""
    if path.is_dir():
        inside = os.path.lexists(path / REPORT / "evidence.json") and not os.path.lexists(path / "evidence.json")
        return inside or os.path.lexists(path / NAME)
    return path.suffix == ".tgz" or ".tar" in path.suffixes  # a compressed file gets its own error


@contextmanager
def opened(path: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """The folder of the kit and its files with their bytes: all of them regular, with plain names, of bounded size.

    Raises EnvbuildError `kit-missing`, `kit-invalid` (exit 5).
    """
    if path.is_dir():
        yield path, _tree(path)
        return
    with tempfile.TemporaryDirectory(prefix="envbuild-kit-") as scratch:
        folder = _unpack(path, Path(scratch))
        try:
            yield folder, _tree(folder)
        except EnvbuildError as error:  # the names of its files are those in the kit
            error.what, error.why = (text.replace(f"{folder}/", "") for text in (error.what, error.why))
            raise


def manifest_of(folder: Path) -> Manifest:
    """`kit.json`. Raises EnvbuildError `kit-invalid` (exit 5)."""
    data = _read(folder, NAME, LARGEST_MANIFEST)
    if data is None:
        raise invalid(NAME, "it is not there")
    return parse(data)


def _read(folder: Path, name: str, limit: int) -> bytes | None:
    try:
        return read_attachment(folder, name, limit)
    except ValueError as error:
        raise _unsafe(name, str(error)) from error


def check_files(folder: Path, sizes: dict[str, int], listed: Manifest) -> list[Finding]:
    """Every file against the manifest, and none that it does not list."""
    rows = {file.path: file for file in listed.files}
    problems = [
        problem("kit-file-missing", "kit", f"{name} is listed in {NAME} and is not there")
        for name in sorted(rows.keys() - sizes.keys())
    ]
    problems += [
        problem("kit-file-unlisted", "kit", f"{name} is there and {NAME} does not list it")
        for name in sorted(sizes.keys() - rows.keys() - {NAME})
    ]
    for name in sorted(rows.keys() & sizes.keys()):
        data = _read(folder, name, LARGEST) or b""
        if (len(data), hashlib.sha256(data).hexdigest()) != (rows[name].bytes, rows[name].sha256):
            problems.append(problem("kit-file-differs", "kit", f"{name} is not the file that {NAME} lists"))
    good = f"its {len(rows)} files are those of {NAME}, by size and sha256, and there is no other"
    return judged("kit", good, problems)


def _limits() -> plain_tar.Limits:
    """Of a folder, and of a tar file that has one more folder around it."""

    def largest(name: str) -> int:
        return LARGEST_MANIFEST if Path(name).name == NAME else LARGEST

    return plain_tar.Limits(_PATH, MOST_FILES + 1, largest, LARGEST_ALL)


def _tree(folder: Path) -> dict[str, int]:
    try:
        return plain_tar.tree(str(folder), _limits())
    except plain_tar.HostileError as error:
        raise _refused(error, folder.name) from error


def _unpack(path: Path, scratch: Path) -> Path:
    """Its one folder, or `scratch` where it has none."""
    try:
        with regular_file.opened(path) as file:
            size = path.stat().st_size
            if size > LARGEST_ALL + MOST_FILES * 4096:
                raise _too_large(path.name, f"{size:,} bytes, {LARGEST_ALL:,} are the most")
            for name, _, parts in plain_tar.members(file, _limits()):
                target = scratch / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as out:
                    out.writelines(parts)
    except plain_tar.HostileError as error:
        raise _refused(error, path.name) from error
    except FileNotFoundError as error:
        raise EnvbuildError("kit-missing", f"cannot read {path}", why=str(error)) from error
    except OSError as error:
        raise invalid(path.name, f"it cannot be read: {error}") from error
    tops = sorted(scratch.iterdir(), key=lambda top: (top.is_file(), top.name))
    if not tops or os.path.lexists(scratch / NAME):
        return scratch
    if len(tops) > 1:
        raise _unsafe(tops[-1].name, f"it lies beside {tops[0].name}, and a kit is one folder")
    return tops[0]


def _refused(error: plain_tar.HostileError, file: str) -> EnvbuildError:
    if error.kind == "unsafe":
        return _unsafe(error.name, error.why)
    if error.kind == "too-large":
        return _too_large(error.name, error.why)
    return invalid(file, ": ".join(filter(None, (visible(error.name)[:200], error.why))))


def _unsafe(name: str, why: str) -> EnvbuildError:
    return EnvbuildError(
        "kit-invalid",
        f"{visible(name)[:200]} is not allowed in a kit",
        why=why,
        hint="a kit has regular files only; do not unpack this one before you know who made it",
    )


def _too_large(name: str, why: str) -> EnvbuildError:
    return EnvbuildError("kit-invalid", f"{visible(name)[:200]} is too large for a kit", why=why)
