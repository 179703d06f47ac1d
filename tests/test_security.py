"""SECURITY.md says what is so, and what users install is pinned as what is tested (D70, D77)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOP = Path(__file__).parents[1]
PAGE = (TOP / "SECURITY.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_d77_each_line_of_the_threat_model_names_a_test_that_is_there() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| who ")]
    assert len(rows) >= 15
    assert [row for row in rows if not TEST.search(row)] == []
    lost = [f"{file}::{name}" for file, name in TEST.findall(PAGE) if f"\ndef {name}(" not in (TOP / file).read_text()]
    assert lost == []


def test_d70_both_pages_say_that_a_target_is_code_on_the_controller() -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| author of a target")]
    assert (
        "**run code as you on this machine**: `hosts: {command}`, ssh configuration" in row
        and "shows the command" in row
    )
    assert "**A target file is code on your machine.**" in (TOP / "docs/targets.md").read_text(encoding="utf-8")


def pins(name: str) -> dict[str, set[str]]:
    """`name==version` of each requirement of a listing, with its hashes."""
    text = (TOP / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^([a-z0-9][^\s;]*)[^\n]*\n((?: +--hash=[^\n]*\n)+)", text, re.MULTILINE)
    found: dict[str, set[str]] = {}
    for pin, hashes in blocks:
        found.setdefault(pin, set()).update(re.findall(r"--hash=(sha256:[0-9a-f]{64})", hashes))
    return found


def test_d77_constraints_for_users_are_those_of_the_development_lock_and_complete() -> None:
    users, development = pins("constraints.txt"), pins("lockfiles/development.txt")
    assert {pin: hashes for pin, hashes in users.items() if development.get(pin) != hashes} == {}
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    assert wanted - {pin.partition("==")[0] for pin in users} == set()
