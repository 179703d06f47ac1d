from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.model.stack import Stack
from tests.lock.conftest import Repos
from tests.lock.conftest import home as home


@pytest.fixture
def repos(tmp_path: Path, home: Path) -> Repos:
    """Repositories whose git serves single objects, as public hosts do."""
    with (home / ".gitconfig").open("a") as stream:
        stream.write("[uploadpack]\nallowFilter = true\nallowAnySHA1InWant = true\n")
    return Repos(tmp_path / "repos", home)


@pytest.fixture
def make_stack() -> Callable[..., Stack]:
    """A stack with one source, `code`, and the given findings (each filled up with what every finding has)."""

    def make(*findings: dict[str, Any], commit: str = "a" * 40, **more: Any) -> Stack:
        source = {"name": "code", "git": "https://git.example.org/code", "commit": commit}
        full = [
            {"id": f"f-{n}", "says": "s", "truth": "t", "evidence": "e", "does": "d", "severity": "wrong"} | finding
            for n, finding in enumerate(findings)
        ]
        for finding in full:
            finding.setdefault("unverified", "check" not in finding)
        data = {"name": "demo", "summary": "A demo", "profiles": {"exact": {"python": ["3.11"], "sources": [source]}}}
        return Stack.from_plain(data | {"findings": full} | more)

    return make
