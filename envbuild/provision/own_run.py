"""One run of a stack's own command on this machine: its environment, its log, and why it failed."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.launch.job_steps import steps_of
from envbuild.model.evidence import NodeEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.launch import Launch
from envbuild.model.lock import Variant
from envbuild.model.reference import Bench
from envbuild.node.smoke.training_log import read_line
from envbuild.provision.contact.first_contact import DEADLINE
from envbuild.provision.environments import ask_in_use
from envbuild.provision.run.context import Question, Work
from envbuild.provision.run.findings import Prepared
from envbuild.provision.survey.ask import ask, rules
from envbuild.redact import Redactor
from envbuild.resolve.compat import Gpu
from envbuild.transport.processes import end_marked, end_orphans, marker_value

# Every process of a run, and what watches it, has this variable.
MARKER = "ENVBUILD_BENCH_RUN"
_GRACE = 10.0
_POLL = 0.1
_LINE = 1 << 20  # bytes of a line that are read at once


@dataclass(slots=True)
class Log:
    """What a run printed, and why it failed (empty: it ended well)."""

    path: Path
    failure: str = ""
    late: bool = False


@dataclass(frozen=True, slots=True)
class OwnRun:
    """What to run: the launch, the file that activates its environment, its output folder, and the seconds it has."""

    launch: Launch
    activate: str | None
    output: str
    deadline: float


def measured_by(prepared: Prepared) -> Bench:
    """How the stack's own run is measured. Raises EnvbuildError `bench-unknown` (exit 2) where it does not say."""
    reference = prepared.stack.reference
    if reference is None or reference.bench is None:
        raise EnvbuildError(
            "bench-unknown",
            f"the stack {prepared.stack.name} does not say how its own run is measured",
            hint="its file needs `reference: bench:` with the log's format, the figure's name and its unit",
        )
    return reference.bench


def environment_in_use(work: Work) -> NodeEvidence:
    """The environment that the run stands on, by its stamp; it may be the evidence of a failure."""
    (node,) = ask_in_use(work, Question("verify", _quick, DEADLINE))
    return node


def _quick(variant: Variant, _: Mapping[str, object]) -> dict[str, object]:
    return {"variant": variant.to_json_dict(), "deep": False}


def facts_here(work: Work) -> NodeFacts | None:
    """Those of this machine, for the name of its GPUs."""
    ask(["localhost"], work.prepared, work.run.id, {"stack": work.prepared.stack.name}, work.survey)
    return work.survey.facts.get("localhost")


def gpu_model(name: str | None) -> Gpu | None:
    """The row of our tables for a GPU as nvidia-smi names it."""
    return next((gpu for gpu in rules().gpus.values() if f" {gpu.name} " in f" {name} "), None)


def carry_out(work: Work, told: Bench, asked: OwnRun, name: str) -> Log:
    """One run under a name: its log, and why it failed; ends at the deadline or when the run is cancelled."""
    log = Log(work.run.path / "logs" / f"{name.replace(' ', '-')}.log")
    steps = [step.text for step in steps_of(asked.launch, asked.output, asked.activate)]
    Path(asked.output).mkdir(parents=True, exist_ok=True)
    # Launchers start their ranks in sessions of their own; what they inherit finds them all.
    end_orphans(MARKER)
    marker = marker_value()
    process = subprocess.Popen(
        ["bash", "-c", "\n".join(steps)],
        env={**os.environ, MARKER: marker},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )

    def show(text: str) -> None:
        record = read_line(told.log, text)
        if record is not None and told.metric in record.values:
            work.progress.stage(f"{name}: {record.values[told.metric]:.5g} {told.unit}")

    # A thread of its own: a run that hangs prints nothing.
    reader = threading.Thread(target=_copy, args=(process, log, show), daemon=True)
    reader.start()
    until = time.monotonic() + asked.deadline
    try:
        while process.poll() is None and time.monotonic() < until and not (log.failure or work.settings.cancel()):
            time.sleep(_POLL)
        log.late = process.poll() is None and not log.failure
    finally:
        end_marked(MARKER, marker, grace=_GRACE)
        process.wait()
        reader.join(_GRACE)
    if work.settings.cancel():
        raise EnvbuildError("interrupted", "the run was interrupted", exit_code=ExitCode.INTERRUPTED)
    if log.failure:
        return log
    if log.late:
        log.failure = f"timed out after {asked.deadline:g} s"
    elif process.returncode:
        log.failure = f"it ended with exit code {process.returncode}"
    return log


def _copy(process: subprocess.Popen[bytes], log: Log, show: Callable[[str], None]) -> None:
    """What a run prints into its log, redacted, until all that it started have closed their output.

    A log that cannot be written is the run's failure; its output is still read, so that it can end.
    """
    redactor = Redactor(os.environ)
    assert process.stdout is not None  # noqa: S101 - it was made with a pipe
    lines = iter(partial(process.stdout.readline, _LINE), b"")
    try:
        with log.path.open("w", encoding="utf-8") as file:
            for line in lines:
                text = redactor.text(line.decode("utf-8", "replace"))
                file.write(text)
                file.flush()
                show(text)
    except OSError as error:
        log.failure = f"its log cannot be written: {error}"
        for _ in lines:
            pass
