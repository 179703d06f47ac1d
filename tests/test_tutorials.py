"""The tutorials do what they say; the one through Slurm is followed in `slurm/test_tutorial.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import forked
from tests.support.tutorial import TUTORIALS, follow

PAGES = sorted(page.stem for page in TUTORIALS.glob("*.md") if page.stem != "a-cluster-through-slurm")


# Two provisions from an index, and a lock for three Pythons.
LONG = ("your-own-stack",)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page in LONG else page for page in PAGES]
)
def test_a_tutorial_works_as_it_is_written(page: str, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    forked.write_program(programs)
    follow(TUTORIALS / f"{page}.md", tmp_path, programs)
