"""Byte code of torch that all smoke tests of a run share, so that each worker imports it in two seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.node.smoke.runner import Scratch


@pytest.fixture
def torch_imported(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of the smoke test find torch compiled, in `torch_environment` and in those above it."""
    shared, enter = run_folder / "byte-code", Scratch.__enter__
    shared.mkdir(exist_ok=True)

    def entered(scratch: Scratch) -> Scratch:
        enter(scratch)
        Path(scratch.path, "byte-code").symlink_to(shared)
        return scratch

    monkeypatch.setattr(Scratch, "__enter__", entered)
