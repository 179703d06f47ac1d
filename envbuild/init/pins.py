"""Asks git for commits: of a tag its own, of a branch the last one of the draft's day, of a package its release's."""

from __future__ import annotations

from dataclasses import replace

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from envbuild.errors import EnvbuildError
from envbuild.init.draft import Draft, DraftSource
from envbuild.lock.readers.git import GitReader, git_reader, output_of, resolve_ref, resolve_tags


def pinned(draft: Draft) -> Draft:
    """The same with a commit for each installed source; without one if its repository does not answer."""
    if not any(_is_open(source) for source in draft.sources):
        return draft
    with git_reader() as reader:
        sources = tuple(_pinned(source, draft, reader) if _is_open(source) else source for source in draft.sources)
    return replace(draft, sources=sources)


def _is_open(source: DraftSource) -> bool:
    asked = bool(source.install) and not source.own and not source.optional
    return asked and not source.pinned and not source.commit


def _pinned(source: DraftSource, draft: Draft, reader: GitReader) -> DraftSource:
    try:
        if source.release is not None:
            return _released(source, draft, reader)
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


def _released(source: DraftSource, draft: Draft, reader: GitReader) -> DraftSource:
    """The same at the newest release that is asked for and that was there on the draft's day, or without a commit."""
    prefix, wanted = source.built.tags if source.built else "", source.release or SpecifierSet()
    commits = resolve_tags(source.url, prefix)
    fitting = [
        version
        for tag in commits
        if (version := _version(tag)) is not None and wanted.contains(version, prereleases=bool(wanted.prereleases))
    ]
    newest_first = (str(version) for version in sorted(fitting, reverse=True))
    for tag in (tag for tag in newest_first if tag in commits):
        day = reader.day(source.url, commits[tag]) if draft.origin.day else None
        if day is None or draft.origin.day is None or day <= draft.origin.day:
            return replace(source, ref=f"{prefix}{tag}", commit=commits[tag])
    return source


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
