"""Packages that nobody asked for by name and that a lock has for the first time: whose project is young is said aloud.

Anybody can register a name that another package then pulls in. The upload time of a version says little (old projects
release every week), so the index is asked once more, as it was a year before: what it had not then is young.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.packages import Request, resolve
from envbuild.lock.readers.pylock import Offer
from envbuild.model.finding import package_name

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
