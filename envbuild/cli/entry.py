"""The `envbuild` command: version fast path, lazy verbs, and the one place where errors become exit codes."""

from __future__ import annotations

import gc
import os
import sys

from envbuild import __version__

_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the documented exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    # `--version` is asked by scripts in loops; it needs neither click nor anything else.
    if arguments in (["--version"], ["-V"], ["version"]):
        sys.stdout.write(f"envbuild {__version__}\n")
        return 0
    # Nothing of what is imported is garbage, and looking for some after every 700 objects costs a twentieth of a run.
    gc.set_threshold(200_000)
    # Else pydantic reads the metadata of everything that is installed, and would run what calls itself its plugin.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from envbuild.cli.run import run

    code = run(arguments)
    if argv is None and (code == _INTERRUPTED or "rattler" in sys.modules):
        # Python ends itself by SIGINT, without the exit code, when an interrupt came while it evaluated a text; and
        # threads of rattler that are about to end can crash an interpreter that finalizes.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if argv is None:
        # Else Python looks through everything once more when it ends: a fifth of the time that `plan` takes.
        gc.freeze()
    return code
