"""Checks the controller itself: the programs envbuild drives, each found and new enough, with the next step if not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.version import Version

from envbuild import resources

Level = Literal["ok", "warning", "missing"]


@dataclass(frozen=True)
class Diagnosis:
    """One line of `envbuild doctor`: the check, what it found, and what follows."""

    name: str
    level: Level
    found: str
    needed: str
    consequence: str = ""
    hint: str = ""


class _Program(NamedTuple):
    command: tuple[str, str]
    least: str
    pattern: str
    required: bool
    consequence: str
    hint: str


_INSTALL = "install envbuild with its dependencies: pip install envbuild"
_PROGRAMS = (
    _Program(
        ("git", "--version"), "2.25", r"git version (\d+(?:\.\d+)+)", True,
        "stacks with sources cannot be locked or built", "install git, for example: sudo apt-get install -y git",
    ),
    _Program(
        ("ssh", "-V"), "7.4", r"OpenSSH_(\d+\.\d+)", False, "only `connection: local` works",
        "install an OpenSSH client, for example: sudo apt-get install -y openssh-client",
    ),
    _Program(
        ("ansible-playbook", "--version"), "2.19", r"core (\d+(?:\.\d+)+)", True, "nothing can be provisioned",
        _INSTALL,
    ),
    _Program(("uv", "--version"), "0.9", r"uv (\d+(?:\.\d+)+)", True, "nothing can be locked or installed", _INSTALL),
)  # fmt: skip


def diagnose(*, prefix: Path | None = None) -> list[Diagnosis]:
    """Check this machine; a missing program is a line, never an error."""
    lines = [_python(), *map(_program, _PROGRAMS)]
    if prefix is not None:
        lines.append(_prefix(prefix))
    return lines


def _python() -> Diagnosis:
    version = ".".join(map(str, sys.version_info[:3]))
    return Diagnosis("python", "ok", f"{version} ({sys.executable})", ">= 3.11")


def _program(program: _Program) -> Diagnosis:
    (name, option), needed = program.command, f">= {program.least}"

    def lacking(state: str) -> Diagnosis:
        level: Level = "missing" if program.required else "warning"
        return Diagnosis(name, level, state, needed, program.consequence, program.hint)

    path = resources.program(name)
    if path is None:
        return lacking("not found")
    try:
        done = subprocess.run([path, option], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return lacking(f"{path} does not run: {error}")
    match = re.search(program.pattern, done.stdout + done.stderr)
    if match is None:
        return Diagnosis(name, "warning", f"{path}, version not understood", needed, hint=program.hint)
    at_path = f"{match[1]} ({path})"
    if Version(match[1]) < Version(program.least):
        return lacking(at_path)
    return Diagnosis(name, "ok", at_path, needed)


def _prefix(prefix: Path) -> Diagnosis:
    folder = next(path for path in (prefix, *prefix.parents) if path.exists())
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize / 1e9
    needed = "writable, a few GB free"
    if not os.access(folder, os.W_OK):
        return Diagnosis("prefix", "missing", f"{folder} is not writable", needed, "nothing can be built there",
                         "choose another with `--prefix` or ENVBUILD_PREFIX")  # fmt: skip
    state = f"{prefix}, {free:.1f} GB free"
    if folder == Path("/") != prefix:
        top = "/" + prefix.parts[1]
        return Diagnosis("prefix", "warning", f"{state}; there is no {top}", needed, f"{top} would be a new folder",
                         f"if {top} is a mount, mount it; else choose another with `--prefix`")  # fmt: skip
    return Diagnosis("prefix", "ok" if free > 3 else "warning", state, needed)
