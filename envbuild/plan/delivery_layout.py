"""Where a delivery lies on a node: a folder a variant, wheels in its `wheels/`, conda's archives in
`conda/<channel>/<subdir>/`, git bundles in `sources/`. Pure.
"""

from __future__ import annotations

from typing import Any

from envbuild.model.lock import LockedSource, LockedSubmodule, Variant
from envbuild.node import paths


def store_folder(prefix: str, variant: Variant) -> str:
    """Where a variant's delivery goes on the node."""
    return paths.delivered(prefix, variant.digest)


def bundles(variant: Variant) -> dict[str, LockedSource | LockedSubmodule]:
    """The repositories that are delivered, by name; that of a submodule is `<source>/<path of the submodule>`."""
    found: dict[str, LockedSource | LockedSubmodule] = {}
    for source in variant.sources:
        found[source.name] = source
        found.update({f"{source.name}/{part.path}": part for part in source.submodules})
    return found


def bundle_name(name: str, source: LockedSource | LockedSubmodule) -> str:
    """The file name of a bundle, the same in the controller's cache and on the node."""
    return f"{name.replace('/', '-')}-{source.commit}-{source.tree[:12]}.bundle"


def delivered(prefix: str, variant: Variant) -> dict[str, Any]:
    """The `artifacts` of an install request for a variant that was delivered."""
    store = store_folder(prefix, variant)
    paths = {name: f"{store}/sources/{bundle_name(name, source)}" for name, source in bundles(variant).items()}
    common = {"find_links": [f"{store}/wheels"], "indexes": {}, "offline": True, "sources": paths}
    return {**common, "conda": {"folder": f"{store}/conda"}} if variant.conda else common
