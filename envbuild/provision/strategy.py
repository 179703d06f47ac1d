"""`strategy`: trials of a stack's own run, the most promising case first, until none promises more or time is up."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from envbuild.errors import ExitCode
from envbuild.launch.request import Place, samples
from envbuild.model.evidence import Check, Evidence
from envbuild.model.launch import Bench, Launch
from envbuild.provision.gpu_use import compared, in_words
from envbuild.provision.own_run import (
    OwnRun,
    carry_out,
    environments_in_use,
    facts_of,
    measured_by,
    of_trial,
    refuse_without_gpus,
)
from envbuild.provision.run.conclude import write_evidence
from envbuild.provision.run.context import Prepared, Settings, Work, one_work
from envbuild.provision.run.journal import Watch
from envbuild.provision.run.run_dir import RunDir
from envbuild.provision.survey.ask import rules
from envbuild.regular_file import read_text
from envbuild.report.claimed import Gpus, gpus_of, metric
from envbuild.resolve.compat import Gpu
from envbuild.strategy.memory import Case
from envbuild.strategy.search import GIB, Answer, Problem, Ranked, Search, Trial, as_row
from envbuild.text import number, plural

CHECK = "strategy"
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)
# A run that takes so many times as long as the longest that was measured is ended.
_PATIENCE = 3.0
# Where the first runs all fail, and not for memory, the cause is no case.
_FAILURES = 2
_LAST = 12  # lines of a run that failed, in the evidence


@dataclass(frozen=True, slots=True)
class Asked:
    """`problem` takes the GPU that is there (None: unknown); `make` makes a case's launch for a place.

    `place`: of all trials; `budget` in seconds.
    """

    problem: Callable[[Gpu | None], Problem]
    make: Callable[[Problem, Case, Place], Launch]
    place: Place
    activate: str
    budget: float


@dataclass(slots=True)
class _Trials:
    """The trials of one search, and what ended it."""

    work: Work
    measure: Bench
    asked: Asked
    problem: Problem
    gpus: Gpus
    search: Search
    checks: list[Check]
    ended: str = "no other case promises more"

    def run(self) -> None:
        """Until nothing promises more, the budget is used up, or runs fail whatever the case."""
        until, longest = time.monotonic() + self.asked.budget, 0.0
        while (ranked := self.search.next()) is not None:
            left = until - time.monotonic()
            if left <= longest:
                self.ended = f"the budget of {self.asked.budget:g} s is used up"
                return
            began = time.monotonic()
            if self._one(ranked, min(left, _PATIENCE * longest or left)) == "measured":
                longest = max(longest, time.monotonic() - began)
            if [trial.answer for trial in self.search.trials] == ["failed"] * _FAILURES:
                self.ended = "they failed, and not for memory"
                return

    def _one(self, ranked: Ranked, deadline: float) -> Answer:
        number, problem = len(self.search.trials) + 1, self.problem
        place = of_trial(self.work, self.asked.place, number)
        run = OwnRun(self.asked.make(problem, ranked.case, place), self.asked.activate, place.output, deadline)
        self.work.journal.stage(f"trial {number}: {ranked.case} (estimated {ranked.tflops:.0f} TFLOP/s per GPU)")
        began = time.monotonic()
        log = carry_out(self.work, self.measure, run, f"trial {number}")
        text = read_text(log.path)
        values, _, wrong, _ = samples(self.measure, text, self.gpus)
        wrong = log.failure or wrong
        answer: Answer = "measured"
        if wrong:
            # Where one rank is out of memory, the others may wait for it until the deadline.
            answer = "out-of-memory" if _OUT_OF_MEMORY.search(text) else "out-of-time" if log.late else "failed"
        median = statistics.median(values) if answer == "measured" else None
        self.search.trials.append(Trial(ranked, answer, median))
        used = compared(log.taken, ranked.held, ranked.reserved)
        says = f"{ranked.case}; estimated {ranked.tflops:.0f} TFLOP/s per GPU"
        says += f", {ranked.held / GIB:.1f} GiB in tensors, {ranked.reserved / GIB:.1f} GiB reserved"
        says = "; ".join(filter(None, (says, in_words(used))))
        if answer != "measured":
            says = f"{answer.replace('-', ' ')}: {says}; {wrong}"
        details = {
            "answer": answer,
            **as_row(problem, ranked),
            "values": values,
            "settings": problem.settings(ranked.case),
        }
        details |= used
        if answer == "failed":
            details |= {"output": "\n".join(text.splitlines()[-_LAST:]), "log": f"logs/{log.path.name}"}
        self.checks.append(
            Check(
                name=f"trial {number}",
                # That a case does not fit is what was asked.
                status="passed" if answer == "measured" else "failed" if answer == "failed" else "skipped",
                says=says,
                seconds=round(time.monotonic() - began, 1),
                metrics=(metric(self.measure, values),) if answer == "measured" else (),
                level="measured",
                details=details,
            )
        )
        return answer


def strategy(prepared: Prepared, settings: Settings, watch: Watch, asked: Asked) -> tuple[Evidence, RunDir]:
    """Search, each trial a check of the evidence, and at the end a check `strategy` with the best; exit 1 without one.

    Raises EnvbuildError `no-recipe` as `bench` does, and what `asked.problem` raises.
    """
    _, measure = measured_by(prepared.stack)
    with one_work(CHECK, prepared, settings, watch) as work:
        refuse_without_gpus(work, asked.place.gpus_per_node)
        (node,) = environments_in_use(work)
        if node.exit == ExitCode.OK:
            facts = facts_of(work)
            problem = asked.problem(rules().gpu_of(facts.gpus[0].device_name) if facts and facts.gpus else None)
            first = [] if problem.own is None else [problem.own]
            gpus, search = gpus_of(facts, problem.gpus, rules()), Search(problem.machine, problem.ranked(), first)
            trials = _Trials(work, measure, asked, problem, gpus, search, [])
            with work.phase(CHECK, f"searching for {problem.model} on {plural(problem.gpus, 'GPU')}"):
                trials.run()
            checks = (*node.checks, *trials.checks, _conclusion(trials))
            failed = any(check.status == "failed" for check in checks)
            node = node.model_copy(update={"facts": facts, "checks": checks})
            if failed:
                node = node.model_copy(update={"status": "failed", "exit": int(ExitCode.CHECK_FAILED)})
        evidence = write_evidence(work, CHECK, [node], warnings=tuple(work.notes))
    return evidence, work.run


def _conclusion(trials: _Trials) -> Check:
    best, ended = trials.search.best, trials.ended
    count = plural(len(trials.search.trials), "trial")
    if best is None or best.tflops is None:
        return Check(name=CHECK, status="failed", says=f"none of {count} told a figure; {ended}", level="measured")
    says = f"best of {count}: {best.ranked.case}, {number(best.tflops)} {trials.measure.unit}"
    own = next((t.tflops for t in trials.search.trials if t.ranked.case == trials.problem.own and t.tflops), None)
    if own:
        says += f", {best.tflops / own:.2f} times the document's {'best case' if trials.problem.best else 'own case'}"
    return Check(
        name=CHECK,
        status="passed",
        says=f"{says}; {ended}",
        level="measured",
        details={"model": trials.problem.model, "settings": trials.problem.settings(best.ranked.case)},
    )
