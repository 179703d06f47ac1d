"""Small valid locks and wheels for tests: digests computed, everything else as given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envbuild.model.lock import ArtifactFile, Lock, LockedPackage, Variant
from tests.support.wheels import sha256, write_wheel

SHA = "0123456789abcdef" * 4


def package(name: str, version: str = "1.0", sha: str = SHA, **fields: Any) -> LockedPackage:
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return LockedPackage(name=name, version=version, files=(ArtifactFile(file=file, sha256=sha, size=10),), **fields)


def variant(id_: str = "cp311-linux_x86_64", *, stack: str = "demo", profile: str = "exact", **fields: Any) -> Variant:
    draft = Variant(id=id_, digest=SHA, python=fields.pop("python", "3.11"), **fields)
    return draft.model_copy(update={"digest": draft.compute_digest(stack, profile)})


def lock(*variants: Variant, **fields: Any) -> Lock:
    return Lock(
        stack="demo",
        profile="exact",
        manifest_digest=fields.pop("manifest_digest", SHA),
        variants=variants or (variant(),),
        **fields,
    )


__all__ = ["make_wheel", "sha256"]


def make_wheel(
    folder: Path, name: str, version: str, *, tag: str = "py3-none-any", requires: Sequence[str] = (), body: str = ""
) -> Path:
    """Write `name-version-tag.whl` with one module that says its version; returns its path."""
    files = {f"{name.replace('-', '_')}.py": f'version = "{version}"\n{body}'}
    return write_wheel(folder, name, version, files, tag=tag, requires=requires)
