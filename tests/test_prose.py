"""Pages for users are plain English: short sentences, the glossary's words, and every page in the navigation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from envbuild.catalog.loader import list_stacks, load_stack
from envbuild.catalog.patches import load_patches

TOP = Path(__file__).parents[1]
DOCS = TOP / "docs"
PAGES = [TOP / "README.md", *(path for path in sorted(DOCS.rglob("*.md")) if path.parent.name != "dev")]
LONGEST = 30
# Words that mean something only to those who built envbuild, and history, which belongs to CHANGELOG and records.
BANNED = re.compile(
    r"\b(told|settles?|stand-ins?|handed on|witness(?:es)? of|first contact|the usual node|the day after|was mended|"
    r"the house|login hosts?)\b",
    re.IGNORECASE,
)
# Sentences that stay as they are. This list only shrinks.
EXCEPTIONS: frozenset[str] = frozenset()


def sentences(text: str) -> Iterator[str]:
    """Of prose, lists and cells of tables; code counts as one word, links by their text."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ {4,}\S.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    blocks = re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) |^#+ .*$|\|", text, flags=re.MULTILINE)
    for block in blocks:
        for sentence in re.split(r"(?<=[.?!])\s+", " ".join(block.split())):
            if sentence:
                yield sentence


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_a_page_has_short_sentences_and_the_words_of_the_field(page: Path) -> None:
    texts = set(sentences(page.read_text(encoding="utf-8"))) - EXCEPTIONS
    assert [text for text in texts if len(text.split()) > LONGEST] == []
    assert list(filter(BANNED.search, texts)) == []


def test_the_exceptions_are_few_and_all_in_use() -> None:
    texts = {text for page in PAGES for text in sentences(page.read_text(encoding="utf-8"))}
    assert len(EXCEPTIONS) <= 20
    assert texts >= EXCEPTIONS


def test_every_page_is_in_the_navigation_of_at_most_32() -> None:
    listed: list[str] = []
    for section in yaml.safe_load((TOP / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]:
        listed += [page for pages in section.values() for page in pages]
    assert sorted(listed) == sorted(
        path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if "dev" not in path.relative_to(DOCS).parts
    )
    assert len(listed) <= 32


@pytest.mark.parametrize("name", list_stacks())
def test_findings_and_deviations_have_short_sentences(name: str) -> None:
    """What the document says is quoted; the rest is ours, deviations too."""
    stack = load_stack(name).stack
    texts = [text for finding in stack.findings for text in (finding.truth, finding.evidence, finding.does or "")]
    texts += [text for profile in stack.profiles.values() for text in profile.deviations]
    assert [sentence for text in texts for sentence in sentences(text) if len(sentence.split()) > LONGEST] == []


def test_reasons_of_patches_have_short_sentences() -> None:
    texts = [text for patch in load_patches().values() for text in (patch.summary, patch.why)]
    assert [sentence for text in texts for sentence in sentences(text) if len(sentence.split()) > LONGEST] == []
