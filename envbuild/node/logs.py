"""The verb `log`: the end of what the node program wrote down while a run changed this prefix."""

import contextlib
import json
import os
import re

from envbuild.node import hashing
from envbuild.node.protocol import Exit, Json, NodeError
from envbuild.node.read_text import names

FOLDER = "logs"
MOST_LINES = 2000
# The output of one build is some megabytes; only the end of a log is ever read.
READ_BYTES = 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")


def run(request: Json) -> "tuple[bool, Json]":
    """Returns (False, `file` and the `lines` of its end). `args.log_of`: a run (default: the newest log).

    Raises NodeError `log-unknown` (1) where there is none.
    """
    args = request["args"]
    folder = os.path.join(request["prefix"], FOLDER)
    wanted, count = args.get("log_of"), args.get("lines", 40)
    if not isinstance(count, int) or not 1 <= count <= MOST_LINES:
        raise NodeError("request-invalid", "`args.lines` is no number from 1 to %d" % MOST_LINES)
    if wanted is not None and not (isinstance(wanted, str) and _NAME.match(wanted)):
        raise NodeError("request-invalid", "`args.log_of` is no run")
    name = _newest(folder) if wanted is None else wanted + ".log"
    path = os.path.join(folder, name or "")
    if not name or not os.path.isfile(path):
        raise NodeError(
            "log-unknown",
            "there is no log %sunder %s" % ("of %s " % wanted if wanted else "", folder),
            hint="a run that changes nothing writes none",
            exit_code=Exit.CHECK_FAILED,
        )
    return False, {"file": path, "lines": _lines(path)[-count:]}


def digest(prefix: str, run: object) -> "Json | None":
    """`file`, `bytes` and `sha256` of the log of a run as it is now; None where none can be read."""
    path = os.path.join(prefix, FOLDER, "%s.log" % run)
    if not _NAME.match(str(run)):
        return None
    try:
        return {"file": path, "bytes": os.path.getsize(path), "sha256": hashing.digest_of(path)}
    except OSError:
        return None


def _newest(folder: str) -> "str | None":
    found = []
    for name in [name for name in names(folder) if name.endswith(".log")]:
        with contextlib.suppress(OSError):  # it goes meanwhile: only the newest ones are kept
            found.append((os.stat(os.path.join(folder, name)).st_mtime, name))
    return max(found)[1] if found else None


def _lines(path: str) -> "list[str]":
    """The messages of the end of a log, line by line."""
    with open(path, "rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - READ_BYTES))
        text = stream.read(READ_BYTES).decode("utf-8", "replace")
    lines = []
    for line in text.splitlines():
        try:
            lines += str(json.loads(line)["message"]).splitlines()
        except (ValueError, KeyError, TypeError):
            lines.append(line[:2000])  # the half of a line where reading began, or one that was torn
    return lines
