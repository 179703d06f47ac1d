"""How commands speak: results on stdout, everything else on stderr, JSON on request.

Every command takes `common_options` and gets a `Ui` as its first argument.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import shutil
import sys
import termios
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TextIO, TypeVar, cast

import click

from envbuild.cli import names
from envbuild.config import load_config
from envbuild.errors import EnvbuildError, ExitCode, exit_of
from envbuild.node.read_text import integer
from envbuild.node.redact import redact_data, redact_text
from envbuild.text import COPIED, first_hint, grouped, plural, visible

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
R = TypeVar("R")

JSON_SCHEMA = 1
# Errors that are often those of the wrong machine: where no target was named, that comes first.
_OF_THE_MACHINE = frozenset({"environment-unknown", "launch-does-not-fit", "option-does-not-fit"})


class Ui(NamedTuple):
    """One command's voice. `json`: stdout carries one JSON document; `quiet`: no notes on stderr.

    `verbose`: reasons, what tools print, and tracebacks too. `colour` is what the configuration says; None: colour on
    terminals, unless NO_COLOR is set.
    """

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    colour: bool | None = None

    def result(
        self,
        data: dict[str, Any] | Callable[[], dict[str, Any]],
        human: Callable[[], str | list[tuple[str, str]]],
        *,
        verbatim: bool = False,
    ) -> None:
        """Print the result: `data` under `--json` (with its schema version), else what `human()` gives.

        That is text, or lines of (text, style). `data` that takes long to make comes as a function.
        `verbatim`: text for another program (a script, an export). All other is redacted, and then, on a terminal, its
        lines are broken between words, but for commands: no secret is broken before it is found.
        """
        if self.json:
            write_json(data() if callable(data) else data)
            return
        shown = human()
        if isinstance(shown, str):
            shown = shown if verbatim else fitted(_shown(shown), sys.stdout)
            sys.stdout.write(shown if shown.endswith("\n") or not shown else shown + "\n")
            return
        colour = self.colour
        if colour is None:
            colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        for line, style in shown:
            text = _shown(line) if style == COPIED else fitted(_shown(line), sys.stdout)
            sys.stdout.write((_styled(text, style) if colour and style else text) + "\n")

    def note(self, text: str) -> None:
        """What stands on stderr unless `--quiet`, redacted; on a terminal its lines are broken between words."""
        if not self.quiet:
            say(fitted(_shown(text), sys.stderr))

    def warn(self, text: str) -> None:
        """One warning line on stderr, also under `--quiet`."""
        say(fitted(f"warning: {_shown(text)}", sys.stderr))

    def exit_of(self, errors: Mapping[str, EnvbuildError]) -> ExitCode:
        """The one exit code for the errors of nodes; with `--verbose` their tracebacks on stderr."""
        if self.verbose:
            for error in errors.values():
                print_traceback(error)
        return exit_of(errors)

    def stderr_console(self) -> Console:
        """A rich console for progress and notes."""
        from rich.console import Console

        forced, plain = self.colour or None, True if self.colour is False else None
        return Console(stderr=True, highlight=False, quiet=self.quiet, force_terminal=forced, no_color=plain)


def write_json(data: dict[str, Any]) -> None:
    """One JSON document on stdout, redacted like every sink."""
    # Evidence names its own schema, and is read again as it is printed.
    head = {} if "schema_version" in data else {"schema": JSON_SCHEMA}
    document = {**head, **redact_data(data)}
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def common_options(function: Callable[Concatenate[Ui, P], R]) -> Callable[P, R]:
    """Add `--json`, `--quiet` and `--verbose`, and hand the command a `Ui`."""

    @click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
    @click.option("-q", "--quiet", is_flag=True, help="Print only results, warnings and errors.")
    @click.option("-v", "--verbose", is_flag=True, help="Show reasons, what the tools print, and tracebacks.")
    @functools.wraps(function)
    def wrapper(*args: Any, as_json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> R:

        config = load_config()
        colour = {"always": True, "never": False}.get(config.color)
        try:
            return function(Ui(as_json, quiet or config.quiet, verbose, colour), *args, **kwargs)
        except EnvbuildError as error:
            if error.code in _OF_THE_MACHINE and "target" in kwargs and not kwargs.get("run_here"):
                unnamed = names.unnamed_target(cast("str | None", kwargs["target"]), config)
                error.hint = first_hint(unnamed, error.hint)
            raise

    return cast(Callable[P, R], wrapper)


def say(text: str) -> None:
    """A line on stderr, after what stdout has; where its reader has gone away (`2>&1 | head`), work goes on unheard."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except BrokenPipeError:
        drop_broken_streams()


def drop_broken_streams() -> None:
    """Let stdout and stderr go where they cannot be written (no reader, a full disk): Python would complain at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def drop_lost_terminal() -> None:
    """Let what goes to a terminal that is gone go nowhere: what an interrupt has to do would fail at its first line."""
    for descriptor in (1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def print_error(error: EnvbuildError) -> None:
    """`error[code]: what` with its why and hint, on stderr; colour is never the only signal."""
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    parts = [(f"error[{error.code}]:", error.what, "bold red")]
    parts += [(label, text, "cyan") for label, text in (("why:", error.why), ("hint:", error.hint)) if text]
    lines = []
    for label, text, style in parts:
        # Colours come after the lines are broken: escapes take no room on them.
        line = fitted(_shown(f"{label} {text}"), sys.stderr)
        lines.append(line.replace(label, _styled(label, style), 1) if colour and line.startswith(label) else line)
    say("\n".join(lines))


def print_traceback(error: EnvbuildError) -> None:
    """Where its cause was raised, else the error itself: on stderr, redacted."""
    say(_shown("".join(traceback.format_exception(error.__cause__ or error))).rstrip())


def print_error_json(error: EnvbuildError) -> None:
    """The error as the one JSON document of a failed command."""
    write_json({"ok": False, "error": error.as_dict()})


def _styled(text: str, style: str) -> str:
    """ANSI for styles such as `bold green` and `dim`."""
    words = style.split()
    colours = [word for word in words if word not in ("bold", "dim")]
    bold, dim = ("bold" in words) or None, ("dim" in words) or None
    return click.style(text, fg=colours[0] if colours else None, bold=bold, dim=dim)


def _shown(text: str) -> str:
    """Redacted, and harmless to a terminal: the text may come from a node or a file."""
    return visible(redact_text(text), keep_newlines=True)


def fitted(text: str, stream: TextIO) -> str:
    """On a terminal its lines, broken between words; what goes on stands below the second column, or two further in.

    Elsewhere, and of words that are longer than a line, it is as it was.
    """
    width = shutil.get_terminal_size((0, 0)).columns if stream.isatty() else 0
    lines = []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip()) + 2
        column = re.match(r" *\S(?:\S| (?! ))*  +", line)
        if column and column.end() <= width // 2:
            indent = column.end()
        broken = len(line) > width > indent
        onward = "#" + " " * (indent + 1) if line.startswith("# ") else " " * indent
        lines += (
            textwrap.wrap(line, width, subsequent_indent=onward, break_long_words=False, break_on_hyphens=False)
            if broken
            else [line]
        )
    return "\n".join(lines)


_WIDEST = 100


def text_width() -> int:
    """Columns for running text, 100 at most: those of the terminal where stdout is one, or stderr beside a pager."""
    shown = next((stream for stream in (sys.stdout, sys.stderr) if stream.isatty()), None)
    if shown is None:
        return _WIDEST
    columns = os.environ.get("COLUMNS", "")
    wide = integer(columns) or os.get_terminal_size(shown.fileno()).columns
    return min(_WIDEST, wide or _WIDEST)


def comments_fitted(script: str, stream: TextIO) -> str:
    """`fitted` of the comments of a script; its commands stay as they are, to be copied."""
    return "\n".join(fitted(line, stream) if line.startswith("# ") else line for line in script.split("\n"))


def named(entries: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Names in a column, and beside each its texts, one below the other; on a terminal no line is longer than it."""
    width = shutil.get_terminal_size((0, 0)).columns
    column = max((len(name) for name, _ in entries), default=0) + 2
    lines = []
    for name, texts in entries:
        beside = column if not width or column <= width // 2 else 4
        wrapped = [
            part
            for text in texts
            for part in (textwrap.wrap(text, max(20, width - beside), break_on_hyphens=False) if width else [text])
        ]
        if beside < column:
            lines.append(name)
            name = ""
        lines += [f"{name if not index else '':{beside}}{part}" for index, part in enumerate(wrapped or [""])]
    return "\n".join(line.rstrip() for line in lines)


def columns(lines: Sequence[Sequence[str]], *, right: bool = False) -> str:
    """A table with its headings first; a column that is empty is left out. `right`: of numbers, which end alike.

    On a terminal that is too narrow the last cells of a line stand below the others.
    """
    kept = [place for place in range(len(lines[0])) if any(line[place] for line in lines[1:])]
    widths = [max(len(line[place]) for line in lines) for place in kept]
    width = shutil.get_terminal_size((0, 0)).columns if sys.stdout.isatty() else 0
    fit = len(kept)
    while width and fit > 1 and sum(widths[:fit]) + 2 * (fit - 1) > width:
        fit -= 1
    shown = []
    for line in lines:
        cells = [f"{line[place]:{'>' if right else '<'}{wide}}" for place, wide in zip(kept, widths, strict=True)]
        shown.append("  ".join(cells[:fit]).rstrip())
        shown += ["    " + "  ".join(cells[fit:]).rstrip()] if cells[fit:] else []
    return "\n".join(shown)


def each_checked(ui: Ui, noun: str, references: Sequence[str], load: Callable[[str], dict[str, Any]]) -> int:
    """Load each manifest: its name, whether it is a template, and warnings. `load` raises EnvbuildError.

    The exit code is that of the first refused one.
    """
    rows: list[dict[str, Any]] = []
    failed: EnvbuildError | None = None
    for reference in references:
        try:
            rows.append({noun: reference, "ok": True, **load(reference)})
            for text in rows[-1].get("warnings", ()):
                ui.warn(f"{reference}: {text}")
        except EnvbuildError as error:
            failed = failed or error
            print_error(error)
            rows.append({noun: reference, "ok": False, "error": error.as_dict()})
    ui.result({"ok": failed is None, f"{noun}s": rows}, lambda: "\n".join(f"{r[noun]}: {_verdict(r)}" for r in rows))
    return int(failed.exit_code) if failed else 0


def _verdict(row: Mapping[str, Any]) -> str:
    """What one of `each_checked` is."""
    if row.get("template"):
        return "a valid template: write a target that extends it, then check that"
    if warnings := row.get("warnings"):
        return f"valid, with {plural(len(warnings), 'warning')}"
    return "ok" if row["ok"] else "refused"


def failures(errors: Mapping[str, EnvbuildError]) -> list[str]:
    """A line for each place that could not be asked; below those that say the same, what helps the first."""
    lines = []
    for alike in grouped(errors, lambda where: errors[where].code).values():
        hint = errors[alike[0]].hint
        lines += [f"{where}: {errors[where]}" for where in alike]
        lines += [f"hint: {hint}"] if hint else []
    return lines
