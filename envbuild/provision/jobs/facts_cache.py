"""What is known of a cluster's nodes from earlier jobs, so that a run with nothing to do needs no job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from envbuild.model.facts import NodeFacts
from envbuild.model.target import Target
from envbuild.provision.run.between_runs import keep, read_recent


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
