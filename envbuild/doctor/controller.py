"""Checks the controller itself: the programs envbuild drives, each found and new enough, with the next step if not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
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


def diagnose() -> list[Diagnosis]:
    """Check this machine; a missing program is a line, never an error."""
    version = ".".join(map(str, sys.version_info[:3]))
    # Ansible makes folders in its home even to say its version.
    with tempfile.TemporaryDirectory(prefix="envbuild-doctor-") as home:
        programs = [_program(program, {**os.environ, "ANSIBLE_HOME": home}) for program in _PROGRAMS]
    return [Diagnosis("python", "ok", f"{version} ({sys.executable})", ">= 3.11"), *programs]


def _program(program: _Program, env: dict[str, str]) -> Diagnosis:
    (name, option), needed = program.command, f">= {program.least}"

    def lacking(state: str) -> Diagnosis:
        level: Level = "missing" if program.required else "warning"
        return Diagnosis(name, level, state, needed, program.consequence, program.hint)

    path = resources.program(name)
    if path is None:
        return lacking("not found")
    try:
        done = subprocess.run([path, option], capture_output=True, text=True, timeout=30, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return lacking(f"{path} does not run: {error}")
    match = re.search(program.pattern, done.stdout + done.stderr)
    if match is None:
        return Diagnosis(name, "warning", f"{path}, version not understood", needed, hint=program.hint)
    at_path = f"{match[1]} ({path})"
    if Version(match[1]) < Version(program.least):
        return lacking(at_path)
    return Diagnosis(name, "ok", at_path, needed)
