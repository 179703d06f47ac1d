"""What a patch is: our own edit of a pinned source, with what is expected of it before and after."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from envbuild.model.common import Commit, EnvName, GitUrl, Name, RelPath, StrictModel, Text

Hits = Annotated[int, Field(ge=1, le=1000)]


def _glob(value: str) -> str:
    if any(letter in value for letter in "?[]{}"):
        raise ValueError("only `*` and `**/` are special in a file pattern")
    return value


class PatchPart(StrictModel):
    """One edit and the files it may touch; `least` and `most` bound the places it finds in all of them together.

    `near`: a word beside those places, to show what is there when none is found.
    """

    edit: Name
    files: Annotated[tuple[Annotated[RelPath, AfterValidator(_glob)], ...], Field(min_length=1)]
    least: Hits = 1
    most: Hits = 1
    near: Text | None = None

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.least > self.most:
            raise ValueError("least is more than most")
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
    """One patch of the catalog. `aliases`: other names that stacks use. `variables`: what the edited source reads.

    `idle`: where it changes nothing (`same-cuda`: nvcc and torch are of one release of CUDA).
    """

    name: Name
    summary: Text
    why: Text
    aliases: tuple[Name, ...] = ()
    parts: Annotated[tuple[PatchPart, ...], Field(min_length=1)]
    precondition: Text
    postcondition: Text
    variables: dict[EnvName, Text] = {}
    idle: Literal["same-cuda"] | None = None
    replaces: tuple[Recipe, ...] = ()
    tried: tuple[Tried, ...] = ()

    def expected(self, commit: str | None = None) -> tuple[int, int]:
        """Least and most hits: exact for a commit that was tried, the sum of the parts' bounds for others."""
        for tried in self.tried:
            if tried.commit == commit:
                return tried.hits, tried.hits
        return sum(part.least for part in self.parts), sum(part.most for part in self.parts)

    def spec(self, commit: str | None = None) -> dict[str, Any]:
        """The JSON that `node/patch/apply.py` takes; `commit` makes the expected hits exact where it is known."""
        least, most = self.expected(commit)
        return {
            "name": self.name,
            "hits": {"least": least, "most": most},
            "parts": [part.to_json_dict() for part in self.parts],
        }
