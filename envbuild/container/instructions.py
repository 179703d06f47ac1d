"""Instructions of a Dockerfile as its lines, every value quoted. No heredocs: builders of 2022 do not know them.

What a Dockerfile cannot hold is an EnvbuildError `dockerfile-value` (exit 2).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envbuild.errors import EnvbuildError
from envbuild.text import unsafe, visible

_WIDTH = 118
_PATH = re.compile(r"(\$VIRTUAL_ENV)?[A-Za-z0-9._+@/-]+")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its name, the image it begins with (pinned where a digest is known), the lines of what is done in it.

    `above`: the stage that it goes on from; `image` and `digest` are then those of that one.
    """

    name: str
    image: str
    digest: str | None
    lines: tuple[str, ...]
    above: str | None = None


def comment(text: str) -> list[str]:
    """Why, before the instruction it is about; no line is longer than the others."""
    words = " ".join(visible(text).split())
    return [f"# {line}" for line in textwrap.wrap(words, _WIDTH - 2, break_on_hyphens=False)]


def copy(sources: Sequence[str], to: str, stage: str | None = None) -> list[str]:
    """Files of the context, or of another stage, to one place."""
    option = f"--from={stage} " if stage else ""
    return [f"COPY {option}{' '.join(map(_word, [*sources, to]))}"]


def workdir(path: str) -> list[str]:
    """The folder that later commands of the stage, and of those above it, run in."""
    return [f"WORKDIR {_word(path)}"]


def run(commands: Sequence[str], mounts: Sequence[str] = (), ignore: Sequence[str] = ()) -> list[str]:
    """Shell commands, each after the success of the one before it, every value in them quoted.

    `mounts` are values of `--mount`, `ignore` hadolint rules that it breaks on purpose.
    """
    lines = [f"# hadolint ignore={','.join(ignore)}"] if ignore else []
    parts = [f"--mount={mount}" for mount in mounts]
    for number, command in enumerate(commands):
        _refuse_control(command)
        parts.append(f"&& {command}" if number else command)
    return [*lines, *_folded("RUN", parts)]


def env(values: Mapping[str, str]) -> list[str]:
    """Variables, with nothing to expand."""
    return _folded("ENV", [f"{name}={quoted(value)}" for name, value in values.items()])


def prepend_path(programs: str) -> list[str]:
    """The folders `programs`, of which the first is in the environment, before those of PATH."""
    return [f'ENV PATH="$VIRTUAL_ENV/{quoted(programs)[1:-1]}:$PATH"']


def labels(values: Mapping[str, str], given: Mapping[str, str]) -> list[str]:
    """Labels; `given` are those whose value is a build argument: label to argument."""
    pairs = [f"{name}={quoted(value)}" for name, value in values.items()]
    return _folded("LABEL", [*pairs, *(f'{name}="${{{argument}}}"' for name, argument in given.items())])


def quoted(value: str) -> str:
    """A value in double quotes, taken literally."""
    _refuse_control(value)
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{text}"'


def _folded(word: str, parts: list[str]) -> list[str]:
    """One line where it fits, else one part a line; none without parts."""
    if not parts:
        return []
    whole = f"{word} {' '.join(parts)}"
    if len(whole) <= _WIDTH:
        return [whole]
    lines = [f"{word} {parts[0]}", *(f"    {part}" for part in parts[1:])]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _refuse_control(text: str) -> None:
    if unsafe(text):
        raise _unfit(text, "it has a line break or another control character", "set it when the container starts")


def _word(path: str) -> str:
    """A path where builders differ in how they take quotes; of variables only that of the environment."""
    if not _PATH.fullmatch(path):
        raise _unfit(path, "a path in COPY or WORKDIR has letters, digits and ._+@- alone", "name it otherwise")
    return path


def _unfit(text: str, why: str, hint: str) -> EnvbuildError:
    return EnvbuildError("dockerfile-value", f"a Dockerfile cannot hold the value {text[:60]!r}", why=why, hint=hint)
