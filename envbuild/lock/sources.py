"""Pins git sources: commit to tree, ancestors proven, submodules resolved all the way down."""

from __future__ import annotations

import posixpath
from urllib.parse import urlsplit, urlunsplit

from pydantic import ValidationError

from envbuild.errors import EnvbuildError
from envbuild.lock.readers.git import Repository, fetched
from envbuild.model.lock import TAKEN, LockedPatch, LockedSource, LockedSubmodule
from envbuild.model.stack import Source

_MAX_DEPTH = 10


def lock_source(source: Source) -> LockedSource:
    """One source of a stack, pinned by commit and tree. Raises EnvbuildError:

    `tree-mismatch`, `commit-missing`, `ancestor-missing` (exit 5), `source-unreachable` (exit 75),
    `submodule-invalid`, `patch-unknown`, `manifest-invalid` (exit 2).
    """
    pins = pin_patches(source.patches, source.commit)
    with fetched(
        source.git, source.commit, history=bool(source.contains), trees=bool(source.submodules or source.outputs)
    ) as repository:
        tree = repository.tree()
        if source.tree is not None and source.tree != tree:
            raise EnvbuildError(
                "tree-mismatch",
                f"source {source.name}: commit {source.commit} does not have the tree that the stack names",
                why=f"tree {tree} at {source.git}, {source.tree} in the stack",
                hint="correct `tree` (or leave it out) after you know why they differ",
            )
        for ancestor in source.contains:
            if not repository.contains(ancestor):
                raise EnvbuildError(
                    "ancestor-missing",
                    f"source {source.name}: commit {source.commit} does not contain {ancestor}",
                    why="git merge-base --is-ancestor says no",
                    hint="choose a commit that contains it, or correct `contains`",
                )
        for output in source.outputs:
            if repository.git("ls-tree", "--name-only", source.commit, "--", output):
                raise _tracked(source, output)
        submodules = tuple(_submodules(repository, "", 0)) if source.submodules else ()
    taken = {field: getattr(source, field) for field in TAKEN}
    return LockedSource(**taken, tree=tree, submodules=submodules, patch_pins=pins)


def _tracked(source: Source, output: str) -> EnvbuildError:
    return EnvbuildError(
        "manifest-invalid",
        f"source {source.name}: `outputs` names {output}, which has files of the repository",
        why="a folder of outputs is a link to a place outside the environment, and these files are part of it",
        hint=f'say `generated: ["{output}/**"]` instead, or use your own clone: `path:` in the place of `git:`',
    )


def pin_patches(names: tuple[str, ...], commit: str) -> tuple[LockedPatch, ...]:
    """The patches of the catalog as they are now, for a source at `commit`. Raises EnvbuildError `patch-unknown`."""
    if not names:
        return ()
    from envbuild.catalog.patches import digest_of, load_patch

    pins = []
    for name in names:
        least, most = load_patch(name).expected(commit)
        pins.append(LockedPatch(name=name, digest=digest_of(name), least=least, most=most))
    return tuple(pins)


def _submodules(repository: Repository, prefix: str, depth: int) -> list[LockedSubmodule]:
    if depth > _MAX_DEPTH:
        raise EnvbuildError("submodule-invalid", f"{repository.url}: submodules nest deeper than {_MAX_DEPTH}")
    urls = repository.submodule_urls()
    out: list[LockedSubmodule] = []
    for path, commit in sorted(repository.gitlinks().items()):
        if path not in urls:
            raise EnvbuildError("submodule-invalid", f"{repository.url}: .gitmodules has no URL for {path}")
        url = absolute_url(repository.url, urls[path])
        with fetched(_checked_url(url, path, commit), commit, trees=True) as inner:
            out.append(LockedSubmodule(path=prefix + path, git=url, commit=commit, tree=inner.tree()))
            out += _submodules(inner, f"{prefix}{path}/", depth + 1)
    return out


def _checked_url(url: str, path: str, commit: str) -> str:
    """The URL once the model accepts it: `.gitmodules` is written by others and goes to git."""
    try:
        return LockedSubmodule(path=path, git=url, commit=commit, tree=commit).git
    except ValidationError as error:
        why = "; ".join(f"{problem['loc'][0]}: {problem['msg']}" for problem in error.errors())
        raise EnvbuildError("submodule-invalid", f"submodule {path} is not acceptable", why=why) from error


def absolute_url(parent: str, url: str) -> str:
    """A submodule URL; `./` and `../` are relative to the parent repository's URL, as in git."""
    if not url.startswith(("./", "../")):
        return url
    parts = urlsplit(parent)
    return urlunsplit(parts._replace(path=posixpath.normpath(posixpath.join(parts.path, url))))
