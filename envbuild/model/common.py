"""Value types that every model shares, each refusing what could be read as an option, a path escape or code."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from envbuild.node.redact import looks_secret, secrets_of
from envbuild.node.variables import may_set
from envbuild.text import unsafe

# What a value must be, by the type of pydantic's mistake.
MUST_BE = {
    "extra_forbidden": "is an unknown key",
    "missing": "is missing",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
}


class RefusedError(ValueError):
    """What a model does not accept.

    `at`: the keys of a contradiction, the one to change first. `instead`: the value to write, as YAML has it.
    """

    def __init__(self, says: str, *at: str, instead: str = "") -> None:
        """`says` is the sentence of the error."""
        super().__init__(says)
        self.at, self.instead = at, instead


def refusal_of(item: Any) -> RefusedError:
    """The refusal behind a mistake of pydantic; of one that pydantic found itself, an empty one."""
    error = item.get("ctx", {}).get("error")
    return error if isinstance(error, RefusedError) else RefusedError("")


def text_of(pattern: str, says: str, instead: Callable[[str], Sequence[str]] = lambda _: ()) -> BeforeValidator:
    """For a text of `pattern`: refuses all else with a sentence, and what may be written where `instead` knows it."""

    def check(value: object) -> object:
        if not (isinstance(value, str) and re.fullmatch(pattern, value)):
            raise RefusedError(
                says, instead=" or ".join(one for one in instead(str(value)) if re.fullmatch(pattern, one))
            )
        return value

    return BeforeValidator(check)


def mistakes(error: ValidationError) -> list[str]:
    """The dotted field and a sentence for each mistake."""
    rows = [(".".join(map(str, item["loc"])), MUST_BE.get(item["type"]), item["msg"]) for item in error.errors()]
    return [f"{at} {must}" if at and must else ": ".join(filter(None, (at, says))) for at, must, says in rows]


def first_mistake(error: ValidationError) -> str:
    """The first of `mistakes`."""
    return mistakes(error)[0]


def all_differ(names: Iterable[str], problem: str) -> None:
    """Raise ValueError if a name occurs twice."""
    listed = list(names)
    if len(set(listed)) != len(listed):
        raise ValueError(problem)


# What stands in a published report for a text without the mark `public`.
LEFT_OUT = "not published"
T = TypeVar("T")
# A field that a published report keeps (`report/publish.py`). A field without a mark is left out of it.
Public = Annotated[T, Field(json_schema_extra={"public": True})]
# The name of a node, or several: a published report has its label.
NodeName = Annotated[str, Field(json_schema_extra={"public": "node"})]
NodeNames = Annotated[tuple[str, ...], Field(json_schema_extra={"public": "node"})]


class StrictModel(BaseModel):
    """Base of all models: no unknown key, no coercion, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    # What to write for a key that people know from another tool, or write in another way.
    hints: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def meant(cls, key: str, value: str, data: Any) -> str:  # noqa: ARG003 - for models that look at other keys
        """What to write where the plain `data` of a file has one `value` for the list or mapping `key`, or lacks it.

        Empty where that is a list of the value, a mapping of the first key to it, or not known.
        """
        return ""

    def to_json_dict(self) -> dict[str, Any]:
        """JSON-ready dict without unset optionals (`None`), with the names that files use (`if`, not `if_`)."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)

    @classmethod
    def from_plain(cls, data: Any) -> Self:
        """Validate plain data (parsed YAML, TOML or JSON) strictly; JSON mode, because plain data has no tuples.

        Raises pydantic.ValidationError.
        """
        return cls.model_validate_json(json.dumps(data))


HOST = re.compile(r"\A[A-Za-z0-9_](?:[A-Za-z0-9._:-]{0,252}[A-Za-z0-9_])?\Z")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")


def plain_line(value: str, *, prose: bool = False) -> str:
    """A name, path, address or requirement, unchanged. Raises ValueError for an invisible character.

    `prose`: a sentence, in which soft hyphens and joiners belong to words.
    """
    if bad := unsafe(value, prose=prose) or re.search(r"[\n\t]", value):
        raise ValueError(f"control characters, invisible ones and line separators are not allowed: U+{ord(bad[0]):04X}")
    return value


def fits(pattern: str, says: str, *refused: str) -> AfterValidator:
    """For a text of `pattern` without a part between slashes that is `refused`; `says` is the error of any other."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value, re.DOTALL) or not set(refused).isdisjoint(value.split("/")):
            raise ValueError(says)
        return value

    return AfterValidator(check)


# For an optional list or table that a digest covers: a lock file does not keep an empty one.
EMPTY_AS_NONE = AfterValidator(lambda value: value or None)


def not_none(value: str) -> str:
    """A name of something that there is; raises ValueError for `none` and `null`, which mean nothing."""
    if value.lower() in ("none", "null"):
        raise ValueError("must be a name: `none` and `null` name nothing")
    return value


def _host_name(value: str) -> str:
    not_none(value)
    user, _, host = value.rpartition("@")
    if _USER.fullmatch(user) and HOST.match(host):
        raise ValueError(
            f"must be a host name or address without a user: write {host} here, and `user: {user}` beside it"
        )
    if not HOST.match(value):
        raise ValueError("must be a host name or address: letters, digits, dots, colons, underscores and inner dashes")
    return value


def git_url(value: str) -> str:
    """An address that envbuild passes to git; raises ValueError for any other."""
    plain_line(value)
    parts = urlsplit(value)
    if parts.scheme not in ("https", "ssh"):
        own = value.startswith(("file:", "/", "."))
        more = "; `path:` instead of `git:` names a folder of this machine" if own else ""
        raise ValueError(f"must be an https:// or ssh:// URL (other git transports can run commands){more}")
    if not HOST.match((parts.hostname or "").lstrip(":")):  # `::1`
        raise ValueError("has no usable host")
    if parts.username is not None and not _USER.fullmatch(parts.username):
        raise ValueError("has no usable user name (ssh would take a leading '-' for an option)")
    parts.port  # noqa: B018 - raises ValueError for one that is none
    if parts.password is not None or (parts.scheme == "https" and parts.username is not None):
        raise ValueError("must not carry credentials; use git's credential helper")
    if parts.query or parts.fragment:
        raise ValueError("must not have a query or a fragment")
    return value


def _https_url(value: str) -> str:
    plain_line(value)
    parts = urlsplit(value)
    if parts.scheme not in ("https", "http", "file"):
        raise ValueError("must be an http(s):// or file:// URL")
    if parts.username or parts.password:
        raise ValueError("must not carry credentials")
    return value


Level = Literal["measured", "stamped", "not-checked"]
"""How sure a statement is: read in this run, taken from the stamp, or not looked at."""


def settable(name: str, *, site: bool = False) -> str:
    """The name of a variable that a stack (`site`: a target) may set; raises ValueError for any other."""
    if not may_set(name, site):
        raise ValueError(
            f"{name} must not be set: loaders, shells, interpreters and build tools choose by it what they run "
            "(as by PATH, LD_PRELOAD and PYTHONPATH)"
        )
    if not site and looks_secret(name):
        raise ValueError(f"{name} looks like a secret, and everybody reads a stack and its lock: set it in your target")
    return name


def without_secrets(variables: Mapping[str, T]) -> Mapping[str, T]:
    """The variables that a stack sets; raises ValueError where a value holds a secret, as a URL may."""
    if names := secrets_of(variables):
        raise ValueError(f"the value of {names[0]} holds a secret, and everybody reads it here: set it in your target")
    return variables


_Line = Annotated[str, AfterValidator(plain_line)]
Text = Annotated[str, AfterValidator(partial(plain_line, prose=True))]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
# As its repository is called: the name is a folder.
SourceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
PackageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?$")]
ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")]
_COMMIT = r"^[0-9a-f]{40}$"
_FULL = text_of(_COMMIT, "must be a full commit or tree hash: 40 lower-case hex digits")
Commit = Annotated[str, StringConstraints(pattern=_COMMIT), _FULL]
TreeHash = Commit
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PythonVersion = Annotated[str, StringConstraints(pattern=r"^3\.[0-9]{1,2}$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1)]
Flavour = Annotated[str, StringConstraints(pattern=r"^(cpu|cu[0-9]{2,3})$")]
CudaArch = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,2}\.[0-9][af]?(\+PTX)?$")]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
SettableName = Annotated[EnvName, AfterValidator(settable)]
_RELATIVE = "must be a relative path without '..', empty parts, leading '-' or '~'"
_BESIDE = "must be a path relative to the stack file, such as ./ or ../my-clone"
RelPath = Annotated[_Line, fits("[^/~-].*", _RELATIVE, "", "..")]
AbsPath = Annotated[_Line, fits("/.*", "must be an absolute path without '..'", "..")]
BesidePath = Annotated[_Line, fits("[^/~-].*", _BESIDE)]
HostName = Annotated[str, AfterValidator(_host_name)]
GitUrl = Annotated[str, AfterValidator(git_url)]
WebUrl = Annotated[str, AfterValidator(_https_url)]


BLOCK = 4096


class Unpacked(StrictModel):
    """Disk space of contents: bytes in blocks of 4 KiB, one for each folder included, and files with folders."""

    bytes: Annotated[int, Field(ge=0)]
    inodes: Annotated[int, Field(ge=0)]

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Self:
        """The disk space of files, given their sizes in bytes by relative path."""
        folders = {folder for path in sizes for folder in PurePosixPath(path).parents[:-1]}
        blocks = sum(-(-size // BLOCK) for size in sizes.values()) + len(folders)
        return cls(bytes=blocks * BLOCK, inodes=len(sizes) + len(folders))
