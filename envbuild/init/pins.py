"""Asks git for commits: of a tag its own, of a branch the last one of the draft's day."""

from __future__ import annotations

from dataclasses import replace

from envbuild.errors import EnvbuildError
from envbuild.init.draft import Draft, DraftSource
from envbuild.lock.readers.git import GitReader, git_reader, output_of, resolve_ref


def pinned(draft: Draft) -> Draft:
    """The same with a commit for each installed source; without one if its repository does not answer."""
    if not any(_is_open(source) for source in draft.sources):
        return draft
    with git_reader() as reader:
        sources = tuple(_pinned(source, draft, reader) if _is_open(source) else source for source in draft.sources)
    return replace(draft, sources=sources)


def _is_open(source: DraftSource) -> bool:
    return bool(source.install) and not source.own and not source.optional and not source.pinned


def _pinned(source: DraftSource, draft: Draft, reader: GitReader) -> DraftSource:
    try:
        return replace(source, commit=_commit(source, draft, reader))
    except EnvbuildError:  # a draft says what it does not know
        return source


def _commit(source: DraftSource, draft: Draft, reader: GitReader) -> str:
    tip = resolve_ref(source.url, source.ref or "HEAD") or ""
    is_tag = bool(source.ref) and resolve_ref(source.url, f"refs/heads/{source.ref}") is None
    if not tip or is_tag or draft.origin.day is None:
        return tip
    place = reader.repository(source.url, tip, "history")
    before = f"--before={draft.origin.day}T23:59:59Z"
    return output_of(place, "rev-list", "-1", "--first-parent", before, tip).strip()
