"""The edits of sources as unified diffs of the pinned trees. They have lines of the sources, so none is committed.

Which tree they give is recorded beside the lock: whoever applies a diff can compare what comes of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from envbuild.catalog.patches import digest_of, load_patch
from envbuild.errors import EnvbuildError
from envbuild.model.common import Name, Sha256, StrictModel, TreeHash
from envbuild.model.lock import LockedSource, Variant
from envbuild.node import git_source, paths
from envbuild.node.patch.apply import apply
from envbuild.node.protocol import NodeError

PATCHES = "patches"
FILE = "patched.toml"
_HEAD = "# Trees of sources after our patches; `envbuild image dockerfile STACK --plain -o DIR` records them.\n"


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


class Diffs(NamedTuple):
    """`files`: diffs by path in the context; `trees`: source -> tree after them; `failed`: why a diff is missing."""

    files: dict[str, bytes]
    trees: dict[str, str]
    failed: list[str]


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
            hint="take it from version control, or remove it: `image dockerfile STACK --plain -o DIR` records anew",
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
                hint="make the folder writable; diffs are written once their trees are recorded",
            ) from error


def patched(variant: Variant) -> list[LockedSource]:
    """The sources that get edits, each from one file `patches/NAME.patch` of the context."""
    return [source for source in variant.sources if source.patches]


def make_patches(variant: Variant, known: Mapping[str, str]) -> Diffs:
    """Our edits as unified diffs of the pinned trees, which are fetched with git as it is configured here.

    A diff that gives another tree than `known` says is not written.
    """
    files, trees, failed = {}, {}, []
    for source in patched(variant):
        name = f"{PATCHES}/{source.name}.patch"
        try:
            made, tree = _diff(source, known.get(source.name))
        except NodeError as error:
            failed.append(f"{name} is not written: {error.what}" + (f" ({error.why})" if error.why else ""))
            continue
        files[name] = made
        if tree is not None:
            trees[source.name] = tree
    return Diffs(files, trees, failed)


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


def _diff(source: LockedSource, known: str | None) -> tuple[bytes, str | None]:
    """What the patches of a source change, as `git apply` takes it, and the tree after them. Raises NodeError.

    There is no tree where an edit is in a submodule, which has a tree of its own.
    """
    with tempfile.TemporaryDirectory(prefix="envbuild-patches-") as top:
        git_source.mirror(source.to_json_dict(), f"{top}/git", source.name)
        git_source.fetch(_edited(source), f"{top}/a", f"{top}/git")
        for folder in Path(top, "a").rglob(".git"):
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
        shutil.copytree(f"{top}/a", f"{top}/b", symlinks=True)
        for name in source.patches:
            apply(f"{top}/b", load_patch(name).spec(source.commit))
        made = _git(top, "diff", "--no-index", "--no-prefix", "--binary", "--no-color", "--no-ext-diff", "a", "b")
        if made.returncode != 1 or not made.stdout:  # 1: they differ
            why = made.stderr.decode("utf-8", "replace").strip()[-300:] or "the patches change nothing"
            raise NodeError("patch-failed", f"git could not say what the patches of {source.name} change", why=why)
        _git(f"{top}/git", "read-tree", source.commit)
        applied = _git(f"{top}/git", "apply", "--cached", given=made.stdout)
        tree = None if applied.returncode else _git(f"{top}/git", "write-tree").stdout.decode().strip()
    if known not in (None, tree):
        raise NodeError("patch-failed", f"it gives tree {tree}, and {FILE} has {known}")
    return made.stdout, tree


def _git(folder: str, *words: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    env = {name: value for name, value in os.environ.items() if name not in git_source.REPOSITORY_VARIABLES}
    return subprocess.run(["git", *words], cwd=folder, env=env, input=given, capture_output=True, check=False)
