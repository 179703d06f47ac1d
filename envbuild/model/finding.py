"""Findings: wrong statements of a document, what is true, and a check that a program can run."""

from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from envbuild.model.common import (
    Commit,
    Flavour,
    Name,
    PythonVersion,
    RelPath,
    SourceName,
    StrictModel,
    Text,
    plain_line,
)

Severity = Literal["wrong", "stale", "unpinned", "trap", "note"]
TorchVersion = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]
_LONGEST = 500
_Dotted = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)+$")]


@lru_cache(maxsize=4096)
def requirement(text: str) -> Requirement:
    """The parsed requirement, shared and read-only. Raises packaging's InvalidRequirement."""
    return Requirement(text)


def package_name(text: str) -> str:
    """The normalised package name of a requirement. Raises as `requirement` does."""
    return str(canonicalize_name(requirement(text).name))


def _requirement(value: str) -> str:
    if len(value) > _LONGEST:  # the parser of markers recurses, and versions are numbers without a bound
        raise ValueError(f"a requirement has at most {_LONGEST} characters")
    try:
        parsed = requirement(value)
    except InvalidRequirement as error:
        raise ValueError(f"not a PEP 508 requirement: {error}") from error
    if parsed.url is not None:
        raise ValueError("a requirement with a URL is not allowed; declare a source instead")
    return value


def _specifier(value: str) -> str:
    if len(value) > _LONGEST:
        raise ValueError(f"a version specifier has at most {_LONGEST} characters")
    try:
        SpecifierSet(value)
    except InvalidSpecifier as error:
        raise ValueError(f"not a version specifier: {error}") from error
    return value


RequirementText = Annotated[str, AfterValidator(plain_line), AfterValidator(_requirement)]
SpecifierText = Annotated[str, AfterValidator(plain_line), AfterValidator(_specifier)]


class AtCommit(StrictModel):
    """Something read from git. `at` names a repository or source of the stack, or `document`.

    `commit` looks at another commit than the one that name is pinned to.
    """

    at: SourceName
    commit: Commit | None = None


class PathCheck(AtCommit):
    """A path exists, or does not exist, in the tree of a commit."""

    kind: Literal["path-at-commit"]
    path: RelPath
    present: bool


class TextCheck(AtCommit):
    """How often an exact text occurs in a file; `expected` None: at least once."""

    kind: Literal["text-in-file"]
    path: RelPath
    text: Annotated[Text, Field(min_length=1)]
    expected: Annotated[int, Field(ge=0)] | None = None


class TreeTextCheck(AtCommit):
    """In how many files below `under` an exact text occurs; `pattern` are git's own path globs."""

    kind: Literal["text-in-tree"]
    text: Annotated[Text, Field(min_length=1)]
    under: RelPath | None = None
    expected: Annotated[int, Field(ge=0)]


class SedCheck(AtCommit):
    """How often a document's sed pattern (a POSIX basic regular expression) matches in a file."""

    kind: Literal["sed-hits"]
    path: RelPath
    pattern: Annotated[Text, Field(min_length=1)]
    expected: Annotated[int, Field(ge=0)]


class CommentCheck(AtCommit):
    """Whether a Python file still compiles when the given lines (from 1, both ends included) become comments."""

    kind: Literal["compiles-when-commented"]
    path: RelPath
    first: Annotated[int, Field(ge=1)]
    last: Annotated[int, Field(ge=1)]
    compiles: bool


class ContainsCheck(AtCommit):
    """Whether a commit is an ancestor of the pinned one."""

    kind: Literal["commit-contains"]
    ancestor: Commit
    expected: bool = True


class RefCheck(StrictModel):
    """Whether a branch or tag of the remote repository is still at the pinned commit, or exists at all."""

    kind: Literal["ref-at-remote"]
    at: SourceName
    ref: Text
    expected: Literal["pinned", "moved", "missing"]


class SubmoduleCheck(AtCommit):
    """Whether the tree of a commit holds submodules (gitlinks)."""

    kind: Literal["submodules"]
    expected: Annotated[int, Field(ge=0)]


class FlavourCheck(StrictModel):
    """The compat data has no build of this torch in this flavour."""

    kind: Literal["torch-flavour-missing"]
    torch: TorchVersion
    flavour: Flavour


class NotOnPypiCheck(StrictModel):
    """The compat data says that this torch release is not on PyPI."""

    kind: Literal["torch-not-on-pypi"]
    torch: TorchVersion


class TorchPythonCheck(StrictModel):
    """The compat data has no wheel of this torch for this Python on x86-64."""

    kind: Literal["torch-python-missing"]
    torch: TorchVersion
    python: PythonVersion


class GpuCheck(StrictModel):
    """Whether a torch build holds code that a compute capability can run."""

    kind: Literal["torch-runs-on"]
    torch: TorchVersion
    flavour: Flavour
    capability: _Dotted
    expected: bool


class ToolkitCheck(StrictModel):
    """Whether a CUDA toolkit compiles for a compute capability."""

    kind: Literal["toolkit-knows"]
    cuda: _Dotted
    capability: _Dotted
    expected: bool


class PackageRuleCheck(StrictModel):
    """The compat data's package rule `rule` breaks with this version of its package."""

    kind: Literal["package-rule"]
    rule: Name
    version: Text


class ZeroCheck(StrictModel):
    """The compat data refuses this ZeRO stage in a pipeline engine."""

    kind: Literal["zero-stage-refused"]
    stage: Annotated[int, Field(ge=0, le=3)]


class SpecifierCheck(StrictModel):
    """Two demands on one package exclude each other: the pinned version is outside `against`."""

    kind: Literal["versions-exclude"]
    package: Name
    pinned: Text
    against: SpecifierText


class IndexCheck(StrictModel):
    """The package index has no (binary, where `wheel`) distribution that satisfies the requirement."""

    kind: Literal["index-has-none"]
    requirement: RequirementText
    python: PythonVersion
    wheel: bool = True


Check = Annotated[
    PathCheck
    | TextCheck
    | TreeTextCheck
    | SedCheck
    | CommentCheck
    | ContainsCheck
    | RefCheck
    | SubmoduleCheck
    | FlavourCheck
    | NotOnPypiCheck
    | TorchPythonCheck
    | GpuCheck
    | ToolkitCheck
    | PackageRuleCheck
    | ZeroCheck
    | SpecifierCheck
    | IndexCheck,
    Field(discriminator="kind"),
]


def _one_is_a_list(value: Any) -> Any:
    if isinstance(value, dict):
        return (value,)
    # Strict mode takes only a tuple from here on; the JSON reader's own leniency ended with this function.
    return tuple(value) if isinstance(value, list) else value


class Finding(StrictModel):
    """A statement of a document that is wrong, stale or unpinned, and what envbuild does instead.

    `id`: of the finding, for `help`. `says`: what the document says. `truth`: what is true. `evidence`: how that is
    known. `does`: what envbuild does. `severity`: which kind: wrong, stale, unpinned, trap or note. `anchor`: an exact
    part of one line of the document, none if the document leaves it out. `nth`: which occurrence. `also`: further
    places that say the same. `replacement`: what to type instead of the anchored command. `check`: one check or a list
    of which all must hold. `unverified`: true for a finding without a check.
    """

    id: Name
    says: str
    truth: str
    evidence: str
    does: str
    severity: Severity
    anchor: Text | None = None
    nth: Annotated[int, Field(ge=1, le=100)] = 1
    also: tuple[Text, ...] = ()
    replacement: str | None = None
    check: Annotated[
        tuple[Check, ...], BeforeValidator(_one_is_a_list, json_schema_input_type=Check | tuple[Check, ...])
    ] = ()
    unverified: bool = False

    @model_validator(mode="after")
    def _is_checked_or_says_not(self) -> Self:
        if bool(self.check) == self.unverified:
            raise ValueError("a finding has either a `check` or `unverified: true`")
        if (self.also or self.nth > 1) and self.anchor is None:
            raise ValueError("`also` and `nth` need an `anchor`")
        return self
