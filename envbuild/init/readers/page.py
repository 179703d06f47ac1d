"""Setup pages in Markdown and reStructuredText: shell blocks, inline commands, versions in prose and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from envbuild.init.readers import images, manifests, prose
from envbuild.init.readers.shell import Shell
from envbuild.init.statement import Place, Statement, quoted

if TYPE_CHECKING:
    from docutils import nodes
    from markdown_it.token import Token

_SHELL = frozenset(
    ("bash", "bashs", "sh", "shell", "shellscript", "console", "zsh", "shell-session", "bat", "terminal")
)
# Blocks of these languages are often commands all the same; then their first line is one.
_PERHAPS = frozenset(
    ("", "text", "txt", "none", "cmd", "plain", "plaintext", "python", "py", "python3", "code", "pycon")
)
_STARTS = re.compile(
    r"\s*(?:[$>%!]\s*)?(?:[A-Z_]+=\S+\s+)*(?:sudo|pip3?|python3?|conda|mamba|micromamba|uv|git|apt-get|apt|export|wget|curl|"
    r"sh|bash|source|cd|pushd|mkdir|make|module|ml|poetry|pipenv|pdm|pixi|hatch|docker|singularity|apptainer|torchrun|"
    r"accelerate|deepspeed|srun|sbatch|qsub|spack|brew|echo|CUDA_\w+=\S*)\s+\S"
)
# Prose that says versions outside of setup sections: `requires torch 2.0`, `(Python 3.10+)`.
_SPEAKS = re.compile(
    r"tested|requires?\b|required|python\s*(?:[>≥]=?\s*)?3\.\d+\s*(?:\+|or (?:newer|later|above|higher))", re.I
)
_COMMAND = re.compile(
    r"\s*(?:\$\s*|!|sudo\s+)?(?:python3?\s+-m\s+)?(?:pip3?|conda|mamba|mim|uv|git|apt-get|apt|export|python3?|wget|sh|bash|"
    r"(?:huggingface-cli|wandb|hf)(?=\s+(?:auth\s+)?login))\s+\S"
)
_LISTED = re.compile(r"(?:[A-Za-z][\w.-]*(?:\[[\w,-]+\])?\s*(?:==|>=|~=|<=)\s*[0-9][\w.*+!]*[ \t]*(?:#.*)?(?:\n|$))+")
# Sections that speak of other systems, other ways or other times.
_ASIDE = re.compile(
    r"\b(mac ?os|osx|windows|wsl|docker|container|rocm|amd|ascend|npu|tpu|cpu[- ]only|jetson|colab|faq|trouble|"
    r"known issue|develop|contribut|deprecat|older|previous|legacy|alternative|optional|unit tests?|testing|"
    r"changelog|news|citation|acknowledg|licen[cs]e|demo|option (?:[2-9]|b)\b|method (?:[2-9]|b)\b)",
    re.IGNORECASE,
)
_SETUP = re.compile(
    r"\b(install|requirement|setup|set up|getting started|prerequisite|dependenc|environment|quick ?start|usage)",
    re.IGNORECASE,
)
_PLAINLY_SETUP = re.compile(r"\W*(installation|install|requirements|setup|getting started)\W*", re.IGNORECASE)


class _Sections:
    """The headings above a place; in a section for other purposes everything is optional."""

    def __init__(self) -> None:
        self.levels: list[tuple[int, str]] = []
        self.lead = ""  # the paragraph that stands last

    def enter(self, level: int, title: str) -> None:
        """A heading."""
        self.levels = [(depth, text) for depth, text in self.levels if depth < level] + [(level, title)]
        self.lead = ""

    @property
    def is_alternative(self) -> bool:
        """Whether the sentence before a block offers it instead of another one."""
        return bool(re.match(r"\W*(?:or|alternatively|otherwise|instead)\b", self.lead, re.IGNORECASE))

    @property
    def optional(self) -> bool:
        """Whether what stands here is not the way that the page takes."""
        titles = [title for _, title in self.levels]
        return any(_ASIDE.search(title) for title in titles[1:] or titles if not _PLAINLY_SETUP.fullmatch(title))

    @property
    def setup(self) -> bool:
        """Whether a heading speaks of installation."""
        return any(_SETUP.search(title) for _, title in self.levels)


def markdown(text: str, file: str) -> Iterator[Statement]:
    """The statements of a Markdown page; HTML in it is passed over."""
    yield from _one_way(_markdown(text, file))


def _markdown(text: str, file: str) -> Iterator[Statement]:
    from markdown_it import MarkdownIt

    sections, shell = _Sections(), Shell(file, session=True)
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    heading, cells, header = 0, list[str](), list[str]()
    for token in tokens:
        line = (token.map[0] if token.map else 0) + 1
        if token.type == "heading_open":
            heading = int(token.tag[1:])
        elif token.type == "inline" and heading:
            sections.enter(heading, token.content)
            heading = 0
        elif token.type in ("fence", "code_block"):
            first = line + (token.type == "fence")
            info = token.info.strip().lower().strip("{}") if token.type == "fence" else ""
            language = re.split(r"[\s{,:]", info)[0]
            yield from _block(shell, sections, token.content, language, first, 5 if token.type == "code_block" else 1)
        elif token.type == "thead_open":
            header, cells = [], []
        elif token.type == "tr_open":
            cells, row = [], line
        elif token.type == "thead_close":
            header = cells
        elif token.type == "tr_close" and sections.setup:
            yield from _facts(sections, _row(header, cells), file, row)
        elif token.type == "inline":
            cells.append(token.content)
            sections.lead = token.content
            yield from _inline(shell, sections, token, line)


def _row(header: list[str], cells: list[str]) -> str:
    """A row of a table as running text: `| CUDA | 11.8 |`, or `11.8` below `CUDA`."""
    if not cells or re.search(r"[A-Za-z]{3}", cells[0]):
        return " ".join(cells)
    return ", ".join(f"{name} {cell}" for name, cell in zip(header, cells, strict=False))


def _block(
    shell: Shell, sections: _Sections, text: str, language: str, line: int, column: int = 1
) -> Iterator[Statement]:
    """A block of code: commands, or a file that the page shows."""
    offered = bool(re.match(r"\W*optionally\b", sections.lead, re.IGNORECASE))
    shell.optional = sections.optional or sections.is_alternative or offered
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    if re.match(r"FROM \S+", first):
        yield from _shown(images.dockerfile(text, shell.file), line, optional=sections.optional)
    elif re.search(r"^dependencies:", text, re.MULTILINE):
        yield from _shown(manifests.environment_yml(text, shell.file), line, optional=shell.optional)
    elif language in _SHELL or (language in _PERHAPS and _STARTS.match(first)):
        other = {"alternative": "way"} if sections.is_alternative and not sections.optional else {}
        yield from (
            replace(statement, options=dict(statement.options) | other) for statement in shell.read(text, line, column)
        )
        for number, comment in enumerate(text.splitlines()):
            if comment.lstrip().startswith("#") and not shell.optional:
                yield from prose.edits(comment, shell.file, line + number)
    elif language in ("yaml", "yml"):
        for number, shown in enumerate(text.splitlines()):
            if match := re.match(r"[\s-]*(?:\w*image|image\w*):\s*[\"']?([\w./-]+:[\w.-]+)", shown, re.IGNORECASE):
                yield from images.image_facts(match[1], Place(shell.file, line + number), quoted(shown.strip()))
    elif language in _PERHAPS and sections.setup and _LISTED.fullmatch(text.strip()):
        yield from _shown(manifests.requirements(text, shell.file), line, optional=shell.optional)


def _shown(statements: Iterator[Statement], line: int, *, optional: bool) -> Iterator[Statement]:
    """Statements of a file that stands in a block of a page which begins at `line`."""
    for statement in statements:
        place = replace(statement.place, line=statement.place.line + line - 1)
        yield replace(statement, place=place, optional=statement.optional or optional)


def _one_way(statements: Iterator[Statement]) -> Iterator[Statement]:
    """Of several commands that install torch at differing versions or flavours a page means one; it is the first."""
    listed = list(statements)
    torch: dict[int, str] = {}
    for statement in listed:
        if (
            not statement.optional
            and statement.kind in ("package", "conda")
            and re.match(r"(?:py)?torch[=<>~]=?", statement.value)
        ):
            torch.setdefault(statement.place.line, statement.text)
    ways = {line: text for line, text in torch.items() if text != next(iter(torch.values()), "")}
    for statement in listed:
        if statement.place.line in ways and not statement.optional and statement.via != "prose":
            yield replace(statement, optional=True, options=dict(statement.options) | {"alternative": "torch"})
        else:
            yield statement


def _facts(sections: _Sections, text: str, file: str, line: int) -> Iterator[Statement]:
    for statement in prose.facts(text, file, line):
        yield replace(statement, optional=statement.optional or sections.optional)


def _inline(shell: Shell, sections: _Sections, token: Token, line: int) -> Iterator[Statement]:
    shell.optional = sections.optional
    here = line
    for child in token.children or ():
        here += child.type in ("softbreak", "hardbreak")
        if child.type == "code_inline" and _COMMAND.match(child.content):
            yield from _of_sentence(shell, child.content, here, token.content)
    if sections.setup or _SPEAKS.search(token.content):
        yield from _facts(sections, token.content, shell.file, line)
    if sections.setup and not sections.optional:
        yield from prose.packages(token.content, shell.file, line)
    if not sections.optional:
        yield from prose.edits(token.content, shell.file, line)


def _of_sentence(shell: Shell, command: str, line: int, sentence: str) -> Iterator[Statement]:
    """A command inside a sentence. It is optional if the sentence calls it optional."""
    offered = bool(
        re.search(
            r"\b(optional|if you|alternatively|for large|to run|you can|might|instead)\b", sentence, re.IGNORECASE
        )
    )
    for statement in shell.read(command, line):
        if statement.kind not in ("run", "unknown", "trait", "environment") or statement.value in (
            "shell-slip",
            "interactive",
        ):
            place = Place(shell.file, statement.place.line)
            extra = {"offered": "yes"} if offered else {}
            yield replace(statement, place=place, options=dict(statement.options) | extra)


def restructured(text: str, file: str) -> Iterator[Statement]:
    """The statements of a reStructuredText page; nothing is included from other files."""
    yield from _one_way(_restructured(text, file))


def _restructured(text: str, file: str) -> Iterator[Statement]:
    import docutils.core
    import docutils.nodes as kinds

    settings = {
        "file_insertion_enabled": False, "raw_enabled": False, "report_level": 5, "halt_level": 5,
        "_disable_config": True, "line_length_limit": 20_000, "warning_stream": False,
    }  # fmt: skip
    document = docutils.core.publish_doctree(text, settings_overrides=settings)
    sections, shell = _Sections(), Shell(file, session=True)
    for node in document.findall():
        line = _line(node)
        if isinstance(node, kinds.title):
            sections.enter(_depth(node), node.astext())
        elif isinstance(node, kinds.literal_block):
            language = next((name for name in node.get("classes", ()) if name != "code"), "")
            lines = node.astext().count("\n") if language else node.rawsource.count("\n")
            yield from _block(shell, sections, node.astext(), language, max(1, line - lines))
        elif isinstance(node, kinds.literal) and _COMMAND.match(node.astext()):
            shell.optional = sections.optional
            yield from _of_sentence(shell, node.astext(), line, node.parent.astext() if node.parent else "")
        elif isinstance(node, kinds.row) and sections.setup:
            yield from _facts(sections, " ".join(entry.astext() for entry in node.children), file, line)
        elif isinstance(node, kinds.paragraph):
            sections.lead = node.astext()
            if sections.setup:
                yield from _facts(sections, node.astext(), file, line)
                if not sections.optional:
                    yield from prose.packages(node.astext(), file, line)


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
