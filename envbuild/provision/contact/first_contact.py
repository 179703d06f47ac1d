"""First contact: one POSIX sh text to `/bin/sh -s` on each node, its findings and the node program's answer back.

The login shell never parses anything of ours, and what start-up files print is outside the marker lines. See
`bootstrap.sh` beside this file and `docs/dev/node-program.md`, First contact.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from envbuild.errors import EnvbuildError
from envbuild.hostlist import expand_hosts
from envbuild.model.target import Connection, Target
from envbuild.node import proc, program_files
from envbuild.node.protocol import CONNECTION, PROTOCOL
from envbuild.node_program import call_here
from envbuild.provision.contact.payload import refuse_constant

# A probe's answer is some 10 KB; more than this is a node that prints without end.
OUTPUT_LIMIT = 16 * 1024 * 1024
LOG_LIMIT = 64 * 1024
WORKERS = 64
DEADLINE = 120.0

# What these verbs have started would go on for minutes after the session is gone.
_LONG = ("smoke", "meet", "container")

_PLACEHOLDER = re.compile(r"@([A-Z]+)@")


class RunFolder(Protocol):
    """Where a run keeps the traceback of a mistake of ours."""

    def unexpected(self, what: str, error: BaseException, /) -> EnvbuildError:
        """The error that tells of it, and names the traceback."""


class ContactResult(NamedTuple):
    """What one contact brought back.

    `findings`: sh's own, by key (`arch`, `libc`, `prefix`, `prefix_writable`, `scheduler`, `python`, ...); `response`:
    the node program's answer, None where no Python 3.6 or newer is; `exit`: its exit code; `log`: the end of what went
    to stderr; `error`: why nothing came back at all.
    """

    node: str
    findings: dict[str, str]
    response: dict[str, Any] | None
    exit: int | None
    log: str = ""
    error: EnvbuildError | None = None

    @classmethod
    def failed(cls, node: str, error: EnvbuildError) -> Self:
        """What a contact is that brought nothing back."""
        return cls(node, {}, None, None, error=error)

    @property
    def python(self) -> str | None:
        """The interpreter that runs the node program there."""
        return self.findings.get("python") or None

    @property
    def bare(self) -> bool:
        """The node answers, and has no Python that could run the node program."""
        return self.error is None and self.response is None

    @property
    def failure(self) -> EnvbuildError | None:
        """Why there is no result; None where there is one."""
        try:
            self.result()
        except EnvbuildError as error:
            return error
        return None

    def result(self) -> dict[str, Any]:
        """The `result` of the response. Raises `error`, the EnvbuildError of the node, or `node-without-python`."""
        if self.error is not None:
            raise self.error
        if self.response is None:
            raise EnvbuildError(
                "node-without-python",
                f"{self.node} has no Python 3.6 or newer",
                why="none on PATH, in the usual folders or under the prefix",
                hint="`envbuild provision` installs Python into the prefix; only then is the right variant known",
                details={"node": self.node},
            )
        if not self.response.get("ok"):
            raise EnvbuildError.from_dict(self.response.get("error") or {})
        return dict(self.response["result"])


def node_request(verb: str, prefix: str, args: Mapping[str, Any], run: str = "-") -> dict[str, Any]:
    """A request of the node protocol (docs/dev/node-program.md, Protocol); `run` is a run id."""
    return {"protocol": PROTOCOL, "verb": verb, "run": run, "prefix": prefix, "args": dict(args)}


def build_script(request: dict[str, Any], nonce: str, *, follow: bool = False) -> str:
    """The sh text for one node. `nonce` is hexadecimal; `request` as in the node protocol.

    `follow`: the node program ends with the ssh session that runs the text.
    """
    if not re.fullmatch(r"[0-9a-f]{16,64}", nonce):
        raise ValueError("nonce must be hexadecimal")
    verb = str(request["verb"])
    if not re.fullmatch(r"[a-z]{1,32}", verb):
        raise ValueError(f"not a verb: {verb!r}")
    values = {
        "BEGIN": _marker("begin", nonce),
        "END": _marker("end", nonce),
        "PREFIX": shlex.quote(str(request["prefix"])),
        "SHARED": "''",
        "SENT": program_files.sent(request).decode(),
        "START": program_files.START,
        "VERB": verb,
        "FOLLOW": f"{CONNECTION}=ansible.builtin.ssh" if follow else "",
    }
    return _filled(_bootstrap(), values)


def look_script(prefix: str, shared: str) -> str:
    """The part of it that only looks: a line for each finding, up to the Python that can run the node program.

    `shared`: a folder that the node shares with others, whose tools may have a Python too (absolute path).
    """
    looks, last, _ = _bootstrap().partition('say python "$python"\n')
    return _filled(looks + last, {"BEGIN": "", "PREFIX": shlex.quote(prefix), "SHARED": shlex.quote(shared)})


def _bootstrap() -> str:
    text = (Path(__file__).parent / "bootstrap.sh").read_text(encoding="utf-8")
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def _filled(code: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match.group(1)], code)


def read_findings(data: bytes) -> dict[str, str]:
    """By its key what sh itself found; the first of each counts."""
    findings: dict[str, str] = {}
    for line in data.split(b"\n"):
        key, _, value = line.decode("utf-8", "replace").partition("=")
        if key:
            findings.setdefault(key, value)
    return findings


def _marker(which: str, nonce: str) -> str:
    return f"===envbuild {which} {nonce}==="


def _garbled(node: str, code: str, what: str, why: str, log: str) -> EnvbuildError:
    return EnvbuildError(
        code,
        f"{node}: {what}",
        why=why,
        hint=f"try it yourself: `ssh {node} /bin/sh -c true`" if node != "localhost" else "see the log",
        details={"node": node, "log": log[-2000:]},
    )


def parse_output(data: bytes, nonce: str, node: str = "localhost", log: str = "") -> ContactResult:
    """What came back between the markers. Raises EnvbuildError `contact-failed`, `-cut-off` or `-malformed`."""
    begin, end = (f"\n{_marker(which, nonce)}\n".encode() for which in ("begin", "end"))
    _, marker, rest = (b"\n" + data).partition(begin)
    if not marker:
        output = data[-300:].decode("utf-8", "replace").strip() or log[-300:].strip() or "nothing"
        raise _garbled(node, "contact-failed", "/bin/sh did not run the probe", f"it said: {output}", log)
    body, marker, _ = (b"\n" + rest).rpartition(end)
    if not marker:
        raise _garbled(node, "contact-failed", "the probe ended early", log[-300:].strip(), log)
    findings = read_findings(body)
    code = findings.pop("exit", "")
    number = int(code) if re.fullmatch(r"[0-9]{1,3}", code) else None
    text = findings.pop("response", "")
    response = _response(text, number, node, log) if findings.get("python") else None
    return ContactResult(node, findings, response, number, log)


def _response(text: str, code: int | None, node: str, log: str) -> dict[str, Any]:
    if not text:
        from envbuild.text import how_it_ended

        raise _garbled(node, "node-program-died", f"the node program {how_it_ended(code)}", log[-500:].strip(), log)
    try:
        data = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _garbled(node, "contact-failed", "the answer is not JSON", str(error)[:300], log) from None
    shape = isinstance(data, dict) and isinstance(data.get("ok"), bool)
    if not shape or not isinstance(data.get("result" if data["ok"] else "error"), dict):
        raise _garbled(node, "contact-failed", "the answer is not of the node protocol", text[:200], log)
    return dict(data)


def run_node(node: str, request: dict[str, Any], connection: Connection, deadline: float = DEADLINE) -> ContactResult:
    """Run `request["verb"]` of the node program on one node; `deadline` in seconds for everything after connecting.

    Raises EnvbuildError with exit code 3 when the node cannot be reached or does not answer as it should; an error
    that the node program itself reports is in the result (`ContactResult.result()` raises it).
    """
    nonce, here = secrets.token_hex(16), connection.kind == "local"
    if here:
        # This machine has the controller's own Python and the package itself: nothing is looked for or sent.
        argv, text = call_here(sys.executable, str(request["verb"])), json.dumps(request, allow_nan=False)
        done = proc.run(argv, timeout=deadline, env=dict(os.environ), stdin=text.encode(), limit=OUTPUT_LIMIT)
    else:
        from envbuild.transport import ssh

        script = build_script(request, nonce, follow=request["verb"] in _LONG)
        done = ssh.exchange(node, script.encode(), connection, deadline, OUTPUT_LIMIT)
    log = done.err[-LOG_LIMIT:]
    if done.truncated:
        why = f"more than {OUTPUT_LIMIT >> 20} MiB of output"
        raise _garbled(node, "contact-failed", "the node prints without end", why, log)
    if done.timed_out:
        raise _garbled(node, "contact-failed", f"no answer within {deadline:g} s", log[-300:].strip(), log)
    if here:
        response = _response(done.out.rstrip(), done.rc, node, log)
        return ContactResult(node, {"python": sys.executable}, response, done.rc, log)
    return parse_output(done.out.encode(), nonce, node, log)


def contact(
    requests: Mapping[str, dict[str, Any]],
    connection: Connection,
    deadline: float = DEADLINE,
    *,
    run: RunFolder | None = None,
) -> dict[str, ContactResult]:
    """Contact all nodes of `requests` at once; each has its own result or error, and none waits for another's deadline.

    `run`: the one that asks.
    """
    at_once = threading.BoundedSemaphore(WORKERS)

    def one(node: str) -> ContactResult:
        try:
            with at_once:
                return run_node(node, requests[node], connection, deadline)
        except EnvbuildError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - one strange node must not cost the answers of the others
            failure = (run or EnvbuildError).unexpected(f"{node} was not contacted", error)
        failure.details.setdefault("node", node)
        return ContactResult.failed(node, failure)

    if len(requests) < 2:
        return {node: one(node) for node in requests}
    program_files.packed()  # once for all of them
    # Daemon threads: an interrupt ends the run at once and does not wait for every node's deadline.
    answers = proc.parallel([partial(one, node) for node in requests])
    return {node: answer for node, answer in zip(requests, answers, strict=True) if answer is not None}


def ask_each(
    verb: str, target: Target, args: Mapping[str, Any], deadline: float = 3600.0, *, run: RunFolder | None = None
) -> dict[str, dict[str, Any] | EnvbuildError]:
    """Node of a target -> result of a verb with `args` (docs/dev/node-verbs.md), or why there is none."""
    request = node_request(verb, target.prefix, args, f"{verb}-{args.get('action', 'ask')}-{secrets.token_hex(6)}")
    answers = contact(dict.fromkeys(expand_hosts(target.hosts), request), target.connection, deadline, run=run)
    return {node: answer.failure or answer.result() for node, answer in answers.items()}
