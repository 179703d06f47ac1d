"""What the base of an environment provides, as requirements of the lock say it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from envbuild.node.env import interpreter as base

RELEASES = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(lambda numbers: ".".join(map(str, numbers)))
LOCALS = st.sampled_from(["", "", "+cpu", "+cu118"])


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    """One comparison that packaging takes: a local version or `.*` stands beside `==` and `!=` alone."""
    operator = draw(st.sampled_from(["==", "!=", "===", ">=", "<=", "<", ">", "~="]))
    version = draw(RELEASES)
    if operator == "~=" and "." not in version:
        version += ".0"
    more = {"==": ["", ".*", "+cpu"], "!=": ["", ".*", "+cpu"], "===": ["", "+cpu"]}.get(operator, [""])
    return operator + version + draw(st.sampled_from(more))


@pytest.mark.parametrize(
    ("requirement", "holds"),
    [
        ("torch", True),
        ("torch==2.13", True),
        ("torch==2.13.0", True),
        ("torch==2.13.1", False),
        ("torch>=2.1,<3", True),
        ("torch>=2.14", False),
        ("torch~=2.9", True),
        ("torch~=2.13.1", False),
        ("torch!=2.13.*", False),
        ("torch!=2.12.*", True),
        ("torch==2.13.*", True),
        ("torch == 2.1.*", False),
        ("torch==2.13.0+cpu", True),
        ("torch==2.13+CPU", True),
        ("torch==2.13.0+cu118", False),
        ("torch!=2.13.0+cu118", True),
        ("torch===2.13.0+cpu", True),
        ("torch===2.13.0", False),
        ("torch>=2.13.0a0,<2.14", True),
        ("torch==v2.13", True),
        ("Torch[x] (>=2)", True),
        ("numpy", False),
    ],
)
def test_a_requirement_is_compared_by_release_numbers(requirement: str, holds: bool) -> None:
    assert base.satisfied(requirement, {"torch": "2.13.0+cpu"}) is holds


@given(st.lists(comparisons(), min_size=1, max_size=2), RELEASES, LOCALS)
def test_releases_and_their_local_versions_compare_as_packaging_does(
    parts: list[str], version: str, local: str
) -> None:
    wanted = ",".join(parts)
    assert base.satisfied(f"torch {wanted}", {"torch": version + local}) is SpecifierSet(wanted).contains(
        version + local
    )
