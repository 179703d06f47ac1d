"""What a run keeps for the next ones, in a file of JSON."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from envbuild.node import paths
from envbuild.node.protocol import NodeError

# Drivers change in maintenance windows; asking again costs one short job.
MAX_AGE = 7 * 86400.0


def read_recent(path: Path, now: float | None = None) -> Any:
    """What was kept in the last week, None where it is older. Raises OSError, ValueError."""
    written = path.stat().st_mtime  # before the clock: another run may write it meanwhile
    age = (time.time() if now is None else now) - written
    return json.loads(path.read_bytes()) if 0 <= age < MAX_AGE else None


def keep(path: Path, data: object) -> None:
    """Keep JSON data, whole or not at all; where it cannot be written, that is no error."""
    with contextlib.suppress(OSError, NodeError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths.write_json(str(path), data)
