"""The smoke step of a provision works under the lease that `install` took, and leaves it for `activate`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import lease
from envbuild.node.smoke import smoke
from tests.node.smoke.test_imports import PYTHON, Bare


def _request(bare: Bare, prefix: Path, run: str, imports: list[str]) -> dict[str, Any]:
    variant = {"python": PYTHON, "imports": imports}
    args = {"environment": str(bare.path), "variant": variant, "items": [{"name": "sound", "deadline": 120}]}
    return {"protocol": 1, "verb": "smoke", "run": run, "prefix": str(prefix), "args": args}


@pytest.fixture
def bare(tmp_path: Path) -> Bare:
    return Bare(tmp_path / "envs" / "env")


@pytest.fixture
def held(tmp_path: Path) -> lease.Lease:
    """The lease of run r1, whose heartbeat is long ago."""
    found = lease.acquire(str(tmp_path), "r1", None, 0)
    os.utime(found.path, (time.time() - 1000,) * 2)
    return found


def test_the_heartbeat_goes_on_while_the_smoke_test_runs(
    bare: Bare, tmp_path: Path, held: lease.Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.05)
    bare.module("slow", "import time\ntime.sleep(0.5)\n")
    begun = time.time()
    _, result = smoke.run(_request(bare, tmp_path, "r1", ["slow"]))
    assert result["ok"], result
    assert os.stat(held.path).st_mtime > begun + 0.3
    owner = lease.read(str(tmp_path))
    assert owner is not None
    assert (owner["run"], owner["pid"], owner["token"]) == ("r1", os.getpid(), held.owner["token"])


def test_a_smoke_test_that_fails_gives_its_own_lease_back_and_leaves_that_of_another_run(
    bare: Bare, tmp_path: Path, held: lease.Lease
) -> None:
    before = os.stat(held.path)
    _, result = smoke.run(_request(bare, tmp_path, "-", []))
    assert result["ok"], result
    after = os.stat(held.path)
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    _, result = smoke.run(_request(bare, tmp_path, "r1", ["nowhere"]))
    assert not result["ok"]
    assert not held.held()
