"""A node as rows, and tables of measurements without a picture: times, copies, steps, the disk."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from envbuild.model.common import LEFT_OUT
from envbuild.model.evidence import Check, Evidence, Metric, NodeEvidence, StepTime
from envbuild.model.facts import NodeFacts
from envbuild.report.sources import numbers
from envbuild.report.verdict import node_checks
from envbuild.text import few, grouped, minutes, number


@dataclass(frozen=True)
class NodeClass:
    """Nodes with equal facts: their names and rows of (fact, value)."""

    nodes: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]


def gibibytes(number: int | None) -> str:
    """Bytes as GiB or MiB."""
    if number is None:
        return "–"
    return f"{number / 2**30:,.1f} GiB" if number >= 2**30 else f"{number / 2**20:,.1f} MiB"


def fact_rows(facts: NodeFacts) -> tuple[tuple[str, str], ...]:
    """A node's facts, as rows of (fact, value)."""
    # A brief probe did not look for tools: what it does not name may be there.
    none = "" if facts.brief else "none"
    names = [gpu.name for gpu in facts.gpus]
    gpus = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "none visible"
    if facts.gpus_physical is not None and facts.gpus_physical != len(names):
        gpus += f" ({facts.gpus_physical} physical)"
    memories = sorted({gpu.memory_mib for gpu in facts.gpus if gpu.memory_mib})
    memory = ", ".join(f"{value / 1024:.0f} GiB" for value in memories)
    nics = [f"{nic.kind} {nic.rate_gbps:g} Gbit/s" if nic.rate_gbps else nic.kind for nic in facts.nics]
    compilers = [
        f"{compiler.path.rsplit('/', 1)[-1]} {compiler.version}"
        for compiler in facts.compilers
        if compiler.path != LEFT_OUT
    ]
    compilers = compilers or [compiler.version for compiler in facts.compilers]
    driver = facts.driver.version or facts.driver.problem or "none"
    ceiling = f", up to CUDA {facts.driver.cuda_ceiling}" if facts.driver.cuda_ceiling else ""
    rows = (
        ("System", f"{facts.os.id} {facts.os.version}, {facts.libc.kind} {facts.libc.version}, {facts.os.arch}"),
        ("Kernel", facts.os.kernel),
        ("CPU and memory", f"{facts.cpus or '?'} CPUs, {gibibytes(facts.memory_bytes)}"),
        ("GPUs", f"{gpus}{', ' + memory if memory else ''}"),
        ("NVIDIA driver", driver + ceiling),
        ("nvcc", ", ".join(dict.fromkeys(nvcc.version for nvcc in facts.nvcc)) or none),
        ("Compilers", ", ".join(dict.fromkeys(compilers)) or none),
        ("Pythons", ", ".join(dict.fromkeys(python.version for python in facts.pythons)) or none),
        ("Network", ", ".join(dict.fromkeys(nics)) or "not known"),
        ("Scheduler", "" if facts.brief else " ".join(filter(None, (facts.scheduler.kind, facts.scheduler.version)))),
    )
    return tuple((name, value) for name, value in rows if value.strip(" ,"))


def classes(nodes: Sequence[NodeEvidence]) -> tuple[NodeClass, ...]:
    """Nodes with equal facts together; nodes without facts are in none."""
    known = [(node.node, node.facts) for node in nodes if node.facts is not None]
    groups = grouped(known, lambda pair: json.dumps(pair[1].class_key(), sort_keys=True))
    return tuple(NodeClass(tuple(name for name, _ in group), fact_rows(group[0][1])) for group in groups.values())


def seconds(value: float | None) -> str:
    """Seconds, or minutes from two minutes on."""
    if value is None:
        return "–"
    return f"{value:.1f} s" if value < 120 else minutes(value)


def image_rows(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    """`Image` and what most nodes run, `Other images`; nothing where they run environments of their own."""
    images = [(node.node, node.image) for node in evidence.nodes if node.image is not None]
    if not images:
        return ()
    largest = max(grouped(images, lambda pair: pair[1].id).values(), key=len)
    image = largest[0][1]
    through = sorted({used.runtime for _, used in largest})
    shown = f"{image.id[:12]} through {' and '.join(through)} on {len(largest)} of {len(evidence.nodes)} nodes"
    others = [f"{node} has {other.id[:12]}" for node, other in images if other.id != image.id]
    return (("Image", shown), *((("Other images", few(others)),) if others else ()))


def steps(events: Iterable[Mapping[str, Any]]) -> dict[str, tuple[StepTime, ...]]:
    """By node, in the order in which they began; `events` are lines of a journal, the first one begins the run.

    Raises ValueError, KeyError or TypeError for what is no journal.
    """
    by_node: dict[str, list[StepTime]] = {}
    zero: datetime | None = None
    for event in events:
        now = datetime.fromisoformat(event["t"])
        zero = zero or now
        kind, data = event["kind"], event.get("data", {})
        if kind not in ("step-started", "step-finished"):
            continue
        of_node = by_node.setdefault(str(event["node"]), [])
        after = round((now - zero).total_seconds(), 3)
        if kind == "step-started":
            of_node.append(StepTime(name=data["step"], status="started", began=max(0.0, after)))
            continue
        at = next((i for i, time in enumerate(of_node) if (time.name, time.status) == (data["step"], "started")), None)
        took = data.get("seconds")
        began = of_node.pop(at).began if at is not None else max(0.0, round(after - (took or 0), 3))
        took = round(after - began if took is None else took, 3)
        ended = {"name": data["step"], "status": data["status"], "began": began, "seconds": max(0.0, took)}
        of_node.append(StepTime.from_plain({**ended, "parts": data.get("parts") or {}}))
    return {node: tuple(sorted(times, key=lambda step: step.began)) for node, times in by_node.items()}


_FIGURES = (
    (re.compile(r"gemm_cpu_([a-z0-9]+)_tflops"), r"Matrix products, \1, CPU"),
    (re.compile(r"gemm_cuda_([a-z0-9]+)_tflops"), r"Matrix products, \1, GPUs"),
    (re.compile(r"gemm_(?:cpu|cuda)_([a-z0-9]+)_(\d+)_tflops"), r"Matrix products, \1, \2 × \2"),
    (re.compile(r"all_reduce_busbw_gbps"), "All-reduce in a node, bus bandwidth"),
    (re.compile(r"all_reduce_(\d+)_mib_busbw_gbps"), r"All-reduce in a node, \1 MiB"),
    (re.compile(r"copy_cpu_gbps"), "Copy in memory, CPU"),
    (re.compile(r"copy_device_gbps"), "Copy within a GPU, read and write"),
    (re.compile(r"copy_host_to_device_gbps"), "Copy from host to GPU"),
    (re.compile(r"copy_device_to_host_gbps"), "Copy from GPU to host"),
    (re.compile(r"copy_peer_gbps"), "Copy between GPUs"),
    (re.compile(r"multi_node_busbw_gbps"), "All-reduce over nodes, bus bandwidth"),
    (re.compile(r"training_tokens_per_second"), "Training of envbuild's test model"),
    (re.compile(r"bench"), "The stack's own run"),
    (re.compile(r"tflops"), "Computing speed of a GPU"),
    (re.compile(r"tokens_per_gpu_per_second"), "Tokens of a GPU in a second"),
    (re.compile(r"wps"), "Words in a second"),
    (re.compile(r"elapsed_time_per_iteration"), "Time of a step"),
)


def figure(name: str) -> str:
    """A figure in words; its name if it is unknown."""
    return next((match.expand(words) for form, words in _FIGURES if (match := form.fullmatch(name))), name)


_SIZED = re.compile(r"(gemm_(?:cpu|cuda)_[a-z0-9]{1,12}|all_reduce)(?:_([0-9]{1,9})(?:_mib)?)?_(?:tflops|busbw_gbps)")


def of_smaller_size(metric: Metric, check: Check) -> bool:
    """Whether a figure of a check is of a smaller size than another one of its kind there; no size is the largest."""
    own = kind_and_size(metric)
    if own is None or (size := own[1]) is None:
        return False
    others = filter(None, map(kind_and_size, check.metrics))
    return any(kind == own[0] and (other is None or size < other) for kind, other in others)


def kind_and_size(metric: Metric) -> tuple[str, int | None] | None:
    """Kind of a product or all-reduce, and the size in its name (rows, MiB) unless it is the largest one."""
    match = _SIZED.fullmatch(metric.name)
    return (match[1], int(match[2]) if match[2] else None) if match else None


def largest(evidence: Evidence) -> dict[str, list[tuple[str, Metric, Check]]]:
    """Node, metric and check of every figure by its name, but for smaller sizes without a floor."""
    by_name: dict[str, list[tuple[str, Metric, Check]]] = {}
    for node, check in node_checks(evidence):
        for metric in check.metrics:
            if metric.floor is not None or not of_smaller_size(metric, check):
                by_name.setdefault(metric.name, []).append((node.node, metric, check))
    return by_name


def below_floor(metric: Metric) -> bool:
    """True when the metric has a floor and misses it."""
    return metric.floor is not None and metric.median < metric.floor


def headline(check: Check) -> str:
    """The figure that represents a check: the one with a floor, else the last; with its name if there are several."""
    metric = next((metric for metric in check.metrics if metric.floor is not None), check.metrics[-1])
    name = f" {metric.name}" if len(check.metrics) > 1 else ""
    return f"{number(metric.median, metric.floor)} {metric.unit}{name}"


Row = tuple[str, ...]
Rates = list[list[float | None]]
_ROWS = 400


@dataclass(frozen=True)
class Table:
    """Columns from `numbers` on are aligned as numbers; `left_out` rows are in the evidence only."""

    title: str
    headers: Row
    rows: tuple[Row, ...]
    numbers: int = 1
    left_out: int = 0

    @classmethod
    def of(cls, title: str, headers: Row, rows: Iterable[Row], numbers: int = 1) -> Table:
        """The first 400 rows, and how many are left out."""
        every = tuple(rows)
        return cls(title, headers, every[:_ROWS], numbers, max(0, len(every) - _ROWS))


def tables(evidence: Evidence) -> tuple[Table, ...]:
    """Those for which the evidence has the data."""
    steps = (row for node in evidence.nodes for row in _steps(node))
    by_node = ((node.node, _rates(check.details.get("peer_gbps"))) for node, check in node_checks(evidence))
    pairs = {who: rates for who, rates in by_node if rates}
    count = max(map(len, pairs.values()), default=0)
    to = tuple(f"to GPU {index}" for index in range(count))
    phases = ((name, seconds(took)) for name, took in evidence.phases.items())
    of_disk = ("Node", "File system", "Environment", "Files", "Free before", "Of")
    made = (
        Table.of("Phases of the run", ("Phase", "Time"), phases),
        Table.of("Steps on the nodes", ("Node", "Step", "Ended", "Began", "Took"), steps, 3),
        Table.of(
            "Steps of a training", ("Node", "Check", "Steps", "First", "Median", "Longest"), _trained(evidence), 2
        ),
        Table.of("Copies between GPUs, GB/s", ("Node", "From", *to), _copies(pairs, count), 2),
        Table.of("Disk", of_disk, _disks(evidence.nodes), 2),
    )
    return tuple(table for table in made if table.rows)


def _steps(node: NodeEvidence) -> Iterator[Row]:
    for step in node.steps:
        took = f"{step.seconds:.2f} s" if step.seconds is not None else "–"
        yield node.node, step.name, step.status, f"{step.began:.2f} s", took
        for part, took_part in step.parts.items():
            yield "", f"· {part}", "", "", f"{took_part:.2f} s"


def _trained(evidence: Evidence) -> Iterator[Row]:
    """The first step pays for start-up and stands apart."""
    for node, check in node_checks(evidence):
        first, *times = numbers(check.details.get("step_seconds")) or [0.0]
        if times:
            figures = (first, statistics.median_high(times), max(times))
            yield node.node, check.name, str(len(times) + 1), *(f"{value:.4g} s" for value in figures)


def _copies(pairs: dict[str, Rates], count: int) -> Iterator[Row]:
    """From (rows) and to (columns), the node with the slowest pair first."""
    slowest = sorted(pairs, key=lambda who: min(rate for row in pairs[who] for rate in row if rate is not None))
    for who in slowest:
        for index, rates in enumerate(pairs[who]):
            cells = ["–" if rate is None else number(rate) for rate in rates]
            yield who, f"GPU {index}", *cells, *(["–"] * (count - len(rates)))


def _rates(details: Any) -> Rates:
    """What a node told as rows of numbers, None for a GPU and itself; empty where it is anything else."""
    rows = details if isinstance(details, list) and 1 < len(details) <= 64 else []
    square = all(isinstance(row, list) and len(row) == len(rows) for row in rows)
    good = square and all(_is_rate(rate, a == b) for a, row in enumerate(rows) for b, rate in enumerate(row))
    return rows if good else []


def _is_rate(rate: Any, own: bool) -> bool:
    return rate is None if own else isinstance(rate, (int, float)) and math.isfinite(rate) and rate > 0


def _disks(nodes: Sequence[NodeEvidence]) -> list[Row]:
    """Those with the least room first."""
    rows = [
        (disk.free_bytes / disk.total_bytes, (node.node, disk.filesystem or "–", gibibytes(node.bytes),
         number(node.files or 0), gibibytes(disk.free_bytes), gibibytes(disk.total_bytes)))
        for node in nodes
        if node.bytes is not None and (disk := node.facts.prefix if node.facts else None) is not None
        and disk.total_bytes and disk.free_bytes is not None
    ]  # fmt: skip
    return [row for _, row in sorted(rows)]
