from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.model.stack import Stack
from tests.lock.conftest import Repos


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh HOME; uv has no index, git serves single objects as public hosts do."""
    folder = tmp_path / "home"
    (folder / ".config" / "uv").mkdir(parents=True)
    for key in [k for k in os.environ if k.startswith(("PIP_", "UV_", "GIT_", "XDG_", "ENVBUILD_"))]:
        monkeypatch.delenv(key)
    (folder / ".config" / "uv" / "uv.toml").write_text("no-index = true\n")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (folder / ".gitconfig").write_text(
        "[user]\nname = t\nemail = t@example.org\n[init]\ndefaultBranch = main\n"
        "[uploadpack]\nallowFilter = true\nallowAnySHA1InWant = true\n"
    )
    return folder


@pytest.fixture
def repos(tmp_path: Path, home: Path) -> Repos:
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
