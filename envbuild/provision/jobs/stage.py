"""Put things under the folder that nodes of a job share, from the login host: the nodes may have no network."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envbuild.provision.ansible.play import run_hosts
from envbuild.provision.ansible.steps import NodeHost, tmp_folder
from envbuild.provision.contact.first_contact import ContactResult
from envbuild.provision.contact.payload import write_payload
from envbuild.provision.contact.toolchain import first_tools
from envbuild.provision.jobs.site import JobSite
from envbuild.provision.run.context import Work


def login_work(work: Work, site: JobSite) -> Work:
    """The run with the login host as its only node."""
    target = work.prepared.target.model_copy(update={"connection": site.connection, "hosts": (site.login,)})
    return replace(work, prepared=work.prepared._replace(target=target), tasks=0)


def on_login(
    work: Work, site: JobSite, files: NodeHost, requests: Mapping[str, dict[str, Any]], playbook: str
) -> Mapping[str, Mapping[str, Any]]:
    """What the login host answers in a play of its own. Raises the EnvbuildError of a step that failed there."""
    there = login_work(work, site)
    outcome = run_hosts({site.login: requests}, {site.login: files}, there, playbook=playbook)
    work.tasks += there.tasks
    if (error := outcome.error_of(site.login)) is not None:
        raise error
    return outcome.responses.get(site.login, {})


def stage(files: NodeHost | None, work: Work, site: JobSite) -> None:
    """Put tools and bundles there. Raises the EnvbuildError of a step that failed on the login host."""
    if files is not None and (files.payload is not None or files.bundles):
        on_login(work, site, files, {}, "provision.yml")


def stage_python(work: Work, site: JobSite, top: str, bare: Mapping[str, ContactResult]) -> dict[str, str]:
    """Put a Python below `top` for nodes that have none; its path by node.

    Raises EnvbuildError `interpreter-missing` (exit 7), `interpreter-mismatch` (exit 5), and as the download and
    `stage` do.
    """
    given = work.prepared.lock.variants
    tools = {node: first_tools(answer, given, work.settings.toolchain_file)[0] for node, answer in bare.items()}
    payload = work.run.staging / "python.sh"
    write_payload(payload, list({tool.folder: tool for tool in tools.values()}.values()), prefix=top, packed=True)
    paths = {node: tool.path(top) for node, tool in tools.items()}
    user = next(iter(bare.values())).findings.get("user", "")
    tmp = tmp_folder(work.prepared.target.tmp, user) or posixpath.join(top, "tmp")
    stage(NodeHost(site.login, next(iter(paths.values())), "", payload=payload, tmp=tmp, prefix=top), work, site)
    return paths
