"""Evidence -> the view that every form of the report renders: words and rows, no markup."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from envbuild.model.evidence import Check, Evidence, Metric, NodeEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.first_use import TrustedFile
from envbuild.model.resolution import Decision
from envbuild.report import images, root
from envbuild.report.equality import sentence
from envbuild.report.sources import SourceView, comparable, source_views
from envbuild.report.verdict import GOOD, Verdict, exit_meaning, make_verdict, node_checks
from envbuild.text import grouped, minutes, number, plural

MARKS = {"passed": "✓", "failed": "✗", "skipped": "–", "not-run": "○"}
NODE_MARKS = {"ok": "✓", "unchanged": "✓", "failed": "✗", "unreachable": "✗", "refused": "✗", "not-begun": "○"}


@dataclass(frozen=True)
class NodeClass:
    """Nodes with equal facts: their names and rows of (fact, value)."""

    nodes: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Build:
    """What one group of nodes has: nodes whose environment, contents and decisions are equal."""

    nodes: tuple[str, ...]
    first: NodeEvidence
    identity: tuple[tuple[str, str], ...]
    decisions: tuple[Decision, ...]
    refused: tuple[tuple[str, tuple[Decision, ...]], ...]
    sources: tuple[SourceView, ...] = ()


@dataclass(frozen=True)
class Alike:
    """Nodes that are equal in all that `first` shows in the table of nodes, or in their error."""

    nodes: tuple[str, ...]
    first: NodeEvidence


@dataclass(frozen=True)
class View:
    """Everything a report says, in its order."""

    evidence: Evidence
    verdict: Verdict
    summary: tuple[tuple[str, str], ...]
    builds: tuple[Build, ...]
    nodes_by_need: tuple[NodeEvidence, ...]
    """failed nodes first, then nodes with a failed check, then the rest"""
    outcomes: tuple[Alike, ...]
    """the same nodes, those with one outcome and one root together"""
    errors: tuple[Alike, ...]
    commands: tuple[str, ...]
    trusted: tuple[TrustedFile, ...] = ()
    """files whose hashes rest on a first use, each once"""
    phases: tuple[tuple[str, float, float], ...] = ()
    """name, seconds, part of the longest one (0 to 1)"""


def make_view(evidence: Evidence) -> View:
    """The view of one run. Pure."""
    longest = max(evidence.phases.values(), default=0.0) or 1.0
    nodes = tuple(sorted(evidence.nodes, key=_need))
    return View(
        evidence=evidence,
        verdict=make_verdict(evidence),
        summary=_summary(evidence),
        builds=_builds(evidence),
        nodes_by_need=nodes,
        outcomes=_alike(nodes, _outcome),
        errors=_alike([node for node in nodes if node.error], _error),
        commands=_commands(evidence),
        trusted=trusted_files(evidence),
        phases=tuple((name, seconds, max(0.0, seconds / longest)) for name, seconds in evidence.phases.items()),
    )


def _alike(nodes: Sequence[NodeEvidence], key: Callable[[NodeEvidence], Hashable]) -> tuple[Alike, ...]:
    return tuple(Alike(tuple(node.node for node in group), group[0]) for group in grouped(nodes, key).values())


def _outcome(node: NodeEvidence) -> Hashable:
    return node.status, node.exit, node.variant_digest, node.root, node.root_level, node.files, node.bytes


def _error(node: NodeEvidence) -> Hashable:
    """The error without the node's own name, which stands in most of them; digits alone may be something else."""
    text, name = json.dumps(node.error, sort_keys=True, ensure_ascii=False), re.escape(node.node)
    # `\n` before a name is the end of a line in JSON.
    return text if node.node.isdigit() else re.sub(rf"(?:(?<![\w-])|(?<=\\n)){name}(?![\w-])", "", text)


def trusted_files(evidence: Evidence) -> tuple[TrustedFile, ...]:
    """The files of all nodes whose hashes rest on a first use, each once, by name."""
    found = {(file.file, file.sha256): file for node in evidence.nodes for file in node.first_use}
    return tuple(found[key] for key in sorted(found))


def _need(node: NodeEvidence) -> tuple[bool, bool, bool]:
    failed = any(check.status == "failed" for check in node.checks)
    return node.status in GOOD, node.status == "not-begun", not failed


def _first_value(values: list[str]) -> str:
    """The values that occur, in order, without repeats."""
    return ", ".join(dict.fromkeys(value for value in values if value)) or "–"


def torch_version(node: NodeEvidence) -> str:
    """The torch of a node: installed, or provided by its base."""
    if "torch" in node.packages:
        return node.packages["torch"]
    return f"{node.base_packages['torch']} (from the base)" if "torch" in node.base_packages else ""


def python_version(node: NodeEvidence) -> str:
    """The interpreter's version as a check or the probe saw it, else its path."""
    for check in node.checks:
        if isinstance(check.details.get("python"), str):
            return str(check.details["python"])
    path = (node.resolution.interpreter or "") if node.resolution else ""
    known = {python.path: python.version for python in node.facts.pythons} if node.facts else {}
    return known.get(path, path)


def _variant(node: NodeEvidence, evidence: Evidence) -> str | None:
    """Its name in the lock: as it was chosen, or, of a run that chose nothing, of the digest that its stamp has."""
    if node.resolution:
        return node.resolution.variant_id
    return next((variant.id for variant in evidence.variants if variant.digest == node.variant_digest), None)


def _summary(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    nodes = evidence.nodes
    return (
        ("Stack", evidence.stack),
        ("Profile", evidence.profile),
        ("Target", f"{evidence.target}, {plural(len(nodes), 'node')}"),
        ("Variant", _first_value([_variant(node, evidence) or "" for node in nodes])),
        ("Python", _first_value([python_version(node) for node in nodes])),
        ("torch", _first_value([torch_version(node) for node in nodes])),
        ("Started", _whole_seconds(evidence.started)),
        ("Finished", _whole_seconds(evidence.finished)),
        ("Run", evidence.run),
        ("Exit code", f"{evidence.exit} ({exit_meaning(evidence.exit)})"),
        ("Variant digest", _first_value([node.variant_digest or "" for node in nodes])),
        ("Merkle root", _first_value([root_text(node) for node in nodes])),
        *((("Equality", said),) if (said := sentence(evidence)) else ()),
        *images.rows(evidence),
        ("Lock digest", evidence.lock_digest),
    )


def root_text(node: NodeEvidence) -> str:
    """The root and how sure it is: `1061… (measured)`; empty without one."""
    return f"{node.root} ({node.root_level or 'stamped'})" if node.root else ""


def _whole_seconds(moment: str) -> str:
    return re.sub(r"\.[0-9]+Z\Z", "Z", moment)


def gibibytes(number: int | None) -> str:
    """Bytes as GiB or MiB."""
    if number is None:
        return "–"
    return f"{number / 2**30:,.1f} GiB" if number >= 2**30 else f"{number / 2**20:,.1f} MiB"


def fact_rows(facts: NodeFacts) -> tuple[tuple[str, str], ...]:
    """What a node is, as rows of (fact, value)."""
    # A brief probe did not look for tools: what it does not name may be there.
    none = "" if facts.brief else "none"
    names = [gpu.name for gpu in facts.gpus]
    gpus = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "none visible"
    if facts.gpus_physical is not None and facts.gpus_physical != len(names):
        gpus += f" ({facts.gpus_physical} physical)"
    memories = sorted({gpu.memory_mib for gpu in facts.gpus if gpu.memory_mib})
    memory = ", ".join(f"{value / 1024:.0f} GiB" for value in memories)
    nics = [f"{nic.kind} {nic.rate_gbps:g} Gbit/s" if nic.rate_gbps else nic.kind for nic in facts.nics]
    compilers = [f"{compiler.path.rsplit('/', 1)[-1]} {compiler.version}" for compiler in facts.compilers]
    driver = facts.driver.version or facts.driver.problem or "none"
    ceiling = f", up to CUDA {facts.driver.cuda_ceiling}" if facts.driver.cuda_ceiling else ""
    rows = (
        ("System", f"{facts.os.id} {facts.os.version}, {facts.libc.kind} {facts.libc.version}, {facts.os.arch}"),
        ("Kernel", facts.os.kernel),
        ("CPU and memory", f"{facts.cpus or '?'} CPUs, {gibibytes(facts.memory_bytes)}"),
        ("GPUs", f"{gpus}{', ' + memory if memory else ''}"),
        ("NVIDIA driver", driver + ceiling),
        ("nvcc", ", ".join(nvcc.version for nvcc in facts.nvcc) or none),
        ("Compilers", ", ".join(dict.fromkeys(compilers)) or none),
        ("Pythons", ", ".join(dict.fromkeys(python.version for python in facts.pythons)) or none),
        ("Network", ", ".join(dict.fromkeys(nics)) or "not known"),
        ("Scheduler", "" if facts.brief else " ".join(filter(None, (facts.scheduler.kind, facts.scheduler.version)))),
    )
    return tuple((name, value) for name, value in rows if value.strip(" ,"))


def classes(nodes: Sequence[NodeEvidence]) -> tuple[NodeClass, ...]:
    """Nodes with equal facts together; nodes without facts are in none."""
    known = [(node.node, node.facts) for node in nodes if node.facts is not None]
    groups = grouped(known, lambda each: json.dumps(each[1].class_key(), sort_keys=True))
    return tuple(NodeClass(tuple(name for name, _ in group), fact_rows(group[0][1])) for group in groups.values())


def _build_key(node: NodeEvidence) -> str:
    decisions = node.resolution.model_dump(mode="json", exclude={"node"}) if node.resolution else {}
    every = [decisions, *decisions.get("candidates", ())]
    for decision in (decision for each in every for decision in each.get("decisions", ())):
        if decision["verdict"] == "allow":
            del decision["compared"]  # how many bytes are free, for one: no two nodes have as many
    parts: list[Any] = [node.variant_digest, node.root, node.environment, node.packages, node.base_packages]
    return json.dumps([*parts, comparable(node.sources), decisions, node.status], sort_keys=True, default=str)


def _builds(evidence: Evidence) -> tuple[Build, ...]:
    built = [node for node in evidence.nodes if node.environment is not None or node.resolution is not None]
    return tuple(_build(tuple(group), evidence) for group in grouped(built, _build_key).values())


def _build(group: tuple[NodeEvidence, ...], evidence: Evidence) -> Build:
    first = group[0]
    resolution = first.resolution
    rows = (
        ("Environment", first.environment),
        ("Variant", _variant(first, evidence)),
        ("Interpreter", resolution.interpreter if resolution else None),
        ("Files", f"{first.files:,}, {gibibytes(first.bytes)}" if first.files is not None else None),
        ("Variant digest", first.variant_digest),
        ("Merkle root", root_text(first)),
    )
    refused = tuple(
        (candidate.variant_id, candidate.decisions)
        for candidate in (resolution.candidates if resolution else ())
        if not candidate.chosen
    )
    identity = (*((name, value) for name, value in rows if value), *root.rows(first, python_version(first)))
    decisions = resolution.decisions if resolution else ()
    return Build(tuple(n.node for n in group), first, identity, decisions, refused, source_views(group, evidence.verb))


_PLACE_OPTIONS = {"-s": "--stack", "-t": "--target"} | {
    word: word for word in ("--stack", "--target", "--profile", "--prefix", "--host", "--limit", "--exclude")
}
# Verbs that have the stack as an argument and no option.
_STACK_FIRST = ("bench", "strategy")


def _commands(evidence: Evidence) -> tuple[str, ...]:
    """The command that was given, and the verify of the same stack and place."""
    named = ["--stack", evidence.stack, "--profile", evidence.profile, "--target", evidence.target]
    verify = ["envbuild", "verify"]
    if not evidence.command:
        return shlex.join(["envbuild", evidence.verb, *named]), shlex.join([*verify, *named])
    place = _place_words(evidence.command)
    if evidence.verb in _STACK_FIRST and "--stack" not in place:
        given = [word for word in evidence.command[2:3] if not word.startswith("-")]
        place = ["--stack", *(given or [evidence.stack]), *place]
    return shlex.join(evidence.command), shlex.join([*verify, *place])


def _place_words(command: Sequence[str]) -> list[str]:
    """The options of a command that say which stack and where, as they were given: a file is no name."""
    out: list[str] = []
    words = iter(command)
    for word in words:
        name, sign, value = word.partition("=")
        if name in _PLACE_OPTIONS and (given := value if sign else next(words, None)) is not None:
            out += [_PLACE_OPTIONS[name], given]
    return out


def seconds(value: float | None) -> str:
    """Seconds, or minutes from two minutes on."""
    if value is None:
        return "–"
    return f"{value:.1f} s" if value < 120 else minutes(value)


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
    (re.compile(r"full_(eager|compiled)_tokens_per_second"), r"Training of 125 M parameters, \1"),
    (re.compile(r"multi_node_busbw_gbps"), "All-reduce over nodes, bus bandwidth"),
    (re.compile(r"training_tokens_per_second"), "Training speed"),
    (re.compile(r"bench"), "The stack's own run"),
    (re.compile(r"tflops"), "Computing speed of a GPU"),
    (re.compile(r"tokens_per_gpu_per_second"), "Tokens of a GPU in a second"),
    (re.compile(r"wps"), "Words in a second"),
    (re.compile(r"elapsed_time_per_iteration"), "Time of a step"),
)


def figure(name: str) -> str:
    """What a figure is, in words; its name where nothing is known of it."""
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
    found: dict[str, list[tuple[str, Metric, Check]]] = {}
    for node, check in node_checks(evidence):
        for metric in check.metrics:
            if metric.floor is not None or not of_smaller_size(metric, check):
                found.setdefault(metric.name, []).append((node.node, metric, check))
    return found


def below_floor(metric: Metric) -> bool:
    """True when the metric has a floor and misses it."""
    return metric.floor is not None and metric.median < metric.floor


def headline(check: Check) -> str:
    """The figure that stands for a check: the one that a floor is about, else the last; named where there are more."""
    metric = next((each for each in check.metrics if each.floor is not None), check.metrics[-1])
    name = f" {metric.name}" if len(check.metrics) > 1 else ""
    return f"{number(metric.median, metric.floor)} {metric.unit}{name}"


def failures(check: Check) -> list[str]:
    """Everything that a check found wrong, where it lists it."""
    found = check.details.get("failures")
    return [str(text) for text in found] if isinstance(found, list) else []


def output(check: Check) -> str:
    """The last lines that a failing program printed."""
    return str(check.details.get("output") or "").strip("\n")


# What a page has in words, or as a picture.
_ELSEWHERE = frozenset({"output", "failures", "only_floors", "losses", "step_seconds", "peer_gbps"})


def details(check: Check) -> str:
    """The remaining details of a check as indented JSON, empty when there are none."""
    kept = {key: item for key, item in check.details.items() if key not in _ELSEWHERE}
    return json.dumps(kept, indent=2, ensure_ascii=False) if kept else ""


def field(data: dict[str, Any], key: str) -> str:
    """One value of foreign data as text, empty when it is not there."""
    value = data.get(key)
    return "" if value is None else str(value)
