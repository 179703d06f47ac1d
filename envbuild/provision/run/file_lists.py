"""The lists of files that Merkle roots are made from, asked of nodes that have them: one node for each root."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.hostlist import expand_hosts
from envbuild.model.evidence import NodeEvidence
from envbuild.model.file_list import Files, root, unpack
from envbuild.model.target import Target
from envbuild.provision.contact.first_contact import ContactResult, contact, node_request
from envbuild.provision.run.run_dir import RunDir
from envbuild.schedule.runner import as_login


class FileLists:
    """The lists of one run by node; nobody is asked twice.

    A node of a job that has ended cannot be asked; the login host can, which sees an environment on a shared prefix.
    """

    def __init__(self, target: Target, run: RunDir) -> None:
        """`run`: the one that asks."""
        self._target, self._run = target, run
        self._known: dict[str, Files] = {}

    def __call__(self, nodes: Sequence[NodeEvidence]) -> dict[str, Files]:
        """By node what its environment was stamped with; a node that gives no list is left out."""
        new = [node for node in nodes if node.node not in self._known and node.environment and node.image is None]
        if new:
            self._ask(new)
        return {node.node: self._known[node.node] for node in nodes if node.node in self._known}

    def by_root(self, nodes: Sequence[NodeEvidence]) -> dict[str, Files]:
        """The lists of roots that were measured in this run, and of those that were asked for before.

        A list that does not give the root of a node is none of them.
        """
        first = {str(node.root): node for node in reversed(nodes) if _is_measured(node)}
        self(list(first.values()))
        made = {root(files): files for files in self._known.values()}
        return {each: files for each, files in made.items() if each in {node.root for node in nodes}}

    def _ask(self, nodes: Iterable[NodeEvidence]) -> None:
        # <prefix>/envs/<environment>: what the node itself made of the target's prefix.
        requests = {
            node.node: node_request(
                "files", str(node.environment).rsplit("/", 2)[0], {"environment": node.environment}, self._run.id
            )
            for node in nodes
        }
        for name, answer in self._answers(requests).items():
            try:
                self._known[name] = unpack(base64.b64decode(answer.result()["files"]))
            except (EnvbuildError, ValueError, KeyError, TypeError):
                continue  # that there is none is told in any case

    def _answers(self, requests: Mapping[str, dict[str, Any]]) -> dict[str, ContactResult]:
        host = as_login(self._target)
        if self._target.connection.kind != "job":
            return contact(requests, requests.__getitem__, host.connection, run=self._run)
        (login,) = expand_hosts(host.hosts)

        def asked(request: dict[str, Any]) -> ContactResult:
            return contact([login], lambda _: request, host.connection, run=self._run)[login]

        return {name: asked(request) for name, request in requests.items()}


def _is_measured(node: NodeEvidence) -> bool:
    return bool(node.root) and node.root_level == "measured" and not node.drift_count
