"""Runs one command line and turns every failure into a coded error with its exit code."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import signal
import sys
import threading
from difflib import get_close_matches
from types import FrameType

import click

from envbuild.cli.output import drop_broken_streams, drop_lost_terminal, print_error, print_error_json, print_traceback
from envbuild.cli.verbs import cli
from envbuild.errors import TRACEBACK_KEPT, EnvbuildError, ExitCode

_interrupt, _end = threading.Event(), threading.Event()


def run(arguments: list[str]) -> int:
    """Run and return the exit code; no traceback without `--verbose`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
            stream.reconfigure(errors="replace")  # a locale of few characters: `?` for the others, and no failure
    _end.clear()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):  # `nohup` has the second ignored
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _terminate)
    try:
        code = _run(arguments)
        return ExitCode.TERMINATED if code == ExitCode.INTERRUPTED and _end.is_set() else code
    finally:
        # Here, not at the exit of the interpreter: an interrupted process skips that.
        connections = sys.modules.get("envbuild.transport.ssh_config")
        if connections is not None:
            connections.close()


def _run(arguments: list[str]) -> int:
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    as_json = "--json" in ours
    verbose = any(word == "--verbose" or re.fullmatch("-q?v+q?", word) for word in ours)
    try:
        result = cli.main(args=arguments, prog_name="envbuild", standalone_mode=False)
    except EnvbuildError as error:
        return _report(error, as_json=as_json, verbose=verbose)
    except click.UsageError as error:
        # A group without a command; click before 8.2 shows its help itself.
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            sys.stderr.write(f"{error.format_message()}\n")
            return ExitCode.USAGE
        return _report(_usage(error, arguments), as_json=as_json, verbose=verbose)
    except click.ClickException as error:
        return _report(EnvbuildError("usage", error.format_message()), as_json=as_json, verbose=verbose)
    except (KeyboardInterrupt, click.Abort) as error:
        # Of an interrupt at a question click hides the cause, of any other it names it.
        asked = isinstance(error, click.Abort) and error.__cause__ is None
        goes_on = "asks again" if asked else "continues where this one stopped"
        sys.stderr.write(f"\ninterrupted; the same command {goes_on}\n")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout went away (`| head`); Python would complain again while flushing at exit.
        drop_broken_streams()
        return ExitCode.OK
    except Exception as error:  # noqa: BLE001 - the outermost boundary: nothing may escape as a bare traceback
        internal = EnvbuildError.unexpected("this command failed", error)
        kept = (note for note in getattr(error, "__notes__", ()) if note.startswith(TRACEBACK_KEPT))
        internal.hint = next(kept, internal.hint)
        return _report(internal, as_json=as_json, verbose=verbose)
    return int(result) if isinstance(result, int) else ExitCode.OK


# An option that a command, or any, does not have -> what to type: its new name, or what does the same.
_OPTIONS = {
    **dict.fromkeys([("bench", "--facts"), ("strategy", "--facts")], "--dry-run"),
    **dict.fromkeys([("doctor", "--deadline"), ("verify", "--deadline")], "--node-timeout"),
    ("provision", "--deadline"): "--step-timeout",
    ("bench", "--deadline"): "--run-timeout",
    ("launch", "--dry-run"): "--print-script",
    ("strategy", "--deadline"): "--budget",
    **dict.fromkeys([("init", "--target"), ("init", "-t")], "--extends"),
    ("", "--no-locked"): "--frozen",
    ("", "--jobs"): "--compile-jobs",
    ("", "--connection"): "--ansible",
    ("", "--out"): "--output",
}
# An option that a command, or any, has no use for -> why.
_NEEDLESS = {
    ("plan", "--dry-run"): "a plan builds nothing",
    ("", "--facts"): "`envbuild plan --facts FILE|NAME` decides for recorded nodes",
    ("", "--job-name"): "envbuild names its jobs, as `envbuild-provision`",
    ("", "--profile"): "`envbuild explain STACK --profile NAME` compares a profile with the document",
    ("", "--yes"): "this command asks for no confirmation",
}
# sbatch's short options, where a command has none of that letter.
_SBATCH = {"-A": "--account", "-C": "--constraints", "-G": "--gpus", "-J": "--job-name", "-N": "--nodes",
           "-p": "--partition"}  # fmt: skip


def _of_targets(option: str, likeness: float) -> str:
    """What to write in a target file for an option that a command lacks; empty where targets do not say it either.

    `likeness`: of its name and the key, 1 for the same.
    """
    from envbuild.model.target import Scheduler, Target

    key = option.lstrip("-").replace("-", "_")
    (key,) = get_close_matches(key, [*Target.hints, *Scheduler.model_fields], 1, cutoff=likeness) or [""]
    return Target.hints.get(key) or (f"`scheduler: {{{key}: …}}`" if key in Scheduler.model_fields else "")


def _usage(error: click.UsageError, arguments: list[str]) -> EnvbuildError:
    """The error for a command line that click refuses."""
    path, says = error.ctx.command_path if error.ctx else "envbuild", error.format_message()
    if isinstance(error, click.NoSuchOption) and error.ctx and isinstance(error.ctx.command, click.Group):
        own, commands = path.split(), error.ctx.command.list_commands(error.ctx)
        typed = arguments[len(own) - 1 :]
        begin = next((place for place, word in enumerate(typed) if word in commands), None)
        if begin is None:
            return EnvbuildError("usage", says, hint=f"see `{path} --help`; options stand behind a command")
        line = shlex.join([*own, *typed[begin:], *typed[:begin]])
        return EnvbuildError("usage", f"{error.option_name} stands before the command", hint=f"write `{line}`")
    if isinstance(error, click.NoSuchOption):
        name, verb = _SBATCH.get(error.option_name, error.option_name), path.rpartition(" ")[2]
        new = _OPTIONS.get((verb, name)) or _OPTIONS.get(("", name))
        params = error.ctx.command.params if error.ctx else []
        if takes := next((param for param in params if new in param.opts), None):
            says = getattr(takes, "help", "")
            hint = (
                f"leave {name} out; {new} does without"
                if new in arguments
                else f"write {new} instead of {name}: {says}"
            )
            return EnvbuildError("usage", f"{name} is no option of `{path}`", hint=hint)
        if why := _NEEDLESS.get((verb, name)) or _NEEDLESS.get(("", name)):
            return EnvbuildError("usage", f"{name} is no option of `{path}`", hint=f"leave {name} out: {why}")
        # click also guesses what resembles the option only a little.
        known = [option for param in params for option in param.opts]
        holding = [option for option in known if name.lstrip("-") in option.split("-")]
        near = get_close_matches(name, known, 1, cutoff=0.75) or holding
        if not holding and (line := _of_targets(name, 1.0 if near else 0.8)):
            there = f"in the target file, write {line}; `envbuild init FILE` writes such a file"
            new = f"leave {name} out, and write {line} into the new file; without `--yes`, most keys are asked"
            what = f"{name} is a matter of the target"
            return EnvbuildError("usage", what, hint=there if path != "envbuild init" else new)
        says = f"{error.message} Did you mean '{near[0]}'?" if near else error.message
    if match := re.fullmatch(r"Got unexpected extra arguments? \((.+)\)", says):
        takes_target = error.ctx and any("--target" in param.opts for param in error.ctx.command.params)
        if takes_target and (files := [word for word in match[1].split() if word.endswith((".yaml", ".yml"))]):
            return EnvbuildError("usage", says, hint=f"a target file is given as `--target {files[0]}`")
    if path == "envbuild lock diff" and not isinstance(error, click.NoSuchOption):
        hint = "give two lock files; `envbuild explain STACK --profile NAME` compares a profile with the document"
        return EnvbuildError("usage", says, hint=hint)
    lacks = error.param.name if isinstance(error, click.MissingParameter) and error.param else ""
    stacks = "`envbuild stack list` names those that are shipped; " if lacks == "stack" else ""
    return EnvbuildError("usage", says, hint=f"{stacks}see `{path} --help`")


def _report(error: EnvbuildError, *, as_json: bool, verbose: bool) -> int:
    # A mistake of the user's has no cause: its sentence says all.
    caused = verbose and error.__cause__ is not None
    printers = ((caused, print_traceback), (as_json, print_error_json), (True, print_error))
    for show in (show for wanted, show in printers if wanted):
        drop_broken_streams()
        # Where nobody reads what is said, the exit code still says it.
        with contextlib.suppress(OSError):
            show(error)
    drop_broken_streams()
    return int(error.exit_code)


def watch_interrupts() -> None:
    """Remember SIGINT from now on, besides raising KeyboardInterrupt as ever; main thread only, harmless elsewhere.

    Python loses an interrupt that arrives where nothing can be raised (a finalizer, a callback).
    """
    _interrupt.clear()
    ours = threading.current_thread() is threading.main_thread()
    # A caller that ignores SIGINT (nohup, a shell's background job) keeps it ignored.
    if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _remember)


def interrupted() -> bool:
    """Whether a SIGINT has come since."""
    return _interrupt.is_set()


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM, or SIGHUP of a lost terminal: an interrupt with an exit code of its own, for who takes care of those."""
    _end.set()
    if number == signal.SIGHUP:
        drop_lost_terminal()
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


def _remember(number: int, frame: FrameType | None) -> None:
    _interrupt.set()
    signal.default_int_handler(number, frame)
