"""The bill of materials of a variant as it is locked: packages by hash, sources by commit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from envbuild import __version__
from envbuild.model.evidence import PackageFile
from envbuild.model.lock import Lock, Variant
from envbuild.report.formats import cyclonedx as bom

if TYPE_CHECKING:
    from cyclonedx.model.component import Component


def cyclonedx(lock: Lock, variant: Variant) -> str:
    """The document; a package that may be one of several files has no hash. Nothing in it says when it was made."""
    day = datetime.fromtimestamp(0, UTC)
    return bom.document((lock.stack, lock.profile), __version__, variant.digest, day, _components(variant))


def _components(variant: Variant) -> Iterator[Component]:
    for each in variant.packages:
        file = each.files[0] if len(each.files) == 1 else None
        row = None
        if file is not None:
            row = PackageFile(
                name=each.name, version=each.version, file=file.file, sha256=file.sha256, index=each.index
            )
        yield bom.package(each.name, each.version, row, same=True)
    for package in variant.conda.packages if variant.conda else ():
        row = PackageFile(
            name=package.name, version=package.version, file=package.file, sha256=package.sha256,
            index=package.channel, kind="conda", subdir=package.subdir,
        )  # fmt: skip
        yield bom.package(package.name, package.version, row, same=True)
    for name, version in variant.provided.items():
        yield bom.package(name, version, None, same=None, said="of the base")
    if variant.image is not None:
        digest = variant.image.digest
        yield bom.image(variant.image.name, digest if digest != "unrecorded" else None)
    for source in variant.sources:
        yield bom.source(source.name, source.git, source.commit, source.tree)
