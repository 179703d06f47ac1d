"""The one refusal of a file without a recorded hash, and of conda packages without a record."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from packaging.requirements import Requirement

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.packages import Request, resolve
from envbuild.lock.readers.pylock import Offer
from envbuild.model.finding import package_name
from envbuild.model.lock import ArtifactFile, Variant


def applies(wanted: Requirement, python: str, platform: str) -> bool:
    """Whether the marker of a requirement, if it has one, holds for CPython `python` (as `3.11`) on a lock platform."""
    return wanted.marker is None or wanted.marker.evaluate(environment(python, platform))


def environment(python: str, platform: str) -> dict[str, str]:
    """The value of every name of markers. Of the Python the first release, as uv takes it."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": platform.removeprefix("linux_"),
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


YOUNG = timedelta(days=365)


def newcomers(offers: Sequence[Offer], request: Request, before: Container[str]) -> Iterator[str]:
    """A sentence for each offer that is not `before`, that the request does not name, and whose project is young.

    An index that states no upload times cannot be asked; nothing is said then.
    """
    asked = {package_name(text) for text in request.requirements}
    today = date.fromisoformat(request.as_of) if request.as_of else datetime.now(UTC).date()
    unknown = {each.name: each for each in offers if each.name not in asked and each.name not in before}
    uploads = {name: uploaded for name, offer in unknown.items() if (uploaded := _uploaded(offer)) is not None}
    fresh = [name for name, uploaded in uploads.items() if today - uploaded < YOUNG]
    for name in _missing(fresh, replace(request, as_of=(today - YOUNG).isoformat(), pins={}, constraints=())):
        yield (
            f"{name} {unknown[name].version} is new in this lock, not named by the stack, and its project is young "
            f"(uploaded {uploads[name]}): look at what it is and who wants it before you install it"
        )


def _uploaded(offer: Offer) -> date | None:
    times = [each.uploaded.date() for each in (*offer.wheels, offer.sdist) if each is not None and each.uploaded]
    return min(times, default=None)


def _missing(names: Sequence[str], earlier: Request) -> list[str]:
    """Those that the index has nothing of at the date of `earlier`; usually one question is enough."""
    if not names:
        return []
    try:
        resolve(replace(earlier, requirements=tuple(names), no_deps=True))
    except EnvbuildError as error:
        if error.exit_code != ExitCode.REFUSED:
            return []
        half = len(names) // 2
        return [*names] if not half else _missing(names[:half], earlier) + _missing(names[half:], earlier)
    return []


CODE = "hash-unrecorded"


def hash_unrecorded(file: ArtifactFile, command: str) -> EnvbuildError:
    """`hash-unrecorded` (exit 5) for one file, with the reason that the lock gives; `command` records it."""
    return EnvbuildError(
        CODE,
        f"{file.file} has no recorded sha256",
        why=file.reason or "",
        hint=f"`{command}`, where its index is reached, or with `--from DIR` for a folder that has the file",
    )


def conda_unrecorded(variant: Variant) -> EnvbuildError:
    """`conda-unrecorded` (exit 5) for a variant whose conda packages are not recorded yet."""
    return EnvbuildError(
        "conda-unrecorded",
        f"the lock has no conda packages of {variant.id}",
        why=(variant.conda.unrecorded if variant.conda else None) or "",
        hint="`envbuild lock create` records them where the channel can be reached",
    )
