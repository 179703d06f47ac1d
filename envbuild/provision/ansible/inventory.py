"""Generated Ansible inventories: a target's connection becomes host variables, nothing else does.

Every text is written with Ansible's `!unsafe` tag, so that no value is ever read as a Jinja template, and the only
variables that exist are the ones named here.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.common import HOST
from envbuild.model.target import HostSource
from envbuild.transport.ssh_config import arguments

if TYPE_CHECKING:
    from envbuild.model.target import Connection

MAX_HOSTS = 20_000
VERBS = ("fetch", "install", "unpack", "smoke", "activate")
# What playbooks/image.yml runs.
IMAGE_VERBS = ("container",)


@dataclass(frozen=True)
class NodeHost:
    """What the playbooks need to know about one node.

    `python`: interpreter on the node that runs the node program at `pyz` (both absolute paths on the node). `requests`:
    verb to the request file on the controller; a verb that is missing is not run. `payload`: a toolchain payload on the
    controller to run first. `artifacts`: a tar file on the controller, unpacked into `store` on the node. `tmp`: where
    Ansible keeps temporary files on the node, `first_tmp` the same before the toolchain made the prefix; `/tmp`
    (private folders in it) when there is none or it is not plain.
    """

    name: str
    python: str
    pyz: str
    requests: Mapping[str, Path] = field(default_factory=dict)
    payload: Path | None = None
    artifacts: Path | None = None
    store: str | None = None
    tmp: str | None = None
    first_tmp: str | None = None

    def steps(self) -> frozenset[str]:
        """The roles that will do something on this node; all others are skipped."""
        extra = {"toolchain": self.payload, "deliver": self.artifacts, "carry": self.artifacts}
        return frozenset(self.requests) | {role for role, file in extra.items() if file is not None}

    def variables(self) -> dict[str, Any]:
        """The host variables that roles read."""
        unknown = set(self.requests) - {*VERBS, *IMAGE_VERBS}
        if unknown:
            raise ValueError(f"no playbook step for: {', '.join(sorted(unknown))}")
        out: dict[str, Any] = {
            # One path: Ansible quotes it for the shell itself (since 2.17).
            "ansible_python_interpreter": self.python,
            "envbuild_python": self.python,
            "envbuild_pyz": self.pyz,
            "envbuild_requests": {verb: str(path.absolute()) for verb, path in self.requests.items()},
        }
        if self.payload is not None:
            out["envbuild_payload"] = str(self.payload.absolute())
        if self.artifacts is not None:
            if self.store is None:
                raise ValueError("artifacts need a store")
            out["envbuild_artifacts"] = str(self.artifacts.absolute())
            out["envbuild_store"] = self.store
        # And these it gives to the node's shell as they are, so only plain paths can be used.
        if self.first_tmp is not None and is_plain_path(self.first_tmp):
            out["envbuild_first_tmp"] = self.first_tmp
        if self.tmp is not None and is_plain_path(self.tmp):
            out["ansible_remote_tmp"] = self.tmp
        return out


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
            hosts[host.name] = {**host.variables(), **connection_variables(self.connection, host.name)}
        return {"nodes": {"hosts": hosts}}

    def write(self, path: Path) -> None:
        """Write the inventory as YAML, for its owner only (mode 0600)."""
        import yaml

        text = yaml.dump(_unsafe(self.as_dict()), Dumper=_dumper(), sort_keys=False, allow_unicode=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as out:
            out.write("---\n" + text)


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


def check_host(name: str) -> str:
    """The name itself when it is a plain host name or address.

    Raises EnvbuildError `host-invalid` (exit 2).
    """
    if not HOST.match(name):
        raise EnvbuildError(
            "host-invalid",
            f"{name!r} is not a host name",
            why="letters, digits, dots, colons, underscores and inner dashes only, at most 254",
            hint="give user and port under `connection:`",
        )
    return name


def expand_hosts(hosts: Iterable[str] | HostSource) -> list[str]:
    """Host names from host lists as clusters write them (`nid[001-064]`, `gpu1,gpu2`), each once, in order.

    Groups (`@name`) are refused: resolving them runs programs of the site's ClusterShell configuration. Hosts that
    somebody else names are listed by `hosts.settle_hosts`.

    Raises EnvbuildError `hosts-invalid`, `hosts-too-many` or `host-invalid` (exit 2), `not-yet-supported` (exit 7).
    """
    if isinstance(hosts, HostSource):
        named = ", ".join(f"{key}: {value}" for key, value in hosts.given.items())
        raise EnvbuildError(
            "not-yet-supported", f"hosts named by {named} cannot be listed here", hint="list them: `hosts: [...]`",
            exit_code=ExitCode.REFUSED,
        )  # fmt: skip
    texts = list(hosts)
    if all(HOST.match(text) for text in texts):
        # Plain names need no parser, and importing it costs more than the rest of a short command.
        if len(texts) > MAX_HOSTS:
            raise _too_many(f"{texts[0]}, ...")
        return list(dict.fromkeys(texts))
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
    from ClusterShell.RangeSet import RangeSetException

    out: dict[str, None] = {}
    for text in texts:
        if any(char in text for char in "@!&^") or not text.strip():
            raise _bad_hosts(text, "groups and set operators are not supported")
        if _expands_to(text) > MAX_HOSTS:
            raise _too_many(text)
        try:
            nodes = NodeSet(text, resolver=RESOLVER_NOGROUP)
        except (NodeSetException, RangeSetException, ValueError) as error:
            raise _bad_hosts(text, str(error)) from error
        for node in nodes:
            out[check_host(str(node))] = None
        if len(out) > MAX_HOSTS:
            raise _too_many(text)
    return list(out)


def fold_hosts(names: Iterable[str]) -> str:
    """Host names as clusters write them: `gpu[01-60]`. The opposite of `expand_hosts`."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    listed = list(names)
    if len(listed) == 1 or not all(HOST.match(name) for name in listed):
        return ", ".join(listed)
    return str(NodeSet.fromlist(listed, resolver=RESOLVER_NOGROUP))


def _expands_to(text: str) -> int:
    """An upper estimate of how many hosts a text names, taken before anything is expanded."""
    total = 1
    for inner in re.findall(r"\[([^\]]*)\]", text):
        count = 0
        for part in inner.split(","):
            ends = re.match(r"\s*([0-9]{1,18})\s*-\s*([0-9]{1,18})", part)
            count += max(1, int(ends[2]) - int(ends[1]) + 1) if ends else 1
        total *= count
    return total


def _bad_hosts(text: str, why: str) -> EnvbuildError:
    why = "".join(char if char.isprintable() else "\ufffd" for char in why)
    return EnvbuildError(
        "hosts-invalid", f"cannot read the host list {text!r}", why=why, hint="an example: nid[001-064]"
    )


def _too_many(text: str) -> EnvbuildError:
    return EnvbuildError("hosts-too-many", f"{text!r} names more than {MAX_HOSTS} hosts", hint="split the target")


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
    """A YAML dumper that knows `!unsafe`."""
    import yaml

    class InventoryDumper(yaml.SafeDumper):
        """Plain YAML plus Ansible's tag."""

    InventoryDumper.add_representer(
        _UnsafeText, lambda dumper, text: dumper.represent_scalar("!unsafe", str(text), style='"')
    )
    return InventoryDumper
