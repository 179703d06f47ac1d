"""Smoke program `worker`: imports torch once, then runs other programs one after another in this process.

Its stdin has a line of JSON for each: `{"name": PROGRAM, "request": PATH, "end": TEXT}`. The program reads its request
from stdin as in a process of its own. When it has ended, `TEXT STATUS` follows its output on a line of its own. A
program that crashes takes this process with it; the reader starts another one.
"""

import contextlib
import faulthandler
import gc
import json
import os
import sys
import traceback
from typing import Any, Dict

from .common import run


def _run(job: Dict[str, Any]) -> int:
    """Run one program as an interpreter of its own would; its exit status."""
    request = os.open(job["request"], os.O_RDONLY)
    os.dup2(request, 0)
    os.close(request)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - the program's
    try:
        run(job["name"])
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write("%s\n" % (ended.code,))
        return 1
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


def _tidy(torch: Any, threads: int) -> None:
    """Leave to the next program what the last one found: the memory of the GPUs and the number of threads."""
    faulthandler.cancel_dump_traceback_later()
    gc.collect()
    if torch is not None:
        torch.set_num_threads(threads)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def serve() -> None:
    """Serve until stdin is closed."""
    jobs = os.fdopen(os.dup(0), encoding="utf-8")
    with contextlib.suppress(Exception):  # the programs say why torch cannot be imported
        __import__("torch")
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch is not None else 0
    for line in jobs:
        job = json.loads(line)
        status = _run(job)
        if not status:
            _tidy(torch, threads)
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(1, ("\n%s %d\n" % (job["end"], status)).encode("ascii"))


if __name__ == "envbuild_smoke.worker":
    serve()
