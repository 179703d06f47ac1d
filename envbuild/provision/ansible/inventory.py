"""Generated Ansible inventories: a target's connection becomes host variables, nothing else does.

Every text is written with Ansible's `!unsafe` tag, so that no value is ever read as a Jinja template, and the only
variables that exist are the ones named here.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuild.hostlist import check_host
from envbuild.provision.ansible.steps import NodeHost
from envbuild.transport.ssh_config import arguments

if TYPE_CHECKING:
    from envbuild.model.target import Connection


VERBS = ("install", "smoke", "activate")
# What playbooks/image.yml runs.
IMAGE_VERBS = ("container",)


@dataclass(frozen=True)
class Inventory:
    """The nodes of one playbook run and how they are reached."""

    hosts: tuple[NodeHost, ...]
    connection: Connection

    def as_dict(self) -> dict[str, Any]:
        """The inventory as Ansible's YAML inventory has it: one group, `nodes`."""
        hosts: dict[str, Any] = {}
        for host in self.hosts:
            check_host(host.name)
            # Connection variables come last: nothing that a node brings along can replace them.
            hosts[host.name] = {**host_variables(host), **connection_variables(self.connection, host.name)}
        return {"nodes": {"hosts": hosts}}

    def write(self, path: Path) -> None:
        """Write the inventory as YAML, for its owner only (mode 0600)."""
        import yaml

        text = yaml.dump(_unsafe(self.as_dict()), Dumper=_dumper(), sort_keys=False, allow_unicode=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as out:
            out.write("---\n" + text)


def host_variables(host: NodeHost) -> dict[str, Any]:
    """The host variables that roles read."""
    unknown = set(host.requests) - {*VERBS, *IMAGE_VERBS}
    if unknown:
        raise ValueError(f"no playbook step for: {', '.join(sorted(unknown))}")
    out: dict[str, Any] = {
        # One path: Ansible quotes it for the shell itself (since 2.17).
        "ansible_python_interpreter": host.python,
        "envbuild_python": host.python,
        "envbuild_pyz": host.pyz,
        "envbuild_requests": {verb: str(path.absolute()) for verb, path in host.requests.items()},
    }
    if host.payload is not None:
        out["envbuild_payload"] = str(host.payload.absolute())
    if host.bundles or host.image is not None:
        if host.store is None:
            raise ValueError("bundles and images need a store")
        out["envbuild_store"] = host.store
    if host.bundles:
        bundles = {name: str(path.absolute()) for name, path in host.bundles.items()}
        out.update(envbuild_bundles=bundles, envbuild_run=host.run)
    if host.image is not None:
        out["envbuild_image"] = str(host.image.absolute())
    # These it gives to the node's shell as they are, so only plain paths can be used; else it takes private folders
    # in /tmp. The first is used before the toolchain has made the prefix.
    tmps = {"envbuild_first_tmp": host.tmp, "ansible_remote_tmp": host.ansible_tmp}
    return out | {name: path for name, path in tmps.items() if path is not None and is_plain_path(path)}


def connection_variables(connection: Connection, host: str) -> dict[str, Any]:
    """The `ansible_*` variables that say how one node is reached; host keys are always checked."""
    if connection.kind == "local":
        return {"ansible_connection": "ansible.builtin.local"}
    address, user, port = connection.reaches(host)
    out: dict[str, Any] = {"ansible_connection": "ansible.builtin.ssh", "ansible_host": check_host(address)}
    if user is not None:
        out["ansible_user"] = user
    if port is not None:
        out["ansible_port"] = port
    out["ansible_ssh_common_args"] = shlex.join(arguments(connection, host))
    return out


def is_plain_path(path: str) -> bool:
    """Whether a path means itself in any shell, unquoted."""
    return re.fullmatch(r"/[A-Za-z0-9/._+@:,-]*", path) is not None


class _UnsafeText(str):
    """A text that Ansible must never treat as a template."""

    __slots__ = ()


def _unsafe(value: Any) -> Any:
    """Mark every text value (keys are ours)."""
    if isinstance(value, str):
        return _UnsafeText(value)
    if isinstance(value, dict):
        return {key: _unsafe(item) for key, item in value.items()}
    return value


def _dumper() -> Any:
    import yaml

    class InventoryDumper(yaml.SafeDumper):
        """Plain YAML plus Ansible's tag."""

    InventoryDumper.add_representer(
        _UnsafeText, lambda dumper, text: dumper.represent_scalar("!unsafe", str(text), style='"')
    )
    return InventoryDumper
