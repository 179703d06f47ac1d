"""What the controller prepares for one node before a play: the toolchain payload, and where things go."""

from __future__ import annotations

from pathlib import Path

from envbuild.provision.execute import NodeFiles, tmp_folder
from envbuild.provision.payload import write_payload
from envbuild.provision.work import Work


def node_files(work: Work, node: str, artifacts: Path | None = None, store: str | None = None) -> NodeFiles:
    """The files of one node; `artifacts` is a delivery that goes into `store` there."""
    tools, facts = work.tools[node], work.survey.facts[node]
    target = work.prepared.target
    missing = tools.missing(facts.toolchain)
    payload = work.run.path / f"toolchain-{node}.sh" if missing else None
    if payload is not None:
        write_payload(payload, missing, prefix=facts.prefix.path, packed=target.connection.kind != "local")
    return NodeFiles(
        tools.python,
        tools.pyz,
        payload,
        artifacts,
        store,
        tmp=tmp_folder(target.tmp, facts.user, facts.home),
        prefix=facts.prefix.path,
    )
