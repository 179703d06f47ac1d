"""Files trusted on first use stand in every form of the report, with their whole hashes."""

from __future__ import annotations

import pytest

from envbuild.model.evidence import Evidence
from envbuild.model.first_use import TrustedFile
from envbuild.report.render import render_html, render_json, render_markdown
from envbuild.report.terminal import HEIGHT, WIDTH, closing_lines
from envbuild.report.view import View
from tests.report import samples

HASH = "5f" * 32


def trusted(count: int) -> list[dict[str, object]]:
    files = [
        TrustedFile(
            file=f"torch-1.8.{number}+cu111-cp38-cp38-linux_x86_64.whl", sha256=HASH, index="pytorch-lts-cu111",
            witness="first use on 2026-11-21 by this user", size=9,
        )
        for number in range(count)
    ]  # fmt: skip
    return [file.to_json_dict() for file in files]


def run(count: int) -> Evidence:
    """A run on two nodes that trust the same files."""
    nodes = [samples.node(name, first_use=trusted(count)) for name in ("n1", "n2")]
    return samples.evidence(*nodes, deviations=["files trusted on first use"] if count else [])


def text_of(evidence: Evidence) -> dict[str, str]:
    return {
        "html": render_html(evidence),
        "md": render_markdown(evidence),
        "json": render_json(evidence),
        "terminal": "\n".join(text for text, _ in closing_lines(View(evidence), "report.html")),
    }


@pytest.mark.parametrize("form", ["html", "md", "json", "terminal"])
def test_every_form_names_file_and_hash(form: str) -> None:
    text = text_of(run(1))[form]
    assert "torch-1.8.0+cu111-cp38-cp38-linux_x86_64.whl" in text
    assert HASH in text
    if form != "json":
        assert "1 file trusted on first use" in text
    if form in ("html", "md"):
        assert "pytorch-lts-cu111" in text and "first use on 2026-11-21 by this user" in text
        assert samples.shown(text).count(HASH) == 1, "once, however many nodes have it"


def test_more_files_than_the_terminal_holds_are_counted() -> None:
    lines = closing_lines(View(run(5)), "report.html")
    said = [text for text, _ in lines]
    assert "  ! 5 files trusted on first use" in said
    assert "    and 3 more in the report" in said
    assert len(lines) <= HEIGHT and all(len(text) <= WIDTH for text in said)
    assert samples.shown(render_html(run(5))).count(HASH) == 5


@pytest.mark.parametrize("form", ["html", "md", "terminal"])
def test_nothing_is_said_where_nothing_was_trusted(form: str) -> None:
    assert "trusted on first use" not in text_of(run(0))[form]
