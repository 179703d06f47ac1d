"""`verify --since RUN`, as cron calls it: silence, or what is other than then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.report.evidence_file import read_evidence
from tests.e2e.world import Done, World


def first(world: World) -> str:
    return min(path.name for path in world.runs.iterdir() if (path / "evidence.json").exists())


def since(world: World, run: str, *more: str, stack: str = "./tiny.yaml") -> Done:
    return world.run("verify", "--stack", stack, "--target", "local", "--since", run, "-q", *more)


@pytest.fixture
def drifted(built: World) -> Iterator[str]:
    """A file of the environment that somebody changed, below it; put back afterwards."""
    path = next(built.current.rglob("alpha/__init__.py"))
    before = path.read_bytes()
    path.write_bytes(before + b"\n# edited\n")
    yield str(path.relative_to(built.current))
    path.write_bytes(before)


def test_nothing_changed_is_exit_0_and_not_a_word(built: World) -> None:
    done = since(built, first(built))
    assert (done.rc, done.out, done.err) == (0, "", "")


def test_drift_is_exit_1_and_names_the_file_and_still_does_so_when_it_is_the_same_as_in_that_run(
    built: World, drifted: str
) -> None:
    done = since(built, first(built))
    assert done.rc == 1
    told = " ".join(done.out.split())
    assert "got worse" in told
    assert f"contents drifted files on localhost: 0 → 1, changed {drifted}" in told
    again = since(built, "last")
    assert again.rc == 1
    assert again.out.startswith("✗")
    assert "no difference in what both runs checked. tiny (exact) is not ready on localhost" in again.out
    changes = since(built, "last", "--json").json
    assert (changes["since"] < changes["run"], changes["changes"]) == (True, [])


def test_a_run_that_is_not_there_or_left_no_evidence_is_an_error_before_a_node_is_asked(built: World) -> None:
    before = {path.name for path in built.runs.iterdir()}
    done = since(built, "20200101T000000Z-aaaa")
    assert (done.rc, done.code, done.out) == (2, "run-unknown", "")
    assert {path.name for path in built.runs.iterdir()} == before
    (built.runs / first(built) / "evidence.json").rename(built.top / "kept.json")
    try:
        assert since(built, min(before)).code == "evidence-missing"
    finally:
        (built.top / "kept.json").rename(built.runs / min(before) / "evidence.json")


def test_a_run_of_another_stack_is_refused_and_one_of_another_lock_is_said_to_be_that(built: World) -> None:
    run = first(built)
    built.stack("other")
    built.lock(built.work / "other.yaml")
    done = since(built, run, stack="./other.yaml")
    assert (done.rc, done.code) == (2, "since-of-another")
    built.wheel(version="1.1")
    built.lock(built.stack(packages=["alpha==1.1"]))
    built.built()
    done = since(built, run)
    told = " ".join(done.out.split())
    assert (done.rc, "· run lock digest" in told, "· package alpha on localhost: 1.0 → 1.1" in told) == (0, True, True)
    assert "✗" not in told


def test_what_json_prints_of_a_run_is_its_evidence_and_is_shown_and_checked_as_such(built: World) -> None:
    out = built.run("verify", "--stack", "./tiny.yaml", "--target", "local", "--json").out
    (kept,) = [path for path in built.runs.iterdir() if path.name == json.loads(out)["run"]]
    assert json.loads(out) == json.loads((kept / "evidence.json").read_text())
    path = built.work / "run.json"
    path.write_text(out)
    assert read_evidence(out.encode(), Path("run.json")).run == kept.name
    assert built.good("report", "show", "run.json", "--json").json == json.loads(out)
    assert built.good("report", "verify", "run.json").out.startswith("✓")
