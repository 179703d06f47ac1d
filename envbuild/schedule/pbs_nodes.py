"""Queues and nodes of PBS, read from `qstat -Qf` and `pbsnodes -a`, and the queue that a job goes to. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envbuild.errors import EnvbuildError
from envbuild.model.target import QueueLimits
from envbuild.schedule.job import Gres, Share, clock_text, seconds_of
from envbuild.schedule.pbs_answers import unfolded
from envbuild.text import plural

# States of pbsnodes that keep jobs away (pbsnodes(1B)); a node may have several.
_OUT = frozenset(("down", "offline", "stale", "state-unknown", "unknown", "unresolvable", "maintenance", "sleep"))
_HAS = "resources_available."
# What a job takes away from a node; all else that it may ask for says which nodes are meant.
_AMOUNTS = frozenset(("ncpus", "ngpus", "mem", "vmem", "mpiprocs", "ompthreads"))

Attributes = dict[str, str]


@dataclass(frozen=True)
class Offer:
    """What one node has for jobs."""

    cpus: int
    gpus: int
    memory_gib: int


@dataclass(frozen=True)
class Queues:
    """The queues that jobs may go to (none: the site's default), and what each of the nodes there offers."""

    limits: tuple[QueueLimits, ...]
    nodes: tuple[Offer, ...] = ()

    @property
    def gpus_per_node(self) -> int:
        """The most that a node offers."""
        return max((node.gpus for node in self.nodes), default=0)

    @property
    def told(self) -> str:
        """`the queue debug`."""
        names = [limit.name for limit in self.limits]
        return f"the queue{'s' * (len(names) > 1)} {', '.join(names)}" if names else "the default queue"

    def gres(self) -> Gres | None:
        """`ngpus`, where the nodes offer it."""
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
        """The limits of its queues are for `queue` to say."""
        return None

    def in_service(self) -> int:
        """PBS gives a job as many nodes as it asks for. Raises EnvbuildError `job-nodes-unknown` (exit 2)."""
        raise EnvbuildError(
            "job-nodes-unknown",
            "the target does not say how many nodes its job gets",
            why="a PBS job has the nodes that it asks for; there is no list of them before",
            hint="say it in the target file: `scheduler: {nodes: 2}`",
        )

    def queue(self, nodes: int, seconds: int) -> str | None:
        """The first queue that takes such a job. Raises EnvbuildError `queue-none-fits` (exit 2)."""
        if not self.limits:
            return None
        for limit in self.limits:
            fits = limit.min_nodes <= nodes and (limit.max_nodes is None or nodes <= limit.max_nodes)
            if fits and (limit.time_limit is None or seconds <= seconds_of(limit.time_limit)):
                return limit.name
        raise EnvbuildError(
            "queue-none-fits",
            f"no queue takes a job of {plural(nodes, 'node')} for {clock_text(seconds)}",
            why="; ".join(map(_told, self.limits)),
            hint="change `scheduler: {nodes: ..., time_limit: ...}`, or name a queue: `scheduler: {queue: ...}`",
        )


def _told(limit: QueueLimits) -> str:
    least = f"{limit.min_nodes} to {limit.max_nodes}" if limit.max_nodes else f"{limit.min_nodes} or more"
    return f"{limit.name}: {least} nodes" + (f", {limit.time_limit} at most" if limit.time_limit else "")


def _blocks(text: str, header: str) -> dict[str, Attributes]:
    """Attributes by the name in a line that `header` finds; the lines below it are `    key = value`."""
    found: dict[str, Attributes] = {}
    inside: Attributes = {}
    for line in unfolded(text):
        named = re.match(header, line)
        if named:
            inside = found.setdefault(named[1], {})
        else:
            key, equals, value = line.partition(" = ")
            if equals and line.startswith(" "):
                inside.setdefault(key.strip(), value.strip())
    return found


def parse_queues(text: str) -> dict[str, Attributes]:
    """`qstat -Q -f`: attributes by queue."""
    return _blocks(text, r"Queue: (\S+)\s*\Z")


def parse_nodes(text: str) -> dict[str, Attributes]:
    """`pbsnodes -a`: attributes by node, without its domain."""
    return {name.partition(".")[0]: told for name, told in _blocks(text, r"(\S+)\s*\Z").items()}


def check_queues(limits: Sequence[QueueLimits], there: Mapping[str, Attributes], host: str) -> None:
    """Raises EnvbuildError `queue-unknown` (exit 2), `queue-closed` (exit 75)."""
    for limit in limits:
        told = there.get(limit.name)
        if told is None:
            raise EnvbuildError(
                "queue-unknown",
                f"there is no queue {limit.name} on this cluster",
                why=f"`qstat -Q` on {host} lists: {', '.join(sorted(there)) or 'nothing'}",
                hint="name one of them: `scheduler: {queue: NAME}`",
            )
    # Where one of several is closed, jobs for it are refused by qsub in its own words.
    if limits and all(there[limit.name].get("enabled") == "False" for limit in limits):
        raise EnvbuildError(
            "queue-closed",
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
    for name, told in nodes.items():
        if _has(told, asks_for(constraints)) and (not queues or any(_serves(told, *queue) for queue in queues.items())):
            hosts.setdefault(told.get(f"{_HAS}host", name), []).append(told)
    return tuple(
        Offer(_sum(parts, "ncpus"), _sum(parts, "ngpus"), _sum(parts, "mem") >> 30) for parts in hosts.values()
    )


def _serves(told: Attributes, name: str, queue: Attributes) -> bool:
    """Whether a node takes jobs of a queue: it may be of one alone, or have what the queue asks for in their stead."""
    chunk = {key.partition(".")[2]: value for key, value in queue.items() if key.startswith("default_chunk.")}
    kinds = {key: value for key, value in chunk.items() if not value[:1].isdigit()}
    return told.get("queue", name) == name and _has(told, kinds)


def _has(told: Attributes, wanted: Mapping[str, str]) -> bool:
    return all(
        value.lower() in told.get(f"{_HAS}{key}", "").lower().split(",")
        for key, value in wanted.items()
        if key not in _AMOUNTS
    )


def _sum(parts: Sequence[Attributes], key: str) -> int:
    """A number, or bytes (`527672492kb`)."""
    found = (re.fullmatch(r"(\d+)([kmgtp]?)b?", told.get(f"{_HAS}{key}", "").lower()) for told in parts)
    return sum(int(one[1]) << 10 * " kmgtp".index(one[2] or " ") for one in found if one)


def bad_nodes(nodes: Mapping[str, Attributes]) -> dict[str, str]:
    """Nodes that take no jobs, with state and the administrator's comment."""
    found: dict[str, str] = {}
    for name, told in nodes.items():
        states = told.get("state", "").split(",")
        if _OUT & set(states):
            comment = told.get("comment", "")
            found[name] = f"{','.join(states)}: {comment}" if comment else ",".join(states)
    return found
