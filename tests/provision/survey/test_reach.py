"""What this machine could deliver: reached, kept, or in pip's find-links folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.plan.source_builds import bundle_name
from envbuild.provision.deliver import controller_supply
from envbuild.provision.survey.ask import index_addresses
from tests.resolve.builders import make_lock, package

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
    nothing = controller_supply(lock, index_addresses(lock), {})
    assert (dict(nothing.reachable), dict(nothing.files_found)) == ({"pypi": False, SOURCE["git"]: False}, {})
    kept = alone / "cache/envbuild/artifacts"
    for path in (kept / "packages" / a.sha256 / a.file, alone / "links" / b.file):
        path.parent.mkdir(parents=True)
        path.write_text("x")
    (kept / "sources").mkdir()
    (kept / "sources" / bundle_name("lib", lock.variants[0].sources[0])).write_text("x")
    found = controller_supply(lock, index_addresses(lock), {})
    assert set(found.files_found) == {a.file, b.file}
    assert dict(found.reachable) == {"pypi": False, SOURCE["git"]: True}


def test_d12_an_index_that_pip_may_not_ask_is_not_reached(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = make_lock({"id": "v", "python": "3.11", "packages": [package("a", "1")]})
    (alone / "index").mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{alone}/index")
    assert controller_supply(lock, index_addresses(lock), {}).reachable == {"pypi": True}
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert controller_supply(lock, index_addresses(lock), {}).reachable == {"pypi": False}


def test_d12_nodes_are_asked_for_the_default_index_too() -> None:
    lock = make_lock({"id": "v", "python": "3.11", "packages": [package("a", "1")]})
    assert index_addresses(lock)["pypi"].startswith("https://")
