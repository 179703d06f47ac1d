"""Invented setup pages of many shapes, read as a careful reader reads them: no false accusation among the findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.init_pages import score

PAGES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "pages.yaml").read_text())["pages"]


@pytest.mark.parametrize("page", PAGES, ids=[page["id"] for page in PAGES])
def test_a_page_gives_what_a_reader_derives(page: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    row = score(page, Path(), verbose=True)
    missing = capsys.readouterr().out
    assert row["facts"] == row["of facts"], missing
    assert row["findings"] == row["of findings"], missing
    assert (row["false"], row["others"]) == (0, 0), missing
