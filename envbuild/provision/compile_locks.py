"""Locks of what torch compiles when a run first needs it.

Who compiles keeps a file `lock` beside it, and others wait until it is gone (torch/utils/file_baton.py). A run that is
ended meanwhile leaves it, and every later one waits without a word.
"""

from __future__ import annotations

from envbuild.text import few, plural

# Below the cache newer ones have a folder for each Python and CUDA (torch/utils/cpp_extension.py).
ASK = """top=${TORCH_EXTENSIONS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/torch_extensions}
for lock in "$top"/*/lock "$top"/*/*/lock; do [ ! -e "$lock" ] || printf '%s\\n' "$lock"; done
"""


def in_words(answer: str) -> list[str]:
    """A sentence about the locks that `/bin/sh` printed for `ASK`; none where it printed none."""
    locks = [line for line in answer.splitlines() if line.endswith("/lock")]
    if not locks:
        return []
    return [
        f"{plural(len(locks), 'lock')} of what torch compiles when it is first used: {few(locks)}; where nothing"
        " compiles it now, a run that was ended left it, and a run that needs it waits until it is removed"
    ]
