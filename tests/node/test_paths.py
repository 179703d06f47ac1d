"""Files under a prefix: written whole, with the modes that the umask leaves, and nobody else disturbed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.node import paths


def test_writing_a_file_leaves_the_umask_of_other_threads_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o027)
    try:
        assert paths.umask() == 0o027
    finally:
        assert os.umask(before) == 0o027, "it is read without changing it"
    set_to: list[int] = []
    monkeypatch.setattr(os, "umask", lambda mask: set_to.append(mask) or 0o002)
    paths.write_atomic(str(tmp_path / "file"), b"x")
    assert set_to == []  # it belongs to the whole process: a thread that makes a file meanwhile would get that one


def test_an_object_is_read_and_nothing_else(tmp_path: Path) -> None:
    for text, wanted in (('{"a": 1}', {"a": 1}), ("[1]", None), ("{", None)):
        (tmp_path / "data.json").write_text(text)
        assert paths.read_json(str(tmp_path / "data.json")) == wanted
    assert paths.read_json(str(tmp_path / "none.json")) is None


@pytest.mark.parametrize(
    ("said", "full"),
    [
        ("cc1plus: error: x.o: No space left on device", True),
        ("FATAL: no space left on device", True),
        ("write failed: Disk quota exceeded", True),
        ("failed to copy (os error 28)", True),
        ("HTTP 403: API quota exceeded", False),
        ("error 281", False),
    ],
)
def test_what_programs_say_of_a_full_disk_is_known(said: str, full: bool) -> None:
    assert paths.says_full(said) is full
