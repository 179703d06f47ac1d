"""Locks and build keys hold the version of an edit, not its program text: so no edit may change under its version."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from envbuild.node.patch import registry
from tests.node import edit_samples


@pytest.mark.parametrize("edit", registry.names())
def test_an_edit_does_to_every_known_shape_what_its_version_did(edit: str) -> None:
    known = edit_samples.load(edit)
    pairs = [(each["after"], hashlib.sha256(each["before"].encode()).hexdigest()) for each in known["files"]]
    assert any(after not in (None, before) for after, before in pairs), "no sample that it changes"
    assert edit_samples.renewed(edit) == known, "give it the next version, then `python -m tests.node.edit_samples`"


def test_an_edit_that_changed_under_its_version_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find, _, version = registry._TABLE["numpy-aliases"]
    other: Any = (lambda source: find(source)[:-1], lambda source: None, version)
    monkeypatch.setitem(registry._TABLE, "numpy-aliases", other)
    assert edit_samples.main() == 1
    assert "numpy-aliases does another thing than version 1 did" in capsys.readouterr().err
