"""Pins git sources: commit to tree, ancestors proven, submodules resolved recursively; and reads their trees."""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import ValidationError

from envbuild.catalog.patches import digest_of, load_patch
from envbuild.errors import EnvbuildError
from envbuild.lock.readers.git import GitReader
from envbuild.lock.readers.scan import scan
from envbuild.model.common import Unpacked
from envbuild.model.lock import TAKEN, Lock, LockedPatch, LockedSource, LockedSubmodule
from envbuild.model.stack import Source
from envbuild.node.build import patch as node_patch

_MAX_DEPTH = 10


def lock_source(source: Source, reader: GitReader) -> LockedSource:
    """One source of a stack, pinned by commit and tree. Raises EnvbuildError:

    `tree-mismatch`, `commit-missing`, `ancestor-missing` (exit 5), `source-unreachable` (exit 75),
    `submodule-invalid`, `patch-unknown`, `manifest-invalid` (exit 2).
    """
    pins, at = pin_patches(source.patches, source.commit), (source.git, source.commit)
    tree = reader.tree_id(*at)
    if source.tree is not None and source.tree != tree:
        raise EnvbuildError(
            "tree-mismatch",
            f"source {source.name}: commit {source.commit} does not have the tree that the stack names",
            why=f"tree {tree} at {source.git}, {source.tree} in the stack",
            hint="find out why they differ; then correct or remove `tree`",
        )
    for ancestor in source.contains:
        if not reader.contains(*at, ancestor):
            raise EnvbuildError(
                "ancestor-missing",
                f"source {source.name}: commit {source.commit} does not contain {ancestor}",
                why="git merge-base --is-ancestor says no",
                hint="choose a commit that contains it, or correct `contains`",
            )
    for output in source.outputs:
        if reader.has_path(*at, output):
            raise EnvbuildError(
                "manifest-invalid",
                f"source {source.name}: `outputs` names {output}, which has files of the repository",
                why="`outputs` are links to folders outside the environment, and these files belong to the repository",
                hint=f'write `generated: ["{output}/**"]` instead, or your own clone: `path:` in place of `git:`',
            )
    submodules = tuple(_submodules(*at, reader)) if source.submodules else ()
    taken = {field: getattr(source, field) for field in TAKEN}
    return LockedSource(**taken, tree=tree, submodules=submodules, patch_pins=pins)


def pin_patches(names: tuple[str, ...], commit: str) -> tuple[LockedPatch, ...]:
    """The patches of the catalog as they are now, for a source at `commit`. Raises EnvbuildError `patch-unknown`."""
    bounds = {name: load_patch(name).expected(commit) for name in names}
    return tuple(LockedPatch(name=n, digest=digest_of(n), least=low, most=high) for n, (low, high) in bounds.items())


def with_what_trees_say(
    sources: Sequence[LockedSource], previous: Lock | None, reader: GitReader, say: Callable[[str], None]
) -> tuple[LockedSource, ...]:
    """The sources with their code that newer packages do not accept, their sizes and their patched trees.

    Values of the previous lock for the same commit stay, because a commit does not change. `say` gets a sentence for
    each tree that could not be read.
    """
    texts = "the tree of {} was not looked at for removed names", "the tree of {} was not measured"
    sources = _learned(sources, previous, "uses", lambda source: scan(reader, source.git, source.commit), say, texts[0])
    sources = _learned(sources, previous, "unpacked", lambda source: taken_by(source, reader), say, texts[1])
    return with_patched_trees(sources, previous, reader, say)


def with_patched_trees(
    sources: Sequence[LockedSource], previous: Lock | None, reader: GitReader, say: Callable[[str], None]
) -> tuple[LockedSource, ...]:
    """The sources with the trees that their patches give, as above."""

    def tree(source: LockedSource) -> str | None:
        return _patched_tree(reader, source) if source.patches else None

    text = "the patched tree of {} is not pinned"
    return _learned(sources, previous, "patched_tree", tree, say, text, "git", "commit", "patch_pins")


def _learned(
    sources: Sequence[LockedSource],
    previous: Lock | None,
    field: str,
    read: Callable[[LockedSource], Any],
    say: Callable[[str], None],
    failed: str,
    *same: str,
) -> tuple[LockedSource, ...]:
    """The sources with a field as the previous lock has it for equal ones (of which `same` is equal), else as read."""
    key = attrgetter(*(same or ("git", "commit")))
    before = [source for variant in (previous.variants if previous else ()) for source in variant.sources]
    known = {key(source): getattr(source, field) for source in before if getattr(source, field) is not None}
    for source in sources:
        if key(source) not in known:
            try:
                known[key(source)] = read(source)
            except (EnvbuildError, node_patch.PatchError) as error:
                say(f"{failed.format(source.name)}: {getattr(error, 'what', error)}")
    return tuple(source.model_copy(update={field: known.get(key(source))}) for source in sources)


def taken_by(source: LockedSource, reader: GitReader) -> Unpacked:
    """The disk space of a source's tree with its submodules. Raises what `reader` does."""
    sizes = reader.sizes(source.git, source.commit)
    for part in source.submodules:
        sizes |= {f"{part.path}/{path}": size for path, size in reader.sizes(part.git, part.commit).items()}
    return Unpacked.of(sizes)


def _patched_tree(reader: GitReader, source: LockedSource) -> str:
    """The tree after the patches of a source, of which only the files that they name are fetched."""
    patches = [load_patch(name) for name in source.patches]
    tree = reader.tree(source.git, source.commit)
    with tempfile.TemporaryDirectory(prefix="envbuild-patched-") as folder:
        named = {path for patch in patches for path in node_patch.named(patch.files, tree)}
        texts = reader.read_all(source.git, source.commit, named)
        for path, text in texts.items():
            Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, path).write_bytes(text.encode())
        results = node_patch.apply(folder, [patch.spec(patch.expected(source.commit)) for patch in patches])
        changed = {row["path"] for result in results for row in result["files"]}
        after = {path: node_patch.blob_id(Path(folder, path).read_bytes()) for path in changed}
    if odd := sorted(path for path in changed if node_patch.blob_id(texts[path].encode()) != tree[path][1]):
        raise node_patch.PatchError("patch-precondition", f"{odd[0]} is no UTF-8 text")
    return node_patch.tree_id({path: (mode, after.get(path, oid)) for path, (mode, oid) in tree.items()})


def _submodules(
    parent: str, commit: str, reader: GitReader, prefix: str = "", depth: int = 0
) -> Iterator[LockedSubmodule]:
    if depth > _MAX_DEPTH:
        raise EnvbuildError("submodule-invalid", f"{parent}: submodules nest deeper than {_MAX_DEPTH}")
    urls = reader.submodule_urls(parent, commit)
    for path, pinned in reader.submodules(parent, commit).items():
        if path not in urls:
            raise EnvbuildError("submodule-invalid", f"{parent}: .gitmodules has no URL for {path}")
        url = _checked_url(absolute_url(parent, urls[path]), path, pinned)
        yield LockedSubmodule(path=prefix + path, git=url, commit=pinned, tree=reader.tree_id(url, pinned))
        yield from _submodules(url, pinned, reader, f"{prefix}{path}/", depth + 1)


def _checked_url(url: str, path: str, commit: str) -> str:
    """The URL once the model accepts it: `.gitmodules` is written by others and goes to git."""
    try:
        return LockedSubmodule(path=path, git=url, commit=commit, tree=commit).git
    except ValidationError as error:
        why = "; ".join(f"{problem['loc'][0]}: {problem['msg']}" for problem in error.errors())
        raise EnvbuildError("submodule-invalid", f"submodule {path} is not allowed", why=why) from error


def absolute_url(parent: str, url: str) -> str:
    """A submodule URL; `./` and `../` are relative to the parent repository's URL, as in git."""
    if not url.startswith(("./", "../")):
        return url
    parts = urlsplit(parent)
    return urlunsplit(parts._replace(path=posixpath.normpath(posixpath.join(parts.path, url))))
