"""Evidence -> evidence.json, report.html and report.md.

The HTML page stands alone: nothing in it runs or is fetched, a policy in it forbids both, and it carries the evidence.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.errors import EnvbuildError, writing
from envbuild.hostlist import fold_hosts
from envbuild.model.common import LEFT_OUT
from envbuild.model.evidence import Evidence
from envbuild.node import paths
from envbuild.node.redact import redact_data
from envbuild.report import equality, evidence_file, sources, tables, view
from envbuild.report.view import View
from envbuild.text import number, plural, visible, visible_data

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup


_MARKDOWN = re.compile(r"([\\`*_\[\]|~#$])")
_JOINTS = re.compile(r"([/_,])(?=\w)")
_BACKTICKS = re.compile(r"`+")


def breakable(name: object) -> Markup:
    """`name` as HTML that a narrow column may break after `/`, `_` and `,` and not in a word."""
    from markupsafe import Markup, escape

    return Markup(_JOINTS.sub(r"\1<wbr>", str(escape(name))))  # noqa: S704


def codes(sentence: object) -> Markup:
    """A sentence as HTML in which only `code` between backticks is markup."""
    from markupsafe import Markup, escape

    parts = [escape(part) for part in str(sentence).split("`")]
    if len(parts) % 2 == 0:
        return escape(sentence)
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


def markdown_text(value: object) -> str:
    """`value` as inline Markdown prose that contains no markup, HTML, mention or link of its own."""
    text = _MARKDOWN.sub(r"\\\1", visible(str(value)))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")
    return text.replace("://", "&#58;//").replace("www.", "www&#46;") or "–"


def markdown_sentence(value: object) -> str:
    """`value` as inline Markdown in which only `code` between backticks is markup."""
    parts = str(value).split("`")
    if len(parts) % 2 == 0:
        return markdown_text(value)
    spans = [(markdown_code if n % 2 else markdown_text)(part) for n, part in enumerate(parts) if part]
    return "".join(spans) or "–"


def markdown_code(value: object) -> str:
    """`value` as a Markdown code span that cannot be left from inside, also in a table cell."""
    text = visible(str(value))
    if not text.strip():
        return "–"
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest or text[0] == " " or text[-1] == " " else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


def markdown_block(text: str, language: str = "text") -> str:
    """Several lines as a fenced block that cannot be left from inside; `language` is a word of ours, for colours."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{visible(text, keep_newlines=True)}\n{fence}"


def write_report(evidence: Evidence, directory: Path, *, pages: bool = True) -> dict[str, Path]:
    """Write the three files into `directory` (made when missing); `{"json": …, "html": …, "md": …}`.

    Without `pages` only the evidence; `envbuild report show` renders the rest from it at any time.
    Each file appears whole or not at all. Secrets are redacted first. Raises EnvbuildError `output-unwritable`.
    """
    clean = Evidence.from_plain(redact_data(evidence.to_json_dict()))
    text = render_json(clean).encode()
    files = report_files(clean, text) if pages else {"evidence.json": text}
    write_whole(directory, files)
    return {name.rpartition(".")[2]: directory / name for name in files}


def report_files(evidence: Evidence, text: bytes, signature: bytes | None = None) -> dict[str, bytes]:
    """What lies in the folder of a report, by name: `text`, the evidence as bytes, its signature, and both pages."""
    html, markdown = render_html(evidence, text, signature), render_markdown(evidence)
    signed = {} if signature is None else {evidence_file.SIGNATURE: signature}
    return {"evidence.json": text, **signed, "report.html": html.encode(), "report.md": markdown.encode()}


def write_whole(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` (path below `directory` to contents), each whole or not at all.

    Raises EnvbuildError `output-unwritable`.
    """
    with writing(directory):
        for name, data in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            paths.write_whole(str(path), data)


def write_new(output: Path, contents: Mapping[str, bytes] | bytes) -> None:
    """Write a folder (path below it to contents) or a file that is not there yet, all of it or nothing.

    Raises EnvbuildError `output-exists` (exit 2) and `output-unwritable`.
    """
    if os.path.lexists(output):
        raise EnvbuildError("output-exists", f"{output} is there", hint="remove it, or name another with --output")
    if isinstance(contents, bytes):
        write_whole(output.parent, {output.name: contents})
        return
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        write_whole(partial, contents)
        with writing(output):
            partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def render_json(evidence: Evidence) -> str:
    """Evidence as one line of JSON in ASCII without markup: no character in it can act on a terminal or in the page."""
    text = json.dumps(evidence.to_json_dict(), separators=(",", ":"), ensure_ascii=True, allow_nan=False) + "\n"
    return evidence_file.embeddable(text.encode()).decode()


def render_html(evidence: Evidence, text: bytes | None = None, signature: bytes | None = None) -> str:
    """One self-contained HTML page. It carries `text`, the bytes that the evidence was read from, and its signature."""
    from markupsafe import Markup

    parts = {"evidence": evidence_file.block(text or render_json(evidence).encode())}
    parts |= {"signature": evidence_file.block(signature, evidence_file.TEXT)} if signature is not None else {}
    carried = {name: (form, Markup(inside)) for name, (form, inside) in parts.items()}  # noqa: S704
    return template("report.html.j2").render(view=shown(evidence), style=style(), carried=carried)


def render_markdown(evidence: Evidence) -> str:
    """The same report as GitHub-flavoured Markdown."""
    return template("report.md.j2").render(view=shown(evidence))


def template(name: str) -> jinja2.Template:
    """A template of this package, which escapes what it is given."""
    return _templates().get_template(name)


def style() -> str:
    """The style sheet of all pages."""
    return (resources.files("envbuild.report") / "templates" / "style.css").read_text(encoding="utf-8")


_last: list[tuple[Evidence, View]] = []


def shown(evidence: Evidence) -> View:
    """The view of cleaned evidence, cached for the next format, because cleaning a large run takes most of the time."""
    kept = next((view for one, view in _last if one is evidence), None)
    if kept is None:
        kept = View(harmless(evidence))
        _last[:] = [(evidence, kept)]
    return kept


def harmless(evidence: Evidence) -> Evidence:
    """The same evidence redacted, with control, BiDi and invisible characters written out."""
    return Evidence.from_plain(visible_data(redact_data(evidence.to_json_dict())))


@functools.cache
def _templates() -> jinja2.Environment:
    import jinja2

    package = resources.files("envbuild.report") / "templates"
    templates = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (package / name).read_text(encoding="utf-8")),
        autoescape=jinja2.select_autoescape(("html.j2",), default_for_string=True),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = (number, plural, tables.seconds, tables.gibibytes, tables.below_floor, tables.figure, view.failures,
               view.output, sources.field, view.details, equality.names, breakable, codes)  # fmt: skip
    templates.filters.update({function.__name__: function for function in filters}, hosts=fold_hosts)
    templates.filters.update(md=markdown_text, sentence=markdown_sentence, code=markdown_code, block=markdown_block)
    templates.globals.update(mark=view.mark, node_marks=view.NODE_MARKS, left_out=LEFT_OUT)
    return templates
