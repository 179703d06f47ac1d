"""What is known of a cluster's nodes from earlier jobs, so that a run with nothing to do needs no job."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs

from envbuild.model.facts import NodeFacts
from envbuild.model.target import Target
from envbuild.node import paths
from envbuild.node.protocol import NodeError

# Drivers change in maintenance windows; asking again costs one short job.
MAX_AGE = 7 * 86400.0


def facts_file(target: Target, login: str) -> Path:
    """Where facts of a target's nodes are kept: one file a login host, partition and kind of node asked for."""
    scheduler = target.scheduler
    hosts = target.hosts if isinstance(target.hosts, tuple) else target.hosts.given
    asked = [login, scheduler.kind, hosts, scheduler.queue, scheduler.constraints, scheduler.nodes, target.prefix]
    if scheduler.modules is not None:
        # They decide which programs a probe finds.
        asked.append(scheduler.modules.to_json_dict())
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    return platformdirs.user_cache_path("envbuild") / "nodes" / f"{target.name}-{digest}.json"


def read_facts(path: Path, now: float | None = None) -> dict[str, NodeFacts]:
    """Facts by node; empty when there are none, when they are too old, or when this envbuild cannot read them."""
    try:
        found = [NodeFacts.from_plain(item) for item in read_recent(path, now) or ()]
    except (OSError, ValueError, TypeError):
        return {}
    return {facts.node: facts for facts in found}


def write_facts(path: Path, facts: Mapping[str, NodeFacts]) -> None:
    """Keep them, as `keep` does."""
    keep(path, [item.to_json_dict() for item in facts.values()])


def read_recent(path: Path, now: float | None = None) -> Any:
    """What was kept in the last week, None where it is older. Raises OSError, ValueError."""
    written = path.stat().st_mtime  # before the clock: another run may write it meanwhile
    age = (time.time() if now is None else now) - written
    return json.loads(path.read_bytes()) if 0 <= age < MAX_AGE else None


def keep(path: Path, data: object) -> None:
    """Keep JSON data, whole or not at all; a cache that cannot be written is no error."""
    with contextlib.suppress(OSError, NodeError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths.write_json(str(path), data)
