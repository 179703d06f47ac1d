"""The document's own edits beside ours: what they do to the pinned file."""

from __future__ import annotations

import pytest

from envbuild.catalog.loader import load_stack
from envbuild.errors import EnvbuildError
from envbuild.explain.text import render_text
from envbuild.explain.view import RecipeRun, document_recipes, explain

CALL = "check_cuda_torch_binary_vs_bare_metal(CUDA_HOME)\n"


class Git:
    """A reader that has one text for every file, or none, or fails."""

    def __init__(self, text: str | None, error: EnvbuildError | None = None) -> None:
        self.text, self.error = text, error

    def read(self, url: str, commit: str, path: str) -> str | None:
        if self.error:
            raise self.error
        return self.text


def sed_run(git: Git | None) -> RecipeRun:
    [run] = [run for run in document_recipes(load_stack("opt-175b").stack, "exact", git) if run.file]  # type: ignore[arg-type]
    return run


def test_without_a_look_the_edits_are_named_with_ours() -> None:
    run = sed_run(None)
    assert (run.source, run.patch, run.file, run.outcome) == ("apex", "apex-cuda-check", "setup.py", "")
    assert "effect" not in run.as_dict()


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (f"x = 1\n{CALL}", "changes 1 line of setup.py at 265b451d, which still compiles"),
        (f"if x:\n    {CALL}", "changes 1 line of setup.py at 265b451d, which no longer compiles"),
        (
            "check_cuda_torch_binary_vs_bare_metal(torch.utils.cpp_extension.CUDA_HOME)\n",
            "changes nothing in setup.py at 265b451d",
        ),
        (None, "not tried: there is no setup.py"),
    ],
)
def test_the_documents_sed_is_carried_out_on_the_pinned_file(text: str | None, outcome: str) -> None:
    assert sed_run(Git(text)).outcome == outcome


def test_a_source_out_of_reach_is_said() -> None:
    run = sed_run(Git(None, EnvbuildError("git-failed", "cannot fetch apex")))
    assert run.outcome == "not tried: cannot fetch apex"
    assert run.as_dict()["problem"] == "cannot fetch apex"


def test_the_text_shows_both_edits() -> None:
    stack = load_stack("opt-175b").stack
    shown = render_text(explain(stack, "exact", recipes=document_recipes(stack, "exact", Git(CALL))))  # type: ignore[arg-type]
    assert "The document's own edits, and ours" in shown
    assert "changes 1 line of setup.py" in " ".join(shown.split())
    assert "instead: apex-cuda-check" in shown


def test_a_profile_without_patches_shows_nothing_of_the_kind() -> None:
    stack = load_stack("torch-smoke").stack
    assert document_recipes(stack, "exact") == ()
    assert "own edits" not in render_text(explain(stack, "exact"))
