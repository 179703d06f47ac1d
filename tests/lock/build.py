"""Small valid locks and wheels for tests: digests computed, everything else as given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from envbuild.catalog.indexes import IndexEntry
from envbuild.lock.create import create_lock
from envbuild.lock.readers.torch_wheels import Supply
from envbuild.model.lock import ArtifactFile, Lock, LockedPackage, Variant
from envbuild.model.stack import Stack
from tests.support.wheels import sha256, write_wheel

SHA = "0123456789abcdef" * 4
MakeSupply = Callable[..., Supply]


def stack(**profile: Any) -> Stack:
    """A stack with one profile, whose environments are not tested."""
    exact = {"python": ["3.11"], "smoke": [], **profile}
    return Stack.from_plain({"name": "demo", "summary": "s", "profiles": {"exact": exact}})


def make(wanted: Stack, supply: Supply, **options: Any) -> Lock:
    return create_lock(wanted, "exact", supply=supply, standalone={}, **options)


def index_at(name: str, url: str) -> IndexEntry:
    return IndexEntry.model_construct(name=name, url=url, kind="simple")


def versions(lock: Lock, number: int = 0) -> dict[str, str]:
    return {package.name: package.version for package in lock.variants[number].packages}


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


def make_wheels(folder: Path, *rows: str) -> Path:
    """Wheels by `name version: requirement, requirement`; returns the folder."""
    for row in rows:
        named, _, requires = row.partition(": ")
        name, version = named.split()
        make_wheel(folder, name, version, requires=requires.split(", ") if requires else ())
    return folder
