"""Instructions of a recipe and its stages, typed; `dockerfile.py` says them in its own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Comment:
    """A line that says why, before the instruction it is about."""

    text: str


@dataclass(frozen=True, slots=True)
class Arg:
    """A build argument with its default."""

    name: str
    default: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """Files of the context, or of another stage, to one place."""

    sources: tuple[str, ...]
    to: str
    stage: str | None = None


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder that later commands of the stage, and of those above it, run in."""

    path: str


@dataclass(frozen=True, slots=True)
class Run:
    """Shell commands, each after the success of the one before it, every value in them quoted.

    `mounts` are values of `--mount`, `ignore` hadolint rules that it breaks on purpose.
    """

    commands: tuple[str, ...]
    mounts: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Env:
    """Variables. A value holds nothing to expand, except with `prepend`: then `:$NAME` follows.

    `within`: a variable, set before, that names the folder which the values are in.
    """

    values: Mapping[str, str]
    prepend: bool = False
    within: str = ""


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels; `given` are those whose value is a build argument: label to argument."""

    values: Mapping[str, str]
    given: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Start:
    """What a container runs: user and group id, working directory, default command."""

    user: int
    folder: str
    command: tuple[str, ...]


Instruction = Comment | Arg | Copy | Folder | Run | Env | Labels | Start


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its name, the image it begins with (pinned where a digest is known), what is done in it.

    `above`: the stage that it goes on from; `image` and `digest` are then those of that one.
    """

    name: str
    image: str
    digest: str | None
    instructions: tuple[Instruction, ...]
    above: str | None = None
