"""`bench`: the document's own run on this machine, its log read, its figure beside the document's claim."""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.launch.benchmark import Gpus, compare, in_words, metric, samples
from envbuild.launch.job_steps import steps_of
from envbuild.model.evidence import Check, Evidence, NodeEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.launch import Launch
from envbuild.model.lock import Variant
from envbuild.model.reference import Bench, Reference
from envbuild.node.protocol import plural
from envbuild.node.smoke.training_log import read_line
from envbuild.provision.contact.first_contact import DEADLINE
from envbuild.provision.environments import ask_in_use
from envbuild.provision.run.conclude import write_evidence
from envbuild.provision.run.context import Question, Settings, Work
from envbuild.provision.run.findings import Prepared
from envbuild.provision.run.life import about, one_run
from envbuild.provision.run.outcome import Progress
from envbuild.provision.run.run_dir import RunDir
from envbuild.provision.survey.ask import ask, rules
from envbuild.redact import Redactor
from envbuild.transport.processes import end_marked, end_orphans, marker_value

CHECK = "bench"
# Every process of a run has this variable.
_MARKER = "ENVBUILD_BENCH_RUN"
_GRACE = 10.0
_POLL = 0.1
_LAST = 12  # lines of a run that failed, in the evidence


@dataclass(frozen=True, slots=True)
class Asked:
    """What to run: the launch, the file that activates its environment, its output folder, how often and how long."""

    launch: Launch
    activate: str | None
    output: str
    trials: int
    deadline: float
    logs: tuple[Path, ...] = ()


def bench(prepared: Prepared, settings: Settings, progress: Progress, asked: Asked) -> tuple[Evidence, RunDir]:
    """Run the command `trials` times, or read `logs` of such runs; exit 1 where a run fails, 6 below its claim.

    Raises EnvbuildError `bench-unknown` (exit 2) for a stack that does not say how it is measured.
    """
    reference = prepared.stack.reference
    if reference is None or reference.bench is None:
        raise EnvbuildError(
            "bench-unknown",
            f"the stack {prepared.stack.name} does not say how its own run is measured",
            hint="its file needs `reference: bench:` with the log's format, the figure's name and its unit",
        )
    with one_run("bench", settings, progress, **about(prepared)) as run:
        work = Work(prepared, settings, run.run, run.journal, progress)
        nodes = [] if asked.logs else ask_in_use(work, Question("verify", _quick, DEADLINE))
        facts = _facts(work)
        node = nodes[0] if nodes else NodeEvidence(node="localhost", status="ok", exit=0)
        if node.exit == ExitCode.OK:
            with work.phase("bench", f"running {asked.launch.model} on {plural(asked.launch.gpus_per_node, 'GPU')}"):
                check = _check(work, reference, reference.bench, asked, facts)
            node = _with(node.model_copy(update={"facts": facts}), check)
        evidence = write_evidence(work, "bench", [node], warnings=tuple(work.notes))
        run.exit = evidence.exit
    return evidence, run.run


def _quick(variant: Variant, _: Mapping[str, object]) -> dict[str, object]:
    return {"variant": variant.to_json_dict(), "deep": False}


def _facts(work: Work) -> NodeFacts | None:
    """Those of this machine, for the name of its GPUs."""
    ask(["localhost"], work.prepared, work.run.id, {"stack": work.prepared.stack.name}, work.survey)
    return work.survey.facts.get("localhost")


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
    compat = rules()
    there = _gpus(asked, facts, {gpu.model: gpu.name for gpu in compat.gpus.values()})
    peaks = {gpu.model: gpu.dense_tflops for gpu in compat.gpus.values() if gpu.dense_tflops is not None}
    there = Gpus(there.name, there.count, there.model, peaks.get(there.model or ""))
    found_ = compare(reference, told, asked.launch, statistics.median(values), there, peaks)
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


def _gpus(asked: Asked, facts: NodeFacts | None, names: Mapping[str, str]) -> Gpus:
    name = facts.gpus[0].name if facts and facts.gpus and not asked.logs else None
    model = next((model for model, each in names.items() if f" {each} " in f" {name} "), None)
    return Gpus(name, asked.launch.nodes * asked.launch.gpus_per_node, model)


@dataclass(slots=True)
class _Log:
    """What a run printed, and why it failed (empty: it ended well)."""

    path: Path
    failure: str = ""


def _logs(work: Work, told: Bench, asked: Asked) -> Iterator[_Log]:
    """One after another: who stops after a failed run starts no other."""
    if asked.logs:
        yield from map(_Log, asked.logs)
    else:
        yield from (_run(work, told, asked, number) for number in range(1, asked.trials + 1))


def _run(work: Work, told: Bench, asked: Asked, number: int) -> _Log:
    """One run: its log, and why it failed; ends at the deadline or when the run is cancelled."""
    log = _Log(work.run.path / "logs" / f"bench-{number}.log")
    steps = [step.text for step in steps_of(asked.launch, asked.output, asked.activate)]
    Path(asked.output).mkdir(parents=True, exist_ok=True)
    # Launchers start their ranks in sessions of their own; what they inherit finds them all.
    end_orphans(_MARKER)
    marker = marker_value()
    process = subprocess.Popen(
        ["bash", "-c", "\n".join(steps)],
        env={**os.environ, _MARKER: marker},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )

    def show(text: str) -> None:
        record = read_line(told.log, text)
        if record is not None and told.metric in record.values:
            work.progress.stage(f"run {number}: {record.values[told.metric]:.5g} {told.unit}")

    # A thread of its own: a run that hangs prints nothing.
    reader = threading.Thread(target=_copy, args=(process, log.path, show), daemon=True)
    reader.start()
    until = time.monotonic() + asked.deadline
    try:
        while process.poll() is None and time.monotonic() < until and not work.settings.cancel():
            time.sleep(_POLL)
        late = process.poll() is None
    finally:
        end_marked(_MARKER, marker, grace=_GRACE)
        process.wait()
        reader.join(_GRACE)
    if work.settings.cancel():
        raise EnvbuildError("interrupted", "the run was interrupted", exit_code=ExitCode.INTERRUPTED)
    if late:
        log.failure = f"timed out after {asked.deadline:g} s"
    elif process.returncode:
        log.failure = f"it ended with exit code {process.returncode}"
    return log


def _copy(process: subprocess.Popen[bytes], path: Path, show: Callable[[str], None]) -> None:
    """What a run prints into its log, redacted, until all that it started have closed their output."""
    redactor = Redactor(os.environ)
    assert process.stdout is not None  # noqa: S101 - it was made with a pipe
    with path.open("w", encoding="utf-8") as log:
        for line in process.stdout:
            text = redactor.text(line.decode("utf-8", "replace"))
            log.write(text)
            log.flush()
            show(text)
