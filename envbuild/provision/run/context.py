"""One run while it happens: how it begins and ends, what was prepared, found and answered, how long each phase took."""

from __future__ import annotations

import re
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.agreement import asked
from envbuild.model.evidence import NodeEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock, Variant
from envbuild.model.plan import Batches, NodePlan, Plan, Resolution
from envbuild.model.stack import Stack, mpi_on_nodes
from envbuild.model.target import Target
from envbuild.node import identity
from envbuild.node.redact import redact_data
from envbuild.plan.tools import NodeTools
from envbuild.provision.contact.first_contact import ContactResult
from envbuild.provision.run import progress
from envbuild.provision.run.evidence import all_well, failed_node, first_error
from envbuild.provision.run.journal import EventKind, Journal, Watch, utc_now
from envbuild.provision.run.run_dir import RunDir
from envbuild.text import plural, seconds_of

if TYPE_CHECKING:
    from envbuild.resolve.estimate import Supply
    from envbuild.schedule.job import Pool


# As `built_on` of a stack counts GPUs.
_COUNTS = ("no", "one", "two", "three", "four")


class Narrowing(NamedTuple):
    """What `--limit` and `--exclude` say: host lists as clusters write them."""

    limit: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """The options that were given."""
        return ("--limit",) * bool(self.limit) + ("--exclude",) * bool(self.exclude)


class Selection(NamedTuple):
    """Which of a target's hosts are meant: `chosen` of `total`, by these options (`--limit`, `--exclude`)."""

    chosen: int
    total: int
    by: tuple[str, ...]

    def __str__(self) -> str:
        """`3 of 8 nodes, by --limit`."""
        return f"{self.chosen} of {plural(self.total, 'node')}, by {' and '.join(self.by)}"

    def as_dict(self) -> dict[str, Any]:
        """The same for `--json`."""
        return {"nodes": self.chosen, "of": self.total, "by": list(self.by)}


class Choice(NamedTuple):
    """What the user asked for; None leaves it to target, stack and rules.

    `unnamed`: that no target was named, for hints of errors that are often those of the wrong machine.
    """

    target: str
    stack: str | None = None
    profile: str | None = None
    prefix: str | None = None
    variant: str | None = None
    interpreter: str | None = None
    base: str | None = None
    engine: str | None = None
    cache: str | None = None
    hosts: tuple[str, ...] = ()
    trust_environment: bool = True
    narrowing: Narrowing = Narrowing()
    unnamed: str = ""


class Prepared(NamedTuple):
    """A stack, its profile, a target and the lock that belongs to them.

    `lock_digest` is sha256 (hex) of the lock file as it is. `selection`: the target's hosts are these of more.
    `reference`: the stack as a loader finds it, a shipped name or a path. `profile_why`: why this profile, where
    nobody asked for it and it is not the stack's default.
    """

    stack: Stack
    profile: str
    target: Target
    lock: Lock
    lock_file: Path
    lock_digest: str
    choice: Choice
    selection: Selection | None = None
    reference: str = ""
    profile_why: str = ""

    @property
    def asked(self) -> tuple[str, ...]:
        """The packages that the lock has for themselves."""
        return asked(self.lock, self.stack.profiles[self.profile])

    @property
    def channels(self) -> dict[str, tuple[str, ...]]:
        """Where the conda channels of the profile lie; empty where nothing in the lock comes from one."""
        spec = self.stack.profiles[self.profile].conda
        if spec is None or not any(variant.conda and variant.conda.packages for variant in self.lock.variants):
            return {}
        from envbuild.conda.channels import addresses

        return addresses(spec)

    @property
    def limits(self) -> tuple[str, ...]:
        """What the environments of the profile cannot do, in a sentence; none where they do what the stack can."""
        runs = self.stack.profiles[self.profile].runs
        if runs == "benchmark" or self.stack.reference is None:
            return ()
        return (f"the profile {self.profile} says `runs: {runs}`: `launch`, `bench` and `strategy` refuse it",)

    @property
    def never_built(self) -> tuple[str, ...]:
        """That no build of the profile on such a GPU is known, in a sentence, where another build is."""
        built, gpu = self.stack.built_on, self.target.expects.gpu
        here = built.get(self.profile, "")
        if here and gpu:
            from envbuild.resolve.compat import rows_like
            from envbuild.resolve.compat_read import load_compat

            models = {word for row in rows_like(gpu, load_compat()) for word in re.split(r"[ -]", row.model)}
            words = re.split(r"[ ,-]+", here)
            if models and models.isdisjoint(words):
                return (f"no build of the profile {self.profile} on {gpu} is known, only on {here}",)
            gpus = (self.target.expects.gpus_per_node or 1) * (self.target.scheduler.nodes or 1)
            if gpus > max((_COUNTS.index(word) for word in words if word in _COUNTS), default=gpus):
                return (f"no run of the profile {self.profile} on {gpus} GPUs is known, only on {here}",)
        known = ", ".join(f"`{name}` ({gpus})" for name, gpus in built.items() if self.profile not in built)
        return (f"no build of the profile {self.profile} on a GPU is known, only of {known}",) if known else ()

    @property
    def built_in(self) -> dict[str, float]:
        """What is known of the time that builds of the stack took, in words, and in seconds."""
        known = self.stack.built_in
        names = [self.profile] if self.profile in known else list(known)
        return {
            f"`provision` of {name} took {known[name].seconds:g} s on {known[name].where}": known[name].seconds
            for name in names
        }

    def too_short(self, plan: Plan) -> tuple[str, ...]:
        """That the jobs of the target end before what is known to take longer, in a sentence."""
        limit, reference = self.target.scheduler.time_limit, self.stack.reference
        if limit is None or plan.nothing_to_do:
            return ()
        steps = max(sum(step.seconds for step in node.steps) for node in plan.nodes)
        known = {f"the steps of a node are estimated at {steps:.0f} s": steps, **self.built_in}
        for figure in reference.figures if reference else ():
            if figure.unit == "minutes":
                known[f"the document's run takes {figure.value:g} minutes on {figure.where}"] = 60 * figure.value
        longer = [text for text, seconds in known.items() if seconds > (seconds_of(limit) or 0)]
        return (f"the job ends after {limit} (`time_limit`): {'; '.join(longer)}",) if longer else ()

    def explained(self, plan: Plan) -> Plan:
        """The plan with what its profile cannot do, and why it was taken and differs where nobody asked for it."""
        deviations = self.stack.profiles[self.profile].deviations if self.profile_why else ()
        nodes = max(len(plan.nodes), self.target.scheduler.nodes or 1)
        limits = (*self.limits, *mpi_on_nodes(self.stack.profiles, self.profile, nodes))
        warnings = (
            *limits,
            *self.never_built,
            *self.too_short(plan),
            *(f"profile {self.profile}: {text}" for text in deviations),
            *plan.warnings,
        )
        return plan.model_copy(update={"profile_why": self.profile_why, "warnings": warnings})


@dataclass
class Survey:
    """Per node: facts, resolution, the variant as it will be built, or the error that ended it.

    `kept` are nodes whose environment in use needs nothing; they have no resolution of their own. `supply`: what this
    machine could deliver, asked where a node does not reach all it needs. `pool`: what its scheduler said of
    the nodes of jobs, where it was asked.
    """

    facts: dict[str, NodeFacts] = field(default_factory=dict)
    resolutions: dict[str, Resolution] = field(default_factory=dict)
    variants: dict[str, Variant] = field(default_factory=dict)
    contacts: dict[str, ContactResult] = field(default_factory=dict)
    kept: dict[str, NodePlan] = field(default_factory=dict)
    errors: dict[str, EnvbuildError] = field(default_factory=dict)
    supply: Supply | None = None
    pool: Pool | None = None

    def take(self, node: str, answer: ContactResult) -> None:
        """What a node answered to a probe; of one that has no Python, only that it answered.

        The name is that of the run, which people know: hostnames may be equal or long.
        """
        if answer.error is None:
            self.contacts[node] = answer
        if answer.bare:
            return
        try:
            self.facts[node] = NodeFacts.from_plain(answer.result()).model_copy(update={"node": node})
        except EnvbuildError as error:
            self.errors[node] = error

    def add(self, other: Survey) -> None:
        """Take over what another one knows."""
        for part in ("facts", "resolutions", "variants", "contacts", "kept", "errors"):
            getattr(self, part).update(getattr(other, part))
        self.supply = other.supply or self.supply

    @property
    def undecided(self) -> list[str]:
        """Nodes that something has to be decided for."""
        return [node for node in self.facts if node not in self.kept and node not in self.errors]

    @property
    def without_python(self) -> list[str]:
        """Nodes that answered, but have no Python that could run the node program."""
        return [node for node, answer in self.contacts.items() if answer.bare]


DEADLINE = 6 * 3600.0


@dataclass(frozen=True)
class Settings:
    """How a run behaves, apart from what it builds. `wait` and `deadline` in seconds.

    `playbook`: with Ansible on this machine too, not only on others; `jobs`: compile jobs at once on a node;
    `check_rebuild`: build what is compiled twice and compare; `cancel_job`: an interrupt also ends the job that the run
    waits for; `script`: the plan is only printed, so no job may be submitted for it; `batches`: how many nodes at a
    time, and how many may fail; `only`: what of the smoke test is run (`ITEM`, `ITEM/CHECK`; nothing: all);
    `bundle`: the file or folder that everything comes from.
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
    bundle: Path | None = None
    command: tuple[str, ...] = ()
    cancel: Callable[[], bool] = lambda: False


@dataclass
class Run:
    """What every run has, and all that one has which builds nothing. `exit`: how it ends."""

    settings: Settings
    run: RunDir
    journal: Journal
    notes: list[str] = field(default_factory=list)
    exit: int = 0


@dataclass
class Work(Run):
    """The state of one run of a stack on a target; the only thing that its phases share.

    `only`: the nodes that are planned now (None: all); `done`: those that earlier waves have finished;
    `tried`: those that were to give an environment to others and could not; `bundle`: the index of the one to use.
    """

    prepared: Prepared = field(kw_only=True)
    started: str = field(default_factory=utc_now)
    survey: Survey = field(default_factory=Survey)
    tools: dict[str, NodeTools] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    tasks: int = 0
    only: frozenset[str] | None = None
    done: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)
    bundle: dict[str, Any] | None = None

    def planned(self, plan: Plan) -> Plan:
        """The plan with the times that this machine needed before, written down."""
        # No time of a step in a job is known.
        if self.prepared.target.connection.kind != "job":
            plan = progress.as_before(plan, self.survey.facts, progress.read(progress.folder()))
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
    """What is asked of an environment in use: a verb, its arguments by variant and stamp, and the seconds it has.

    `then`: what is asked of it afterwards.
    """

    verb: str
    args: Callable[[Variant, Mapping[str, Any]], dict[str, Any]]
    deadline: float
    then: Question | None = None


@dataclass
class Outcome:
    """Answers of the node program by node and verb, and errors of nodes that could not answer."""

    responses: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    errors: dict[str, EnvbuildError] = field(default_factory=dict)

    def error_of(self, node: str) -> EnvbuildError | None:
        """Why a node could not answer, or the first error that it answered."""
        return self.errors.get(node) or first_error(self.responses.get(node, {}).values())

    def well(self, node: str) -> bool:
        """Everything was answered well, and nothing found wrong."""
        return node not in self.errors and all_well(self.responses.get(node, {}))

    def take(self, node: str, verb: str, answer: ContactResult) -> None:
        """What a node answered to a verb, or why there is no answer."""
        if answer.response is not None:
            self.responses.setdefault(node, {})[verb] = answer.response
        elif (error := answer.failure) is not None:
            self.errors.setdefault(node, error)


class Route(ABC):
    """What a run does with one kind of target: what is brought is one subclass, and how nodes are reached another.

    Errors of single nodes are in the evidence, others are raised.
    """

    def look_and_plan(self, work: Work, *, bring_python: bool) -> Plan:
        """Ask the nodes, decide for each, and plan; `bring_python`: also put a Python where there is none."""
        self.look(work, bring_python=bring_python)
        return self.plan(work)

    def carry_out(self, work: Work, plan: Plan) -> tuple[Plan, list[NodeEvidence]]:
        """Do what the plan says and verify it; the plan as it was carried out, and the evidence."""
        outcome, todo = Outcome(), not plan.nothing_to_do
        if todo:
            plan, outcome = self.bring(work, plan)
        self.verify(work, plan, outcome)
        if todo:
            self.meet(work, plan, outcome)
        return plan, self.evidence(work, plan, outcome) + work.unplanned(plan)

    @abstractmethod
    def look(self, work: Work, *, bring_python: bool) -> None:
        """Ask the nodes and decide for each; without `bring_python`, nothing changes on any of them."""

    @abstractmethod
    def plan(self, work: Work) -> Plan:
        """The plan of what was found, written down."""

    @abstractmethod
    def bring(self, work: Work, plan: Plan) -> tuple[Plan, Outcome]:
        """Carry out a plan that has something to do; the plan as it was carried out, and what nodes answered."""

    def verify(self, work: Work, plan: Plan, outcome: Outcome) -> None:  # noqa: B027 - bringing may verify
        """Ask of every node whose steps all went well whether it has what it should; its answer into the outcome."""

    def meet(self, work: Work, plan: Plan, outcome: Outcome) -> None:  # noqa: B027 - one node meets nobody
        """The joint smoke test of nodes where something was done; answers and errors into the outcome."""

    @abstractmethod
    def evidence(self, work: Work, plan: Plan, outcome: Outcome) -> list[NodeEvidence]:
        """What each node of the plan did."""

    @abstractmethod
    def ask(self, work: Work, question: Question) -> list[NodeEvidence]:
        """`verify` or `smoke` of what is in use on every node."""


@contextmanager
def one_run(verb: str, settings: Settings, watch: Watch, **what: Any) -> Iterator[Run]:
    """A run in a directory of its own; `what` it is about is kept with its beginning.

    `watch` sees every event. It ends with the `exit` that the block gives it; what the block raises is written down as
    well, and goes on.
    """
    run = RunDir.create(settings.runs_root)
    with run.open_journal(watch) as journal:
        made = Run(settings, run, journal)
        journal.append(EventKind.RUN_STARTED, **identity.here(), verb=verb, command=list(settings.command), **what)
        try:
            yield made
        except BaseException as error:
            # On a full disk the reason of the failure is worth more than the failure to write it down.
            with suppress(EnvbuildError):
                if isinstance(error, EnvbuildError):
                    kind = EventKind.INTERRUPTED if error.exit_code == ExitCode.INTERRUPTED else EventKind.FAILED
                    journal.append(kind, error=error.as_dict())
                elif isinstance(error, KeyboardInterrupt):
                    journal.append(EventKind.INTERRUPTED)
                else:
                    mistake = run.unexpected(f"{type(error).__name__}: {error}", error)
                    journal.append(EventKind.FAILED, error=mistake.as_dict())
            raise
        finally:
            shutil.rmtree(run.staging, ignore_errors=True)
        journal.append(EventKind.RUN_FINISHED, exit=made.exit)


@contextmanager
def one_work(verb: str, prepared: Prepared, settings: Settings, watch: Watch) -> Iterator[Work]:
    """The same for a stack on a target."""
    names = {"stack": prepared.stack.name, "profile": prepared.profile, "target": prepared.target.name}
    with one_run(verb, settings, watch, **names) as run:
        work = Work(settings, run.run, run.journal, prepared=prepared)
        yield work
        run.exit = work.exit
