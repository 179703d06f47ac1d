"""What the controller prepares for one node before a play: the toolchain payload, and where things go."""

from __future__ import annotations

import hashlib
from pathlib import Path

from envbuild.provision.contact.payload import write_payload
from envbuild.provision.run.context import Work
from envbuild.provision.run.outcome import NodeFiles, tmp_folder


def node_files(
    work: Work, node: str, artifacts: Path | None = None, store: str | None = None, *, least: bool = False
) -> NodeFiles:
    """The files of one node; `artifacts` is a delivery that goes into `store` there.

    `least`: of the tools, only those that run the node program. Nodes that lack the same have one payload.
    """
    tools, facts = work.tools[node], work.survey.facts[node]
    target = work.prepared.target
    prefix = facts.stage_prefix
    needed = tools.least(prefix) if least else tools.tools
    missing = [tool for tool in needed if tool in tools.missing(facts.toolchain)]
    payload = None
    if missing:
        told = "\0".join((prefix, *(tool.folder for tool in missing)))
        payload = work.run.staging / f"toolchain-{hashlib.sha256(told.encode()).hexdigest()[:12]}.sh"
        if not payload.exists():
            write_payload(payload, missing, prefix=prefix, packed=target.connection.kind != "local")
    return NodeFiles(
        tools.python,
        tools.pyz,
        payload,
        artifacts,
        store,
        tmp=tmp_folder(target.tmp, facts.user, facts.home),
        prefix=prefix,
    )
