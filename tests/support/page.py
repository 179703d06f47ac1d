"""A page of HTML as a test looks at it."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """Collects tags with their attributes, and text; a tag that does not close, or in another order, fails the test."""

    VOID = frozenset({"meta", "br", "wbr", "hr", "img", "link", "input"})

    def __init__(self, html: str) -> None:
        """Read it."""
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser."""
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """See HTMLParser."""
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        """See HTMLParser."""
        self.words += data
