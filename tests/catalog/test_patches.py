"""The patches of the catalog, what the documents' recipes do, and `envbuild patch`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from envbuild.catalog.loader import list_stacks
from envbuild.catalog.patches import RecipeEffect, digest_of, load_patch, load_patches, recipe_effect
from envbuild.cli.run import run
from envbuild.model.patch import Patch, Recipe
from tests.node.patch_support import APEX, NO_CHECK, RUFF
from tests.support.fails import fails
from tests.support.stacks import shipped_stack

PATCHES = load_patches()


def test_every_patch_was_really_tried_and_those_of_shipped_stacks_at_their_commits_behind_what_they_need() -> None:
    for patch in PATCHES.values():
        least, most = patch.expected()
        assert patch.tried and all(least <= tried.hits <= most for tried in patch.tried), patch.name
        assert len({tried.commit for tried in patch.tried}) == len(patch.tried), patch.name
        assert set(patch.after) <= set(PATCHES)
    assert load_patch("alcf-split-tensor").after == ("alcf-transformer-comma",)
    profiles = (profile for name in list_stacks() for profile in shipped_stack(name).stack.profiles.values())
    for source in (source for profile in profiles for source in profile.sources):
        for number, name in enumerate(source.patches):
            patch = load_patch(name)
            assert set(patch.after) <= set(source.patches[:number])
            assert source.commit in {tried.commit for tried in patch.tried}, name
            least, most = patch.expected(source.commit)
            assert least == most, name


def test_a_spec_is_exact_at_a_commit_that_was_tried_and_a_range_at_others() -> None:
    patch = load_patch("numpy-aliases")
    assert patch.expected() == patch.expected("0" * 40) == (1, 40)
    assert patch.expected("c28bbd208d16ffea61fa3c545e66b3a9d87f9d84") == (3, 3)
    assert json.loads(json.dumps(patch.spec((3, 3)))) == patch.spec((3, 3))
    assert load_patch("megatronapp-addresses").expected() == (21, 21), "the sum of the edits"


def test_an_alias_is_the_same_patch_and_no_name_is_there_twice() -> None:
    names = [*PATCHES, *(alias for patch in PATCHES.values() for alias in patch.aliases)]
    assert len(set(names)) == len(names)
    assert load_patch("alpa-untie-embedding-gradients") is load_patch("megatron-no-tie")
    assert digest_of("alpa-untie-embedding-gradients") == digest_of("megatron-no-tie")
    assert re.fullmatch("[0-9a-f]{64}", digest_of("megatron-no-tie"))


GOOD: dict[str, Any] = {
    "name": "x",
    "summary": "s",
    "why": "w",
    "edits": [{"files": ["**/*.py"], "find": "a(b)", "write": "\\1", "times": [1, 2]}],
}


@pytest.mark.parametrize(
    "bad",
    [
        {"edits": []},
        {"edits": [{"files": ["../a.py"], "find": "a", "write": "b"}]},
        {"edits": [{"files": ["/a.py"], "find": "a", "write": "b"}]},
        {"edits": [{"files": ["a[b].py"], "find": "a", "write": "b"}]},
        {"edits": [{"files": ["a.py"], "find": "a", "write": "b", "times": 0}]},
        {"edits": [{"files": ["a.py"], "find": "a", "write": "b", "times": [3, 2]}]},
        {"edits": [{"files": ["a.py"], "find": "a(", "write": "b"}]},
        {"edits": [{"files": ["a.py"], "find": "", "write": "b"}]},
        {"name": "A B"},
        {"unknown": 1},
        {"replaces": [{"stack": "s", "says": "x", "kind": "sed", "file": "a"}]},
        {"replaces": [{"stack": "s", "says": "x", "kind": "comment-raise"}]},
        {"replaces": [{"stack": "s", "says": "x", "kind": "by-hand", "file": "a"}]},
        {"tried": [{"git": "https://example.org/a", "commit": "abc", "hits": 1}]},
    ],
)
def test_a_damaged_description_is_refused(bad: dict[str, Any]) -> None:
    assert Patch.from_plain(GOOD).name == "x"
    with pytest.raises(ValidationError):
        Patch.from_plain({**GOOD, **bad})


TEXTS = {name[0]: text for name, (text, _, _) in APEX.items()} | {"0": NO_CHECK}


def _recipe(kind: str) -> Recipe:
    return next(recipe for recipe in PATCHES["apex-cuda-check"].replaces if recipe.kind == kind)


def test_what_the_documents_recipes_do_to_each_form() -> None:
    for form in "012345678":
        done = RecipeEffect(int(form > "4"), compiles=True)
        assert recipe_effect(_recipe("sed"), TEXTS[form].encode()) == done, form
    # Commenting out the raise leaves a file that does not compile.
    for form, hits in (("0", 0), ("2", 1), ("3", 2), ("6", 5), ("8", 1)):
        done = RecipeEffect(hits, compiles=not hits)
        assert recipe_effect(_recipe("comment-raise"), TEXTS[form].encode()) == done, form
    by_hand = load_patch("megatron-no-tie").replaces[0]
    assert recipe_effect(by_hand, b"x") == RecipeEffect(None, None), "an edit in words cannot be measured"
    with fails("sed-failed"):
        recipe_effect(Recipe(stack="s", says="x", kind="sed", file="a.sh", script="s/(/"), b"x")


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run(["patch", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_list_names_every_patch(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "list")
    assert code == 0
    assert all(name in out for name in PATCHES)
    code, out, _ = call(capsys, "list", "--json")
    listed = json.loads(out)["patches"]
    assert {one["name"]: one["digest"] for one in listed} == {name: digest_of(name) for name in PATCHES}


def test_apply_check_then_apply_then_apply_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkout = tmp_path
    (checkout / "setup.py").write_text(RUFF)
    code, out, _ = call(capsys, "apply", "apex-cuda-check", checkout, "--check", "--diff")
    assert code == 1
    assert "would be applied, 1 place\n" in out
    assert "+++ b/setup.py" in out
    assert (checkout / "setup.py").read_text() == RUFF
    code, out, _ = call(capsys, "apply", "apex-cuda-check", checkout)
    assert (code, "applied, 1 place\n" in out, "+++" in out) == (0, True, False)
    code, out, _ = call(capsys, "apply", "apex-cuda-check", checkout, "--check", "--json")
    result = json.loads(out)
    assert (code, result["ok"], result["already"], result["changed"], result["hits"]) == (0, True, True, False, 1)


def test_a_patch_that_does_not_fit_exits_4_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "setup.py").write_text(NO_CHECK)
    code, out, err = call(capsys, "apply", "apex-cuda-check", tmp_path)
    assert (code, out) == (4, "")
    assert "error[patch-hits]" in err
    code, out, _ = call(capsys, "apply", "apex-cuda-check", tmp_path, "--json")
    assert (code, json.loads(out)["error"]["code"]) == (4, "patch-hits")


def test_a_known_commit_makes_the_expected_places_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("import numpy as np\nx = np.float\n")
    commit = "c28bbd208d16ffea61fa3c545e66b3a9d87f9d84"
    code, _, err = call(capsys, "apply", "numpy-aliases", tmp_path, "--commit", commit)
    assert code == 4
    assert "found 1 place, expected 3" in err
    assert call(capsys, "apply", "numpy-aliases", tmp_path)[0] == 0


def test_an_unknown_patch_exits_2_with_the_nearest_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "apply", "numpy-alias", tmp_path)
    assert (code, "error[patch-unknown]" in err, "numpy-aliases" in err) == (2, True, True)
