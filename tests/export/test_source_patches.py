"""Diffs of patched sources, and the tree that each has to give."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.container.instructions import Comment, Folder, Run
from envbuild.container.plain import make_plain
from envbuild.container.select import Choice, recipe_for
from envbuild.errors import EnvbuildError
from envbuild.export.source_patches import FILE, make_patches, read_trees, record_trees, trees_of
from envbuild.model.lock import LockedSource, Variant
from tests.node.env_support import make_repository, redirect_git
from tests.node.forge import FILES, PATCH

# Lines that git changes when it adds or checks out a file.
ATTRIBUTES = {".gitattributes": "*.txt text eol=crlf\n", "crlf.txt": "a\r\nb\r\n"}


@pytest.fixture
def variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Variant:
    """One patched source, in a repository of this machine."""
    redirect_git(monkeypatch, tmp_path / "hub")
    commit, tree = make_repository(tmp_path / "hub" / "quick", {**FILES, **ATTRIBUTES})
    row = {"name": "quick", "git": "https://git.example.org/quick", "commit": commit, "tree": tree}
    source = LockedSource.from_plain({**row, "patches": [PATCH]})
    return recipe_for(Choice("torch-smoke")).variant.model_copy(update={"sources": (source,)})


def test_the_plain_form_refuses_a_diff_that_gives_another_tree(variant: Variant, tmp_path: Path) -> None:
    made = make_patches(variant, {})
    assert (list(made.files), list(made.trees), made.failed) == (["patches/quick.patch"], ["quick"], [])
    recipe = replace(recipe_for(Choice("torch-smoke")), variant=variant, trees=made.trees)
    stage = make_plain(recipe).stage("sources")
    folder, run = stage.instructions[2], stage.instructions[-1]
    assert isinstance(folder, Folder) and folder.path == "/src/quick" and isinstance(run, Run)

    def built(name: str, diff: bytes) -> int:
        top = tmp_path / name
        (top / "src").mkdir(parents=True)
        (top / "quick.patch").write_bytes(diff)
        line = run.line.replace("/patches/", f"{top}/")
        return subprocess.run(["sh", "-c", line], cwd=top / "src", capture_output=True, check=False).returncode

    diff = made.files["patches/quick.patch"]
    assert built("ours", diff) == 0
    assert "np.float" not in (tmp_path / "ours" / "src" / "quick" / "old.py").read_text().replace("np.float64", "")
    assert not (tmp_path / "ours" / "src" / ".git").exists()
    other = diff.replace(b"+KIND", b"+import os  # KIND", 1)
    assert other != diff and built("other", other) != 0
    assert built("none", b"") != 0


def test_a_diff_of_which_nothing_is_recorded_is_applied_and_that_is_said(variant: Variant) -> None:
    recipe = replace(recipe_for(Choice("torch-smoke")), variant=variant)
    instructions = make_plain(recipe).stage("sources").instructions
    assert any(isinstance(each, Comment) and "is not compared" in each.text for each in instructions)
    last = instructions[-1]
    assert isinstance(last, Run) and last.line.startswith("git apply --check /patches/quick.patch && git apply ")


def test_trees_are_recorded_once_and_another_one_is_told(variant: Variant, tmp_path: Path) -> None:
    made = make_patches(variant, {})
    record_trees(tmp_path, variant, made.trees)
    first = (tmp_path / FILE).read_text()
    record_trees(tmp_path, variant, made.trees)
    assert (tmp_path / FILE).read_text() == first
    assert trees_of(variant, read_trees(tmp_path)) == made.trees
    (source,) = variant.sources
    unlike = variant.model_copy(update={"sources": (source.model_copy(update={"tree": "0" * 40}),)})
    assert trees_of(unlike, read_trees(tmp_path)) == {}

    again = make_patches(variant, {"quick": "0" * 40})
    assert again.files == {} and again.trees == {}
    assert again.failed == [
        f"patches/quick.patch is not written: it gives tree {made.trees['quick']}, and {FILE} has {'0' * 40}"
    ]

    (tmp_path / FILE).write_text("patched = 1\n")
    with pytest.raises(EnvbuildError) as caught:
        read_trees(tmp_path)
    assert (caught.value.code, caught.value.exit_code) == ("patched-trees-unreadable", 2)
    assert "records anew" in (caught.value.hint or "")

    (tmp_path / FILE).unlink()
    with pytest.raises(EnvbuildError) as caught:
        record_trees(tmp_path / "gone", variant, made.trees)
    assert (caught.value.code, caught.value.exit_code) == ("patched-trees-unwritable", 2)
