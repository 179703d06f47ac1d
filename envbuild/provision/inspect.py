"""Verbs that ask about built environments and change nothing: `verify`, `smoke`, `probe`, `env list`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.hostlist import expand_hosts
from envbuild.model.evidence import Evidence, NodeEvidence
from envbuild.model.first_use import trusted_files
from envbuild.model.lock import Variant
from envbuild.model.target import Target
from envbuild.provision.contact.first_contact import DEADLINE, ContactResult, contact, node_request
from envbuild.provision.provision import write_evidence
from envbuild.provision.run import evidence as collect
from envbuild.provision.run.context import Settings, Work
from envbuild.provision.run.findings import Prepared
from envbuild.provision.run.life import about, one_run
from envbuild.provision.run.outcome import Outcome, Progress
from envbuild.provision.run.run_dir import RunDir
from envbuild.provision.survey.in_use import Current, current_of

SMOKE_DEADLINE = 2 * 3600.0


def environments(target: Target) -> dict[str, list[dict[str, Any]] | EnvbuildError]:
    """Every environment under the prefix of every node (`StampFacts` as JSON)."""
    answers = contact(
        expand_hosts(target.hosts), lambda node: node_request("envs", target.prefix, {"node": node}), target.connection
    )
    return {node: _environments(answer) for node, answer in answers.items()}


def _environments(answer: ContactResult | EnvbuildError) -> list[dict[str, Any]] | EnvbuildError:
    if isinstance(answer, EnvbuildError):
        return answer
    try:
        return list(answer.result()["environments"])
    except EnvbuildError as error:
        return error


def verify(
    prepared: Prepared, settings: Settings, progress: Progress, *, deep: bool, deadline: float | None = None
) -> tuple[Evidence, RunDir]:
    """Compare the environment in use on every node with its lock and its stamp; exit 1 on drift."""

    def args(variant: Variant, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"variant": variant.to_json_dict(), "deep": deep}

    return _inspect(prepared, settings, progress, "verify", args, deadline or (3600.0 if deep else DEADLINE))


def smoke(prepared: Prepared, settings: Settings, progress: Progress) -> tuple[Evidence, RunDir]:
    """Run the smoke benchmarks in the environment in use on every node; exit 1 or 6 when they do not hold."""

    from envbuild.provision.jobs.smoke import smoke_args

    def args(variant: Variant, stamp: Mapping[str, Any]) -> dict[str, Any]:
        return smoke_args(variant, stamp, prepared.target)

    return _inspect(prepared, settings, progress, "smoke", args, SMOKE_DEADLINE)


def _inspect(
    prepared: Prepared,
    settings: Settings,
    progress: Progress,
    verb: str,
    args_for: Callable[[Variant, Mapping[str, Any]], dict[str, Any]],
    deadline: float,
) -> tuple[Evidence, RunDir]:
    with one_run(verb, settings, progress, **about(prepared)) as run:
        work = Work(prepared, settings, run.run, run.journal, progress)
        if prepared.target.engine == "container":
            nodes = _ask_images(work, verb)
        elif prepared.target.connection.kind == "job":
            nodes = _smoke_in_job(work)
        else:
            nodes = _ask(work, verb, args_for, deadline)
        evidence = write_evidence(work, verb, nodes, warnings=tuple(work.notes))
        run.exit = evidence.exit
    return evidence, run.run


def _smoke_in_job(work: Work) -> list[NodeEvidence]:
    """The only verb of these that goes through a job: the others ask the login host."""
    from envbuild.provision.jobs.smoke import smoke_in_job

    current, outcome = smoke_in_job(work)
    return [
        _node(node, found, outcome.responses.get(node, {}), outcome.errors.get(node)) for node, found in current.items()
    ]


def _ask(
    work: Work, verb: str, args_for: Callable[[Variant, Mapping[str, Any]], dict[str, Any]], deadline: float
) -> list[NodeEvidence]:
    """Ask every node about its environment in use; after `smoke`, several nodes together."""
    prepared, run = work.prepared, work.run
    with work.phase("probe", "asking which environments are there"):
        current = {node: current_of(prepared, node, answer) for node, answer in environments(prepared.target).items()}
    requests: dict[str, dict[str, Any]] = {}
    for node, found in current.items():
        if not isinstance(found, EnvbuildError):
            environment, variant, stamp = found
            args = {"stack": prepared.stack.name, "environment": environment, **args_for(variant, stamp)}
            requests[node] = node_request(verb, prepared.target.prefix, args, run.id)
    answers: dict[str, ContactResult | EnvbuildError] = {}
    if requests:
        with work.phase(verb, f"{verb} on {len(requests)} node{'s' * (len(requests) != 1)}"):
            answers = contact(requests, requests.__getitem__, prepared.target.connection, deadline)
    together = Outcome()
    if verb == "smoke" and len(answers) > 1:
        from envbuild.provision.jobs.smoke import meet_in_use

        together = meet_in_use(work, current, answers)
    nodes = []
    for node, found in current.items():
        answer = answers.get(node)
        error = found if isinstance(found, EnvbuildError) else answer if isinstance(answer, EnvbuildError) else None
        responses = {**together.responses.get(node, {})}
        if isinstance(answer, ContactResult):
            responses = {verb: answer.response or {}, **responses}
        nodes.append(_node(node, found, responses, error or together.errors.get(node)))
    return nodes


def _ask_images(work: Work, verb: str) -> list[NodeEvidence]:
    """The same inside the image that each node runs; `verify` is always deep there, for starting it costs the most."""
    from envbuild.provision.images.provision import ask_images, asks_of

    return ask_images(work, verb, asks_of(work.prepared, verb))


def _node(
    node: str, found: Current | EnvbuildError, responses: Mapping[str, Any], error: EnvbuildError | None
) -> NodeEvidence:
    """What one node answered; `error` where it could not, or not to everything."""
    if isinstance(found, EnvbuildError) or not responses:
        silent = EnvbuildError("node-silent", f"{node} gave no answer", exit_code=ExitCode.UNREACHABLE)
        return collect.failed_node(node, error or silent)
    environment, variant, stamp = found
    evidence = collect.inspected_node(node, responses)
    if error is not None:
        evidence = evidence.model_copy(
            update={"status": "failed", "exit": int(error.exit_code), "error": error.as_dict()}
        )
    return evidence.model_copy(
        update={
            "environment": environment,
            "variant_digest": variant.digest,
            "root": evidence.root or stamp.get("root"),
            "root_level": evidence.root_level or "stamped",
            "packages": dict(stamp.get("packages") or {}),
            "base_packages": dict(stamp.get("base_packages") or {}),
            "sources": tuple(stamp.get("sources") or ()),
            "first_use": trusted_files(variant),
        }
    )
