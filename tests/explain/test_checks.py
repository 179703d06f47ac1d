"""Checks of findings and edits of documents, against sources, history, the index and the catalog."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.catalog.loader import load_stack
from envbuild.errors import EnvbuildError
from envbuild.explain.checks import CheckResult, run_checks
from envbuild.explain.text import render_text
from envbuild.explain.view import Explained, RecipeRun, document_recipes, explain
from envbuild.lock.readers.git import git_reader
from envbuild.model.stack import Stack
from envbuild.node import proc
from envbuild.resolve.compat import Compat
from envbuild.resolve.compat_read import load_compat
from tests.lock.conftest import Repos
from tests.support.files import write_file

Make = Callable[..., Stack]

SETUP = """import os

def check(a):
    if a:
        raise RuntimeError("no")

check_cuda(CUDA_HOME)
"""


@pytest.fixture(scope="module")
def compat() -> Compat:
    return load_compat()


@pytest.fixture
def commits(repos: Repos) -> tuple[str, str]:
    """The first commit of the source `code`, and the last."""
    first = repos.create("code")
    (repos.folder / "code" / "lib").mkdir()
    repos.commit("code", "lib/deep.py", "magic\n")
    second = repos.commit("code", "setup.py", SETUP)
    repos.git("code", "branch", "stays", second)
    return first, second


def ask(stack: Stack, compat: Compat) -> list[CheckResult]:
    with git_reader() as reader:
        return list(run_checks(stack, compat, reader))


GIT_CHECKS: list[tuple[dict[str, Any], bool]] = [
    ({"kind": "path-at-commit", "path": "setup.py", "present": True}, True),
    ({"kind": "path-at-commit", "path": "lib", "present": True}, True),
    ({"kind": "path-at-commit", "path": "setup.py", "present": False}, False),
    ({"kind": "path-at-commit", "path": "lib/dee", "present": False}, True),
    ({"kind": "text-in-file", "path": "setup.py", "text": "RuntimeError"}, True),
    ({"kind": "text-in-file", "path": "setup.py", "text": "RuntimeError", "expected": 0}, False),
    ({"kind": "text-in-file", "path": "missing.py", "text": "x", "expected": 0}, False),
    ({"kind": "text-in-tree", "text": "magic", "under": "lib", "expected": 1}, True),
    ({"kind": "text-in-tree", "text": "absent", "expected": 1}, False),
    ({"kind": "sed-hits", "path": "setup.py", "pattern": "check_cuda(CUDA_HOME)", "expected": 1}, True),
    ({"kind": "sed-hits", "path": "setup.py", "pattern": "cuda(HOME)", "expected": 0}, True),
    ({"kind": "sed-hits", "path": "setup.py", "pattern": "check", "expected": 1}, False),
    ({"kind": "compiles-when-commented", "path": "setup.py", "first": 5, "last": 5, "compiles": False}, True),
    ({"kind": "compiles-when-commented", "path": "setup.py", "first": 7, "last": 7, "compiles": True}, True),
    ({"kind": "compiles-when-commented", "path": "setup.py", "first": 90, "last": 99, "compiles": True}, False),
    ({"kind": "ref-at-remote", "ref": "stays", "expected": "pinned"}, True),
    ({"kind": "ref-at-remote", "ref": "stays", "expected": "moved"}, False),
    ({"kind": "ref-at-remote", "ref": "gone", "expected": "missing"}, True),
    ({"kind": "submodules", "expected": 0}, True),
    ({"kind": "submodules", "expected": 2}, False),
]


def test_checks_against_sources(make_stack: Make, commits: tuple[str, str], compat: Compat) -> None:
    asked = ({"check": check | {"at": "code"}} for check, _ in GIT_CHECKS)
    results = ask(make_stack(*asked, commit=commits[1]), compat)
    outcomes = ["holds" if holds else "broken" for _, holds in GIT_CHECKS]
    assert [result.outcome for result in results] == outcomes, [result.detail for result in results]
    assert all(result.question for result in results)


def test_a_search_that_does_not_end_is_not_run(
    make_stack: Make, commits: tuple[str, str], compat: Compat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(argv: list[str], **options: Any) -> proc.Finished:
        return proc.Finished(timed_out=True) if argv[0] == "grep" else real(argv, **options)

    real = proc.run
    monkeypatch.setattr(proc, "run", run)
    check = {"kind": "sed-hits", "path": "setup.py", "pattern": "absent", "expected": 0, "at": "code"}
    [result] = ask(make_stack({"check": check}, commit=commits[1]), compat)
    assert (result.outcome, result.detail) == ("not-run", "grep could not search: it did not end in time")


def test_history_is_asked_of_git_and_a_commit_that_upstream_lost_is_broken(
    make_stack: Make, commits: tuple[str, str], compat: Compat
) -> None:
    first, second = commits
    stack = make_stack(
        {"check": {"kind": "commit-contains", "at": "code", "ancestor": first}},
        {"check": {"kind": "commit-contains", "at": "code", "ancestor": second, "commit": first, "expected": False}},
        {"check": {"kind": "commit-contains", "at": "code", "ancestor": "b" * 40}},
        commit=second,
    )
    assert [r.outcome for r in ask(stack, compat)] == ["holds", "holds", "broken"]
    check = {"kind": "submodules", "at": "code", "expected": 0}
    other = {"other": {"git": "https://git.example.org/absent", "commit": "c" * 40, "what": "nothing"}}
    asked = ({"check": check}, {"check": check | {"at": "other"}})
    lost, silent = ask(make_stack(*asked, commit="c" * 40, repositories=other), compat)
    assert (lost.outcome, "has no commit" in lost.detail) == ("broken", True)
    assert (silent.outcome, "cannot be reached" in silent.detail) == ("not-run", True)


def test_without_permission_nothing_outside_is_asked(make_stack: Make, compat: Compat) -> None:
    stack = make_stack(
        {"check": {"kind": "submodules", "at": "code", "expected": 0}},
        {"check": {"kind": "index-has-none", "requirement": "torch==1.8.2", "python": "3.8"}},
        {"check": {"kind": "torch-not-on-pypi", "torch": "1.8.2"}},
    )
    assert [r.outcome for r in run_checks(stack, compat)] == ["not-run", "not-run", "holds"]


CATALOG_CHECKS: list[tuple[dict[str, Any], bool]] = [
    ({"kind": "torch-flavour-missing", "torch": "1.10.0", "flavour": "cu116"}, True),
    ({"kind": "torch-flavour-missing", "torch": "1.10.0", "flavour": "cu113"}, False),
    ({"kind": "torch-flavour-missing", "torch": "9.9.9", "flavour": "cu113"}, False),
    ({"kind": "torch-not-on-pypi", "torch": "1.8.1"}, False),
    ({"kind": "torch-python-missing", "torch": "1.10.0", "python": "3.10"}, True),
    ({"kind": "torch-python-missing", "torch": "1.10.0", "python": "3.9"}, False),
    ({"kind": "torch-runs-on", "torch": "1.11.0", "flavour": "cu113", "capability": "9.0", "expected": False}, True),
    ({"kind": "torch-runs-on", "torch": "1.11.0", "flavour": "cu999", "capability": "8.6", "expected": False}, False),
    ({"kind": "toolkit-knows", "cuda": "13.0", "capability": "7.0", "expected": False}, True),
    ({"kind": "toolkit-knows", "cuda": "12.9", "capability": "7.0", "expected": True}, True),
    ({"kind": "package-rule", "rule": "pip-global-option", "version": "25.3"}, True),
    ({"kind": "package-rule", "rule": "pip-global-option", "version": "25.2"}, False),
    ({"kind": "package-rule", "rule": "no-such-rule", "version": "1"}, False),
    ({"kind": "zero-stage-refused", "stage": 2}, True),
    ({"kind": "zero-stage-refused", "stage": 1}, False),
    ({"kind": "versions-exclude", "package": "hydra-core", "pinned": "1.0.7", "against": ">=1.1,<1.2"}, True),
    ({"kind": "versions-exclude", "package": "hydra-core", "pinned": "1.1.2", "against": ">=1.1,<1.2"}, False),
]


def test_checks_against_the_catalog(make_stack: Make, compat: Compat) -> None:
    results = run_checks(make_stack(*({"check": check} for check, _ in CATALOG_CHECKS)), compat)
    outcomes = ["holds" if holds else "broken" for _, holds in CATALOG_CHECKS]
    assert [result.outcome for result in results] == outcomes, [result.detail for result in results]


def test_d80_the_index_is_asked_through_the_users_configuration_and_an_sdist_is_no_wheel(
    make_stack: Make, home: Path, tmp_path: Path, compat: Compat, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    write_file(wheels / "known-1.0-py3-none-any.whl", b"")
    (wheels / "sdists-2.0.tar.gz").write_bytes(b"")
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    stack = make_stack(
        {"check": {"kind": "index-has-none", "requirement": "unknown==1.0", "python": "3.9"}},
        {"check": {"kind": "index-has-none", "requirement": "known>=2", "python": "3.9"}},
        {"check": {"kind": "index-has-none", "requirement": "sdists", "python": "3.9"}},
    )
    results = ask(stack, compat)
    assert [r.outcome for r in results] == ["not-run", "holds", "holds"], results


def test_one_broken_check_breaks_its_finding(make_stack: Make) -> None:
    [finding] = make_stack({}).findings

    def outcome(*outcomes: Any) -> str | None:
        return Explained(finding, tuple(CheckResult("f", "k", "q", outcome, "d") for outcome in outcomes)).outcome

    assert outcome() is None
    assert outcome("holds", "not-run") == "not-run"
    assert outcome("holds", "broken", "not-run") == "broken"


CALL = "check_cuda_torch_binary_vs_bare_metal(CUDA_HOME)\n"


class Git:
    """A reader that has one text for every file, or none, or fails."""

    def __init__(self, text: str | None, error: EnvbuildError | None = None) -> None:
        self.text, self.error = text, error

    def read(self, url: str, commit: str, path: str) -> str | None:
        if self.error:
            raise self.error
        return self.text


def sed_run(git: Git | None) -> RecipeRun:
    [run] = [run for run in document_recipes(load_stack("opt-175b").stack, "exact", git) if run.file]  # type: ignore[arg-type]
    return run


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (f"x = 1\n{CALL}", "changes 1 line of setup.py at 265b451d, which still compiles"),
        (f"if x:\n    {CALL}", "changes 1 line of setup.py at 265b451d, which no longer compiles"),
        (
            "check_cuda_torch_binary_vs_bare_metal(torch.utils.cpp_extension.CUDA_HOME)\n",
            "changes nothing in setup.py at 265b451d",
        ),
        (None, "not tried: there is no setup.py"),
    ],
)
def test_the_documents_sed_is_carried_out_on_the_pinned_file(text: str | None, outcome: str) -> None:
    assert sed_run(Git(text)).outcome == outcome


def test_edits_are_named_with_ours_also_without_a_look_and_where_the_source_is_out_of_reach() -> None:
    run = sed_run(None)
    assert (run.source, run.patch, run.file, run.outcome) == ("apex", "apex-cuda-check", "setup.py", "")
    assert "effect" not in run.as_dict()
    silent = sed_run(Git(None, EnvbuildError("git-failed", "cannot fetch apex")))
    assert silent.outcome == "not tried: cannot fetch apex"
    assert silent.as_dict()["problem"] == "cannot fetch apex"


def test_the_text_shows_both_edits() -> None:
    stack = load_stack("opt-175b").stack
    shown = render_text(explain(stack, "exact", recipes=document_recipes(stack, "exact", Git(CALL))))  # type: ignore[arg-type]
    assert "The document's own edits, and ours" in shown
    assert "changes 1 line of setup.py" in " ".join(shown.split())
    assert "instead: apex-cuda-check" in shown
    small = load_stack("torch-smoke").stack
    assert document_recipes(small, "exact") == ()
    assert "own edits" not in render_text(explain(small, "exact"))
