"""Markers hold for the variant, whatever Python and machine makes its lock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from envbuild.lock.check import check_lock
from envbuild.lock.create import create_lock
from envbuild.lock.readers.build_requires import Needs, unmet
from envbuild.lock.readers.torch_wheels import Supply
from envbuild.lock.variants import applies, environment
from envbuild.model.stack import Stack
from tests.lock.wheels import make_wheel


@pytest.mark.parametrize(
    ("marker", "holds"),
    [
        ("python_version < '3.10'", True),
        ("python_full_version < '3.10'", True),
        ("python_full_version >= '3.9.1'", False),
        ("implementation_version < '3.10'", True),
        ("platform_machine == 'aarch64'", True),
        ("platform_machine == 'x86_64'", False),
        ("sys_platform == 'linux' and os_name == 'posix' and platform_system == 'Linux'", True),
        ("implementation_name == 'cpython' and platform_python_implementation == 'CPython'", True),
        ("extra == 'test'", False),
    ],
)
def test_a_marker_holds_for_the_python_and_the_platform_of_a_variant(marker: str, holds: bool) -> None:
    assert applies(Requirement(f"alpha; {marker}"), "3.9", "linux_aarch64") is holds


def test_nothing_of_the_machine_that_locks_is_left() -> None:
    assert environment("3.9", "linux_x86_64").keys() == default_environment().keys()


def test_a_lock_is_not_edited_where_a_marker_holds_on_the_machine_that_checks_alone(
    tmp_path: Path, supply: Callable[..., Supply]
) -> None:
    make_wheel(tmp_path / "house", "alpha", "1.0")
    packages = ["tomli; python_full_version >= '3.11'", "alpha; python_full_version < '3.11'"]
    exact = {"python": ["3.10"], "smoke": [], "packages": packages}
    stack = Stack.from_plain({"name": "demo", "summary": "s", "profiles": {"exact": exact}})
    lock = create_lock(stack, "exact", supply=supply(tmp_path / "house"), standalone={})
    assert [package.name for package in lock.variants[0].packages] == ["alpha"]
    assert check_lock(lock, stack, online=False) == []


def test_what_a_build_wants_on_another_platform_is_not_asked_for() -> None:
    needs = [Needs("x", ("cmake; platform_machine == 'x86_64'", "ninja; platform_machine == 'aarch64'"))]
    (said,) = unmet(needs, {}, (), "3.9", "linux_aarch64")
    assert "ninja" in said
