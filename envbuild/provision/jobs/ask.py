"""Ask every node of a job something, through the text of first contact, so that the nodes need no Python of ours."""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.node_program import node_pyz
from envbuild.provision.contact.first_contact import ContactResult, build_script, parse_output
from envbuild.provision.jobs.answers import collect
from envbuild.provision.jobs.site import JobSite, place
from envbuild.provision.jobs.submit import finish, run_to_end
from envbuild.provision.run.context import Run, Work
from envbuild.schedule.job import JobStep, job_error

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


def ask_in_job(
    work: Work | Run,
    site: JobSite,
    name: str,
    requests: Mapping[str, dict[str, Any]],
    folder: str,
    limit: int,
    before: Sequence[JobStep] = (),
    once: Mapping[str, dict[str, Any]] | None = None,
    after: Mapping[str, dict[str, Any]] | None = None,
) -> dict[str, dict[str, ContactResult]]:
    """One job of `limit` seconds at most whose nodes answer all requests (by verb), all nodes one before the next.

    `folder`: `jobs/<name>` below what login host and nodes share. `before`: what the job does first; `once`: what then
    only its first node is asked, where there is an answer. Every node of the job has an answer to every verb, or an
    error that says why not.
    Raises EnvbuildError as submitting and waiting do, `job-…` where no node answered anything, and `prefix-not-shared`
    (exit 7).
    """
    nonce = secrets.token_hex(16)
    pyz = node_pyz()
    # Nodes without a Python of their own have one where tools were staged.
    top = posixpath.dirname(posixpath.dirname(folder))
    after = after or {}
    asked = {**(once or {}), **requests, **after}
    scripts = {verb: build_script(told, pyz, nonce, top).encode() for verb, told in asked.items()}
    place(site.runner, folder, {f"requests/{verb}.sh": text for verb, text in scripts.items()})
    first = (JobStep(argv=("/bin/sh", "-c", _CODE, name, folder, verb), each="once") for verb in once or {})
    steps = [*before, *first, *(JobStep(argv=("/bin/sh", "-c", _CODE, name, folder, verb)) for verb in requests)]
    if after:
        steps.append(JobStep(argv=("/bin/sh", "-c", _WELL, name, folder, *requests)))
        steps += [JobStep(argv=("/bin/sh", "-c", _CODE, name, folder, verb)) for verb in after]
    job = site.job(name, steps, folder, limit)
    number, state = run_to_end(work, site, job)
    raw = collect(site.runner, posixpath.join(folder, "asked"), ".out")
    if not raw:
        last = site.scheduler.logs(job, number, 4096)
        finish(work, site, job, number, state, good=False)
        raise not_shared(folder, number) if state.good else job_error(number, state, last)
    failed = None if state.good else job_error(number, state, site.scheduler.logs(job, number, 4096))
    found = {
        node: {verb: _answer(node, raw.get(node, {}).get(verb), nonce, failed) for verb in requests}
        for node in sorted({*raw, *state.nodes})
    }
    if all(each.exit == 0 for got in found.values() for each in got.values()):
        for node, answers in found.items():
            answers |= {verb: _answer(node, raw.get(node, {}).get(verb), nonce, failed) for verb in after}
    for node, got in raw.items():
        found[node] |= {verb: _answer(node, got[verb], nonce, failed) for verb in once or {} if verb in got}
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
