"""Pins git sources: commit to tree, ancestors proven, submodules resolved all the way down, the tree after patches."""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from pydantic import ValidationError

from envbuild.errors import EnvbuildError
from envbuild.lock.readers.git import Repository, fetched
from envbuild.lock.readers.git_read import GitReader, git_reader
from envbuild.model.lock import TAKEN, Lock, LockedPatch, LockedSource, LockedSubmodule
from envbuild.model.stack import Source
from envbuild.node.build import patch as node_patch

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


def with_patched_trees(
    sources: Sequence[LockedSource], previous: Lock | None, say: Callable[[str], None]
) -> tuple[LockedSource, ...]:
    """The sources with the trees that their patches give; `say` gets a sentence for each tree that could not be read.

    What the previous lock says of the same commit and patches stays.
    """
    before = [source for variant in (previous.variants if previous else ()) for source in variant.sources]
    known = {(each.git, each.commit, each.patch_pins): each.patched_tree for each in before if each.patched_tree}
    out = []
    with git_reader() as reader:
        for source in sources:
            key = (source.git, source.commit, source.patch_pins)
            if source.patches and key not in known:
                try:
                    known[key] = _patched_tree(reader, source)
                except (EnvbuildError, node_patch.PatchError) as error:
                    say(f"the patched tree of {source.name} is not pinned: {error}")
            out.append(source.model_copy(update={"patched_tree": known.get(key)}))
    return tuple(out)


def _patched_tree(reader: GitReader, source: LockedSource) -> str:
    """The tree after the patches of a source, of which only the files that they name are fetched."""
    from envbuild.catalog.patches import load_patch

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
