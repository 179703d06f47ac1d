"""Ask the nodes of a job: what runs on each of them, and what they left in its folder."""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.node.protocol import Exit
from envbuild.node.read_text import integer
from envbuild.node.redact import redact_text
from envbuild.provision.contact.first_contact import ContactResult, read_findings
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
    """One job of `limit` seconds at most; every node of it has an answer to every request, or an error that says why.

    What is asked `once` has an answer of the node that was asked alone, and what comes `after` only where all went
    well before. Raises EnvbuildError as submitting and waiting do, `job-…` where no node answered anything, and
    `prefix-not-shared` (exit 7).
    """
    runner, scheduler, folder = site.runner, site.scheduler, asked.folder
    place(runner, folder, asked.files())
    job = asked.job(site, limit)
    number, state = _followed(work, site, job)
    left = collect(runner, folder, scheduler.attempt(state))
    failed = None if state.good else job_error(number, state, scheduler.logs(job, number, 4096))
    nodes = {node: left.get(node, {}) for node in sorted({*left, *state.nodes})}
    responses = {node: _answers(node, asked.requests, files, failed) for node, files in nodes.items()}
    if all(answer.exit == 0 for answers in responses.values() for answer in answers.values()):
        for node, answers in responses.items():
            answers |= _answers(node, asked.after, nodes[node], failed)
    for node, files in left.items():
        responses[node] |= _answers(node, [name for name in asked.once if f"{name}.json" in files], files, failed)
    answered = [answer.error is None for answers in responses.values() for answer in answers.values()]
    finish(work, site, job, number, state, good=bool(left) and all(answered))
    if failed is not None and not any(answered):
        raise first_death(nodes, failed)
    if not left:
        raise EnvbuildError(  # it wrote into another folder of the same name
            "prefix-not-shared",
            f"job {number} succeeded, but its results are not in {folder}",
            why="the nodes and the host that submits jobs do not share this folder",
            hint="choose a `prefix` on a file system that all hosts mount",
        )
    return responses


def _followed(work: Run, site: JobSite, job: Job) -> tuple[str, JobState]:
    """`run_to_end`; what its nodes do is asked for and told while it runs, and not while it waits in the queue."""
    runs = threading.Event()
    steps: dict[str, str] = {}

    def ask() -> str:
        return (progress_of(site.runner, job.output) if runs.is_set() else "") + "\n"

    def tell(_: str, state: Mapping[str, Any]) -> None:
        node, step = state.get("host", ""), state.get("step", "")
        if steps.get(node) != step:  # nobody else says that a node of a job begins a step
            steps[node] = step
            work.journal.tell(EventKind.STEP_STARTED, node=node, step=step)
        work.journal.now(node, state)

    with followed({job.output: ask}, tell, ASK_SECONDS):
        return run_to_end(work, site, job, on_state=lambda state: (runs.clear if state.waiting else runs.set)())


def _answers(node: str, names: Iterable[str], files: Files, failed: EnvbuildError | None) -> dict[str, ContactResult]:
    """By their names the answers in the files that a node left; `failed`: the error of the whole job."""
    findings = read_findings(files.get(FINDINGS, b""))
    answers = {}
    for name in names:
        if (data := files.get(f"{name}.json")) is not None:
            answers[name] = answer_of(node, data, findings)
        elif findings and not findings.get("python"):
            answers[name] = ContactResult(node, findings, None, None)
        else:
            answers[name] = ContactResult.failed(node, why_silent(node, files, failed, name))
    return answers


def answer_of(node: str, data: bytes, findings: Mapping[str, str]) -> ContactResult:
    """The answer of the node program; one that cannot be read is an error of its node alone."""
    response = read_answer(data.decode("utf-8", "replace"))
    if response is None or (response["ok"] and "result" not in response):
        error = EnvbuildError(
            "answer-unreadable",
            f"{node}: its answer cannot be read",
            why=f"it is empty, not JSON, or larger than {FILE_LIMIT >> 20} MiB",
            hint="see the answer and the log in the job's folder",
        )
        response = {"ok": False, "changed": False, "error": error.as_dict()}
    result = response.get("result", {})
    good, code = response["ok"] and result.get("ok", True), result.get("exit")
    if not isinstance(code, int):
        code = Exit.OK if good else Exit.CHECK_FAILED
    return ContactResult(node, dict(findings), response, int(code))


# Bytes: of one file, and of all that one exchange brings (in base64 a third more, see `schedule/runner.py`).
FILE_LIMIT = 8 << 20
EXCHANGE_LIMIT = 8 << 20
# The file with what sh found on a node; see job_run.sh, also for the endings of others.
FINDINGS = "findings"
# By their names what a node left.
Files = Mapping[str, bytes]
# Bytes of a node's own last words.
_LAST = 1500

_ANSWER = re.compile("answers-([0-9]{1,9})/([^/]+)/([^/]+)")
# Every file that nodes left with its contents in base64, one a line.
_COLLECT = """
skip=$2 left=$3 most=$4
cd -- "$1" 2>/dev/null || exit 0
wc -c -- answers-*/*/* 2>/dev/null | while read -r size file; do
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


def collect(runner: Runner, folder: str, attempt: int = 0) -> dict[str, dict[str, bytes]]:
    """Files `<folder>/answers-<attempt>/<node>/<name>` as {node: {name: content}}; empty where there are none.

    However many there are; one of more than `FILE_LIMIT` bytes comes as if it were empty. They are those of the last
    run of the job: `attempt`, or a later one, as who has forgotten the job does not tell that it was requeued.

    Raises EnvbuildError `answers-not-collected` (exit 3).
    """
    files: dict[int, dict[str, dict[str, bytes]]] = {}
    count, more = 0, True
    while more:
        numbers = map(str, (count, EXCHANGE_LIMIT, FILE_LIMIT))
        done = runner.run(["/bin/sh", "-c", _COLLECT, "sh", folder, *numbers], timeout=120.0)
        if not done.ok:
            raise EnvbuildError(
                "answers-not-collected",
                f"envbuild could not fetch the nodes' answers from {runner.host}",
                why="no answer in time" if done.timed_out else done.err.strip()[-300:],
                hint=f"the answers are in {folder} on that host",
            )
        lines = done.out.split("\n")[:-1]  # a name may have what else Python takes for the end of a line
        more = lines[-1:] == ["more"]
        for line in lines[:-1] if more else lines:
            path, _, text = line.rpartition(" ")
            count += 1
            match = _ANSWER.fullmatch(path)
            if match is None:  # no node and no job of ours has written it
                continue
            number, node, name = match.groups()
            with contextlib.suppress(binascii.Error):  # cut off: as if it were not there
                files.setdefault(int(number), {}).setdefault(node, {})[name] = base64.b64decode(text, validate=True)
    return files.get(max(attempt, *files, 0), {})


def why_silent(node: str, files: Files, failed: EnvbuildError | None, asked: str = "") -> EnvbuildError:
    """Why a node left no answer to what it was `asked`: the step that it did not finish, and how that ended.

    `failed`: the error of the whole job. What a node has begun and not ended has no final name yet.
    """
    begun = [name.removesuffix(".new") for name in files if name.endswith(".new")]
    step = asked if asked in begun else next(iter(begun), "")
    how, memory = _how_it_died(files.get(f"{step}.died", b""))
    if failed is None and how:
        failed = EnvbuildError("node-program-died", "it left no answer", hint="see the log of the job")
    elif failed is None:
        failed = EnvbuildError("node-silent", "it left no answer", hint="see the log of the job")
    where = f"in `{step}`{how and f', which {how}'}" if step else "between two steps"
    last = redact_text(files.get("stderr.log", b"")[-_LAST:].decode("utf-8", "replace")).strip()
    return EnvbuildError(
        f"job-{Failure.OUT_OF_MEMORY}" if memory else failed.code,
        f"{node} was {where}: {failed.what}",
        why="\n".join(filter(None, (last, failed.why))),
        hint=HINTS[Failure.OUT_OF_MEMORY] if memory else failed.hint,
        exit_code=failed.exit_code,
        details={**failed.details, "node": node, "verb": step},
    )


def first_death(nodes: Mapping[str, Files], failed: EnvbuildError) -> EnvbuildError:
    """Of a job that left no answer: the error of the first node that had begun something, else `failed`."""
    errors = (why_silent(node, files, failed) for node, files in nodes.items())
    return next((error for error in errors if error.details["verb"]), failed)


def _how_it_died(data: bytes) -> tuple[str, bool]:
    """What a `.died` file says (exit code, how many processes the kernel killed for memory), and whether it was memory.

    Empty where nothing was written.
    """
    code, kills = ([integer(word.decode("ascii", "replace")) or 0 for word in data.split()] + [0, 0])[:2]
    if kills > 0:
        return "the kernel killed because memory ran out", True
    return how_it_ended(code) if data else "", False
