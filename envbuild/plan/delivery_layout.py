"""Where a bundle lies on a node, and what an install request says of it. Pure."""

from __future__ import annotations

from typing import Any

from envbuild.model.lock import LockedSource, LockedSubmodule, Variant
from envbuild.node import paths

BUNDLE = "bundle.tar"


def store_folder(prefix: str, variant: Variant) -> str:
    """The folder on the node for a variant's bundle and what is unpacked from it."""
    return paths.delivered(prefix, variant.digest)


def bundles(variant: Variant) -> dict[str, LockedSource | LockedSubmodule]:
    """The repositories of a bundle, by name; that of a submodule is `<source>/<path of the submodule>`."""
    found: dict[str, LockedSource | LockedSubmodule] = {}
    for source in variant.sources:
        found[source.name] = source
        found.update({f"{source.name}/{part.path}": part for part in source.submodules})
    return found


def bundle_name(name: str, source: LockedSource | LockedSubmodule) -> str:
    """The file name of a git bundle, the same in the cache and in a bundle."""
    return f"{name.replace('/', '-')}-{source.commit}-{source.tree[:12]}.bundle"


def delivered(prefix: str, variant: Variant, file: str | None = None, digest: str | None = None) -> dict[str, Any]:
    """The `artifacts` of an install request for what comes in a bundle; `file` where it does not lie in its folder.

    `digest`: the bundle must be this one.
    """
    bundle = {"file": file or f"{store_folder(prefix, variant)}/{BUNDLE}"}
    sources = {name: f"sources/{bundle_name(name, source)}" for name, source in bundles(variant).items()}
    return {"bundle": bundle | ({"digest": digest} if digest else {}), "sources": sources}
