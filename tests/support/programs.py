"""Programs that stand in for those of a machine."""

from __future__ import annotations

from pathlib import Path


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    """A program of that text, with the folders above it; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path
