"""`envbuild explain` from the outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.explain_cmd import explain
from envbuild.errors import EnvbuildError
from tests.lock.conftest import Repos
from tests.resolve.builders import node_facts

STACK = """
name: mine
summary: My stack
document: {title: The guide, url: https://git.example.org/guide, commit: COMMIT, path: guide.md}
profiles:
  exact: {python: ["3.11"], deviations: [one thing differs]}
findings:
  - {id: one, says: s, truth: t, evidence: e, does: d, severity: wrong, anchor: git clone,
     check: {kind: text-in-file, at: document, path: guide.md, text: git clone, expected: TIMES}}
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = explain.main(args=list(arguments), standalone_mode=False)
    return int(code), capsys.readouterr().out


@pytest.fixture
def mine(tmp_path: Path, repos: Repos) -> Path:
    repos.create("guide")
    commit = repos.commit("guide", "guide.md", "# Guide\n\n```\n$ git clone x\n```\n")
    path = tmp_path / "mine.yaml"
    path.write_text(STACK.replace("COMMIT", commit).replace("TIMES", "1"))
    return path


def test_findings_are_printed_without_asking_anybody(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, str(mine))
    assert code == 0
    assert "Wrong (1)" in out
    assert "one thing differs" in out
    assert "decisions need the facts of a node" in out


def test_json_is_one_document_with_the_three_lists(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, str(mine), "--json")
    data: dict[str, Any] = json.loads(out)
    assert code == 0
    assert (len(data["findings"]), data["decisions"], data["deviations"]) == (1, [], ["one thing differs"])


def test_the_document_is_read_from_its_pinned_place(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    code, _ = run(capsys, str(mine), "--html", str(page), "--run-checks")
    assert code == 0
    html = page.read_text()
    assert "git clone" in html
    assert "checked, still so" in html


def test_a_file_of_the_users_replaces_the_pinned_document(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.md"
    own.write_text("Only words of mine.\n")
    page = tmp_path / "page.html"
    run(capsys, str(mine), "--html", str(page), "--document", str(own))
    assert "Only words of mine." in page.read_text()


def test_a_broken_check_exits_1(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine.write_text(mine.read_text().replace("expected: 1", "expected: 3"))
    code, out = run(capsys, str(mine), "--run-checks")
    assert code == 1
    assert "CHECK FAILED" in out


def test_a_moved_document_is_an_integrity_error(mine: Path, tmp_path: Path) -> None:
    mine.write_text(mine.read_text().replace("path: guide.md}\n", "path: other.md}\n", 1))
    with pytest.raises(EnvbuildError) as caught:
        explain.main(args=[str(mine), "--html", str(tmp_path / "x.html")], standalone_mode=False)
    assert (caught.value.code, caught.value.exit_code) == ("document-missing", 5)


def test_recorded_facts_give_decisions(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps(node_facts("cpu-laptop").model_dump(mode="json")))
    code, out = run(capsys, "torch-smoke", "--facts", str(facts), "--json")
    data = json.loads(out)
    assert code == 0
    assert data["decisions"]
    assert {"node", "rule", "verdict", "what"} <= set(data["decisions"][0])


def test_a_profile_without_a_lock_says_so(mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps({"facts": {"n": node_facts("cpu-laptop").model_dump(mode="json")}}))
    _, out = run(capsys, str(mine), "--facts", str(facts))
    assert "has no lock yet" in out


@pytest.mark.parametrize("content", ["", "[1]", '{"node": 3}', "\xff"])
def test_facts_that_are_none_are_refused(content: str, mine: Path, tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    facts.write_text(content, encoding="latin-1")
    with pytest.raises(EnvbuildError) as caught:
        explain.main(args=[str(mine), "--facts", str(facts)], standalone_mode=False)
    assert (caught.value.code, caught.value.exit_code) == ("facts-unreadable", 2)
