"""Programs that tests write and run."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.files import write_file


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    """A program of that text, with the folders above it; returns its path."""
    write_file(path, text).chmod(0o755)
    return path


def completed(words: Sequence[str | Path], **more: Any) -> subprocess.CompletedProcess[str]:
    """How a program ended, with what it wrote as text; `more` as for `subprocess.run`.

    It has no standard input but `input`: that of the tests is shared, and ansible refuses it where
    another program made it non-blocking.
    """
    if "input" not in more:
        more.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(words, capture_output=True, text=True, **more)
