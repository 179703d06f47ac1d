"""Interpreters that somebody named are looked at wherever they lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.node.probe.programs import python_facts
from envbuild.node.protocol import Json
from tests.node.env_support import MINOR, PYTHON


def asked_for(folders: list[str], prefix: str, *, asked: list[str]) -> Json:
    """The facts of the one interpreter that was asked for; the machine may have others."""
    (fact,) = (each for each in python_facts(folders, prefix, asked=asked) if each.get("also"))
    return fact


def test_a_named_interpreter_is_found_and_keeps_the_name_it_was_asked_by(tmp_path: Path) -> None:
    link = tmp_path / "mine"
    link.symlink_to(PYTHON)
    fact = asked_for([], str(tmp_path), asked=[str(link), str(tmp_path / "not-there")])
    assert (fact["path"], fact["also"]) == (PYTHON, [str(link)])


def test_d07_a_named_interpreter_of_another_version_is_told_with_its_version(tmp_path: Path) -> None:
    fact = asked_for([], str(tmp_path), asked=[PYTHON])
    assert (fact["path"], fact["also"], fact["version"].startswith(f"{MINOR}.")) == (PYTHON, [PYTHON], True)


def test_a_name_is_the_first_of_path_and_never_a_shim(tmp_path: Path) -> None:
    places = [tmp_path / "shims", tmp_path / "soft" / "bin"]
    for place in places:
        place.mkdir(parents=True)
        (place / "python3").symlink_to(PYTHON)
    fact = asked_for([str(place) for place in places], str(tmp_path), asked=["python3", "python9"])
    assert (fact["path"], fact["also"]) == (PYTHON, ["python3"])


def test_whether_an_interpreter_finds_the_cxx_library_is_asked_of_its_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fact = asked_for([], str(tmp_path), asked=[PYTHON])
    assert fact["libstdcxx"] is True
    # The loader takes the first of that name, and this one is empty.
    (tmp_path / "libstdc++.so.6").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    fact = asked_for([], str(tmp_path), asked=[PYTHON])
    assert fact["libstdcxx"] is False
