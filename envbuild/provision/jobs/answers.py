"""Ask the nodes of a job: what runs on each of them, and what they left in its folder."""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.node.protocol import Exit
from envbuild.node.read_text import integer
from envbuild.node.redact import redact_text
from envbuild.provision.contact.first_contact import ContactResult, parse_output
from envbuild.provision.contact.payload import read_answer
from envbuild.provision.jobs.asked import PROGRESS, Asked
from envbuild.provision.jobs.site import JobSite, finish, place, run_to_end
from envbuild.provision.run.context import Run
from envbuild.provision.run.journal import EventKind
from envbuild.provision.run.progress import TAIL, followed
from envbuild.schedule.cluster import Runner
from envbuild.schedule.job import HINTS, Failure, Job, JobState, job_error
from envbuild.text import how_it_ended

ASK_SECONDS = 5.0


def ask_in_job(work: Run, site: JobSite, asked: Asked, limit: int) -> dict[str, dict[str, ContactResult]]:
    """One job of `limit` seconds at most; every node of it has an answer to every verb, or an error that says why not.

    What is asked `once` has an answer of the node that was asked alone, and what comes `after` only where all went
    well before. Raises EnvbuildError as submitting and waiting do, `job-…` where no node answered anything, and
    `prefix-not-shared` (exit 7).
    """
    runner, scheduler, folder = site.runner, site.scheduler, asked.folder
    nonce = secrets.token_hex(16)
    place(runner, folder, asked.files(nonce))
    job = asked.job(site, limit)
    number, state = _followed(work, site, job) if asked.program else run_to_end(work, site, job)
    attempt = last_attempt(runner, folder, scheduler.attempt(state))
    raw = collect(runner, attempt, ".json")
    failed = None if state.good else job_error(number, state, scheduler.logs(job, number, 4096))
    if not raw:
        error = first_death(failed, state.nodes, runner, attempt) if failed else not_shared(folder, number)
        finish(work, site, job, number, state, good=False)
        raise error

    def answers_of(node: str, verbs: Iterable[str]) -> dict[str, ContactResult]:
        read = parse_output if asked.program is None else plain
        return {verb: _answer(node, raw.get(node, {}).get(verb), nonce, failed, read) for verb in verbs}

    responses = {node: answers_of(node, asked.requests) for node in sorted({*raw, *state.nodes})}
    if all(answer.exit == 0 for answers in responses.values() for answer in answers.values()):
        for node, answers in responses.items():
            answers |= answers_of(node, asked.after)
    for node, got in raw.items():
        responses[node] |= answers_of(node, [verb for verb in asked.once if verb in got])
    if failed is not None:
        _tell_phases(responses, failed, runner, attempt)
    good = all(answer.error is None for answers in responses.values() for answer in answers.values())
    finish(work, site, job, number, state, good=good)
    return responses


def _followed(work: Run, site: JobSite, job: Job) -> tuple[str, JobState]:
    """`run_to_end`; what its nodes do is asked for and told while it runs, and not while it waits in the queue."""
    runs = threading.Event()

    def ask() -> str:
        return (progress_of(site.runner, job.output) if runs.is_set() else "") + "\n"

    with followed({job.output: ask}, _teller(work), ASK_SECONDS):
        return run_to_end(work, site, job, on_state=lambda state: (runs.clear if state.waiting else runs.set)())


def _teller(work: Run) -> Callable[[str, Mapping[str, Any]], None]:
    """Tells what a node of a job does; nobody else says that it begins a step."""
    steps: dict[str, str] = {}

    def tell(_: str, state: Mapping[str, Any]) -> None:
        node, step = state.get("host", ""), state.get("step", "")
        if steps.get(node) != step:
            steps[node] = step
            work.journal.tell(EventKind.STEP_STARTED, node=node, step=step)
        work.journal.now(node, state)

    return tell


def _answer(
    node: str, data: bytes | None, nonce: str, failed: EnvbuildError | None,
    read: Callable[[bytes, str, str], ContactResult] = parse_output,
) -> ContactResult:  # fmt: skip
    if data is None:
        return ContactResult.failed(node, failed or EnvbuildError(
            "node-silent", f"{node} was in the job and did not finish", hint="see the log of the job",
            details={"node": node},
        ))  # fmt: skip
    try:
        return read(data, nonce, node)
    except EnvbuildError as error:
        # What ended the job has cut off the answer, too.
        return ContactResult.failed(node, failed if failed and error.code == "contact-failed" else error)


def plain(data: bytes, _: str, node: str) -> ContactResult:
    """The answer of the node program without a first contact; one that cannot be read is an error of its node alone."""
    response = read_answer(data.decode("utf-8", "replace"))
    if response is None:
        error = EnvbuildError(
            "answer-unreadable",
            f"{node}: its answer cannot be read",
            why=f"it is empty, not JSON, or larger than {FILE_LIMIT >> 20} MiB",
            hint="see the answer and the log in the job's folder",
        )
        response = {"ok": False, "changed": False, "error": error.as_dict()}
    result = response.get("result") or {}
    good = response["ok"] and result.get("ok", True)
    return ContactResult(node, {}, response, int(result.get("exit", Exit.OK if good else Exit.CHECK_FAILED)))


def not_shared(folder: str, number: str) -> EnvbuildError:
    """A job that ended well and left nothing: it wrote into another folder of the same name."""
    return EnvbuildError(
        "prefix-not-shared",
        f"job {number} succeeded, but its results are not in {folder}",
        why="the nodes and the host that submits jobs do not share this folder",
        hint="choose a `prefix` on a file system that all hosts mount",
    )


# Bytes: of one file, and of all that one exchange brings (in base64 a third more, see `schedule/runner.py`).
FILE_LIMIT = 8 << 20
EXCHANGE_LIMIT = 8 << 20
# Bytes of a node's own last words.
_LAST = 1500

# Every file of two levels with its contents in base64, one a line; what is being written has another ending.
_COLLECT = """
skip=$3 left=$4 most=$5
cd -- "$1" 2>/dev/null || exit 0
wc -c -- */*"$2" 2>/dev/null | while read -r size file; do
  [ -f "$file" ] || continue
  skip=$((skip - 1))
  [ "$skip" -lt 0 ] || continue
  [ "$size" -le "$most" ] || size=0
  left=$((left - size))
  [ "$left" -ge 0 ] || { echo more; break; }
  printf '%s ' "$file"
  [ "$size" = 0 ] || base64 < "$file" | tr -d '\\n'
  echo
done
"""


def progress_of(runner: Runner, folder: str) -> str:
    """The ends of the files in which nodes of a job tell what they do."""
    return runner.run(
        ["find", folder, "-maxdepth", "1", "-name", f"{PROGRESS}.*", "-exec", "tail", "-qc", str(TAIL), "{}", "+"]
    ).out


def collect(runner: Runner, folder: str, ending: str) -> dict[str, dict[str, bytes]]:
    """Files `<folder>/<node>/<name><ending>` as {node: {name: content}}; empty when there is no such folder.

    However many there are; one of more than `FILE_LIMIT` bytes comes as if it were empty.

    Raises EnvbuildError `answers-not-collected` (exit 3).
    """
    files: dict[str, dict[str, bytes]] = {}
    count, more = 0, True
    while more:
        numbers = (str(number) for number in (count, EXCHANGE_LIMIT, FILE_LIMIT))
        done = runner.run(["/bin/sh", "-c", _COLLECT, "sh", folder, ending, *numbers], timeout=120.0)
        if not done.ok:
            raise EnvbuildError(
                "answers-not-collected",
                f"envbuild could not fetch the nodes' answers from {runner.host}",
                why="no answer in time" if done.timed_out else done.err.strip()[-300:],
                hint=f"the answers are in {folder} on that host",
            )
        lines = done.out.splitlines()
        more = lines[-1:] == ["more"]
        for line in lines[:-1] if more else lines:
            path, _, text = line.rpartition(" ")
            node, name = posixpath.split(path)
            count += 1
            try:
                files.setdefault(node, {})[name.removesuffix(ending)] = base64.b64decode(text, validate=True)
            except binascii.Error:
                continue  # cut off: as if it were not there
    return files


def last_attempt(runner: Runner, folder: str, attempt: int) -> str:
    """The folder with the answers of a job's last run: `attempt` by the scheduler, or a later one that has left some.

    Who has forgotten the job does not tell that it was requeued.
    """
    there = re.findall(r"^answers-([0-9]+)$", runner.run(["ls", "--", folder]).out, re.MULTILINE)
    return posixpath.join(folder, f"answers-{max(attempt, *map(int, there), 0)}")


def _tell_phases(
    responses: Mapping[str, dict[str, ContactResult]], failed: EnvbuildError, runner: Runner, folder: str
) -> None:
    """Put into the answers that a failed job owes, as errors, in which verb their nodes were and how it ended."""
    owed: dict[str, list[str]] = {}
    for node, answers in responses.items():
        for verb, answer in answers.items():
            if answer.error is failed:
                owed.setdefault(node, []).append(verb)
    if not owed:
        return
    for node, error in phases(failed, owed, runner, folder).items():
        responses[node].update(dict.fromkeys(owed[node], ContactResult.failed(node, error)))


def phases(failed: EnvbuildError, nodes: Iterable[str], runner: Runner, folder: str) -> dict[str, EnvbuildError]:
    """By node the error of the job `failed`, with the verb that it did not finish, and how that ended.

    What a node has begun and not ended has no final name yet; see job_run.sh, which also writes how it died.
    """
    began, died, logs = (collect(runner, folder, ending) for ending in (".new", ".died", ".log"))
    errors = {}
    for node in nodes:
        verb = next(iter(began.get(node, {})), "")
        how, memory = _how_it_died(died.get(node, {}).get(verb, b""))
        where = f"in `{verb}`{how and f', which {how}'}" if verb else "between two steps"
        last = redact_text(logs.get(node, {}).get("stderr", b"")[-_LAST:].decode("utf-8", "replace")).strip()
        errors[node] = EnvbuildError(
            f"job-{Failure.OUT_OF_MEMORY}" if memory else failed.code,
            f"{node} was {where}: {failed.what}",
            why="\n".join(filter(None, (last, failed.why))),
            hint=HINTS[Failure.OUT_OF_MEMORY] if memory else failed.hint,
            exit_code=failed.exit_code,
            details={**failed.details, "node": node, "verb": verb},
        )
    return errors


def first_death(failed: EnvbuildError, nodes: Iterable[str], runner: Runner, folder: str) -> EnvbuildError:
    """Of a job that left no answer: the error of the first node that had begun something, else `failed`."""
    errors = phases(failed, nodes, runner, folder)
    return next((error for error in errors.values() if error.details.get("verb")), failed)


def _how_it_died(data: bytes) -> tuple[str, bool]:
    """What a `.died` file says (exit code, how many processes the kernel killed for memory), and whether it was memory.

    Empty where nothing was written.
    """
    code, kills = ([integer(word.decode("ascii", "replace")) or 0 for word in data.split()] + [0, 0])[:2]
    if kills > 0:
        return "the kernel killed because memory ran out", True
    return how_it_ended(code) if data else "", False
