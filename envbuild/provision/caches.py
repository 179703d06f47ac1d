"""What lies in caches: those of this machine, and beside the environments on a target's nodes; for `envbuild cache`."""

from __future__ import annotations

from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.model.target import Target
from envbuild.node.env.caches import Place, tidy
from envbuild.provision.contact.wheel_stores import ask_each

# All of it can be fetched again. What is not named here is facts of nodes and of images, which are small.
_OWN = ("artifacts/packages", "artifacts/sources", "artifacts/images", "toolchain", "documents")


def own_caches(keep_days: float, *, dry_run: bool) -> dict[str, Any]:
    """Result of `node.caches.tidy` for what this machine keeps. Raises EnvbuildError `cache-not-writable` (exit 7)."""
    import platformdirs

    top = platformdirs.user_cache_path("envbuild")
    places = [Place(name.rpartition("/")[2], str(top / name)) for name in _OWN]
    try:
        return tidy(places, keep_days, dry_run=dry_run)
    except OSError as error:
        raise EnvbuildError(
            "cache-not-writable", f"{error.filename or top} cannot be removed", why=str(error)
        ) from error


def node_caches(
    target: Target, keep_days: float, *, dry_run: bool, wait: float
) -> dict[str, dict[str, Any] | EnvbuildError]:
    """Node -> the same for its prefix, or why there is none."""
    args = {"keep_days": keep_days, "dry_run": dry_run, "wait": wait, "cache": target.cache, "store": target.store}
    return ask_each("cache", target, args)
