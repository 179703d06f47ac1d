"""`envbuild explain` from the outside."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from envbuild.catalog.loader import list_stacks
from envbuild.cli.explain_cmd import explain
from envbuild.explain.page import render_page
from envbuild.explain.text import render_text
from envbuild.explain.view import explain as join
from tests.lock.conftest import Repos
from tests.resolve.builders import node_facts
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.stacks import shipped_stack

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
    commit = repos.commit("guide", "guide.md", GUIDE)
    path = tmp_path / "mine.yaml"
    path.write_text(STACK.replace("COMMIT", commit).replace("TIMES", "1"))
    return path


def test_findings_are_printed_without_asking_anybody(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, str(mine))
    assert code == 0
    assert "Wrong (1)" in out
    assert "one thing differs" in out
    assert "add --facts FILE, or a shipped example" in out


def test_the_document_is_read_from_its_pinned_place(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    code, out = run(capsys, str(mine), "--output", str(page), "--run-checks")
    assert code == 0
    assert "1 findings: 1 wrong\n" in out and out.endswith(f"annotated document: {page}\n")
    html = page.read_text()
    assert "git clone" in html
    assert "checked, still so" in html
    own = write_file(tmp_path / "own.md", "Only words of mine.\n")
    run(capsys, str(mine), "--output", str(page), "--document", str(own))
    assert "Only words of mine." in page.read_text()
    assert "Not compared: the stack records no sha256" in page.read_text(), "D32"


GUIDE = "# Guide\n\n```\n$ git clone x\n```\n"


@pytest.fixture
def pinned(mine: Path) -> Path:
    digest = hashlib.sha256(GUIDE.encode()).hexdigest()
    mine.write_text(mine.read_text().replace("path: guide.md}\n", f"path: guide.md, sha256: {digest}}}\n", 1))
    return mine


def test_d32_a_text_that_is_not_the_pinned_document_is_refused(
    pinned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, page = tmp_path / "own.md", tmp_path / "page.html"
    own.write_text("Only words of mine.\n")
    with fails("document-differs", 2):
        explain.main(args=[str(pinned), "--output", str(page), "--document", str(own)], standalone_mode=False)
    assert not page.exists()
    assert run(capsys, str(pinned), "--output", str(page), "--document", str(own), "--other-text")[0] == 0
    html = page.read_text()
    assert html.index("This is not the document that the findings describe: own.md") < html.index("<h1>")
    own.write_text(GUIDE)
    assert run(capsys, str(pinned), "--output", str(page), "--document", str(own))[0] == 0
    assert 'role="alert"' not in page.read_text()


@pytest.mark.parametrize("code", ["document-changed", "document-missing"])
def test_d32_a_pinned_place_with_another_text_or_none_is_an_integrity_error(
    pinned: Path, tmp_path: Path, code: str
) -> None:
    raw = pinned.read_text()
    digest = hashlib.sha256(GUIDE.encode()).hexdigest()
    old, new = (digest, "0" * 64) if code == "document-changed" else ("path: guide.md,", "path: other.md,")
    pinned.write_text(raw.replace(old, new, 1))
    with fails(code, 5):
        explain.main(args=[str(pinned), "--output", str(tmp_path / "x.html")], standalone_mode=False)


def test_a_document_is_fetched_once(
    pinned: Path, repos: Repos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    page = tmp_path / "page.html"
    assert run(capsys, str(pinned), "--output", str(page))[0] == 0
    (kept,) = (tmp_path / "cache" / "envbuild" / "documents").iterdir()
    first = page.read_text()
    shutil.rmtree(repos.folder / "guide")
    assert run(capsys, str(pinned), "--output", str(page))[0] == 0
    assert page.read_text() == first
    kept.write_text("planted")
    with fails("source-unreachable") as caught:
        explain.main(args=[str(pinned), "--output", str(page)], standalone_mode=False)
    assert "--document FILE needs no network" in caught.value.hint


@pytest.mark.parametrize("name", [name for name in list_stacks() if shipped_stack(name).stack.findings])
def test_d36_the_page_counts_what_the_terminal_counts(name: str) -> None:
    made = join(shipped_stack(name).stack, "exact")
    html = render_page(made, "words\n")
    counted = [
        int(number)
        for number in re.findall(r"<b>([0-9]+)</b>", html.partition('class="tally"')[2].partition('class="strip"')[0])
    ]
    wrong, notes = len(made.of("wrong")), len(made.of("note"))
    assert (counted[0], counted[1], counted[3]) == (wrong, len(made.findings) - wrong - notes, len(made.findings))
    assert f"{wrong} wrong" in render_text(made)


def test_a_broken_check_exits_1(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine.write_text(mine.read_text().replace("expected: 1", "expected: 3"))
    code, out = run(capsys, str(mine), "--run-checks")
    assert code == 1
    assert "CHECK FAILED" in out


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


def test_facts_that_are_none_are_refused(mine: Path, tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    for content in ("", "[1]", "[]", "\xff", "{}", '{"a": {"protocol": 1}}'):
        facts.write_text(content, encoding="latin-1")
        with fails("file-unreadable", 2):
            explain.main(args=[str(mine), "--facts", str(facts)], standalone_mode=False)
