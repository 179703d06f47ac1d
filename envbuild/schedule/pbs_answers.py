"""What PBS's programs print, read. Pure.

`qstat -F json` is no JSON with ordinary environments (openpbs issues 2541 and 1255: quotes and backslashes of variables
are not escaped), so a job that cannot be read that way is read from the text of `qstat -f`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from envbuild.schedule.job import Failure, JobState, Phase

# PBS Professional, qstat(1B), states of a job. F is finished, X an expired subjob, M moved to another server.
_PHASES = {
    **dict.fromkeys("QHWTM", Phase.PENDING),
    **dict.fromkeys("BRSU", Phase.RUNNING),
    "E": Phase.COMPLETING,
    **dict.fromkeys("FX", Phase.DONE),
}
# Exit_status of a job that did not end by itself (PBS Professional, Administrator's Guide, job exit status codes).
_STATUS = {
    -3: Failure.LAUNCH,
    -4: Failure.NODE_FAIL,
    -5: Failure.NODE_FAIL,
    -11: Failure.NODE_FAIL,
    -12: Failure.NODE_FAIL,
    -29: Failure.TIMEOUT,
}
# The comment says more than the number: a job that was killed has 256 + the signal, whoever killed it.
_COMMENTS = (
    (re.compile(r"walltime", re.IGNORECASE), Failure.TIMEOUT),
    (re.compile(r"preempt", re.IGNORECASE), Failure.PREEMPTED),
    (re.compile(r"\bmem\b.*exceeded|out of memory|oom", re.IGNORECASE), Failure.OUT_OF_MEMORY),
    (re.compile(r"node.*(fail|down)|vnode", re.IGNORECASE), Failure.NODE_FAIL),
    (re.compile(r"delete|terminated", re.IGNORECASE), Failure.CANCELLED),
)
_UNKNOWN = re.compile(r"unknown job id|job has finished", re.IGNORECASE)


def unknown_job(text: str) -> bool:
    """Whether PBS says that it has no such job (any more)."""
    return _UNKNOWN.search(text) is not None


def parse_json(text: str, number: str) -> JobState | None:
    """`qstat -x -f -F json ID`; None when it is no JSON, or has no such job."""
    try:
        data = json.loads(text)
        jobs = data["Jobs"]
        key = next(key for key in jobs if key.partition(".")[0] == number)
        attributes = jobs[key]
        return _state(attributes) if isinstance(attributes.get("job_state"), str) else None
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, StopIteration):
        return None


def parse_text(text: str, number: str) -> JobState | None:
    """`qstat -x -f ID`: one attribute a line, long ones folded after a tab; None when there is no such job."""
    lines = unfolded(text)
    attributes: dict[str, Any] = {}
    inside = False
    for line in lines:
        if line.startswith("Job Id:"):
            inside = line.partition(":")[2].strip().partition(".")[0] == number
        elif inside:
            found = re.match(r"    ([A-Za-z_]+(?:\.[A-Za-z_]+)?) = (.*)", line)
            if found:
                # The first of each: a variable with a newline in its value could look like an attribute.
                attributes.setdefault(found[1], found[2])
    return _state(attributes) if "job_state" in attributes else None


def unfolded(text: str) -> list[str]:
    """The lines that PBS folded after a tab, in one piece each."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("\t") and lines:
            lines[-1] += line[1:]
        else:
            lines.append(line)
    return lines


def _state(attributes: Mapping[str, Any]) -> JobState:
    word = str(attributes["job_state"])
    phase = _PHASES.get(word, Phase.RUNNING)
    comment = str(attributes.get("comment") or "")
    status = _number(attributes.get("Exit_status"))
    runs = _number(attributes.get("run_count")) or 0
    failure = _failure(status, comment) if phase is Phase.DONE else None
    code = status
    if code is not None and code > 256:
        # 256 + the signal that ended it.
        code = 128 + code - 256
    return JobState(
        phase=Phase.FAILED if failure else phase,
        reason=comment,
        exit=code if phase is Phase.DONE else None,
        failure=failure,
        nodes=_hosts(str(attributes.get("exec_host") or "")),
        restarts=max(0, runs - 1),
        word=word,
    )


def _failure(status: int | None, comment: str) -> Failure | None:
    if status is None:
        # Deleted before it ran.
        return Failure.CANCELLED
    if status in _STATUS:
        return _STATUS[status]
    if 0 <= status <= 255:
        return None
    return next((failure for pattern, failure in _COMMENTS if pattern.search(comment)), Failure.CANCELLED)


def _number(value: object) -> int | None:
    text = str(value).strip()
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else None


def _hosts(text: str) -> tuple[str, ...]:
    """`x3001/0*64+x3002/0*64` as names, without their domain."""
    return tuple(dict.fromkeys(re.split(r"[/.]", part, maxsplit=1)[0] for part in text.split("+") if part))
