"""The conda packages of a bundle, fetched from the addresses of their channels."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.variants import conda_unrecorded
from envbuild.node.protocol import NodeError
from envbuild.regular_file import sha256_of

if TYPE_CHECKING:
    from envbuild.model.conda import CondaPackage
    from envbuild.model.lock import Variant

_LARGEST = 16 << 30
_DEADLINE_S = 3600.0


def fetch_archives(
    variant: Variant,
    channels: Mapping[str, Sequence[str]],
    cache: Path,
    on_fetch: Callable[[str], None] | None = None,
) -> dict[str, Path]:
    """Every conda package of the variant in `cache`, checked: `<channel>/<subdir>/<file>` to its path.

    `channels`: name to base addresses. Raises EnvbuildError `conda-unrecorded`, `hash-mismatch` (exit 5),
    `package-not-found` (4) and what `download` raises.
    """
    if variant.conda is None:
        return {}
    if not variant.conda.packages:
        raise conda_unrecorded(variant)
    found = {}
    for package in variant.conda.packages:
        path = cache / "packages" / package.sha256 / package.file
        if not (path.is_file() and sha256_of(path) == package.sha256):
            if on_fetch is not None:
                on_fetch(package.file)
            _fetch(package, channels.get(package.channel, ()), path)
        found[f"{package.channel}/{package.subdir}/{package.file}"] = path
    return found


def _fetch(package: CondaPackage, bases: Sequence[str], path: Path) -> None:
    """From the first address that has it; other contents end it."""
    from envbuild.node.conda.logins import login
    from envbuild.transport.download import download

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    failure = EnvbuildError(
        "package-not-found",
        f"{package.file} of the channel {package.channel} cannot be fetched",
        why="nothing says where the channel is",
        hint="give the channel a `url` in the stack, or name it in conda's configuration",
    )
    for base in bases:
        try:
            url, authorization = login(f"{base.rstrip('/')}/{package.subdir}/{package.file}", os.environ)
            download(
                url,
                path,
                package.sha256,
                size_cap=package.size or _LARGEST,
                deadline=_DEADLINE_S,
                authorization=authorization,
            )
        except NodeError as error:
            raise EnvbuildError.from_dict(error.as_dict()) from error
        except EnvbuildError as error:
            if error.exit_code == ExitCode.INTEGRITY:
                raise
            failure = error
        else:
            return
    raise failure
