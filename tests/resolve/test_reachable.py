"""Every rule is reached from the command line: some stack, target and facts show it in each of its verdicts."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click import Command

from envbuild import resolve
from envbuild.catalog.yaml_load import load_yaml
from envbuild.cli.explain_cmd import explain
from envbuild.cli.provision_cmd import plan
from envbuild.lock.readers.scan import uses
from envbuild.resolve.engine import OF_NODE
from tests.resolve.builders import compat, rule_ids
from tests.resolve.files import write_files
from tests.resolve.test_golden import CASES

# The first case of each rule in each of its verdicts.
REACHED: dict[tuple[str, str], dict[str, Any]] = {}
for _row in (*load_yaml(Path(__file__).parent / "first_asked.yaml"), *CASES):
    REACHED.setdefault((_row["rule"], _row["verdict"]), _row)
# Modules that do everything which the scan of a source's tree finds outside of setup.py.
MODULES = {
    "m.py": "import distutils, imp, numpy as np, pkg_resources.packaging, torch._six\nnp.bool, np.int, np.float_\n",
    "m_pb2.py": "FileDescriptor()\n",
}


@pytest.fixture(autouse=True)
def _read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compatibility data are those of the catalog; reading them for every case would take most of the time."""
    monkeypatch.setattr("envbuild.resolve.compat_read.load_compat", compat)


def given() -> Iterator[tuple[str, str]]:
    """(rule, verdict) of every `Ruling` of the resolver, and of the rows of packages.yaml."""
    for path in Path(resolve.__file__).parent.rglob("*.py"):
        functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
        for function in functions:
            yield from _given_by(function, path.name)
    yield from _rows_given()


def _given_by(function: ast.FunctionDef, file: str) -> Iterator[tuple[str, str]]:
    """Of one function, whose rulings are called where they are made, or `says`."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    # The one function that is given its ruling says of room; a row of packages.yaml is an attribute.
    rules, silent = ["disk-space", "disk-inodes"], set[str]()
    for call in sorted(calls, key=lambda c: (c.lineno, c.col_offset, c.end_lineno, c.end_col_offset)):
        called = ast.unparse(call.func)
        if called == "Ruling":
            rules = [rule.value for rule in call.args[:1] if isinstance(rule, ast.Constant)]
            silent |= set(rules)
        elif called.startswith(("says(", "says._replace(", "Ruling(")) or called == "says":
            verdicts = [n.value for n in ast.walk(call.args[0]) if isinstance(n, ast.Constant)]
            assert verdicts or not rules, f"{file}:{call.lineno} gives a verdict that this test does not find"
            silent -= set(rules)
            yield from ((rule, one) for rule in rules for one in verdicts)
    # A ruling may be handed to another function, which says of room.
    assert silent <= {"disk-space", "disk-inodes"}, f"{file}: no verdict of {silent} is found"


def _rows_given() -> Iterator[tuple[str, str]]:
    patched = {trait for traits in compat().patched_traits.values() for trait in traits}
    in_modules = uses(MODULES)
    for row in compat().package_rules:
        yield from ((row.id, "allow"), (row.id, row.verdict))
        if row.variable or row.trait in patched:
            yield row.id, "patch"
        if row.trait in in_modules:
            yield row.id, "warn"


def told(command: Command, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """The decisions that the command shows."""
    assert command.main(args=[*arguments, "--json"], standalone_mode=False) == 0
    shown = json.loads(capsys.readouterr().out)
    return list(shown["decisions"] if command is explain else shown["plan"]["nodes"][0]["resolution"]["decisions"])


@pytest.mark.parametrize(
    ("stamp", "warned"),
    [
        ({"sources": [{"name": "lab", "git": "https://git.example.org/lab/my"}]}, ["https://git.example.org/lab/my"]),
        ({"trees": [{"name": "mine", "at": "/b/mine"}]}, ["/b/mine"]),
        ({"trees": [{"name": "mine", "at": "/b/mine", "state": {"commit": "c" * 40}}]}, []),
        ({"trees": [{"name": "mine", "at": "/b/mine", "state": {"commit": "d" * 40}}]}, ["/b/mine"]),
        ({}, ["a stack without sources"]),
        ({"trees": [{"name": "mine", "at": "/a/mine"}]}, []),
        (None, []),
    ],
)
def test_a_link_that_leaves_another_project_of_the_same_name_is_said(
    stamp: dict[str, Any] | None, warned: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = {"path": "/p/envs/my-exact-0123456789ab", "stack": "my", "current": True, "stamp": stamp}
    more = {"trees": {"mine": {"path": "/a/mine", "commit": "c" * 40}}, "environments": [] if stamp is None else [used]}
    own = {"profile": {"sources": [{"name": "mine", "path": "./"}]}, "variant": {"trees": [{"name": "mine"}]}}
    stack, target, facts = write_files({"node": "cpu-laptop", "facts": {"more": more}, **own}, tmp_path)
    rows = told(explain, capsys, str(stack), "--target", str(target), "--facts", str(facts))
    rest = "; it will point at the environment of /a/mine instead"
    says = [row["what"] for row in rows if row["rule"] == "stack-name-shared"]
    assert says == [f"current/my belongs to {place}{rest}" for place in warned]


def test_d13_every_rule_has_a_case_of_each_verdict_that_it_can_give() -> None:
    # A refusal by data that are not verified is a warning (`Ruling`); those of this rule are all of that kind.
    assert set(given()) - set(REACHED) == {("driver-knows-gpu", "refuse")}
    assert set(REACHED) - set(given()) <= {(rule, "warn") for rule, verdict in given() if verdict == "refuse"}
    assert {rule for rule, _verdict in REACHED} >= {*OF_NODE, *rule_ids()}


@pytest.mark.parametrize("case", REACHED, ids="=".join)
def test_d13_the_command_line_shows_a_rule_in_each_of_its_verdicts(
    case: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule, verdict = case
    stack, target, facts = write_files(REACHED[case], tmp_path)
    where = ("--target", str(target), "--facts", str(facts))
    if "plan" in REACHED[case]:
        shown = told(plan, capsys, "--stack", str(stack), *where, *REACHED[case]["plan"])
    else:
        shown = told(explain, capsys, str(stack), *where)
    assert {row["verdict"] for row in shown if row["rule"] == rule} == {verdict}, [
        (row["rule"], row["verdict"], row["what"]) for row in shown
    ]
