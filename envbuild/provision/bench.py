"""`bench`: the document's own run on this machine, its log read, its figure beside the document's claim."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import ExitCode
from envbuild.launch.benchmark import Gpus, compare, in_words, metric, samples
from envbuild.model.evidence import Check, Evidence, NodeEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.reference import Bench, Reference
from envbuild.node.protocol import plural
from envbuild.provision.own_run import Log, OwnRun, carry_out, environment_in_use, facts_here, gpu_model, measured_by
from envbuild.provision.run.conclude import write_evidence
from envbuild.provision.run.context import Settings, Work
from envbuild.provision.run.findings import Prepared
from envbuild.provision.run.life import about, one_run
from envbuild.provision.run.outcome import Progress
from envbuild.provision.run.run_dir import RunDir
from envbuild.provision.survey.ask import rules

CHECK = "bench"
_LAST = 12  # lines of a run that failed, in the evidence


@dataclass(frozen=True, slots=True)
class Asked(OwnRun):
    """A run, and how often; or the logs of such runs that were made elsewhere."""

    trials: int = 1
    logs: tuple[Path, ...] = ()


def bench(prepared: Prepared, settings: Settings, progress: Progress, asked: Asked) -> tuple[Evidence, RunDir]:
    """Run the command `trials` times, or read `logs` of such runs; exit 1 where a run fails, 6 below its claim.

    Raises EnvbuildError `bench-unknown` (exit 2) for a stack that does not say how it is measured.
    """
    told, reference = measured_by(prepared), prepared.stack.reference
    assert reference is not None  # noqa: S101 - it says how it is measured
    with one_run("bench", settings, progress, **about(prepared)) as run:
        work = Work(prepared, settings, run.run, run.journal, run.progress)
        node = NodeEvidence(node="localhost", status="ok", exit=0) if asked.logs else environment_in_use(work)
        facts = facts_here(work)
        if node.exit == ExitCode.OK:
            with work.phase("bench", f"running {asked.launch.model} on {plural(asked.launch.gpus_per_node, 'GPU')}"):
                check = _check(work, reference, told, asked, facts)
            node = _with(node.model_copy(update={"facts": facts}), check)
        evidence = write_evidence(work, "bench", [node], warnings=tuple(work.notes))
        run.exit = evidence.exit
    return evidence, run.run


def _with(node: NodeEvidence, check: Check) -> NodeEvidence:
    if check.status == "passed":
        return node.model_copy(update={"checks": (*node.checks, check)})
    code = ExitCode.BELOW_FLOOR if check.details.get("only_floors") else ExitCode.CHECK_FAILED
    return node.model_copy(update={"checks": (*node.checks, check), "status": "failed", "exit": int(code)})


def _check(work: Work, reference: Reference, told: Bench, asked: Asked, facts: NodeFacts | None) -> Check:
    began = time.monotonic()
    values: list[float] = []
    left_out, failures, last = 0, [], ""
    for number, log in enumerate(_logs(work, told, asked), 1):
        text = log.path.read_text(encoding="utf-8", errors="replace")
        found, early = samples(told, text)
        values, left_out, last = values + found, left_out + early, "\n".join(text.splitlines()[-_LAST:])
        wrong = log.failure or _too_few(told, found)
        if wrong:
            failures.append(f"run {number}: {wrong}")
            break
    details = {"launch": asked.launch.to_json_dict(), "warm_up": left_out, "values": values}
    seconds = round(time.monotonic() - began, 1)
    if failures:
        details |= {"failures": failures, "output": last}
        return Check(name=CHECK, status="failed", says=failures[0], seconds=seconds, level="measured", details=details)
    peaks = {gpu.model: gpu.dense_tflops for gpu in rules().gpus.values() if gpu.dense_tflops is not None}
    found_ = compare(reference, told, asked.launch, statistics.median(values), _gpus(asked, facts), peaks)
    below = found_.verdict == "below"
    return Check(
        name=CHECK,
        status="failed" if below else "passed",
        says=in_words(found_),
        seconds=seconds,
        metrics=(metric(told, values),),
        level="measured",
        comparison=found_,
        details=details | ({"only_floors": True} if below else {}),
    )


def _too_few(told: Bench, found: Sequence[float]) -> str:
    if len(found) >= told.least:
        return ""
    return f"its log has {len(found)} of at least {told.least} lines with `{told.metric}` after its warm-up"


def _gpus(asked: Asked, facts: NodeFacts | None) -> Gpus:
    name = facts.gpus[0].name if facts and facts.gpus and not asked.logs else None
    model = gpu_model(name)
    count = asked.launch.nodes * asked.launch.gpus_per_node
    return Gpus(name, count, model.model, model.dense_tflops) if model else Gpus(name, count)


def _logs(work: Work, told: Bench, asked: Asked) -> Iterator[Log]:
    """One after another: who stops after a failed run starts no other."""
    if asked.logs:
        yield from map(Log, asked.logs)
        return
    for number in range(1, asked.trials + 1):
        yield carry_out(work, told, asked, f"bench {number}")
