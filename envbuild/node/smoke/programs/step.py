"""Smoke program `step`: one rank of the stack's own training script, with its arguments, as `__main__`.

The ranks of MPI share one request and append to one file of events; each takes its number from MPI's variables. Every
other rank has a request of its own on stdin, with the variables that torchrun would set.
"""

import os
import runpy
import sys
import traceback
from typing import Any, Dict

from . import mpi_ranks
from .common import SHARED, Channel


def where(error: BaseException, folder: str) -> str:
    """`FILE:LINE` of the innermost frame in the folder (relative to it), else of the innermost one."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    own = [frame for frame in frames if frame[0].startswith(folder + os.sep)]
    name, line = (own or frames or [("?", 0)])[-1]
    return "%s:%s" % (os.path.relpath(name, folder) if own else name, line)


def _run(args: Dict[str, Any], channel: Channel, script: str) -> None:
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        code = int(error.code or 0) if error.code is None or isinstance(error.code, int) else 1
        if code:
            channel.failure("the script ended with exit code %d (%s)" % (code, where(error, str(args["tree"]))))
    except BaseException as error:  # noqa: BLE001 - whatever it raised is what is wrong with it
        traceback.print_exc()
        words = (" ".join(str(error).split())[:400], where(error, str(args["tree"])))
        channel.failure("%s: %s (%s)" % ((type(error).__name__,) + words))
        code = 1
    if code:  # it ends now: a process group that lost a rank may wait for it for ever at exit
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(args: Dict[str, Any], channel: Channel) -> None:
    """Set variables, path and arguments as `python SCRIPT ...` in its work folder has them, then run the script."""
    if SHARED in os.environ:
        mpi_ranks.tell()
    os.environ.update(args["variables"])
    os.chdir(args["work"])
    script = str(args["script"])
    sys.argv = [script] + [str(word) for word in args["words"]]
    sys.path[0] = os.path.dirname(script)  # in the place of the programs' own folder
    channel.stage("running %s" % os.path.basename(script))
    _run(args, channel, script)
