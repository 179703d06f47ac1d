"""PBS Professional: jobs through qsub, qstat and qdel.

It was not run on a real PBS: the tests use small programs that print what the manual pages say.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from envbuild.errors import EnvbuildError
from envbuild.model.target import QueueLimits, Target
from envbuild.node.read_text import integer
from envbuild.schedule.cluster import TIMEOUT, Scheduler
from envbuild.schedule.job import Failure, Gres, Job, JobState, Phase, Share, clock_text, seconds_of
from envbuild.text import plural

# States of pbsnodes that keep jobs away (pbsnodes(1B)); a node may have several.
_OUT = frozenset(("down", "offline", "stale", "state-unknown", "unknown", "unresolvable", "maintenance", "sleep"))
_HAS = "resources_available."
# What a job takes away from a node; all else that it may ask for says which nodes are meant.
_AMOUNTS = frozenset(("ncpus", "ngpus", "mem", "vmem", "mpiprocs", "ompthreads"))

Attributes = dict[str, str]


@dataclass(frozen=True)
class Offer:
    """What one node offers to jobs."""

    cpus: int
    gpus: int
    memory_gib: int


@dataclass(frozen=True)
class Queues:
    """The queues that jobs may go to (none: the site's default), and what each node there offers."""

    limits: tuple[QueueLimits, ...]
    nodes: tuple[Offer, ...] = ()

    @property
    def gpus_per_node(self) -> int:
        """The most GPUs that a node offers."""
        return max((node.gpus for node in self.nodes), default=0)

    @property
    def label(self) -> str:
        """`the queue debug`."""
        names = [limit.name for limit in self.limits]
        return f"the queue{'s' * (len(names) > 1)} {', '.join(names)}" if names else "the default queue"

    def gres(self) -> Gres | None:
        """`ngpus`, if the nodes offer it."""
        return Gres(name="ngpus") if self.gpus_per_node else None

    def share(self, gpus: int, *, exclusive: bool) -> Share:
        """All that a node has, or the part of it that goes with so many of its GPUs; the least of the nodes that fit.

        Nobody else runs on a node that a job has for itself, but the job gets no more there than it asks for where the
        site confines it (openpbs, hooks/cgroups): one CPU, no GPU and 256 MB where it asks for nothing.
        """
        whole = exclusive or not self.gpus_per_node
        fitting = [node for node in self.nodes if node.gpus >= gpus or not self.gpus_per_node]
        if not fitting or not (whole or gpus):
            return Share()
        cpus = min(node.cpus if whole else node.cpus * gpus // node.gpus for node in fitting)
        memory = min(node.memory_gib if whole else node.memory_gib * gpus // node.gpus for node in fitting)
        return Share(cpus or None, memory or None)

    def most(self) -> int | None:
        """None: `queue` checks the limits of its queues."""
        return None

    def in_service(self) -> int:
        """PBS gives a job as many nodes as it asks for. Raises EnvbuildError `job-nodes-unknown` (exit 2)."""
        raise EnvbuildError(
            "job-nodes-unknown",
            "the target does not say how many nodes its job gets",
            why="a PBS job has the nodes that it asks for; there is no list of them before",
            hint="write it in the target file: `scheduler: {nodes: 2}`",
        )

    def queue(self, nodes: int, seconds: int) -> str | None:
        """The first queue that takes such a job. Raises EnvbuildError `partition-unknown` (exit 2)."""
        if not self.limits:
            return None
        for limit in self.limits:
            fits = limit.min_nodes <= nodes and (limit.max_nodes is None or nodes <= limit.max_nodes)
            if fits and (limit.time_limit is None or seconds <= seconds_of(limit.time_limit)):
                return limit.name
        raise EnvbuildError(
            "partition-unknown",
            f"no queue takes a job of {plural(nodes, 'node')} for {clock_text(seconds)}",
            why="; ".join(map(_limit_text, self.limits)),
            hint="change `scheduler: {nodes: ..., time_limit: ...}`, or name a queue: `scheduler: {queue: ...}`",
        )


def _limit_text(limit: QueueLimits) -> str:
    least = f"{limit.min_nodes} to {limit.max_nodes}" if limit.max_nodes else f"{limit.min_nodes} or more"
    return f"{limit.name}: {least} nodes" + (f", {limit.time_limit} at most" if limit.time_limit else "")


def _blocks(text: str, header: str) -> dict[str, Attributes]:
    """Attributes by the name in a line that `header` finds; the lines below it are `    key = value`.

    Long lines are folded after a tab. Of each key the first: a variable with a newline in its value may look like one.
    """
    blocks: dict[str, Attributes] = {}
    inside: Attributes = {}
    for line in re.sub(r"\r?\n\t", "", text).splitlines():
        named = re.match(header, line)
        if named:
            inside = blocks.setdefault(named[1], {})
        else:
            key, equals, value = line.partition(" = ")
            if equals and line.startswith(" "):
                inside.setdefault(key.strip(), value.strip())
    return blocks


def parse_queues(text: str) -> dict[str, Attributes]:
    """`qstat -Q -f`: attributes by queue."""
    return _blocks(text, r"Queue: (\S+)\s*\Z")


def parse_nodes(text: str) -> dict[str, Attributes]:
    """`pbsnodes -a`: attributes by node, without its domain."""
    return {name.partition(".")[0]: attributes for name, attributes in _blocks(text, r"(\S+)\s*\Z").items()}


def check_queues(limits: Sequence[QueueLimits], queues: Mapping[str, Attributes], host: str) -> None:
    """Raises EnvbuildError `partition-unknown` (exit 2), `partition-out-of-service` (exit 75)."""
    for limit in limits:
        queue = queues.get(limit.name)
        if queue is None:
            raise EnvbuildError(
                "partition-unknown",
                f"there is no queue {limit.name} on this cluster",
                why=f"`qstat -Q` on {host} lists: {', '.join(sorted(queues)) or 'nothing'}",
                hint="name one of them: `scheduler: {queue: NAME}`",
            )
    # Where one of several is closed, jobs for it are refused by qsub in its own words.
    if limits and all(queues[limit.name].get("enabled") == "False" for limit in limits):
        raise EnvbuildError(
            "partition-out-of-service",
            f"the queue {limits[0].name} takes no jobs now",
            why="its attribute `enabled` is False",
            hint=f"`qstat -Qf {limits[0].name}` says more; name another queue, or wait",
        )


def asks_for(constraints: str) -> dict[str, str]:
    """`system=polaris:mem=64gb` as a mapping."""
    return dict(part.split("=", 1) for part in constraints.split(":") if "=" in part)


def offers(nodes: Mapping[str, Attributes], constraints: str, queues: Mapping[str, Attributes]) -> tuple[Offer, ...]:
    """What each node offers of those that `constraints` select and that jobs of one of the queues may run on.

    A site may show a host as several vnodes, as one for each NUMA node: a job for the whole host has them all.
    """
    hosts: dict[str, list[Attributes]] = {}
    for name, attributes in nodes.items():
        if _has(attributes, asks_for(constraints)) and (
            not queues or any(_serves(attributes, *queue) for queue in queues.items())
        ):
            hosts.setdefault(attributes.get(f"{_HAS}host", name), []).append(attributes)
    return tuple(
        Offer(_sum(parts, "ncpus"), _sum(parts, "ngpus"), _sum(parts, "mem") >> 30) for parts in hosts.values()
    )


def _serves(attributes: Attributes, name: str, queue: Attributes) -> bool:
    """Whether a node takes jobs of a queue: it may be of one alone, or have what the queue asks for in their stead."""
    chunk = {key.partition(".")[2]: value for key, value in queue.items() if key.startswith("default_chunk.")}
    kinds = {key: value for key, value in chunk.items() if not value[:1].isdigit()}
    return attributes.get("queue", name) == name and _has(attributes, kinds)


def _has(attributes: Attributes, wanted: Mapping[str, str]) -> bool:
    return all(
        value.lower() in attributes.get(f"{_HAS}{key}", "").lower().split(",")
        for key, value in wanted.items()
        if key not in _AMOUNTS
    )


def _sum(parts: Sequence[Attributes], key: str) -> int:
    """A number, or bytes (`527672492kb`)."""
    sizes = (re.fullmatch(r"([0-9]{1,15})([kmgtp]?)b?", part.get(f"{_HAS}{key}", "").lower()) for part in parts)
    return sum(int(one[1]) << 10 * " kmgtp".index(one[2] or " ") for one in sizes if one)


def bad_nodes(nodes: Mapping[str, Attributes]) -> dict[str, str]:
    """Nodes that take no jobs, with state and the administrator's comment."""
    reasons: dict[str, str] = {}
    for name, attributes in nodes.items():
        states = attributes.get("state", "").split(",")
        if _OUT & set(states):
            comment = attributes.get("comment", "")
            reasons[name] = f"{','.join(states)}: {comment}" if comment else ",".join(states)
    return reasons


# PBS Professional, qstat(1B), states of a job. F is finished, X an expired subjob, M moved to another server.
_PHASES = {
    **dict.fromkeys("QHWTM", Phase.PENDING),
    **dict.fromkeys("BRSU", Phase.RUNNING),
    "E": Phase.COMPLETING,
    **dict.fromkeys("FX", Phase.DONE),
}
# Exit_status of a job that did not end by itself (PBS Professional, Administrator's Guide, job exit status codes).
_STATUS = {
    -3: Failure.LAUNCH,
    -4: Failure.NODE_FAIL,
    -5: Failure.NODE_FAIL,
    -11: Failure.NODE_FAIL,
    -12: Failure.NODE_FAIL,
    -29: Failure.TIMEOUT,
}
# The comment says more than the number: a job that was killed has 256 + the signal, whoever killed it.
_COMMENTS = (
    (re.compile(r"walltime", re.IGNORECASE), Failure.TIMEOUT),
    (re.compile(r"preempt", re.IGNORECASE), Failure.PREEMPTED),
    (re.compile(r"\bmem\b.*exceeded|out of memory|oom", re.IGNORECASE), Failure.OUT_OF_MEMORY),
    (re.compile(r"node.*(fail|down)|vnode", re.IGNORECASE), Failure.NODE_FAIL),
    (re.compile(r"delete|terminated", re.IGNORECASE), Failure.CANCELLED),
)


def parse_job(text: str, number: str) -> JobState | None:
    """`qstat -x -f ID`; None when there is no such job."""
    jobs = _blocks(text, r"Job Id: (\S+)\s*\Z")
    job = next((attributes for name, attributes in jobs.items() if name.partition(".")[0] == number), {})
    return _state(job) if "job_state" in job else None


def _state(job: Attributes) -> JobState:
    word, comment = job["job_state"], job.get("comment", "")
    phase = _PHASES.get(word, Phase.RUNNING)
    shown = job.get("Exit_status", "")
    status = int(shown) if re.fullmatch(r"-?[0-9]{1,9}", shown) else None
    failure = _failure(status, comment) if phase is Phase.DONE else None
    # 256 + the signal that ended it.
    code = status - 128 if status is not None and status > 256 else status
    return JobState(
        phase=Phase.FAILED if failure else phase,
        reason=comment,
        exit=code if phase is Phase.DONE else None,
        failure=failure,
        nodes=_hosts(job.get("exec_host", "")),
        restarts=max(0, (integer(job.get("run_count")) or 0) - 1),
        word=word,
    )


def _failure(status: int | None, comment: str) -> Failure | None:
    if status is None:
        # Deleted before it ran.
        return Failure.CANCELLED
    if status in _STATUS:
        return _STATUS[status]
    if 0 <= status <= 255:
        return None
    return next((failure for pattern, failure in _COMMENTS if pattern.search(comment)), Failure.CANCELLED)


def _hosts(text: str) -> tuple[str, ...]:
    """`x3001/0*64+x3002/0*64` as names, without their domain."""
    return tuple(dict.fromkeys(re.split(r"[/.]", part, maxsplit=1)[0] for part in text.split("+") if part))


# PALS's mpiexec: processes, one a node. It ends all of them when one fails.
_MPIEXEC = 'mpiexec --envall -n {count} --ppn 1 --hostfile "$PBS_NODEFILE" --cpu-bind none'


def _path(folder: str) -> str:
    """PBS reads the rest of the line as a path and knows no quotes; `:` would part a host name from it."""
    if shlex.quote(folder) != folder or any(char in folder for char in ":^%"):
        raise EnvbuildError(
            "job-path-unusable",
            f"a PBS job cannot write its log to {folder!r}",
            why="PBS directives have no quotes",
            hint="choose another `prefix`",
        )
    return f"{folder}/"


class Pbs(Scheduler):
    """The programs of one server of PBS."""

    name, suffix, submits, shows, cancels = "PBS", "qsub", ("qsub",), ("qstat", "-x", "-f"), "qdel"
    carries = "-v"
    away = re.compile(r"cannot connect|connection (refused|reset)|timed out|end of file|communication failure", re.I)
    unknown_job = re.compile(r"unknown job id|job has finished", re.IGNORECASE)
    mine = "qstat -u $USER"
    limits = "the queue's limits: `qstat -Qf QUEUE`; queue, account, time and file systems are in the target file"
    # The job id is `123.server`, of an array `123[4].server`.
    number, digits = '"${PBS_JOBID%%.*}"', "${JOB_ID%%[!0-9]*}"
    # PALS tells a rank its number as PALS_RANKID and PMI_RANK; Open MPI's mpiexec has a name of its own.
    rank = '"${PALS_RANKID:-${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-0}}}"'
    hosts, count = '< "$PBS_NODEFILE"', "{nodes}"
    opening = ("", "# PBS puts the job's output into place only after it has ended.", 'exec >> "$output/{log}" 2>&1')
    runs: ClassVar = {
        "node": ("# Once on every node.", _MPIEXEC.format(count='"$NNODES"')),
        "once": ("# Once, on the first node.", _MPIEXEC.format(count="1")),
        "text": ("# Once on every node; the first that fails ends all.", _MPIEXEC.format(count='"$NNODES"')),
    }

    @staticmethod
    def directives(job: Job, *, here: bool) -> list[str]:
        """Its options for qsub. Raises EnvbuildError `job-path-unusable` (exit 2)."""
        gpus = {job.gres.name: job.gpus_per_node} if job.gres is not None else {}
        chunk = {"ncpus": job.cpus_per_node, **gpus, "mem": f"{job.memory_gib}gb" if job.memory_gib else None}
        # What the target's own words ask for stands.
        named = asks_for(job.constraints or "")
        select = [
            f"select={job.nodes}",
            *(f"{key}={value}" for key, value in chunk.items() if value and key not in named),
        ]
        if job.constraints:
            select.append(job.constraints)
        # `excl` gives a vnode, and a host may be several.
        resources = [":".join(select), f"place=scatter{':exclhost' if job.whole_nodes else ''}"]
        if job.time_limit:
            resources.append(f"walltime={clock_text(job.time_limit)}")
        if job.filesystems:
            resources.append(f"filesystems={':'.join(job.filesystems)}")
        resources += job.resources
        # PBS allows 15 characters for a name in its older versions.
        # Without -S it is the user's login shell that reads the script, whatever its first line says.
        options = [f"-N {job.name[:15]}", "-S /bin/bash", *(f"-l {resource}" for resource in resources)]
        options += [f"-{letter} {value}" for letter, value in (("q", job.queue), ("A", job.account)) if value]
        # -V is never given: qstat then prints JSON that is none (openpbs issue 2541), and variables of a login node
        # mislead. -r n: PBS tells a script nothing of how often it ran, and the same command submits a lost job again.
        options += ["-r n", "-j oe", *([] if here else [f"-o {_path(job.output)}"])]
        return [f"#PBS {option}" for option in options]

    def pool(self, target: Target) -> Queues:
        """The queues that jobs of a target may go to, and what their nodes offer.

        Raises EnvbuildError `partition-unknown` (exit 2), `partition-out-of-service` (exit 75), `scheduler-missing`,
        `scheduler-unreachable`.
        """
        limits, queues = target.scheduler.limits, {}
        if limits:
            offered = parse_queues(self.asked("qstat", "-Q", "-f"))
            check_queues(limits, offered, self.runner.host)
            queues = {limit.name: offered.get(limit.name, {}) for limit in limits}
        nodes = parse_nodes(self.asked("pbsnodes", "-a"))
        return Queues(limits, offers(nodes, target.scheduler.constraints or "", queues))

    def bad_nodes(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """Those of `nodes` that take no jobs now, with the reason: a hook may have taken them out after ours."""
        if not nodes:
            return {}
        return bad_nodes(parse_nodes(self.runner.run(["pbsnodes", *nodes], timeout=TIMEOUT).out))

    def parse(self, shown: str, number: str) -> JobState | None:
        """What PBS says, its history included."""
        return parse_job(shown, number)

    def more_of(self, job: Job, number: str, state: JobState | None) -> JobState | None:
        """A job without an exit status may still have left its own: then it was not deleted in the queue."""
        if state is None or not state.ended or state.exit is not None:
            return state
        code = self.left(job, number)
        return state if code is None else replace(state, phase=Phase.DONE, exit=code, failure=None)
