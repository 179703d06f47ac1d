"""The verb `ensure` beside other jobs of the same node; what it does with a pack: test_pack.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from envbuild.node.packs import ensure


def test_another_job_may_remove_the_copy_on_the_disk_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    near, old = tmp_path / "tmp" / "pack-run", tmp_path / "tmp" / "pack-old"
    for path in (near, old):
        path.write_bytes(b"pack")
    os.utime(old, (1, 1))
    unlink = os.unlink

    def second(path: str, **named: Any) -> None:
        unlink(path, **named)
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "unlink", second)
    monkeypatch.setattr(ensure, "in_place", lambda *_: True)
    args = {"environment": str(tmp_path / "envs" / "a"), "stack": "a", "root": "r", "variant": {}}
    request = {"prefix": str(tmp_path), "run": "r", "args": {**args, "pack": {"near": str(near)}}}
    changed, result = ensure.run(request)
    assert (changed, result["level"], near.exists()) == (False, "stamped", False)
    ensure._sweep(str(near))
    assert not old.exists()
