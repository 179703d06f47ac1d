"""Ask every node of a job something, through the text of first contact, so that the nodes need no Python of ours."""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.node_program import node_pyz
from envbuild.provision.contact.first_contact import ContactResult, build_script, parse_output
from envbuild.provision.jobs.answers import collect
from envbuild.provision.jobs.site import JobSite, place
from envbuild.provision.jobs.submit import finish, run_to_end
from envbuild.provision.run.context import Run, Work
from envbuild.schedule.job import JobStep, job_error

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
        return ContactResult.failed(node, failed if failed and error.code == "contact-cut-off" else error)


def not_shared(folder: str, number: str) -> EnvbuildError:
    """A job that ended well and left nothing: it wrote into another folder of the same name."""
    return EnvbuildError(
        "prefix-not-shared",
        f"job {number} ended well, and nothing of it is in {folder}",
        why="its nodes and the host that submits jobs do not see the same folder there",
        hint="choose a `prefix` on a file system that all of them mount",
    )
