"""Evidence -> evidence.json, report.html and report.md; and evidence read back.

The HTML page stands alone: no script, no font, no image, nothing fetched, and a policy in it that forbids all of them.
"""

from __future__ import annotations

import functools
import json
import os
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, get_args

from envbuild.errors import EnvbuildError
from envbuild.model.evidence import EVIDENCE_VERSION, Evidence
from envbuild.redact import redact_data
from envbuild.report import equality, verdict, view
from envbuild.report.text import markdown_block, markdown_code, markdown_text, visible_data

if TYPE_CHECKING:
    import jinja2

EVIDENCE_LIMIT = 256 * 1024 * 1024


def write_report(evidence: Evidence, directory: Path, *, pages: bool = True) -> dict[str, Path]:
    """Write the three files into `directory` (made when missing); `{"json": …, "html": …, "md": …}`.

    Without `pages` only the evidence; `envbuild report show` renders the rest from it at any time.
    Each file appears whole or not at all. Secrets are redacted first. Raises EnvbuildError `report-not-written`.
    """
    clean = Evidence.from_plain(redact_data(evidence.to_json_dict()))
    texts = {"json": ("evidence.json", render_json(clean))}
    if pages:
        texts["html"] = ("report.html", render_html(clean))
        texts["md"] = ("report.md", render_markdown(clean))
    paths = {}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for form, (name, text) in texts.items():
            paths[form] = directory / name
            partial = directory / f".{name}.{os.getpid()}"
            partial.write_text(text, encoding="utf-8")
            partial.replace(paths[form])
    except OSError as error:
        raise EnvbuildError(
            "report-not-written",
            f"the report could not be written to {directory}",
            why=str(error),
            hint="make the directory writable, or free some space",
        ) from error
    return paths


def render_json(evidence: Evidence) -> str:
    """Evidence as JSON in ASCII, so that no character in it can act on a terminal."""
    return json.dumps(evidence.to_json_dict(), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def render_html(evidence: Evidence) -> str:
    """One self-contained HTML page."""
    return _templates().get_template("report.html.j2").render(view=view.make_view(harmless(evidence)))


def render_markdown(evidence: Evidence) -> str:
    """The same report as GitHub-flavoured Markdown."""
    return _templates().get_template("report.md.j2").render(view=view.make_view(harmless(evidence)))


def harmless(evidence: Evidence) -> Evidence:
    """The same evidence redacted, with control, BiDi and invisible characters written out."""
    return Evidence.from_plain(visible_data(redact_data(evidence.to_json_dict())))


@functools.cache
def _templates() -> jinja2.Environment:
    import jinja2

    package = resources.files("envbuild.report") / "templates"
    names = ("report.html.j2", "report.md.j2")
    texts = {name: (package / name).read_text(encoding="utf-8") for name in names}
    templates = jinja2.Environment(
        loader=jinja2.DictLoader(texts),
        autoescape=jinja2.select_autoescape(("html.j2",), default_for_string=True),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for function in (
        view.number,
        view.seconds,
        view.gibibytes,
        verdict.plural,
        view.below_floor,
        view.failures,
        view.output,
        view.field,
    ):
        templates.filters[function.__name__] = function
    templates.filters["names"] = equality.names
    templates.filters.update(md=markdown_text, code=markdown_code, block=markdown_block, details=view.details)
    templates.globals.update(marks=view.MARKS, node_marks=view.NODE_MARKS)
    return templates


def load_evidence(path: Path) -> Evidence:
    """Read an evidence file strictly.

    Raises EnvbuildError `evidence-missing`, `evidence-invalid`, or `evidence-version` for another schema version.
    """
    from pydantic import ValidationError

    try:
        if path.stat().st_size > EVIDENCE_LIMIT:
            raise _invalid(path, f"it is larger than {EVIDENCE_LIMIT:,} bytes")
        data = json.loads(path.read_bytes(), parse_constant=_no_constant)
    except OSError as error:
        raise EnvbuildError(
            "evidence-missing", f"cannot read {path}", why=str(error), hint="`envbuild run list` names the runs"
        ) from error
    except (ValueError, RecursionError) as error:
        raise _invalid(path, f"it is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise _invalid(path, "it is not a JSON object")
    _check_version(path, data.get("schema_version"))
    if "ansible_tasks" in data:  # as 1.0 calls them
        data["steps_run"] = data.pop("ansible_tasks")
    try:
        return Evidence.from_plain(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _invalid(path, f"{where}: {first['msg']} (and {error.error_count() - 1} more)") from error


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _invalid(path: Path, why: str) -> EnvbuildError:
    return EnvbuildError(
        "evidence-invalid", f"{path} is not evidence", why=why, hint="give the evidence.json of a run directory"
    )


def _check_version(path: Path, version: object) -> None:
    if version in get_args(Evidence.model_fields["schema_version"].annotation):
        return
    raise EnvbuildError(
        "evidence-version",
        f"{path} has evidence schema {str(version)[:40]!r}",
        why=f"this envbuild reads schema {EVIDENCE_VERSION}; another number may mean something else",
        hint="use the envbuild version that wrote it (the field `envbuild` says which)",
    )
