"""What the programs that this one has started do now, as /proc shows it; nothing where the kernel does not."""

from __future__ import annotations

import os
import re

from envbuild.node.protocol import Json
from envbuild.node.read_text import first, names, read

_COMPILER = re.compile(
    r"(\A|-)(gcc|g\+\+|cc|c\+\+|clang|clang\+\+|nvcc|hipcc|gfortran|rustc|ccache|sccache)(-[\d.]+)?\Z"
)
_SOURCE = re.compile(r"\.(c|cc|cpp|cxx|cu|f|f90|s|S|m|rs)\Z")


def at_work() -> Json:
    """`what`: a file that a compiler below this process works on; the one that began first."""
    for words in map(_words, _below(os.getpid())):
        sources = [word for word in words[1:] if _SOURCE.search(word)]
        # The second word is that of a script which stands for a compiler.
        if sources and any(_COMPILER.search(os.path.basename(word)) for word in words[:2]):
            return {"what": os.path.basename(sources[0])}
    return {}


def written(program: str) -> int:
    """Bytes that processes of `program` (a path) below this one have written so far."""
    count = 0
    for pid in _below(os.getpid()):
        if _words(pid)[:1] == [program]:
            count += int(first(r"(?m)^wchar: (\d+)", read(f"/proc/{pid}/io", 4096)) or 0)
    return count


def _words(pid: int) -> list[str]:
    return [word for word in read(f"/proc/{pid}/cmdline", 65536).split("\0") if word]


def _below(pid: int) -> list[int]:
    """Processes that `pid` started and those that they started, parents first; none where the kernel does not say."""
    pids = []
    for task in names(f"/proc/{pid}/task"):
        for word in read(f"/proc/{pid}/task/{task}/children", 65536).split():
            pids += [int(word)] + _below(int(word))
    return pids
