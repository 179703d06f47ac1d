"""Setup pages in Markdown and reStructuredText: shell blocks, inline commands, versions in prose and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from envbuild.init.readers import prose
from envbuild.init.readers.shell import Shell
from envbuild.init.statement import Place, Statement

if TYPE_CHECKING:
    from docutils import nodes
    from markdown_it.token import Token

_SHELL = frozenset(
    ("", "bash", "sh", "shell", "console", "zsh", "shell-session", "bat", "terminal", "text", "none", "cmd")
)
_COMMAND = re.compile(
    r"\s*(?:\$\s*|!|sudo\s+)?(?:python3?\s+-m\s+)?(?:pip3?|conda|mamba|uv|git|apt-get|apt|export|python3?|wget|sh|bash)\s+\S"
)
# Sections that speak of other systems, other ways or other times.
_ASIDE = re.compile(
    r"\b(mac ?os|osx|windows|wsl|docker|container|rocm|amd|ascend|npu|tpu|cpu[- ]only|jetson|colab|faq|trouble|"
    r"known issue|develop|contribut|deprecat|older|previous|legacy|alternative|optional|unit tests?|testing|"
    r"changelog|news|citation|acknowledg|licen[cs]e|demo)",
    re.IGNORECASE,
)
_SETUP = re.compile(
    r"\b(install|requirement|setup|set up|getting started|prerequisite|dependenc|environment|quick ?start|usage)",
    re.IGNORECASE,
)


class _Sections:
    """The headings above a place; in a section for other purposes everything is optional."""

    def __init__(self) -> None:
        self.levels: list[tuple[int, str]] = []

    def enter(self, level: int, title: str) -> None:
        """A heading."""
        self.levels = [(depth, text) for depth, text in self.levels if depth < level] + [(level, title)]

    @property
    def optional(self) -> bool:
        """Whether what stands here is not the way that the page takes."""
        titles = [title for _, title in self.levels]
        return any(_ASIDE.search(title) for title in titles[1:] or titles if not _plainly_setup(title))

    @property
    def setup(self) -> bool:
        """Whether a heading speaks of installation."""
        return any(_SETUP.search(title) for _, title in self.levels)


def _plainly_setup(title: str) -> bool:
    return bool(re.fullmatch(r"\W*(installation|install|requirements|setup|getting started)\W*", title, re.IGNORECASE))


def _languages(info: str) -> str:
    return re.split(r"[\s{,:]", info.strip().lower().strip("{}"))[0]


def markdown(text: str, file: str) -> Iterator[Statement]:
    """The statements of a Markdown page; HTML in it is passed over."""
    from markdown_it import MarkdownIt

    sections, shell = _Sections(), Shell(file)
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    heading = 0
    for token in tokens:
        line = (token.map[0] if token.map else 0) + 1
        if token.type == "heading_open":
            heading = int(token.tag[1:])
        elif token.type == "inline" and heading:
            sections.enter(heading, token.content)
            heading = 0
        elif token.type in ("fence", "code_block"):
            yield from _block(shell, sections, token, line)
        elif token.type == "inline":
            yield from _inline(shell, sections, token, line)


def _block(shell: Shell, sections: _Sections, token: Token, line: int) -> Iterator[Statement]:
    if token.type == "fence" and _languages(token.info) not in _SHELL:
        return
    column = 5 if token.type == "code_block" else 1
    shell.optional = sections.optional
    yield from shell.read(token.content, line + (token.type == "fence"), column)


def _inline(shell: Shell, sections: _Sections, token: Token, line: int) -> Iterator[Statement]:
    shell.optional = sections.optional
    here = line
    for child in token.children or ():
        here += child.type in ("softbreak", "hardbreak")
        if child.type == "code_inline" and _COMMAND.match(child.content):
            yield from _of_sentence(shell, child.content, here, token.content)
    if sections.setup or re.search(r"tested|requires?\b|required", token.content, re.IGNORECASE):
        for statement in prose.facts(token.content, shell.file, line):
            yield replace(statement, optional=statement.optional or sections.optional)


def _of_sentence(shell: Shell, command: str, line: int, sentence: str) -> Iterator[Statement]:
    """A command inside a sentence; optional if the sentence says so."""
    offered = bool(
        re.search(
            r"\b(optional|if you|alternatively|for large|to run|you can|might|instead)\b", sentence, re.IGNORECASE
        )
    )
    for statement in shell.read(command, line):
        if statement.kind not in ("run", "unknown", "trait") or statement.value == "shell-slip":
            place = Place(shell.file, statement.place.line)
            extra = {"offered": "yes"} if offered else {}
            yield replace(statement, place=place, options=dict(statement.options) | extra)


def restructured(text: str, file: str) -> Iterator[Statement]:
    """The statements of a reStructuredText page; nothing is included from other files."""
    import docutils.core
    import docutils.nodes as kinds

    settings = {
        "file_insertion_enabled": False, "raw_enabled": False, "report_level": 5, "halt_level": 5,
        "_disable_config": True, "line_length_limit": 20_000, "warning_stream": False,
    }  # fmt: skip
    document = docutils.core.publish_doctree(text, settings_overrides=settings)
    sections, shell = _Sections(), Shell(file)
    for node in document.findall():
        line = _line(node)
        if isinstance(node, kinds.title):
            sections.enter(_depth(node), node.astext())
        elif isinstance(node, kinds.literal_block):
            languages = [name for name in node.get("classes", ()) if name != "code"]
            if all(name in _SHELL for name in languages):
                shell.optional = sections.optional
                lines = node.rawsource.count("\n") if languages == [] else node.astext().count("\n")
                yield from shell.read(node.astext(), max(1, line - lines))
        elif isinstance(node, kinds.literal) and _COMMAND.match(node.astext()):
            shell.optional = sections.optional
            yield from _of_sentence(shell, node.astext(), line, node.parent.astext() if node.parent else "")
        elif isinstance(node, kinds.paragraph) and sections.setup:
            for statement in prose.facts(node.astext(), file, line):
                yield replace(statement, optional=statement.optional or sections.optional)


def _line(node: nodes.Node) -> int:
    current: nodes.Node | None = node
    while current is not None:
        if current.line:
            return int(current.line)
        current = current.parent
    return 1


def _depth(node: nodes.Node) -> int:
    depth, current = 0, node.parent
    while current is not None:
        depth, current = depth + 1, current.parent
    return depth
