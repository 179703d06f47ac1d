"""Byte code of given files in a folder of its own (`sys.pycache_prefix`), for environments that keep none beside them.

Kept with the hash of its source, which Python compares at every import: a changed file is compiled, as without it.
"""

import json
import time

from envbuild.node import proc

_OLD = (
    "import sys\nif sys.version_info < (3, 8):\n    sys.exit('before Python 3.8 it can only lie beside its source')\n"
)
_COMPILE = """
import importlib.util, json, os, py_compile, sys
folder, mode = sys.argv[1], py_compile.PycInvalidationMode.CHECKED_HASH
for file in json.load(sys.stdin):
    try:
        beside = importlib.util.cache_from_source(file)
        sys.pycache_prefix = folder
        to = importlib.util.cache_from_source(file)
        sys.pycache_prefix = None
        if sys.argv[2] == "link" and os.path.isfile(beside):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            os.symlink(beside, to)
        else:
            py_compile.compile(file, cfile=to, doraise=True, invalidation_mode=mode)
    except (py_compile.PyCompileError, FileNotFoundError, FileExistsError, PermissionError, ValueError):
        pass  # of no use to this Python: templates, and what is made for another version
"""


def make(
    python: "list[str]",
    folder: str,
    listing: "list[str]",
    deadline: float,
    processes: int = 1,
    link: bool = False,
    env: "dict[str, str] | None" = None,
) -> str:
    """Compile into `folder` what the Python text and arguments `listing` print, a JSON list of files, as the last line.

    `python`: the interpreter and its flags. `link`: what lies beside a source is linked there, as Python looks nowhere
    else then. Returns how that went wrong, empty where nothing did. Nothing before Python 3.8.
    """
    until = time.monotonic() + deadline
    listed = proc.run([*python, "-c", _OLD + listing[0], *listing[1:]], timeout=deadline, env=env)
    if not listed.ok:
        return _why(listed)
    try:
        files = json.loads((listed.out.splitlines() or [""])[-1])
    except ValueError:
        return "no list of files"
    words = [*python, "-S", "-c", _COMPILE, folder, "link" if link else ""]

    def compiled(share: "list[str]") -> "proc.Finished":
        data = json.dumps(share).encode("ascii")
        return proc.run(words, timeout=max(0.1, until - time.monotonic()), env=env, stdin=data)

    # One after another of a list that begins with the largest: every process has as much to do.
    shares = [share for share in (files[number::processes] for number in range(processes)) if share]
    done = proc.parallel([lambda share=share: compiled(share) for share in shares])  # type: ignore[misc]
    return next((_why(each) if each else "not run" for each in done if each is None or not each.ok), "")


def _why(done: "proc.Finished") -> str:
    return "its deadline is over" if done.timed_out else done.err.strip()[-200:] or "exit code %s" % done.rc
