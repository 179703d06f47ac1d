"""The `envbuild` command: version fast path, lazy verbs, and the one place where errors become exit codes."""

from __future__ import annotations

import gc
import os
import sys

from envbuild import __version__

_INTERRUPTED = (130, 143)
_COMPLETE = "_ENVBUILD_COMPLETE"


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the documented exit code."""
    _open_closed_streams()
    arguments = sys.argv[1:] if argv is None else argv
    # `--version` is asked by scripts in loops; it needs neither click nor anything else.
    if arguments in (["--version"], ["-V"], ["version"]):
        sys.stdout.write(f"envbuild {__version__}\n")
        return 0
    if not arguments and _COMPLETE not in os.environ:
        return _alone()
    # Modules and the facts of a thousand nodes are no garbage: looking for some takes a tenth of `plan`.
    gc.set_threshold(500_000)
    import signal

    interrupt = signal.getsignal(signal.SIGINT)
    if argv is None and interrupt is signal.default_int_handler:
        # An interrupt while all is imported ends the process without a traceback: nothing has begun.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Else pydantic would run whatever is installed and calls itself its plugin.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if _COMPLETE in os.environ:
        return _completed(os.environ[_COMPLETE])
    from envbuild.cli.run import run

    if argv is None:
        signal.signal(signal.SIGINT, interrupt)
    code = run(arguments)
    if argv is None and (code in _INTERRUPTED or "rattler" in sys.modules):
        # Python ends itself by SIGINT, without the exit code, when an interrupt came while it evaluated a text; and
        # threads of rattler that are about to end can crash an interpreter that finalizes.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if argv is None:
        # Otherwise Python looks through all objects when it ends: a sixth of the CPU time of `plan`.
        gc.freeze()
    return code


def _open_closed_streams() -> None:
    """What the caller has closed (`>&-`) is the null device: else the next file that is opened takes its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))


def _alone() -> int:
    from envbuild.cli import begin
    from envbuild.errors import EnvbuildError

    try:
        sys.stdout.write(begin.text())
    except EnvbuildError as error:  # of a file of the configuration
        from envbuild.cli.output import print_error

        print_error(error)
        return int(error.exit_code)
    return 0


def _completed(instruction: str) -> int:
    """Answer the tab key of a shell; what is wrong, a file that cannot be read, must not write into the line."""
    from click.shell_completion import shell_complete

    from envbuild.cli.verbs import cli

    try:
        return shell_complete(cli, {}, "envbuild", _COMPLETE, instruction)
    except Exception:  # noqa: BLE001 - as the docstring says
        return 1
