"""A file that nobody has hashed: refused, let through with a warning, or known from a first use."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.lock.first_use import fill
from envbuild.model.first_use import FirstUse
from envbuild.model.lock import Lock
from envbuild.model.resolution import Decision
from envbuild.model.target import Target
from tests.resolve.builders import compat, make_lock, node_facts, resolve, torch_package


def a_lock() -> Lock:
    package = torch_package("1.11.0+cu113", "3.9", index="pytorch-cu113", reason="out of reach")
    package["files"][0]["sha256"] = "unrecorded"
    return make_lock({"id": "v", "python": "3.9", "torch": "1.11.0", "flavour": "cu113", "packages": [package]})


def judged(lock: Lock, **more: Any) -> tuple[bool, list[Decision]]:
    target = Target(name="t", prefix="/p")
    got = resolve(node_facts("a100-azure"), lock, target, compat(), **more)
    return got.refused, [d for c in got.candidates for d in c.decisions if d.rule == "hash-unrecorded"]


def test_it_is_refused_and_the_way_on_is_named() -> None:
    refused, (decision,) = judged(a_lock())
    assert refused and decision.verdict == "refuse"
    assert "`--trust-first-use`" in (decision.instead or "")


def test_with_trust_the_warning_says_what_is_trusted() -> None:
    refused, (decision,) = judged(a_lock(), trust_first_use=True)
    assert not refused and decision.verdict == "warn"
    file = a_lock().variants[0].packages[0].files[0].file
    for text in ("trusted on first use", file, "pytorch-cu113"):
        assert text in decision.what


@pytest.mark.parametrize("trust", [False, True])
def test_a_recorded_first_use_needs_no_flag_and_stays_visible(trust: bool) -> None:
    package = a_lock().variants[0].packages[0]
    use = FirstUse(
        file=package.files[0].file, sha256="a" * 64, size=9, package="torch", version=package.version,
        index=package.index, found="the index pytorch-cu113", first_used="2026-11-21T10:00:00Z", run="r",
    )  # fmt: skip
    refused, (decision,) = judged(fill(a_lock(), {use.file: use}), trust_first_use=trust)
    assert not refused and decision.verdict == "allow"
    assert "first use on 2026-11-21 by this user" in decision.what
    assert decision.compared == (use.file, f"sha256 {use.sha256}")
