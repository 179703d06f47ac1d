"""One run while it happens: what was prepared, what was found, and how long each phase took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.model.evidence import NodeEvidence
from envbuild.model.lock import Variant
from envbuild.model.plan import Plan
from envbuild.node.redact import redact_data
from envbuild.plan.rollout import Batches
from envbuild.provision.contact.toolchain import NodeTools
from envbuild.provision.run import durations
from envbuild.provision.run.evidence import failed_node
from envbuild.provision.run.findings import Prepared, Survey
from envbuild.provision.run.journal import EventKind, Journal, utc_now
from envbuild.provision.run.run_dir import RunDir

DEADLINE = 6 * 3600.0


@dataclass(frozen=True)
class Settings:
    """How a run behaves, apart from what it builds. `wait` and `deadline` in seconds.

    `playbook`: with Ansible on this machine too, not only on others; `jobs`: compile jobs at once on a node;
    `check_rebuild`: build what is compiled twice and compare; `cancel_job`: an interrupt also ends the job that the run
    waits for; `script`: the plan is only printed, so no job may be submitted for it; `batches`: how many nodes at a
    time, and how many may fail; `only`: what of the smoke test is run (`ITEM`, `ITEM/CHECK`; nothing: all);
    `full`: the smoke item `full` too; `bundle`: the file or folder that everything comes from.
    """

    runs_root: Path
    toolchain_file: Path | None = None
    wait: float = 600.0
    deadline: float = DEADLINE
    playbook: bool = False
    repair: bool = False
    jobs: int | None = None
    check_rebuild: bool = False
    cancel_job: bool = False
    batches: Batches = field(default_factory=Batches)
    script: bool = False
    only: tuple[str, ...] = ()
    full: bool = False
    bundle: Path | None = None
    command: tuple[str, ...] = ()
    cancel: Callable[[], bool] = lambda: False


@dataclass
class Run:
    """What every run has, and all that one has which builds nothing (a `Work` has it too). `exit`: how it ends."""

    settings: Settings
    run: RunDir
    journal: Journal
    notes: list[str] = field(default_factory=list)
    exit: int = 0


@dataclass
class Work:
    """The state of one run; the only thing that its phases share.

    `only`: the nodes that are planned now (None: all); `done`: those that earlier waves have finished;
    `tried`: those that were to give an environment to others and could not; `lacking`: errors of those that the newest
    plan left out, because they cannot build and nobody gives them anything; `bundle`: the index of the one to use.
    """

    prepared: Prepared
    settings: Settings
    run: RunDir
    journal: Journal
    started: str = field(default_factory=utc_now)
    survey: Survey = field(default_factory=Survey)
    tools: dict[str, NodeTools] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    tasks: int = 0
    notes: list[str] = field(default_factory=list)
    only: frozenset[str] | None = None
    done: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)
    lacking: dict[str, EnvbuildError] = field(default_factory=dict)
    bundle: dict[str, Any] | None = None

    def planned(self, plan: Plan) -> Plan:
        """The plan with the times that this machine needed before, written down."""
        # No time of a step in a job is known.
        if self.prepared.target.connection.kind != "job":
            plan = durations.as_before(plan, self.survey.facts, durations.read(durations.folder()))
        self.run.write_json(self.run.plan, redact_data(plan.to_json_dict()))
        before = {
            node.node: {step.kind: step.before for step in node.steps if step.before is not None} for node in plan.nodes
        }
        self.journal.append(EventKind.PLANNED, nothing_to_do=plan.nothing_to_do, before=before)
        return plan

    def unplanned(self, plan: Plan) -> list[NodeEvidence]:
        """The nodes with an error that are not in the plan."""
        survey, names = self.survey, {node.node for node in plan.nodes}
        return [
            failed_node(node, error, facts=survey.facts.get(node), resolution=survey.resolutions.get(node))
            for node, error in survey.errors.items()
            if node not in names
        ]

    @contextmanager
    def phase(self, name: str, text: str) -> Iterator[None]:
        """Time one phase and show that it begins. Raises KeyboardInterrupt when the run was cancelled before."""
        if self.settings.cancel():
            raise KeyboardInterrupt
        self.journal.stage(text)
        began = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = round(self.phases.get(name, 0.0) + time.monotonic() - began, 3)


@dataclass(frozen=True)
class Question:
    """What is asked of an environment in use: a verb, its arguments by variant and stamp, and the seconds it has."""

    verb: str
    args: Callable[[Variant, Mapping[str, Any]], dict[str, Any]]
    deadline: float
