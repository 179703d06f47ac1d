"""Byte code of torch that all smoke tests of a session share, so that each worker imports it in two seconds."""

from __future__ import annotations

import tempfile
from functools import cache

import pytest

from envbuild.node.smoke.runner import FLAGS, Scratch


@cache
def _byte_code() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="byte-code-")


@pytest.fixture
def torch_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of the smoke test find torch compiled, in `torch_environment` and in those above it."""
    monkeypatch.setattr(Scratch, "flags", lambda _: [*FLAGS, "-X", f"pycache_prefix={_byte_code().name}"])
