"""The value types of the model refuse what could be read as an option, a path or code."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from envbuild.model.stack import Stack


def stack_with_source(**source: object) -> object:
    base = {"name": "a", "git": "https://example.org/a.git", "commit": "0" * 40}
    return Stack.from_plain(
        {"name": "demo", "summary": "s", "profiles": {"exact": {"python": ["3.11"], "sources": [base | source]}}}
    )


@pytest.mark.parametrize(
    "source",
    [
        {"git": "https://user:secret@example.org/a.git"},
        {"git": "https://token@example.org/a.git"},
        {"git": "ssh://git:secret@example.org/a.git"},
        {"git": "ext::sh -c touch% /tmp/x"},
        {"git": "--upload-pack=touch x"},
        {"git": "file:///etc"},
        {"git": "https://-oProxyCommand=x/a"},
        {"commit": "0" * 39},
        {"commit": "g" * 40},
        {"commit": "0" * 40 + "\n"},
        {"name": "a\n"},
        {"name": "{{ a }}"},
        {"path": "../x"},
        {"ref": "--upload-pack=x"},
        {"generated": ["/etc/passwd"]},
    ],
)
def test_a_hostile_source_is_refused(source: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        stack_with_source(**source)


def test_an_ordinary_source_is_accepted() -> None:
    assert stack_with_source(git="ssh://git@example.org/a.git", ref="main") is not None
