"""What may be kept without asking more: every difference between stamp, lock, target and hardware asks again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock
from envbuild.model.stack import Stack
from envbuild.model.target import Target
from envbuild.plan.source_builds import bundle_name
from envbuild.provision.run.context import Choice, Prepared
from envbuild.provision.survey.ask import can_keep, controller_supply, index_addresses, kept, probe_args
from tests.lock.build import lock as lock_of
from tests.lock.build import variant
from tests.resolve.builders import make_lock, package
from tests.support.files import write_file


def prepared(**target: Any) -> Prepared:
    stack = Stack.from_plain({"name": "demo", "summary": "s", "profiles": {"exact": {"python": ["3.11"]}}})
    where = Target.from_plain({"name": "here", "prefix": "/p", **target})
    return Prepared(stack, "exact", where, lock(), Path("demo.lock.toml"), "0" * 64, Choice(target="here"))


def lock() -> Lock:
    return lock_of(variant(environment={"A": "1"}))


def facts(**changes: Any) -> NodeFacts:
    digest = lock().variants[0].digest
    stamp = {
        "variables": {"A": "1"},
        "evidence": {"hardware": {"driver": "535.1", "gpus": ["NVIDIA A100"]}},
        "interpreter": "/usr/bin/python3.11",
    }
    stamp.update(changes.pop("stamp", {}))
    environment = {
        "path": "/p/envs/demo",
        "stack": "demo",
        "variant_digest": digest,
        "current": True,
        "stamp": stamp,
        "checks": [{"name": "stamp", "status": "passed", "says": "there"}],
    }
    environment.update(changes.pop("environment", {}))
    plain: dict[str, Any] = {
        "protocol": 1,
        "node": "n1",
        "hostname": "n1",
        "user": "u",
        "probed_at": "2026-01-01T00:00:00Z",
        "os": {},
        "libc": {},
        "prefix": {"path": "/p"},
        "driver": {"version": "535.1"},
        "gpus": [{"index": 0, "name": "NVIDIA A100"}],
        "environments": [environment],
    }
    return NodeFacts.from_plain({**plain, **changes})


def test_an_environment_in_use_of_this_lock_is_kept_with_its_reason() -> None:
    plan = kept(facts(), prepared())
    assert plan is not None
    assert plan.nothing_to_do
    assert plan.environment == "/p/envs/demo"
    assert plan.resolution.variant_digest == lock().variants[0].digest
    assert [decision.rule for decision in plan.resolution.decisions] == ["in-use"]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"environment": {"current": False}}, {}),
        ({"environment": {"checks": []}}, {}),
        ({"environment": {"stack": "other"}}, {}),
        ({"environment": {"variant_digest": "f" * 64}}, {}),
        ({"environment": {"stamp": None}}, {}),
        ({"stamp": {"variables": {"A": "2"}}}, {}),
        ({"stamp": {"evidence": {}}}, {}),
        ({"driver": {"version": "550.1"}}, {}),
        ({"gpus": []}, {}),
        ({"environments": []}, {}),
        ({}, {"environment": {"A": "2"}}),
    ],
)
def test_any_difference_asks_again(changes: dict[str, Any], where: dict[str, Any]) -> None:
    assert kept(facts(**changes), prepared(**where)) is None


def test_a_probe_looks_for_the_locked_files_of_all_variants() -> None:
    one = {"id": "one", "python": "3.11", "packages": [package("b", "1"), package("a", "2")]}
    two = make_lock(one, {"id": "two", "python": "3.12", "packages": [package("a", "2"), package("b", "3")]})
    asked = probe_args(prepared()._replace(lock=two))["files"]
    assert asked == sorted({file.file for each in two.variants for file in each.files})
    assert [name[:3] for name in asked] == ["a-2", "b-1", "b-3"]


def test_what_was_compiled_for_gpus_is_kept_where_they_are() -> None:
    bound = lock().variants[0].with_arch_list("demo", "exact", ("8.0",))
    built = {"environment": {"variant_digest": bound.digest}, "stamp": {"arch_list": ["8.0"]}}
    plan = kept(facts(**built), prepared())
    assert plan is not None
    assert (plan.variant_digest, plan.resolution.arch_list) == (bound.digest, ("8.0",))
    for other in (["9.0"], None, []):
        assert kept(facts(environment=built["environment"], stamp={"arch_list": other}), prepared()) is None
    # Compiled elsewhere, it is asked what the target expects now.
    elsewhere = {"arch_list": ["8.0"], "evidence": {"hardware": {"driver": None, "gpus": []}}}
    assert kept(facts(environment=built["environment"], stamp=elsewhere, gpus=[], driver={}), prepared()) is None


@pytest.mark.parametrize(
    ("choice", "base", "may"),
    [
        ({}, None, True),
        ({}, "none", True),
        ({}, "system", False),
        ({"variant": "v"}, None, False),
        ({"interpreter": "/usr/bin/python3"}, None, False),
    ],
)
def test_only_a_plain_wish_is_answered_by_what_is_there(choice: dict[str, str], base: str | None, may: bool) -> None:
    assert can_keep(Choice(target="here", **choice), base) is may


SOURCE = {"name": "lib", "git": "https://git.example.org/lib", "commit": "1" * 40, "tree": "2" * 40}


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a network: no index, no proxy, no git configuration of others."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path


def test_d12_what_is_kept_or_lies_in_a_folder_can_be_delivered_without_a_network(alone: Path) -> None:
    lock = make_lock(
        {"id": "v", "python": "3.11", "packages": [package("a", "1"), package("b", "1")], "sources": [SOURCE]}
    )
    a, b = (each.files[0] for each in lock.variants[0].packages)
    nothing = controller_supply(lock, {})
    assert (dict(nothing.reachable), dict(nothing.files_found)) == ({"pypi": False, SOURCE["git"]: False}, {})
    kept = alone / "cache/envbuild/artifacts"
    for path in (kept / "packages" / a.sha256 / a.file, alone / "links" / b.file):
        write_file(path, "x")
    write_file(kept / "sources" / bundle_name("lib", lock.variants[0].sources[0]), "x")
    found = controller_supply(lock, {})
    assert set(found.files_found) == {a.file, b.file}
    assert dict(found.reachable) == {"pypi": False, SOURCE["git"]: True}


def test_d12_an_index_that_pip_may_not_ask_is_not_reached(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = make_lock({"id": "v", "python": "3.11", "packages": [package("a", "1")]})
    (alone / "index").mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{alone}/index")
    assert controller_supply(lock, {}).reachable == {"pypi": True}
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert controller_supply(lock, {}).reachable == {"pypi": False}
    assert index_addresses(lock)["pypi"].startswith("https://"), "nodes are asked for the default index too"
