"""`bench`: the document's own run, here, over SSH or as jobs; its log read, its figure beside the document's claim."""

from __future__ import annotations

import math
import posixpath
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.explain.view import parameters
from envbuild.hostlist import expand_hosts
from envbuild.launch.recipes import launch
from envbuild.launch.request import UNKNOWN, Place, Samples, course_in_words, samples
from envbuild.launch.shell import LATE, summary
from envbuild.model.evidence import Check, Evidence, NodeEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.launch import Bench, Figure, Launch, Reference
from envbuild.model.target import Target
from envbuild.node.smoke.training_log import without_ignored
from envbuild.provision import gpu_use
from envbuild.provision.gpu_use import GIB, Taken, compared, together
from envbuild.provision.jobs.launch import Asked as JobAsked
from envbuild.provision.jobs.launch import end_of_job, make_jobs, taken_by
from envbuild.provision.jobs.site import CUT, JobSite
from envbuild.provision.jobs.survey import facts_file, read_facts
from envbuild.provision.own_run import (
    LOCKS,
    Log,
    OwnRun,
    carry_out,
    environments_in_use,
    facts_of,
    locks_in_words,
    measured_by,
    of_trial,
    refuse_without_gpus,
    shows,
)
from envbuild.provision.run.conclude import write_evidence
from envbuild.provision.run.context import Prepared, Settings, Work, one_work
from envbuild.provision.run.journal import Watch
from envbuild.provision.run.run_dir import RunDir
from envbuild.provision.survey.ask import rules
from envbuild.regular_file import read_text
from envbuild.report.claimed import Gpus, claim_for, compare, gpus_of, in_words, metric, named
from envbuild.resolve.compat import rows_like
from envbuild.schedule.job import Job, clock_text
from envbuild.schedule.script import AGAIN
from envbuild.strategy.search import estimated
from envbuild.text import last_lines, number, plural, seconds_of


@dataclass(frozen=True, slots=True)
class Trial:
    """A launch, made for the folder that it writes into, and what runs it under a name."""

    launch: Launch
    run: Callable[[str], Log]


def narrowed(prepared: Prepared, nodes: int) -> Prepared:
    """The first nodes of a target that names them. Raises EnvbuildError `launch-does-not-fit` (exit 7)."""
    if prepared.target.connection.kind == "job":
        return prepared
    hosts = expand_hosts(prepared.target.hosts)
    if nodes > len(hosts):
        raise EnvbuildError(
            "launch-does-not-fit",
            f"{nodes} nodes are requested, and {prepared.target.name} has {len(hosts)}",
            hint=f"--nodes {len(hosts)}",
        )
    return prepared._replace(target=prepared.target.model_copy(update={"hosts": tuple(hosts[:nodes])}))


def _trials(work: Work, measure: Bench, asked: Asked, nodes: Sequence[NodeEvidence]) -> list[Trial]:
    """How the target runs what is `asked`, or the logs of runs elsewhere; `nodes` have the environment.

    Raises EnvbuildError as the recipe and `make_jobs` do, and `nodes-differ` (exit 7).
    """
    prepared, place, run, deadline = work.prepared, asked.place, asked.run, asked.run.deadline or 0.0
    stack, profile, connection = prepared.stack, prepared.profile, prepared.target.connection
    numbers, trials = range(1, asked.trials + 1), list[Trial]()
    if place is None:
        site, place, make = make_jobs(prepared.target, stack, profile, run, work.run, watched=True)
        for where in (of_trial(work, place, count) for count in numbers):
            job, made = make(where, posixpath.basename(where.output))
            trials.append(Trial(made, partial(_in_job, work, measure, site, job, where.output, deadline)))
        return trials
    if asked.logs:
        # Nothing starts, so nodes need no real address.
        place = place.model_copy(update={"master": place.master or "first"})
        made = launch(stack, profile, run.values, place)
        return [Trial(made, partial(_read, path)) for path in asked.logs]
    hosts = tuple(node.node for node in nodes) if connection.kind == "ssh" else ()
    if hosts:
        place = _there(work, place, run, nodes)
    activate = f"{place.environment}/.envbuild/activate.sh"
    for where in (of_trial(work, place, count) for count in numbers):
        made = launch(stack, profile, run.values, where)
        # A single command starts the other nodes itself.
        own = OwnRun(made, activate, where.output, deadline, hosts[: len(made.commands)])
        trials.append(Trial(made, partial(carry_out, work, measure, own)))
    return trials


def _there(work: Work, place: Place, asked: JobAsked, nodes: Sequence[NodeEvidence]) -> Place:
    environments = {node.environment: node.node for node in nodes}
    if len(environments) > 1:
        raise EnvbuildError(
            "nodes-differ",
            "the nodes have different environments in use",
            why=", ".join(f"{node}: {path}" for path, node in environments.items()),
            hint="choose nodes of one kind with `--limit HOSTS`",
        )
    (environment,) = environments
    top = posixpath.dirname(posixpath.dirname(str(environment)))
    first = work.prepared.target.connection.reaches(nodes[0].node)[0]
    settled = {"environment": environment, "output": asked.output or f"{top}/launches", "master": place.master or first}
    return place.model_copy(update=settled)


def _in_job(work: Work, measure: Bench, site: JobSite, job: Job, output: str, deadline: float, name: str) -> Log:
    show = shows(work, measure, name)

    def say(text: str) -> None:
        for line in text.splitlines():
            show(line)

    # Its home is the nodes' too, mostly.
    locks = site.runner.run(["/bin/sh", "-s"], stdin=LOCKS.encode()).out
    before = [f"{site.login}: {words}" for words in locks_in_words(locks)]
    state, path, ended = end_of_job(work, site, job, say)
    known = read_facts(facts_file(work.prepared.target, site.login))
    facts = next((known[node] for node in state.nodes if node in known), None)
    had = taken_by(site, output)
    work.notes += [note for note in (*before, *had.others) if note not in work.notes]
    log = Log(path, facts=facts, gpus=tuple(had.names), taken=had.taken)
    if isinstance(ended, EnvbuildError):
        log.failure = ended.what
    elif ended:
        log.late = LATE in path.read_text(encoding="utf-8", errors="replace")
        log.failure = f"timed out after {deadline:g} s" if log.late else f"it ended with exit code {ended}"
    return log


CHECK = "bench"
_ESTIMATES = ("tensors", "reserved")
_LAST = 12  # lines of a run that failed, in the evidence
# What `srun -l` and we put before the line of a node, and behind that torch and torchrun's `--tee` before a rank's.
_LONGEST = 2000  # characters of a line: what is longer says nothing of why, and costs these patterns its square
_RANKED = re.compile(r"\s*(?:([0-9]{1,6}): )?(?:\[(?:default|rank)?([0-9]{1,6})\])?(?!slurmstepd|srun:).*\S")
# What shells, srun, torchrun, DeepSpeed's launcher and MPICH's mpiexec write after the cause: that their programs
# ended, and what else they ended for it.
_ENDED = re.compile(
    r"""\s*(?:[0-9]+:\ )?(?:\[default[0-9]+\]:)?(?:
        (?:srun|slurmstepd(?:-\S+)?):.*(?::\ (?:Exited\b.*|Terminated|Killed)|
            (?:Terminating|Force\ Terminated)\ StepId=.*|Job\ step\ aborted:.*|CANCELLED\ AT\ \S+\ \*\*\*)
        | Terminated | \S+:\ line\ [0-9]+:\ +[0-9]+\ Terminated\b.*
        | \[(?:proxy:\S*|mpiexec)@\S+\]\ .*|\[rank[0-9]+\]:\[W[0-9].*
        | .*(?:failed\ \(exitcode:\ [0-9]+\)|closing\ signal\ SIG|\ death\ signal,|SignalException:\ Process).*
        | Traceback\ \(most\ recent\ call\ last\):|\ \ .*|\S*ChildFailedError:
        | [=-]{9,}|(?:/.*|\S*)[./][^\s./]*\ FAILED|Failures:|Root\ Cause\ .*|\[[0-9]+\]:
        | \[[-0-9 :,]+\]\ \[[A-Z]+\]\ \[launch\.py:[0-9]+:sigkill_handler\]\ .*
    )\s*""",
    re.VERBOSE,
)
# The first task that srun says ended; what others wrote behind its last line is not why.
_FIRST = re.compile(r"^srun: error: \S+: task ([0-9]+): Exited\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Asked:
    """A run with its deadline, and how often; or the logs of such runs that were made elsewhere.

    `place`: where it runs on this machine; of nodes over SSH without their folders; None: a job says it.
    """

    run: JobAsked
    place: Place | None
    trials: int = 1
    logs: tuple[Path, ...] = ()


def bench(prepared: Prepared, settings: Settings, watch: Watch, asked: Asked) -> tuple[Evidence, RunDir]:
    """Run the command `trials` times, or read `logs` of such runs; exit 1 where a run fails, 6 below its claim.

    Raises EnvbuildError `no-recipe` (exit 2) for a stack that does not say how it is measured, and as `narrowed`
    and `make_jobs` do, and those of the recipe.
    """
    reference, measure = measured_by(prepared.stack)
    if asked.place is not None:
        # A wrong parameter is told before anybody is asked.
        launch(prepared.stack, prepared.profile, asked.run.values, asked.place.model_copy(update={"master": "first"}))
    if not asked.logs:
        prepared = narrowed(prepared, asked.run.nodes or 1)
    with one_work("bench", prepared, settings, watch) as work:
        here = NodeEvidence(node="localhost", status="ok", exit=0)
        if asked.place is not None and not asked.logs:
            refuse_without_gpus(work, asked.place.gpus_per_node)
        nodes = [here] if asked.logs else environments_in_use(work)
        if all(node.exit == ExitCode.OK for node in nodes):
            trials = _trials(work, measure, asked, nodes)
            # Which nodes a job runs on is known once it has run: its log has their facts.
            facts = None if asked.logs or asked.place is None else facts_of(work, nodes[0].node)
            first = trials[0].launch
            if not asked.logs:
                against = doubts(prepared.target, reference, measure, first, facts, asked.run.deadline)
                for line in (*summary(first), *(f"warning: {doubt}" for doubt in against)):
                    work.journal.stage(line)
                work.notes += against
            gpus = plural(first.nodes * first.gpus_per_node, "GPU")
            doing = "reading the log of" if asked.logs else "running"
            with work.phase("bench", f"{doing} {first.model} on {gpus}"):
                check = _check(reference, measure, trials, facts, work.run.path)
            if asked.logs:  # what they say of runs elsewhere is no check of anything here
                status = "skipped" if check.status == "passed" else check.status
                says = f"nothing ran here, a log was read; {check.says}"
                more = {"status": status, "says": says, "seconds": None, "level": "not-checked"}
                check = check.model_copy(update=more)
            nodes[0] = nodes[0].model_copy(update={"facts": facts})
            # A run that failed has failed on every node of it; its figure is told once.
            taking = nodes if check.status == "failed" else nodes[:1]
            nodes = [*(_with(node, check) for node in taking), *nodes[len(taking) :]]
        evidence = write_evidence(work, "bench", nodes, warnings=tuple(work.notes))
    return evidence, work.run


# What a well tuned training reaches of its GPUs' peak; only a hint is made of it.
_USUAL = 0.4
_AFTER_RUN = 600.0  # seconds of a job beside its run


def claim_expected(
    target: Target, reference: Reference, measure: Bench, ran: Launch, facts: NodeFacts | None
) -> Figure | None:
    """The claim that a run will be compared with: on the GPUs of its nodes, or on those that the target expects."""
    gpus, models = gpus_of(facts, ran.nodes * ran.gpus_per_node, rules()), _models(target, facts)
    claims = (claim_for(reference, measure, ran, replace(gpus, model=model)) for model in models)
    own = (claim for claim in claims if claim and claim.gpu in models)
    return next(own, claim_for(reference, measure, ran, gpus))


def _models(target: Target, facts: NodeFacts | None) -> tuple[str | None, ...]:
    """The models of GPU that a run may meet; empty if nobody says any."""
    if facts is not None:
        return (gpus_of(facts, 1, rules()).model,)
    return tuple(row.model for row in rows_like(target.expects.gpu, rules()))


def doubts(
    target: Target, reference: Reference, measure: Bench, ran: Launch, facts: NodeFacts | None, deadline: float | None
) -> list[str]:
    """What to say before a run: that it hardly ends in time or its job ends first, or that the claim is for others.

    Raises EnvbuildError as `refuse_too_long` does.
    """
    late = refuse_too_long(target, reference, measure, ran, facts, deadline)
    gpus = gpus_of(facts, ran.nodes * ran.gpus_per_node, rules())
    claim, other = claim_expected(target, reference, measure, ran, facts), ""
    expected = _models(target, facts)
    if claim and claim.gpu and expected and claim.gpu not in expected:
        other = f"the claim is for {claim.gpu}: on other GPUs the verdict is *not comparable*"
    elif claim and claim.gpus:
        nodes = claim.hosts or max(claim.gpus // ran.gpus_per_node, 1)
        rows = (("--nodes", nodes, ran.nodes), ("--gpus-per-node", claim.gpus // nodes, ran.gpus_per_node))
        options = " ".join(f"{option} {wanted}" for option, wanted, given in rows if wanted != given)
        if options and (claim.hosts or claim.gpus != gpus.count):
            may = "should not" if claim.gpus == gpus.count else "cannot"
            on = f" on {plural(claim.hosts, 'node')}" if claim.hosts else ""
            other = (
                f"the figure of {plural(ran.nodes, 'node')} with {plural(gpus.count, 'GPU')} {may} be compared with "
                f"the claim, which is for {claim.gpus} GPUs{on}; `{options}` can"
            )
    job, asked = seconds_of(target.scheduler.time_limit or "") or 0, deadline or 0
    times = f"{clock_text(round(asked))} (`--run-timeout`), and its job {clock_text(round(job))} (`time_limit` of the"
    tight = 0 < job < asked + _AFTER_RUN and not late  # which names the times that are needed
    rule = "a job that ends first has no figure, so let the run end ten minutes before its job"
    ends = f"a run may take {times} target): {rule}" if tight else ""
    return [text for text in (late, ends, other) if text]


def refuse_too_long(
    target: Target, reference: Reference, measure: Bench, ran: Launch, facts: NodeFacts | None, deadline: float | None
) -> str:
    """Raise EnvbuildError `launch-does-not-fit` (exit 7) where a run cannot end in time, were its GPUs at their peak.

    The answer says where it will hardly end in time. Empty where updates of the run, size of the model or a verified
    peak of the GPUs are unknown.
    """
    job = seconds_of(target.scheduler.time_limit or "")
    limits = [(deadline, "`--run-timeout`"), (job, "`time_limit` of the target")]
    limit, source = min(((seconds, name) for seconds, name in limits if seconds), default=(math.inf, ""))
    size = next((row for row in reference.models if row.name == ran.model), None)
    gpus, rows = gpus_of(facts, 1, rules()), rows_like(target.expects.gpu, rules()) if facts is None else []
    expected = max((row.dense_tflops or 0 for row in rows), default=0) if all(row.note.firm for row in rows) else 0
    peak = ran.nodes * ran.gpus_per_node * 1e12 * ((gpus.peak if gpus.firm else None) or expected)
    if not (peak and size and measure.updates):
        return ""
    # Forward and backward pass: six operations for each weight and token.
    seconds = 6 * parameters(size) * (size.batch_tokens or 0) * measure.updates / peak
    least, most, real = (number(spent / 3600) for spent in (seconds, limit, seconds / _USUAL))
    hours = math.ceil(seconds / _USUAL / 3600)
    # A job that reaches its limit has no figure, so it needs more than its run.
    short = bool(job and job <= hours * 3600)
    other = deadline and (deadline < seconds / _USUAL or (short and deadline > hours * 3600))
    cures = {f"`--run-timeout {hours}h`": other,
             f"`time_limit: {hours + 1}h` under `scheduler:` of the target": short}  # fmt: skip
    cure = " and ".join(text for text, helps in cures.items() if helps)
    if seconds > limit:
        raise EnvbuildError(
            "launch-does-not-fit",
            f"{ran.model} on {plural(ran.nodes * ran.gpus_per_node, 'GPU')} takes {least} h at least, and has {most} h "
            f"({source})",
            why=f"{measure.updates} updates of {size.batch_tokens:,} tokens, with every GPU at its peak; {real} h at "
            f"{_USUAL:.0%} of it",
            hint=f"give it {cure}; or more GPUs, or a smaller model",
        )
    late = f"{ran.model} has {most} h, and takes {real} h with its GPUs at {_USUAL:.0%} of their peak"
    return f"{late}: give it {cure}" if seconds / _USUAL > limit else ""


def _read(log: Path, _: str) -> Log:
    """The log of a run elsewhere, in the place of a run."""
    return Log(log)


def _with(node: NodeEvidence, check: Check) -> NodeEvidence:
    if check.status != "failed":
        return node.model_copy(update={"checks": (*node.checks, check)})
    code = ExitCode.BELOW_FLOOR if check.details.get("only_floors") else ExitCode.CHECK_FAILED
    return node.model_copy(update={"checks": (*node.checks, check), "status": "failed", "exit": int(code)})


def _check(
    reference: Reference, measure: Bench, trials: Sequence[Trial], facts: NodeFacts | None, folder: Path
) -> Check:
    """What the trials, one at least, tell one after another until one fails, and the launch of the last that ran.

    `facts`: of a node that runs them, where they are known before. `folder`: of the run; a log elsewhere was named.
    """
    began = time.monotonic()
    values: list[float] = []
    losses: list[float] = []
    taken: list[Taken] = []
    left_out, failures, last, gpus, ran = 0, [], "", UNKNOWN, trials[0].launch
    for count, trial in enumerate(trials, 1):
        ran, log = trial.launch, trial.run(f"{CHECK} {count}")
        text = read_text(log.path).rpartition(f"{AGAIN}\n")[-1]
        facts = log.facts or facts
        gpus = _gpus(log, facts, ran)
        figures = samples(measure, text, gpus)
        values, left_out, last = values + figures.values, left_out + figures.warm_up, text
        losses = losses or figures.losses
        taken.append(log.taken)
        wrong = log.failure or (CUT if text.startswith(CUT) else figures.wrong)
        if wrong:
            failures.append(f"run {count}: {wrong}{_until(measure, figures) if log.late else _end(text)}")
            break
    used = _used(reference, ran, taken)
    details = {"launch": ran.to_json_dict(), "warm_up": left_out, "values": values, **used}
    details |= {"losses": losses} if losses else {}  # drawn in the report
    seconds = round(time.monotonic() - began, 1)
    if failures:
        details |= {"failures": failures, "output": _last_lines(last)}
        if log.path.is_relative_to(folder):
            details["log"] = str(log.path.relative_to(folder))
        return Check(name=CHECK, status="failed", says=failures[0], seconds=seconds, level="measured", details=details)
    comparison = compare(reference, measure, ran, statistics.median(values), gpus, rules().peaks())
    below = comparison.verdict == "below"
    return Check(
        name=CHECK,
        status="failed" if below else "passed",
        says="; ".join(filter(None, (in_words(comparison), course_in_words(losses), gpu_use.in_words(used)))),
        seconds=seconds,
        metrics=(metric(measure, values),),
        level="measured",
        comparison=comparison,
        details=details | ({"only_floors": True} if below else {}),
    )


def _gpus(log: Log, facts: NodeFacts | None, ran: Launch) -> Gpus:
    """Those that a job says it had, else those of the node: what is known of one behind a scheduler is of earlier."""
    count, names = ran.nodes * ran.gpus_per_node, dict.fromkeys(log.gpus)
    return named(log.gpus[0], count, rules(), alone=len(names) == 1) if names else gpus_of(facts, count, rules())


def _used(reference: Reference, launch: Launch, taken: Iterable[Taken]) -> dict[str, float]:
    """What the runs took of the GPUs, beside the estimate of memory where these degrees have one."""
    estimate = estimated(reference, launch)
    if estimate is None:
        return compared(together(taken))
    estimates = {f"estimated_{what}_gib": round(size / GIB, 1) for what, size in zip(_ESTIMATES, estimate, strict=True)}
    return {**estimates, **compared(together(taken), *estimate)}


def _until(measure: Bench, figures: Samples) -> str:
    """How far a run came that its deadline ended, by what it told until then."""
    if not figures.values:
        return "; until then no figure after its warm-up"
    middle = f"{number(statistics.median(figures.values))} {measure.unit}"
    return f"; until then {plural(len(figures.values), 'figure')} after its warm-up, median {middle}: not a result"


def _end(text: str) -> str:
    """The last line of a log that says more than that a program ended, where srun names a task not of another one.

    The last one where none does.
    """
    lines = [line[:_LONGEST] for line in text.splitlines() if line.strip()]
    first = _FIRST.search(text)
    other = re.compile(rf"(?!{first[1]}: )[0-9]+: " if first else r"(?!)")
    # Launchers write into the midst of a traceback, so theirs goes first.
    causes = without_ignored(line for line in lines if not (_ENDED.fullmatch(line) or other.match(line)))
    last = causes[-1] if causes else lines[-1] if lines else ""
    return f": {last_lines(last)}" if last else ""


def _last_lines(text: str) -> str:
    """The last lines of a log and, where its lines name ranks or nodes, the last one of each that is not among them."""
    lines = [line[:_LONGEST] for line in text.splitlines() if line.strip()]
    matches = ((_RANKED.match(line), line) for line in lines)
    ranked = {
        tuple(map(int, filter(None, match.groups()))): line
        for match, line in matches
        if match and not _ENDED.fullmatch(line)
    }
    ranked.pop((), None)  # of no rank
    last = lines[-_LAST:]
    return "\n".join([*(line for _, line in sorted(ranked.items()) if line not in last), *last])
