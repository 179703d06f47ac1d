"""Every rule is reached from the command line: some stack, target and facts show it in each of its verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.explain_cmd import explain
from envbuild.resolve.rules.order import rule_ids
from tests.resolve.builders import compat
from tests.resolve.files import write_files
from tests.resolve.test_golden import CASES

# The first golden case of each rule in each of its verdicts.
REACHED: dict[tuple[str, str], dict[str, Any]] = {}
for _row in CASES:
    REACHED.setdefault((_row["rule"], _row["verdict"]), _row)


@pytest.fixture(autouse=True)
def _read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compatibility data are those of the catalog; reading them for every case would take most of the time."""
    monkeypatch.setattr("envbuild.resolve.compat_read.load_compat", lambda _directory: compat())


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """The decisions that the command shows."""
    assert explain.main(args=[*arguments, "--json"], standalone_mode=False) == 0
    return list(json.loads(capsys.readouterr().out)["decisions"])


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, _verdict in REACHED} == set(rule_ids(compat()))


@pytest.mark.parametrize("case", REACHED, ids="=".join)
def test_d13_the_command_line_shows_a_rule_in_each_of_its_verdicts(
    case: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule, verdict = case
    stack, target, facts = write_files(REACHED[case], tmp_path)
    shown = told(capsys, str(stack), "--target", str(target), "--facts", str(facts))
    assert {row["verdict"] for row in shown if row["rule"] == rule} == {verdict}, [
        (row["rule"], row["verdict"], row["what"]) for row in shown
    ]
