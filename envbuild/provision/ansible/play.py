"""Run the steps of a plan: request files, then one play or direct calls; what was answered, per node and verb."""

from __future__ import annotations

import hashlib
import os
import posixpath
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.facts import NodeFacts
from envbuild.model.target import Connection
from envbuild.node.paths import says_full
from envbuild.node.redact import redact_data
from envbuild.plan.tools import NodeTools, Tool
from envbuild.provision.ansible.steps import NodeHost, StepsResult, TaskEvent, Watch, run_here, tmp_folder
from envbuild.provision.contact.first_contact import contact, node_request
from envbuild.provision.contact.payload import read_answer, write_payload
from envbuild.provision.run.context import Outcome, Work
from envbuild.provision.run.journal import EventKind, Journal
from envbuild.provision.run.progress import LONGEST, TAIL, followed, is_amount, tail_of
from envbuild.provision.run.run_dir import RunDir
from envbuild.text import how_it_ended, visible

FORKS = 32
# A node that is too busy to tell what it does is asked again.
ASK_SECONDS = 10.0
_LAST_LINES = 10
# One that hangs may not answer even what its log says last.
_OVERDUE_SECONDS = 15.0
INTERRUPTED = "interrupted: ending the steps that run, and all that they started"


def node_host(work: Work, facts: NodeFacts, tools: NodeTools, *, least: bool = False) -> NodeHost:
    """A node that gets those of its tools that it lacks; `least`: only those that run the node program."""
    prefix, needed = facts.stage_prefix, tools.least(facts.stage_prefix) if least else tools.tools
    payload = payload_of(work, [tool for tool in needed if tool in tools.missing(facts.toolchain)], prefix)
    tmp = tmp_folder(work.prepared.target.tmp, facts.user, facts.home)
    return NodeHost(facts.node, tools.python, tools.pyz, payload=payload, tmp=tmp, prefix=prefix)


def payload_of(work: Work, tools: Sequence[Tool], prefix: str) -> Path | None:
    """The payload that puts tools into a prefix, one for all nodes that lack the same; None without any."""
    if not tools:
        return None
    key = "\0".join((prefix, *(tool.folder for tool in tools)))
    path = work.run.staging / f"toolchain-{hashlib.sha256(key.encode()).hexdigest()[:12]}.sh"
    if not path.exists():
        write_payload(path, tools, prefix=prefix, packed=work.prepared.target.connection.kind != "local")
    return path


def run_hosts(
    requests: Mapping[str, Mapping[str, dict[str, Any]]],
    files: Mapping[str, NodeHost],
    work: Work,
    *,
    playbook: str = "provision.yml",
) -> Outcome:
    """One play over the nodes of `requests` (node to verb to request); its tasks count in `work`.

    Nodes that are not done when the deadline of the run is over have an error each. Raises EnvbuildError as
    `run_playbook` does otherwise; what nodes answered until then is in the journal.
    """
    outcome = Outcome()
    hosts = tuple(_with_requests(node, files[node], verbs, work.run) for node, verbs in requests.items())
    if not hosts:
        return outcome
    work.journal.append(EventKind.PLAYBOOK_STARTED, nodes=[host.name for host in hosts])
    watcher = _Watcher(outcome, work.journal)
    try:
        with following(requests, work):
            result = _carried_out(playbook, hosts, watcher, work)
    except EnvbuildError as error:
        if error.code != "playbook-deadline":
            raise
        _end_overdue(requests, watcher.running, outcome, work)
        return outcome
    finally:
        # What the nodes had to be told, a target's variables say, does not stay in a run directory.
        for host in hosts:
            for verb, path in host.requests.items():
                request = requests[host.name][verb]
                if (clean := redact_data(request)) != request:
                    work.run.write_json(path, clean)
    work.tasks += result.tasks_run
    for host in hosts:
        if host.name not in result.nodes:
            outcome.errors[host.name] = EnvbuildError(
                "node-silent",
                f"{host.name}: Ansible ended (exit {result.rc}) without a task result for this node",
                hint="see the events of the play in the run directory",
            )
    return outcome


def _carried_out(playbook: str, hosts: tuple[NodeHost, ...], watcher: _Watcher, work: Work) -> StepsResult:
    """The steps on this machine directly, on others with Ansible; `--ansible`: here too."""
    connection, settings = work.prepared.target.connection, work.settings
    watch = Watch(settings.deadline, settings.cancel, partial(work.journal.stage, INTERRUPTED))
    if connection.kind == "local" and not settings.playbook:
        return run_here(playbook, *hosts, on_event=watcher, watch=watch)
    from envbuild.provision.ansible.adapter import Inventory, run_playbook

    inventory, forks = Inventory(hosts, connection), min(FORKS, len(hosts))
    return run_playbook(playbook, inventory, run_dir=work.run.path, on_event=watcher, forks=forks, watch=watch)


def _with_requests(node: str, host: NodeHost, verbs: Mapping[str, dict[str, Any]], run: RunDir) -> NodeHost:
    """The node with its request files written."""
    folder = run.path / "requests" / node
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = {verb: folder / f"{verb}.json" for verb in verbs}
    for verb, path in paths.items():
        # Its log on the node is for who looks there by hand, and for nodes that end without an answer.
        request = verbs[verb]
        run.write_json(path, telling({**request, "args": {"log": _log(request, run.id), **request["args"]}}, run.id))
    return replace(host, name=node, requests=paths, run=run.id)


def telling(request: dict[str, Any], run: str) -> dict[str, Any]:
    """The request with a file on the node in which it tells what it does, for `following`."""
    return {**request, "args": {"progress": _progress(_log(request, run)), **request["args"]}}


def _log(request: Mapping[str, Any], run: str) -> str:
    return posixpath.join(str(request["prefix"]), "logs", f"{run}.log")


def _progress(log: str) -> str:
    return f"{log.removesuffix('.log')}.progress"


def following(requests: Mapping[str, Mapping[str, dict[str, Any]]], work: Work) -> AbstractContextManager[None]:
    """Tell what the nodes do under their steps while the block runs."""
    connection, ask = work.prepared.target.connection, dict[str, Callable[[], str]]()
    for node, verbs in requests.items():
        for request in list(verbs.values())[:1]:
            path = _progress(_log(request, work.run.id))
            ask[node] = partial(_tail, node, path, connection)
    return followed(ask, work.journal.now, 1.0 if connection.kind == "local" else max(3.0, 0.1 * len(ask)))


def _tail(node: str, path: str, connection: Connection) -> str:
    """The end of what a node has told in its file; over the connection that is open already."""
    if connection.kind == "local":
        return tail_of(Path(f"{path}.{os.uname().nodename}")) + "\n"
    from envbuild.transport.ssh import glance

    script = f"tail -c {TAIL} -- {shlex.quote(path)}.$(uname -n) 2>/dev/null; echo"
    return glance(node, script.encode(), connection, ASK_SECONDS, 2 * TAIL)


def _end_overdue(
    requests: Mapping[str, Mapping[str, dict[str, Any]]], running: Mapping[str, str], outcome: Outcome, work: Work
) -> None:
    """Give every node that is not done an error. `running`: the steps that had begun; the play has been stopped."""
    late = [node for node, verbs in requests.items() if node in running or not _done(node, verbs, outcome)]
    prefixes = {node: str(next(iter(requests[node].values()))["prefix"]) for node in late if requests[node]}
    lines = _last_lines(prefixes, work.run, work.prepared.target.connection)
    for node in late:
        step = running.get(node)
        where = f"the step `{step}` did" if step else "the next step did"
        outcome.errors[node] = EnvbuildError(
            "step-overdue",
            f"{node}: {where} not end within {work.settings.deadline:g} s, and was stopped",
            why=lines.get(node, ""),
            hint="find what hangs on the node; `--step-timeout` waits longer",
            details={"node": node, "step": step},
        )
        work.journal.append(
            EventKind.STEP_FINISHED, node=node, step=step, status="overdue", seconds=None,
            text="not done within the deadline",
        )  # fmt: skip


def _done(node: str, verbs: Mapping[str, Any], outcome: Outcome) -> bool:
    """The node has answered to everything, or has ended with an error."""
    answers = outcome.responses.get(node, {})
    return outcome.error_of(node) is not None or (bool(answers) and set(verbs) <= set(answers))


def _last_lines(prefixes: Mapping[str, str], run: RunDir, connection: Connection) -> dict[str, str]:
    """By node the end of its log of a run, or that it does not answer."""
    asked = {"log_of": run.id, "lines": _LAST_LINES}
    requests = {node: node_request("log", prefix, asked, run.id) for node, prefix in prefixes.items()}
    limit = connection.model_copy(update={"connect_timeout": min(connection.connect_timeout, _OVERDUE_SECONDS)})
    lines = {}
    for node, answer in contact(requests, limit, _OVERDUE_SECONDS, run=run).items():
        if (failure := answer.failure) is not None:
            lines[node] = f"its log cannot be read: {failure.what}"
        else:
            lines[node] = "the last lines of its log: " + "; ".join(answer.result()["lines"])
    return lines


class _Watcher:
    """Turns task events into journal events and answers."""

    def __init__(self, outcome: Outcome, journal: Journal) -> None:
        self._outcome, self._journal = outcome, journal
        self.running: dict[str, str] = {}

    def __call__(self, event: TaskEvent) -> None:
        if event.status == "skipped" or not event.node:
            return
        if event.status == "started":
            self.running[event.node] = event.role
            self._journal.append(EventKind.STEP_STARTED, node=event.node, step=event.role)
            return
        self.running.pop(event.node, None)
        # The node program and the toolchain payload answer; a step that copies files does not.
        answer = read_answer(event.stdout)
        if answer is not None:
            self._outcome.responses.setdefault(event.node, {})[event.role] = answer
        elif event.status in ("failed", "unreachable"):
            self._outcome.errors[event.node] = _step_error(event)
        error, text = (answer or {}).get("error"), ""
        if error:
            text = str(error.get("what", ""))
        elif event.status in ("failed", "unreachable"):
            text = event.message
        self._journal.append(
            EventKind.STEP_FINISHED, node=event.node, step=event.role, status=event.status, seconds=event.seconds,
            error=error, text=visible(text)[:LONGEST], **_parts(answer),
        )  # fmt: skip


def _parts(answer: dict[str, Any] | None) -> dict[str, Any]:
    """How long each phase of a step took, where the node says so."""
    seconds = ((answer or {}).get("result") or {}).get("seconds")
    seconds = seconds if isinstance(seconds, dict) else {}
    parts = {str(name): value for name, value in seconds.items() if is_amount(value)}
    return {"parts": parts} if parts else {}


def _step_error(event: TaskEvent) -> EnvbuildError:
    """A step whose node program could not answer: the connection broke, or something killed it."""
    if event.status == "unreachable":
        return EnvbuildError(
            "node-unreachable",
            f"{event.node} could not be reached for the step `{event.role}`",
            why=event.message.strip()[-500:],
            hint=f"try `ssh {event.node} true`; the same command continues where this one stopped",
        )
    last = (event.stderr or event.stdout or event.message).strip()[-1500:]
    if says_full(last):
        return EnvbuildError(
            "disk-full",
            f"{event.node}: no room for the step `{event.role}`",
            why=last[-500:],
            hint="make room, or name a larger disk as `prefix` or `tmp` of the target; then run the same command again",
        )
    return EnvbuildError(
        "step-failed",
        f"{event.node}: the step `{event.role}` {how_it_ended(event.rc)}",
        why=last,
        hint="the same command continues where this one stopped",
        exit_code=ExitCode.BUILD_FAILED,
    )
