"""The edits of sources as unified diffs of the pinned trees. They have lines of the sources, so none is committed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from envbuild.catalog.patches import load_patch
from envbuild.model.lock import LockedSource, Variant
from envbuild.node import git_source
from envbuild.node.patch.apply import apply
from envbuild.node.protocol import NodeError

PATCHES = "patches"


def patched(variant: Variant) -> list[LockedSource]:
    """The sources that get edits, each from one file `patches/NAME.patch` of the context."""
    return [source for source in variant.sources if source.patches]


def make_patches(variant: Variant) -> tuple[dict[str, bytes], list[str]]:
    """Our edits as unified diffs of the pinned trees, by path in the context; and why one could not be made.

    The trees are fetched with git as it is configured here.
    """
    made, failed = {}, []
    for source in patched(variant):
        name = f"{PATCHES}/{source.name}.patch"
        try:
            made[name] = _diff(source)
        except NodeError as error:
            failed.append(f"{name} is not written: {error.what}" + (f" ({error.why})" if error.why else ""))
    return made, failed


def _edited(source: LockedSource) -> dict[str, Any]:
    """A source without submodules that no edit can be in: they may be large, and elsewhere."""
    parts = (part for name in source.patches for part in load_patch(name).parts)
    paths = [path for part in parts for path in part.files]
    within = [
        each.to_json_dict()
        for each in source.submodules
        if any("*" in path or path.startswith(f"{each.path}/") for path in paths)
    ]
    return {**source.to_json_dict(), "submodules": within}


def _diff(source: LockedSource) -> bytes:
    """What the patches of a source change in its tree, as `git apply` takes it. Raises NodeError."""
    with tempfile.TemporaryDirectory(prefix="envbuild-patches-") as top:
        git_source.fetch(_edited(source), f"{top}/a", None)
        for folder in Path(top).rglob(".git"):
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
        shutil.copytree(f"{top}/a", f"{top}/b", symlinks=True)
        for name in source.patches:
            apply(f"{top}/b", load_patch(name).spec(source.commit))
        words = ["git", "diff", "--no-index", "--no-prefix", "--binary", "--no-color", "--no-ext-diff", "a", "b"]
        made = subprocess.run(words, cwd=top, capture_output=True, check=False)
    if made.returncode != 1 or not made.stdout:  # 1: they differ
        why = made.stderr.decode("utf-8", "replace").strip()[-300:] or "the patches change nothing"
        raise NodeError("patch-failed", f"git could not say what the patches of {source.name} change", why=why)
    return made.stdout
