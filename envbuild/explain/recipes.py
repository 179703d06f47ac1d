"""The document's own edits beside ours: what its `sed` or its advice does to the files that are pinned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from envbuild.catalog.patches import RecipeEffect, load_patch, recipe_effect
from envbuild.errors import EnvbuildError
from envbuild.model.patch import Patch, Recipe
from envbuild.model.stack import Source, Stack
from envbuild.text import plural

if TYPE_CHECKING:
    from envbuild.lock.readers.git_read import GitReader


class RecipeRun(NamedTuple):
    """One edit that the document asks for, on the source that our `patch` edits instead.

    `effect` is None where nobody looked, or where the edit is told in words; `problem` says why it could not be tried.
    """

    source: str
    commit: str
    patch: str
    does: str
    says: str
    file: str | None = None
    effect: RecipeEffect | None = None
    problem: str = ""

    @property
    def outcome(self) -> str:
        """What came of it, in words; empty where nobody looked."""
        if self.problem:
            return f"not tried: {self.problem}"
        if self.effect is None or self.effect.hits is None:
            return ""
        if not self.effect.hits:
            return f"changes nothing in {self.file} at {self.commit[:8]}"
        lines = f"changes {plural(self.effect.hits, 'line')} of {self.file} at {self.commit[:8]}"
        return (
            lines
            + {None: "", True: ", which still compiles", False: ", which no longer compiles"}[self.effect.compiles]
        )

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        data = {"source": self.source, "commit": self.commit, "patch": self.patch, "says": self.says, "does": self.does}
        effect = {"hits": self.effect.hits, "compiles": self.effect.compiles} if self.effect else None
        more = {"file": self.file, "effect": effect, "problem": self.problem or None}
        return data | {key: value for key, value in more.items() if value is not None}


def document_recipes(stack: Stack, profile: str, git: GitReader | None = None) -> tuple[RecipeRun, ...]:
    """What the document says to edit in the sources that a profile patches, tried where `git` can read the files."""
    return tuple(
        _run(source, patch, recipe, git)
        for source in stack.profiles[profile].pinned_sources
        for patch in map(load_patch, source.patches)
        for recipe in patch.replaces
        if recipe.stack == stack.name
    )


def _run(source: Source, patch: Patch, recipe: Recipe, git: GitReader | None) -> RecipeRun:
    effect, problem = None, ""
    if git is not None and recipe.file is not None:
        try:
            text = git.read(source.git, source.commit, recipe.file)
            effect = recipe_effect(recipe, text.encode()) if text is not None else None
            problem = "" if text is not None else f"there is no {recipe.file}"
        except EnvbuildError as error:
            problem = error.what
    return RecipeRun(source.name, source.commit, patch.name, patch.summary, recipe.says, recipe.file, effect, problem)
