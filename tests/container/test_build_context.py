"""Build contexts: written, compared with the lock, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.container import build_context
from envbuild.container.recipe import ImageRecipe
from envbuild.container.select import Choice, recipe_for
from envbuild.errors import EnvbuildError


@pytest.fixture(scope="module")
def recipe() -> ImageRecipe:
    return recipe_for(Choice("torch-smoke"))


def refused(folder: Path) -> EnvbuildError:
    with pytest.raises(EnvbuildError) as caught:
        build_context.check(folder)
    return caught.value


def test_a_context_is_whole_written_once_and_equal(recipe: ImageRecipe, tmp_path: Path) -> None:
    first = build_context.write(recipe, tmp_path / "one")
    assert set(first) == {*build_context.texts(recipe), *build_context.UNCOMMITTED}
    assert build_context.write(recipe, tmp_path / "one") == []
    build_context.write(recipe, tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert build_context.compare(recipe, tmp_path / "one") == ""
    build_context.check(tmp_path / "one")


def test_an_edit_by_hand_is_shown_as_a_diff(recipe: ImageRecipe, tmp_path: Path) -> None:
    build_context.write(recipe, tmp_path)
    file = tmp_path / "Dockerfile"
    file.write_text(file.read_text().replace("USER 10001:10001", "USER root"))
    (tmp_path / "build.json").unlink()
    diff = build_context.compare(recipe, tmp_path)
    assert "-USER root\n" in diff and "+USER 10001:10001\n" in diff
    assert f"{tmp_path / 'build.json'} is missing" in diff
    file.write_text(file.read_text().rstrip("\n"))
    assert "no line break at the end" in build_context.compare(recipe, tmp_path)


def test_a_long_diff_is_cut_and_says_so(recipe: ImageRecipe, tmp_path: Path) -> None:
    build_context.write(recipe, tmp_path)
    (tmp_path / "variant.json").write_text("{}\n")
    assert "more lines of" in build_context.compare(recipe, tmp_path)


def test_a_large_context_is_refused_with_its_largest_files(recipe: ImageRecipe, tmp_path: Path) -> None:
    build_context.write(recipe, tmp_path)
    with (tmp_path / "core").open("wb") as stream:
        stream.truncate(build_context.LIMIT + 1)
    build_context.check(tmp_path)  # .dockerignore leaves it out
    ignore = tmp_path / ".dockerignore"
    ignore.write_text(ignore.read_text() + "!core\n")
    error = refused(tmp_path)
    assert (error.code, error.exit_code) == ("context-too-large", 7)
    assert error.why.startswith("largest: core (100.0 MB), ")


@pytest.mark.parametrize("line", ["variant.json", "*.json", "**/variant.*", "v?riant.json", "*"])
def test_a_dockerignore_that_hides_the_lock_is_refused(recipe: ImageRecipe, tmp_path: Path, line: str) -> None:
    build_context.write(recipe, tmp_path)
    ignore = tmp_path / ".dockerignore"
    ignore.write_text(ignore.read_text() + line + "\n")
    error = refused(tmp_path)
    assert error.code == "context-hides"
    needed = [*recipe.files, *build_context.UNCOMMITTED]
    ignore.write_text(ignore.read_text() + "# again\n" + "".join(f"!{name}\n" for name in needed))
    build_context.check(tmp_path)


@pytest.mark.parametrize("name", build_context.UNCOMMITTED)
def test_a_context_without_what_is_not_committed_is_refused(recipe: ImageRecipe, tmp_path: Path, name: str) -> None:
    build_context.write(recipe, tmp_path)
    (tmp_path / name).unlink()
    error = refused(tmp_path)
    assert error.code == "context-incomplete" and name in error.what
    assert build_context.compare(recipe, tmp_path) == ""
    build_context.check(tmp_path, program=False)


def test_addresses_are_in_an_ignored_file_that_only_the_fetch_stage_gets(recipe: ImageRecipe, tmp_path: Path) -> None:
    committed = build_context.write(recipe, tmp_path, program=False)
    assert build_context.INDEXES not in committed
    (whole := tmp_path / "whole").mkdir()
    build_context.write(recipe, whole)
    known = json.loads((whole / build_context.INDEXES).read_text())
    request = json.loads(recipe.files["fetch.json"])["args"]
    assert known and set(known) <= {each["index"] for each in request["files"] if "index" in each}
    for entry in known.values():
        assert entry["url"].startswith("https://") and entry["kind"] in ("simple", "find-links")
        assert not any(entry["url"] in text for text in build_context.texts(recipe).values())
    assert request["addresses"] == f"{recipe.prefix}/image/{build_context.INDEXES}" and "indexes" not in request
    assert build_context.INDEXES in (whole / ".gitignore").read_text().splitlines()
    copying = [
        s.name
        for s in recipe.stages
        for each in s.instructions
        if build_context.INDEXES in getattr(each, "sources", ())
    ]
    assert copying == ["fetch"]


def test_a_folder_that_cannot_be_written_is_no_traceback(recipe: ImageRecipe, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvbuildError) as caught:
        build_context.write(recipe, tmp_path / "file")
    assert caught.value.code == "context-unwritable"
