"""What every scheduler shares: a job as it is requested, and its state."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import AfterValidator, Field, StringConstraints

from envbuild import text
from envbuild.errors import EnvbuildError
from envbuild.model.common import AbsPath, EnvName, Name, StrictModel, Text
from envbuild.model.target import Modules, scheduler_word

Word = Annotated[Text, AfterValidator(scheduler_word)]
JobName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9._-]{0,62}$")]


class Gres(StrictModel):
    """How a site names its GPUs: `name` as `gpu`, `type` as `a100` if all GPUs that a job may get have one type."""

    name: Word = "gpu"
    type: Word | None = None


@dataclass(frozen=True)
class Share:
    """What a job must request on each node beside its GPUs; None: nothing, or unknown."""

    cpus: int | None = None
    memory_gib: int | None = None


class JobStep(StrictModel):
    """A program of a job, run on every node of it (`node`) or on the first one (`once`).

    In `argv`, `{MASTER_ADDR}`, `{MASTER_PORT}` and `{RUN_ID}` stand for what only the job knows.
    """

    argv: Annotated[tuple[Text, ...], Field(min_length=1)]
    each: Literal["node", "once"] = "node"


class JobText(StrictModel):
    """A piece of bash: run on the first node by the job's script itself (`batch`), or on every node (`node`).

    On nodes, the first that fails ends all. What stands in braces is filled in as in `JobStep`, before bash reads it.
    """

    text: Annotated[str, Field(min_length=1)]
    each: Literal["batch", "node"] = "node"


Step = JobStep | JobText


class Job(StrictModel):
    """One job. `time_limit` in seconds; `output` is the folder of its log and its status file, which all nodes share.

    `gres` is how the site calls GPUs, None where the scheduler does not know of them: a job that wants some then takes
    whole nodes. `gpus_on_node`: all of a node, 0 where nobody knows. `cpus_per_node` and `memory_gib` (PBS alone) are
    asked for where they are said. `constraints` is Slurm's `--constraint`, or resources in the `select` of PBS
    (`system=polaris`). `requeue`: Slurm may run it again.
    """

    name: JobName
    nodes: Annotated[int, Field(ge=1, le=20000)] = 1
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] = 0
    gpus_on_node: Annotated[int, Field(ge=0)] = 0
    gres: Gres | None = None
    cpus_per_node: Annotated[int, Field(ge=1)] | None = None
    memory_gib: Annotated[int, Field(ge=1)] | None = None
    time_limit: Annotated[int, Field(ge=1)] | None = None
    queue: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    exclusive: bool = False
    constraints: Word | None = None
    filesystems: tuple[Name, ...] = ()
    resources: tuple[Word, ...] = ()
    variables: dict[EnvName, Text] = {}
    modules: Modules | None = None
    requeue: bool = True
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    output: AbsPath

    @property
    def whole_nodes(self) -> bool:
        """Whether no other job may run on its nodes: as requested, or because GPUs cannot be requested."""
        return self.exclusive or (self.gpus_per_node > 0 and self.gres is None)

    def warnings(self) -> tuple[str, ...]:
        """What a user should know before it is submitted."""
        if self.gpus_per_node and self.gres is None and not self.exclusive:
            return ("the scheduler knows of no GPUs here (no GRES): whole nodes are asked for instead",)
        return ()

    def cost(self) -> str:
        """`2 nodes of hpc for at most 1:00:00, 16 GPU-hours (8 GPUs a node), whole nodes, account lab`."""
        limit = f"at most {clock_text(self.time_limit)}" if self.time_limit else "as long as the site allows"
        words = f"{text.plural(self.nodes, 'node')}{f' of {self.queue}' if self.queue else ''} for {limit}"
        hours, gpus = self.gpu_hours(), f"{text.plural(self._billed, 'GPU')} a node"
        gpus += f", {self.gpus_per_node} requested" * (self._billed > self.gpus_per_node)
        whole = "whole nodes" * self.whole_nodes
        account = f"account {self.account}" if self.account else ""
        return ", ".join(filter(None, (words, f"{hours} ({gpus})" if hours else "", whole, account)))

    @property
    def _billed(self) -> int:
        """GPUs of a node that nobody else can use meanwhile."""
        return max(self.gpus_per_node, self.gpus_on_node) if self.whole_nodes else self.gpus_per_node

    def gpu_hours(self, times: int = 1) -> str:
        """`16 GPU-hours`, the most that so many such jobs take; empty if they take none or have no limit.

        `at least 16 GPU-hours` for whole nodes, if nobody knows how many GPUs those have.
        """
        hours = times * self.nodes * self._billed * (self.time_limit or 0) / 3600
        least = "at least " * (self.whole_nodes and not self.gpus_on_node)
        return f"{least}{f'{hours:.2g}' if hours < 100 else math.ceil(hours)} GPU-hours" if hours else ""


def seconds_of(duration: str) -> int:
    """Seconds of a `Duration` of a target (`90s`, `40m`, `2h`)."""
    return int(text.seconds_of(duration) or 0)


def clock_text(seconds: int) -> str:
    """`H:MM:SS`, as PBS and Slurm read it; hours may be more than 24."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


class Phase(enum.StrEnum):
    """Where a job is. `configuring`: its nodes are being started; `lost`: its state is unknown."""

    PENDING = "pending"
    CONFIGURING = "configuring"
    RUNNING = "running"
    COMPLETING = "completing"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"


class Failure(enum.StrEnum):
    """Why a job did not end normally."""

    NODE_FAIL = "node-fail"
    BOOT_FAIL = "boot-fail"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out-of-memory"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    LAUNCH = "launch-failed"


@dataclass(frozen=True)
class JobState:
    """What a scheduler says of a job.

    `reason`: its words for why it waits or failed; `exit`: of the batch script (`done`; also `failed` where known),
    128 + the signal that ended it; `nodes`: once it has some; `restarts`: how often it was requeued; `word`: its state
    in the scheduler's own words.
    """

    phase: Phase
    reason: str = ""
    exit: int | None = None
    failure: Failure | None = None
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    word: str = ""

    @property
    def waiting(self) -> bool:
        """Whether it has not begun: it is in the queue, or its nodes are being started."""
        return self.phase in (Phase.PENDING, Phase.CONFIGURING)

    @property
    def ended(self) -> bool:
        """Whether its state is final."""
        return self.phase in (Phase.DONE, Phase.FAILED, Phase.LOST)

    @property
    def good(self) -> bool:
        """Whether it ran to its end with exit code 0."""
        return self.phase is Phase.DONE and self.exit == 0

    def summary(self) -> str:
        """For people: `pending (Resources)`, `done, exit 3`, `failed: node-fail (NodeDown)`."""
        failure, reason = f": {self.failure}" if self.failure else "", f" ({self.reason})" if self.reason else ""
        return f"{self.phase}{failure}{reason}" + (f", exit {self.exit}" if self.exit else "")


# What to do about a job that failed in this way; else `SEE_LOG`.
HINTS: dict[Failure | None, str] = {
    Failure.NODE_FAIL: "the same command submits it again and does only the rest",
    Failure.BOOT_FAIL: "a node did not start in time; see the site's log of its resume program",
    Failure.TIMEOUT: "give it more time: `scheduler: {time_limit: ...}`; the same command does only the rest",
    Failure.OUT_OF_MEMORY: "ask for whole nodes (`scheduler: {exclusive: true}`), or use `--compile-jobs 2`",
    Failure.PREEMPTED: "the same command submits it again; a queue without preemption keeps its nodes",
    Failure.CANCELLED: "it was cancelled; the same command submits it again",
}
SEE_LOG = "see its log"


def job_error(job: str, state: JobState, last_lines: str = "") -> EnvbuildError:
    """The error of a job that ended and is not good: exit 75 when it was preempted, 9 otherwise."""
    code = f"job-{state.failure}" if state.failure else {Phase.LOST: "job-lost"}.get(state.phase, "job-failed")
    why = state.reason or (f"its script ended with exit {state.exit}" if state.exit else "")
    return EnvbuildError(
        code,
        f"job {job} ended as {state.word or state.phase}",
        why="\n".join(filter(None, (why, last_lines.strip()[-1500:]))),
        hint=HINTS.get(state.failure, SEE_LOG),
        details={"job": job, "nodes": list(state.nodes), "restarts": state.restarts},
    )


class SchedulerUnavailableError(Exception):
    """The scheduler did not answer; the job is unchanged."""


class Pool(Protocol):
    """Where the nodes of a job come from, as the scheduler reports it: a partition of Slurm, the queues of PBS."""

    @property
    def label(self) -> str:
        """For people: `the partition gpu`."""

    @property
    def gpus_per_node(self) -> int:
        """The most GPUs of a node; 0 if the scheduler knows of none."""

    def gres(self) -> Gres | None:
        """How a job requests GPUs; None if it cannot."""

    def share(self, gpus: int, *, exclusive: bool) -> Share:
        """What a job for that many GPUs a node must request beside them."""

    def in_service(self) -> int:
        """How many nodes a job gets if the target does not say. Raises EnvbuildError."""

    def most(self) -> int | None:
        """The most nodes that a job can get; None if unknown. Raises EnvbuildError as `in_service`."""

    def queue(self, nodes: int, seconds: int) -> str | None:
        """The queue for so many nodes and seconds; None: the default. Raises EnvbuildError `partition-unknown`."""
