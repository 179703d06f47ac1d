"""What the nodes of a job left in its folder: answers, logs, and how a step ended that has no answer."""

from __future__ import annotations

import base64
import binascii
import json
import posixpath
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.node.read_text import integer
from envbuild.node.redact import redact_text
from envbuild.node_program import node_pyz
from envbuild.provision.contact.first_contact import ContactResult, build_script, parse_output
from envbuild.provision.jobs.site import JobSite, finish, place, run_to_end
from envbuild.provision.run.context import Run, Work
from envbuild.provision.run.progress_events import TAIL
from envbuild.schedule.cluster import Runner
from envbuild.schedule.job import Failure, JobStep, hint_for, job_error
from envbuild.text import how_it_ended

Requests = Mapping[str, dict[str, Any]]
# The answer appears under its name when it is whole. A verb that fails stops neither the job nor the next verb.
_CODE = (
    'n=$(uname -n); d=$1/asked/${SLURMD_NODENAME:-${n%%.*}}; mkdir -p -- "$d" && '
    '/bin/sh "$1/requests/$2.sh" > "$d/$2.new" 2> "$d/$2.log" </dev/null; mv -f -- "$d/$2.new" "$d/$2.out"'
)
# Ends the job where a node did not answer all of the verbs well.
_WELL = (
    "n=$(uname -n); d=$1/asked/${SLURMD_NODENAME:-${n%%.*}}; shift; "
    'for verb; do grep -q "^exit=0$" "$d/$verb.out" || exit 1; done'
)


@dataclass(frozen=True)
class Asked:
    """What the nodes of the job `name` are asked: `requests` by verb, all nodes one before the next.

    `folder`: `jobs/<run>` below what login host and nodes share. `before`: what the job does first; `once`: what then
    only its first node is asked, where there is an answer; `after`: what all are asked that answered the rest well.
    """

    name: str
    folder: str
    requests: Requests
    before: Sequence[JobStep] = ()
    once: Requests = field(default_factory=dict)
    after: Requests = field(default_factory=dict)

    def steps(self) -> Iterator[JobStep]:
        """What the job does."""

        def argv(code: str, *verbs: str) -> tuple[str, ...]:
            return ("/bin/sh", "-c", code, self.name, self.folder, *verbs)

        yield from self.before
        yield from (JobStep(argv=argv(_CODE, verb), each="once") for verb in self.once)
        yield from (JobStep(argv=argv(_CODE, verb)) for verb in self.requests)
        if self.after:
            yield JobStep(argv=argv(_WELL, *self.requests))
            yield from (JobStep(argv=argv(_CODE, verb)) for verb in self.after)


def ask_in_job(work: Work | Run, site: JobSite, asked: Asked, limit: int) -> dict[str, dict[str, ContactResult]]:
    """One job of `limit` seconds at most; every node of it has an answer to every verb, or an error that says why not.

    Raises EnvbuildError as submitting and waiting do, `job-…` where no node answered anything, and `prefix-not-shared`
    (exit 7).
    """
    nonce = secrets.token_hex(16)
    pyz = node_pyz()
    # Nodes without a Python of their own have one where tools were staged.
    folder = asked.folder
    top = posixpath.dirname(posixpath.dirname(folder))
    every = {**asked.once, **asked.requests, **asked.after}
    scripts = {verb: build_script(told, pyz, nonce, top).encode() for verb, told in every.items()}
    place(site.runner, folder, {f"requests/{verb}.sh": text for verb, text in scripts.items()})
    job = site.job(asked.name, list(asked.steps()), folder, limit)
    number, state = run_to_end(work, site, job)
    raw = collect(site.runner, posixpath.join(folder, "asked"), ".out")
    if not raw:
        last = site.scheduler.logs(job, number, 4096)
        finish(work, site, job, number, state, good=False)
        raise not_shared(folder, number) if state.good else job_error(number, state, last)
    failed = None if state.good else job_error(number, state, site.scheduler.logs(job, number, 4096))

    def answers_of(node: str, verbs: Iterable[str]) -> dict[str, ContactResult]:
        got = raw.get(node, {})
        return {verb: _answer(node, got.get(verb), nonce, failed) for verb in verbs}

    found = {node: answers_of(node, asked.requests) for node in sorted({*raw, *state.nodes})}
    if all(each.exit == 0 for got in found.values() for each in got.values()):
        for node, answers in found.items():
            answers |= answers_of(node, asked.after)
    for node, got in raw.items():
        found[node] |= answers_of(node, [verb for verb in asked.once if verb in got])
    good = all(answer.error is None for answers in found.values() for answer in answers.values())
    finish(work, site, job, number, state, good=good)
    return found


def _answer(node: str, data: bytes | None, nonce: str, failed: EnvbuildError | None) -> ContactResult:
    if data is None:
        return ContactResult.failed(node, failed or EnvbuildError(
            "node-silent", f"{node} was in the job and said nothing", hint="the log of the job has more",
            details={"node": node},
        ))  # fmt: skip
    try:
        return parse_output(data, nonce, node)
    except EnvbuildError as error:
        # What ended the job has cut off the answer, too.
        return ContactResult.failed(node, failed if failed and error.code == "contact-failed" else error)


def not_shared(folder: str, number: str) -> EnvbuildError:
    """A job that ended well and left nothing: it wrote into another folder of the same name."""
    return EnvbuildError(
        "prefix-not-shared",
        f"job {number} ended well, and nothing of it is in {folder}",
        why="its nodes and the host that submits jobs do not see the same folder there",
        hint="choose a `prefix` on a file system that all of them mount",
    )


Answers = dict[str, dict[str, dict[str, Any]]]
# Bytes: of one file, and of all that one exchange brings (in base64 a third more, see `schedule/runner.py`).
FILE_LIMIT = 8 << 20
EXCHANGE_LIMIT = 8 << 20
# The name of the files of `node/logs.py` in the folder of a job.
PROGRESS = "progress"
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
    found: dict[str, dict[str, bytes]] = {}
    count, more = 0, True
    while more:
        numbers = (str(number) for number in (count, EXCHANGE_LIMIT, FILE_LIMIT))
        done = runner.run(["/bin/sh", "-c", _COLLECT, "sh", folder, ending, *numbers], timeout=120.0)
        if not done.ok:
            raise EnvbuildError(
                "answers-not-collected",
                f"what the nodes answered could not be brought from {runner.host}",
                why="no answer in time" if done.timed_out else done.err.strip()[-300:],
                hint=f"it lies in {folder} there",
            )
        lines = done.out.splitlines()
        more = lines[-1:] == ["more"]
        for line in lines[:-1] if more else lines:
            path, _, text = line.rpartition(" ")
            node, name = posixpath.split(path)
            count += 1
            try:
                found.setdefault(node, {})[name.removesuffix(ending)] = base64.b64decode(text, validate=True)
            except binascii.Error:
                continue  # cut off: as if it were not there
    return found


def last_attempt(runner: Runner, folder: str, told: int) -> str:
    """The folder with the answers of a job's last run: `told` by the scheduler, or a later one that has left some.

    Who has forgotten the job does not tell that it was requeued.
    """
    there = re.findall(r"^answers-([0-9]+)$", runner.run(["ls", "--", folder]).out, re.MULTILINE)
    return posixpath.join(folder, f"answers-{max(told, *map(int, there), 0)}")


def read_answers(runner: Runner, folder: str) -> Answers:
    """The answers of the node program by node and verb; one that cannot be read is an error of its node alone."""
    return {
        node: {verb: read_json(data) or _unreadable(node, verb) for verb, data in verbs.items()}
        for node, verbs in collect(runner, folder, ".json").items()
    }


def read_json(data: bytes) -> dict[str, Any] | None:
    """A response of the node program; None for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("ok"), bool) else None


def _unreadable(node: str, verb: str) -> dict[str, Any]:
    error = EnvbuildError(
        "answer-unreadable",
        f"{node}: the answer to `{verb}` cannot be read",
        why=f"it is empty, no JSON, or larger than {FILE_LIMIT >> 20} MiB",
        hint="look at it in the job's folder; the log there may say more",
    )
    return {"ok": False, "changed": False, "error": error.as_dict()}


def tell_phases(errors: dict[str, EnvbuildError], failed: EnvbuildError, runner: Runner, folder: str) -> None:
    """Say in `errors` of the nodes that did not finish, for the job `failed`, in which verb they were and how it ended.

    What a node has begun and not ended has no final name yet; see job_run.sh, which also writes how it died.
    """
    began, died, logs = (collect(runner, folder, ending) for ending in (".new", ".died", ".log"))
    for node in [node for node, error in errors.items() if error is failed]:
        verb = next(iter(began.get(node, {})), "")
        how, memory = _how_it_died(died.get(node, {}).get(verb, b""))
        where = f"in `{verb}`{how and f', which {how}'}" if verb else "between two steps"
        last = redact_text(logs.get(node, {}).get("stderr", b"")[-_LAST:].decode("utf-8", "replace")).strip()
        errors[node] = EnvbuildError(
            f"job-{Failure.OUT_OF_MEMORY}" if memory else failed.code,
            f"{node} was {where}: {failed.what}",
            why="\n".join(filter(None, (last, failed.why))),
            hint=hint_for(Failure.OUT_OF_MEMORY) if memory else failed.hint,
            exit_code=failed.exit_code,
            details={**failed.details, "node": node, "verb": verb},
        )


def first_death(failed: EnvbuildError, nodes: Iterable[str], runner: Runner, folder: str) -> EnvbuildError:
    """Of a job that left no answer: the error of the first node that had begun something, else `failed`."""
    errors = dict.fromkeys(nodes, failed)
    tell_phases(errors, failed, runner, folder)
    return next((error for error in errors.values() if error.details.get("verb")), failed)


def _how_it_died(data: bytes) -> tuple[str, bool]:
    """What a `.died` file says (exit code, how many processes the kernel killed for memory), and whether it was memory.

    Empty where nothing was written.
    """
    code, kills = ([integer(word.decode("ascii", "replace")) or 0 for word in data.split()] + [0, 0])[:2]
    if kills > 0:
        return "the kernel killed because memory ran out", True
    return how_it_ended(code) if data else "", False
