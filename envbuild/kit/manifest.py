"""`kit.json`: what a kit is made of, and every other file of it by size and sha256."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from envbuild.errors import EnvbuildError
from envbuild.model.common import Sha256, StrictModel, Text, first_mistake
from envbuild.report import evidence_file

NAME = "kit.json"
REPORT = "report"
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
    """`form`: `published` with the public fields of the report only."""

    schema_version: Literal["2.0"] = "2.0"
    envbuild: Text
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
    """The manifest. Raises EnvbuildError `kit-invalid` or, for another schema, `kit-invalid` (exit 5)."""
    try:
        found = evidence_file.parse(data)
    except ValueError as error:
        raise invalid(NAME, str(error)) from error
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version is not None and version != KIT_VERSION:
        raise EnvbuildError(
            "kit-invalid",
            f"{NAME} has the schema {str(version)[:40]!r}",
            why=f"this envbuild reads {KIT_VERSION}; another number may mean something else",
            hint="use the envbuild version that wrote it (the field `envbuild` says which)",
        )
    try:
        manifest = Manifest.from_plain(found)
    except ValidationError as error:
        raise invalid(NAME, first_mistake(error)) from error
    paths = [file.path for file in manifest.files]
    if paths != sorted({*paths} - {NAME}):
        raise invalid(NAME, "its files are not each listed once, by path")
    return manifest


def invalid(name: str, why: str) -> EnvbuildError:
    """The error for what is no kit of ours; `name` is the file that says so."""
    return EnvbuildError(
        "kit-invalid",
        f"{name} is not that of a kit",
        why=why,
        hint="give the folder or the tar file that `envbuild report kit` wrote",
    )
