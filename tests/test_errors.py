"""The exit code of an error code is said in one table, and again only where an error of the code ends otherwise."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import envbuild
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.node.protocol import EXITS, Exit, NodeError


@cache
def made() -> list[tuple[str, str, ast.expr | None]]:
    """Place, code and `exit_code` of every error that the sources make with its code in place."""
    found = []
    for path in sorted(Path(envbuild.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = getattr(node, "func", None)
            name = getattr(called, "id", getattr(called, "attr", ""))
            if isinstance(node, ast.Call) and name in ("EnvbuildError", "NodeError") and node.args:
                code = node.args[0]
                if isinstance(code, ast.Constant):
                    given = {each.arg: each.value for each in node.keywords}
                    found.append((f"{path.name}:{node.lineno}", str(code.value), given.get("exit_code")))
    return found


def test_no_error_repeats_the_exit_code_that_the_table_has() -> None:
    found = [
        f"{place} {code}"
        for place, code, given in made()
        if isinstance(given, ast.Attribute) and code in EXITS and EXITS[code] == getattr(Exit, given.attr)
    ]
    assert found == []


@pytest.fixture(scope="module")
def listed() -> set[str]:
    """The codes that docs/reference/errors.md has."""
    page = (Path(__file__).parents[1] / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE))


def test_every_code_of_the_table_is_that_of_an_error(listed: set[str]) -> None:
    assert EXITS.keys() - listed == set()


def test_the_list_has_codes_that_are_handed_to_what_makes_the_error(listed: set[str]) -> None:
    """By a function for several codes, by a table of what builders say, by a choice, by a constant elsewhere."""
    assert {"host-key-changed", "contact-failed", "install-failed", "manifest-invalid", "stack-unknown"} <= listed
    assert {"image-without-ids", "job-out-of-memory", "job-lost", "disk-full", "not-begun", "drift"} <= listed


def test_an_error_ends_as_its_code_says_unless_it_says_otherwise() -> None:
    for kind in (EnvbuildError, NodeError):
        assert kind("lock-edited", "what").exit_code == ExitCode.INTEGRITY
        assert kind("lock-edited", "what", exit_code=ExitCode.REFUSED).exit_code == ExitCode.REFUSED
        assert kind("a-code-of-nobody", "what").exit_code == ExitCode.USAGE
