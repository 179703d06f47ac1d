"""What the controller prepares for one node before a play: the toolchain payload, and where things go."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from envbuild.model.facts import NodeFacts
from envbuild.provision.contact.payload import Tool, write_payload
from envbuild.provision.contact.toolchain import NodeTools
from envbuild.provision.run.context import Work
from envbuild.provision.run.outcome import NodeFiles, tmp_folder


def node_files(
    work: Work, node: str, bundles: Mapping[str, Path] | None = None, store: str | None = None, *, least: bool = False
) -> NodeFiles:
    """The files of one node; `bundles` go into `store` there.

    `least`: of the tools, only those that run the node program.
    """
    tools, facts = work.tools[node], work.survey.facts[node]
    needed = tools.least(facts.stage_prefix) if least else tools.tools
    return replace(files_with(work, facts, tools, needed), bundles=bundles or {}, store=store)


def files_with(work: Work, facts: NodeFacts, tools: NodeTools, needed: Sequence[Tool]) -> NodeFiles:
    """The files of a node that gets the `needed` of its tools."""
    prefix = facts.stage_prefix
    payload = payload_of(work, [tool for tool in needed if tool in tools.missing(facts.toolchain)], prefix)
    tmp = tmp_folder(work.prepared.target.tmp, facts.user, facts.home)
    return NodeFiles(tools.python, tools.pyz, payload, tmp=tmp, prefix=prefix)


def payload_of(work: Work, tools: Sequence[Tool], prefix: str) -> Path | None:
    """The payload that puts tools into a prefix, one for all nodes that lack the same; None without any."""
    if not tools:
        return None
    told = "\0".join((prefix, *(tool.folder for tool in tools)))
    path = work.run.staging / f"toolchain-{hashlib.sha256(told.encode()).hexdigest()[:12]}.sh"
    if not path.exists():
        write_payload(path, tools, prefix=prefix, packed=work.prepared.target.connection.kind != "local")
    return path
