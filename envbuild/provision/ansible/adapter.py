"""The one adapter around ansible-runner: playbooks in, typed events and a typed result out. Nobody else imports it.

What it takes care of: a private configuration (nothing of the user's `ansible.cfg` or `ANSIBLE_*` applies, the user's
ssh configuration does), host keys, pipelining, deadlines, interruption of everything that was started, and that
neither secrets of the environment nor credentials in a node's output are written into the run directory.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from envbuild import resources
from envbuild.errors import EnvbuildError
from envbuild.node.redact import redactor
from envbuild.provision.ansible.steps import (
    MARKER,
    VERBS,
    NodeHost,
    StepsResult,
    TaskEvent,
    TaskStatus,
    Watch,
    signals,
)
from envbuild.transport.processes import end_marked, end_masters_of_the_dead, end_orphans
from envbuild.transport.ssh_config import arguments, end_connections

if TYPE_CHECKING:
    from envbuild.model.target import Connection


# A path that means itself in any shell, unquoted.
_PLAIN = re.compile(r"/[A-Za-z0-9/._+@:,-]*")


@dataclass(frozen=True)
class Inventory:
    """The nodes of one playbook run and how they are reached."""

    hosts: tuple[NodeHost, ...]
    connection: Connection

    def as_dict(self) -> dict[str, Any]:
        """The inventory as Ansible's YAML inventory has it: one group, `nodes`."""
        from envbuild.hostlist import check_host  # with the models behind it

        hosts: dict[str, Any] = {}
        for host in self.hosts:
            check_host(host.name)
            # Connection variables come last: nothing that a node brings along can replace them.
            hosts[host.name] = {**host_variables(host), **connection_variables(self.connection, host.name)}
        return {"nodes": {"hosts": hosts}}

    def write(self, path: Path) -> None:
        """Write the inventory as YAML, for its owner only (mode 0600)."""
        import yaml

        class InventoryDumper(yaml.SafeDumper):
            """Plain YAML in which every text that is a value (keys are ours) is one that Ansible never fills in."""

            def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
                node = super().represent_mapping(tag, mapping, flow_style)
                for _, value in node.value:
                    if value.tag == "tag:yaml.org,2002:str":
                        value.tag, value.style = "!unsafe", '"'
                return node

        text = yaml.dump(self.as_dict(), Dumper=InventoryDumper, sort_keys=False, allow_unicode=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as out:
            out.write("---\n" + text)


def host_variables(host: NodeHost) -> dict[str, Any]:
    """The host variables that roles read."""
    unknown = set(host.requests) - set(VERBS)
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
    return out | {name: path for name, path in tmps.items() if path is not None and _PLAIN.fullmatch(path)}


def connection_variables(connection: Connection, host: str) -> dict[str, Any]:
    """The `ansible_*` variables that say how one node is reached; host keys are always checked."""
    if connection.kind == "local":
        return {"ansible_connection": "ansible.builtin.local"}
    from envbuild.hostlist import check_host

    address, user, port = connection.reaches(host)
    out: dict[str, Any] = {"ansible_connection": "ansible.builtin.ssh", "ansible_host": check_host(address)}
    if user is not None:
        out["ansible_user"] = user
    if port is not None:
        out["ansible_port"] = port
    out["ansible_ssh_common_args"] = shlex.join(arguments(connection, host))
    return out


_POLL_SECONDS = 0.1
# ansible-runner drops a result whose text is longer.
_RESULT_BYTES = 64 * 1024 * 1024
_STATUS: dict[str, TaskStatus] = {
    "runner_on_start": "started",
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
    "runner_on_skipped": "skipped",
}


def run_playbook(
    name: str,
    inventory: Inventory,
    *,
    run_dir: Path,
    on_event: Callable[[TaskEvent], None],
    forks: int,
    watch: Watch,
) -> StepsResult:
    """Run `playbooks/<name>` on an inventory and report every task.

    `run_dir` is the run directory; everything is kept under its `ansible/`. SIGINT and SIGTERM
    cancel as well. A task that fails is a result, not an error. Steps that a node was not asked for are neither counted
    nor reported.

    Raises EnvbuildError `installation-broken` (exit 70), `playbook-broken` (exit 70, no task ran although some should),
    `playbook-deadline` (exit 4) and `interrupted` (exit 130); in the last two cases every started process has ended.
    """
    program = find_program("ansible-playbook")
    playbook = resources.playbooks() / name
    if not playbook.is_file():
        raise EnvbuildError("installation-broken", f"there is no playbook {playbook}")
    private = run_dir / "ansible" / playbook.stem
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    inventory.write(private / "inventory.yml")
    # A killed envbuild cannot end what it started; until that has ended, it would hold the prefix.
    end_orphans(MARKER)
    end_masters_of_the_dead()
    (private / "ansible.cfg").write_text(configuration(private), encoding="utf-8")
    fd = os.open(private / "events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "a", encoding="utf-8", errors="backslashreplace") as file, signals(watch):
        collector = _Collector(file, inventory, on_event)
        try:
            rc = _run(program, playbook, private, forks, collector, watch)
        finally:
            # Whatever a cancelled task left behind, here and on nodes.
            end_marked(MARKER, watch.marker)
            if watch.reason:
                end_connections()
    if watch.reason:
        raise watch.ended_early(name, collector.nodes)
    if rc != 0 and not collector.nodes:
        errors = [line for line in collector.messages if "[ERROR]" in line] or collector.messages[-5:]
        raise EnvbuildError(
            "playbook-broken",
            f"Ansible could not run {name}",
            why=" ".join(errors)[:600],
            hint=f"Ansible's events are in {private}",
        )
    return StepsResult(rc, dict(collector.nodes), collector.tasks_run)


def find_program(name: str) -> Path:
    """A program of Ansible: that of this interpreter's environment, else the one on PATH.

    Raises EnvbuildError `installation-broken` (exit 70).
    """
    program = resources.program(name)
    if program is None:
        raise EnvbuildError(
            "installation-broken",
            f"{name} was not found",
            why=f"neither beside {sys.executable} nor on PATH",
            hint="install envbuild with its dependencies again; `envbuild doctor` checks them",
        )
    return program


class _Collector:
    """Turns runner events into `TaskEvent`s and keeps a redacted copy, one JSON object a line."""

    def __init__(self, file: IO[str], inventory: Inventory, on_event: Callable[[TaskEvent], None]) -> None:
        self._steps = {host.name: host.steps() for host in inventory.hosts}
        self._redactor = redactor()
        self._file, self._on_event = file, on_event
        self.nodes: dict[str, TaskEvent] = {}
        self.tasks_run = 0
        self.messages: list[str] = []

    def __call__(self, raw: dict[str, Any]) -> bool:
        """Called by ansible-runner for each event; False: do not keep the raw event."""
        data = raw.get("event_data") or {}
        result = data.get("res") or {}
        self._keep(raw, data, result)
        status = _STATUS.get(raw.get("event", ""))
        if status is None:
            text = str(raw.get("stdout") or "").strip()
            if raw.get("event") in ("verbose", "error", "warning", "deprecated") and text:
                self.messages.append(self._redactor.text(text))
            return False
        if status == "ok" and result.get("changed"):
            status = "changed"
        event = TaskEvent(
            node=str(data.get("host", "")),
            status=status,
            role=str(data.get("role") or ""),
            seconds=data.get("duration"),
            rc=result.get("rc"),
            stdout=str(result.get("stdout") or ""),
            stderr=str(result.get("stderr") or result.get("module_stderr") or ""),
            message=str(result.get("msg") or ""),
        )
        if event.role not in self._steps.get(event.node, ()):
            # Ansible says of every task that it begins, also of those it then skips.
            return False
        if status not in ("started", "skipped"):
            self.tasks_run += 1
        self.nodes[event.node] = event
        self._on_event(event)
        return False

    def _keep(self, raw: dict[str, Any], data: dict[str, Any], result: dict[str, Any]) -> None:
        """Write the event without the request it carried and without the lines that repeat stdout."""
        kept: dict[str, Any] = {key: raw[key] for key in ("counter", "event", "created", "pid") if key in raw}
        kept |= {key: data[key] for key in ("host", "role", "task", "duration", "changed", "failures") if key in data}
        dropped = ("invocation", "stdout_lines", "stderr_lines", "cmd")
        if raw.get("event") in ("verbose", "error", "warning"):
            kept["stdout"] = str(raw.get("stdout") or "")
        if result:
            kept["res"] = {key: value for key, value in result.items() if key not in dropped}
        self._file.write(json.dumps(self._redactor.data(kept), ensure_ascii=False, default=str) + "\n")
        self._file.flush()


def _run(program: Path, playbook: Path, private: Path, forks: int, collector: _Collector, watch: Watch) -> int:
    """One run through ansible-runner; the exit code of ansible-playbook."""
    from ansible_runner.interface import init_runner

    arguments: dict[str, Any] = {
        "private_data_dir": str(private),
        "ident": "artifacts",
        "artifact_dir": str(private),
        "playbook": str(playbook),
        "inventory": str(private / "inventory.yml"),
        "forks": forks,
        "quiet": True,
        "suppress_env_files": True,
        "envvars": variables(private, MARKER, watch.marker),
        "event_handler": collector,
        "status_handler": _forget_environment,
        "cancel_callback": watch,
    }
    runner = init_runner(**arguments)
    runner.config.command[:1] = [str(program)]
    runner.config.env = without_user_settings(runner.config.env)
    # Settings are only read from a file; these two are the ones that matter. `cancel_callback` is asked once per wait.
    runner.config.pexpect_timeout = _POLL_SECONDS
    runner.config.suppress_output_file = True
    runner.run()
    return int(runner.rc if runner.rc is not None else 1)


def _forget_environment(status: dict[str, Any], runner_config: Any) -> bool:
    """ansible-runner writes the whole environment, secrets included, into a file; only the names stay.

    It does so right before it says `running`, and starts Ansible after.
    """
    if status.get("status") == "running":
        path = Path(runner_config.artifact_dir) / "command"
        kept = {"command": runner_config.command, "cwd": runner_config.cwd, "env": sorted(runner_config.env)}
        path.write_text(json.dumps(kept), encoding="utf-8")
    return True


def variables(private: Path, marker: str, value: str) -> dict[str, str]:
    """Variables for ansible-playbook, the marker of its processes among them; nodes reached locally see them too."""
    out = {
        marker: value,
        "ANSIBLE_CONFIG": str(private / "ansible.cfg"),
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_CALLBACK_PLUGINS": "",
        "AWX_LIB_DIRECTORY": "",
        "MAX_EVENT_RES": str(_RESULT_BYTES),
    }
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or ""
    if "utf" not in locale.lower():
        # ansible-core refuses to start under any other encoding.
        out["LC_ALL"] = "C.UTF-8"
    return out


def without_user_settings(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without what the user set for other uses of Ansible.

    `JOB_ID` and its like make ansible-runner's callback call `int()`; schedulers put text there.
    """
    ours = {"ANSIBLE_CONFIG", "ANSIBLE_HOST_KEY_CHECKING", "ANSIBLE_CALLBACK_PLUGINS", "ANSIBLE_STDOUT_CALLBACK"}
    awkward = {"JOB_ID", "AD_HOC_COMMAND_ID", "PROJECT_UPDATE_ID", "ORIGINAL_STDOUT_CALLBACK"}
    return {
        key: value
        for key, value in env.items()
        if (not key.startswith("ANSIBLE_") or key in ours) and key not in awkward
    }


def configuration(private: Path) -> str:
    """The text of our own ansible.cfg. `%` is the interpolation sign of the format."""

    def text(path: Path) -> str:
        return str(path).replace("%", "%%")

    return f"""[defaults]
home = {text(private / "home")}
local_tmp = {text(private / "tmp")}
remote_tmp = /tmp
collections_path = {text(private / "collections")}
host_key_checking = True
gathering = explicit
nocows = True
retry_files_enabled = False
deprecation_warnings = False
no_target_syslog = True
any_errors_fatal = False
force_color = False
nocolor = True
timeout = 30
# How often its processes look for each other (s). The default, 0.001, costs 6 % of a core while nodes work.
internal_poll_interval = 0.01

[inventory]
enable_plugins = ansible.builtin.yaml
unparsed_is_failed = True

[connection]
pipelining = True

[ssh_connection]
pipelining = True
retries = 2
# How connections are shared is in the file of `-F`, which the inventory names.
ssh_args =
"""
