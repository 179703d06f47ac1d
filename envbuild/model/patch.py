"""What a patch is: our own edit of a pinned source, with what is expected of it before and after."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from envbuild.model.common import Commit, EnvName, GitUrl, Name, RelPath, StrictModel, Text, fits

Hits = Annotated[int, Field(ge=1, le=1000)]
Times = Annotated[int, Field(ge=0, le=1000)]
_STARS = "only `*` and `**/` are special in a file pattern"


def _pattern(value: str) -> str:
    try:
        re.compile(value, re.MULTILINE)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


class Edit(StrictModel):
    """A pattern, what is written in its place, and in which files.

    `find` is a regular expression of ours (MULTILINE), never lines of the source; `write` its replacement. `times`: how
    often it matches in all of the files, or the least and the most. A `helper` is code that other edits of the patch
    use: it counts as no hit.
    """

    files: Annotated[tuple[Annotated[RelPath, fits(r"[^?\[\]{}]*", _STARS)], ...], Field(min_length=1)]
    find: Annotated[str, Field(min_length=1), AfterValidator(_pattern)]
    write: str
    times: Times | tuple[Times, Hits] = 1
    helper: bool = False

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and most matches."""
        return (self.times, self.times) if isinstance(self.times, int) else self.times

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.bounds[0] > self.bounds[1] or not self.bounds[1]:
            raise ValueError("`times` is a number from 1, or the least and the most")
        return self


class Recipe(StrictModel):
    """What a document tells the reader to do instead.

    `sed`: the stream editor with `script` on `file`. `comment-raise`: comment out the raised RuntimeError of `file`.
    `by-hand`: an edit in words, which no program can judge.
    """

    stack: Name
    says: Text
    kind: Literal["sed", "comment-raise", "by-hand"]
    file: RelPath | None = None
    script: Text | None = None

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        if (self.kind != "by-hand") != (self.file is not None) or (self.kind == "sed") != (self.script is not None):
            raise ValueError("sed needs file and script, comment-raise a file, by-hand neither")
        return self


class Tried(StrictModel):
    """One commit at which the patch was really applied, and how many places it found there."""

    git: GitUrl
    commit: Commit
    hits: Hits


class Patch(StrictModel):
    """One patch of the catalog. `aliases`: other names that stacks use. `after`: patches that it needs before it.

    `variables`: what the edited source reads. `idle`: where it changes nothing (`same-cuda`: nvcc and torch are of one
    release of CUDA).
    """

    name: Name
    summary: Text
    why: Text
    aliases: tuple[Name, ...] = ()
    after: tuple[Name, ...] = ()
    edits: Annotated[tuple[Edit, ...], Field(min_length=1)]
    variables: dict[EnvName, Text] = {}
    idle: Literal["same-cuda"] | None = None
    replaces: tuple[Recipe, ...] = ()
    tried: tuple[Tried, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Patterns of the files that it edits."""
        return tuple(dict.fromkeys(path for edit in self.edits for path in edit.files))

    def expected(self, commit: str | None = None) -> tuple[int, int]:
        """Least and most hits: exact for a commit that was tried, the sum of the edits' bounds for others."""
        for tried in self.tried:
            if tried.commit == commit:
                return tried.hits, tried.hits
        bounds = [edit.bounds for edit in self.edits if not edit.helper]
        return max(1, sum(least for least, _ in bounds)), sum(most for _, most in bounds)

    def spec(self, hits: tuple[int, int]) -> dict[str, Any]:
        """The JSON that `node/build/patch.py` takes; `hits` as `expected` gives them or a lock pins them."""
        edits = [{**edit.model_dump(mode="json"), "times": list(edit.bounds)} for edit in self.edits]
        return {"name": self.name, "hits": list(hits), "after": list(self.after), "edits": edits}
