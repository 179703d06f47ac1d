"""Which tree a source has after our patches, recorded beside the lock: who edits it can compare what comes of it."""

from __future__ import annotations

import os
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from envbuild.catalog.patches import digest_of, load_patch
from envbuild.errors import EnvbuildError
from envbuild.model.common import Name, Sha256, StrictModel, TreeHash
from envbuild.model.lock import LockedSource, Variant
from envbuild.node import git_source, paths
from envbuild.node.patch.apply import apply
from envbuild.node.protocol import NodeError

FILE = "patched.toml"
_HEAD = "# Trees of sources after our patches; `envbuild image dockerfile STACK -o DIR` records them.\n"


class PatchedTree(StrictModel):
    """The tree `before` of a source becomes `after` by patches of these digests, in their order."""

    source: Name
    before: TreeHash
    patches: dict[Name, Sha256]
    after: TreeHash

    def is_of(self, source: LockedSource) -> bool:
        """Whether it is of that source with the patches that the catalog has now."""
        return (
            self.source == source.name and self.before == source.tree and list(self.patches.items()) == _digests(source)
        )


def _digests(source: LockedSource) -> list[tuple[str, str]]:
    return [(name, digest_of(name)) for name in source.patches]


def read_trees(folder: Path) -> list[PatchedTree]:
    """What is recorded in the folder of a lock. Raises EnvbuildError `patched-trees-unreadable` (exit 2)."""
    path = folder / FILE
    try:
        return [PatchedTree.from_plain(row) for row in tomllib.loads(path.read_text(encoding="utf-8"))["patched"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise EnvbuildError(
            "patched-trees-unreadable",
            f"{path} cannot be read",
            why=str(error)[:300],
            hint="take it from version control, or remove it: `image dockerfile STACK -o DIR` records anew",
        ) from None


def trees_of(variant: Variant, recorded: Iterable[PatchedTree]) -> dict[str, str]:
    """Source -> tree after its patches, where that is recorded."""
    return {source.name: row.after for row in recorded for source in patched(variant) if row.is_of(source)}


def record_trees(folder: Path, variant: Variant, trees: Mapping[str, str]) -> None:
    """Add what is not recorded yet, sorted. Raises EnvbuildError `patched-trees-unwritable` (exit 2) and as reading."""
    import tomlkit

    known = read_trees(folder)
    new = [
        PatchedTree(source=source.name, before=source.tree, patches=dict(_digests(source)), after=trees[source.name])
        for source in patched(variant)
        if source.name in trees and not any(row.is_of(source) for row in known)
    ]
    if new:
        rows = sorted([*known, *new], key=lambda row: (row.source, row.before, row.after))
        text = tomlkit.dumps({"patched": [row.to_json_dict() for row in rows]})
        path = folder / FILE
        try:
            paths.write_whole(str(path), f"{_HEAD}\n{text}".encode())
        except OSError as error:
            raise EnvbuildError(
                "patched-trees-unwritable",
                f"{path} cannot be written",
                why=error.strerror or str(error),
                hint="make the folder writable",
            ) from error


def patched(variant: Variant) -> list[LockedSource]:
    """The sources that get edits."""
    return [source for source in variant.sources if source.patches]


def make_trees(variant: Variant, known: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Source -> tree after its patches, of those that `known` lacks, fetched with git as it is configured here.

    And why one is missing. There is none where an edit is in a submodule, which has a tree of its own.
    """
    trees, failed = {}, []
    for source in patched(variant):
        if source.name in known:
            continue
        try:
            trees[source.name] = _tree(source)
        except NodeError as error:
            why = f" ({error.why})" if error.why else ""
            failed.append(f"the tree of {source.name} after its patches is not recorded: {error.what}{why}")
    return trees, failed


def _edited(source: LockedSource) -> dict[str, Any]:
    """A source without submodules that no edit can be in: they may be large, and elsewhere."""
    parts = (part for name in source.patches for part in load_patch(name).parts)
    edited = [path for part in parts for path in part.files]
    within = [
        each.to_json_dict()
        for each in source.submodules
        if any("*" in path or path.startswith(f"{each.path}/") for path in edited)
    ]
    return {**source.to_json_dict(), "submodules": within}


def _tree(source: LockedSource) -> str:
    """The tree of a source after its patches. Raises NodeError."""
    with tempfile.TemporaryDirectory(prefix="envbuild-patches-") as top:
        git_source.mirror(source.to_json_dict(), f"{top}/git", source.name)
        git_source.fetch(_edited(source), f"{top}/tree", f"{top}/git")
        for name in source.patches:
            apply(f"{top}/tree", load_patch(name).spec(source.commit))
        words = ("--git-dir", f"{top}/git", "--work-tree", f"{top}/tree")
        _git(*words, "read-tree", source.commit)
        _git(*words, "add", "--update")
        tree = _git(*words, "write-tree")
    if tree == source.tree:
        raise NodeError("patch-failed", "the patches change nothing in it")
    return tree


def _git(*words: str) -> str:
    env = {name: value for name, value in os.environ.items() if name not in git_source.REPOSITORY_VARIABLES}
    done = subprocess.run(["git", *words], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NodeError("patch-failed", "git could not say what the patches change", why=done.stderr.strip()[-300:])
    return done.stdout.strip()
