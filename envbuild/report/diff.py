"""Differences between two runs. Compares only what both runs checked, and reports new failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from envbuild.errors import ExitCode, gravest
from envbuild.model.common import LEFT_OUT
from envbuild.model.evidence import Check, Evidence, Metric, NodeEvidence
from envbuild.model.facts import NodeFacts
from envbuild.report import equality
from envbuild.report.equality import names, python_of
from envbuild.report.publish import public_fields
from envbuild.report.sources import mapping, numbers
from envbuild.report.tables import fact_rows
from envbuild.report.verdict import GOOD, all_checks, computed, make_verdict, reason
from envbuild.text import number, plural, visible

Kind = Literal["changed", "worse", "slipped"]
_SHOWN = 5


@dataclass(frozen=True)
class Change:
    """A difference, on `nodes` if it concerns some: `worse`, or a figure that `slipped` out of its spread."""

    kind: Kind
    topic: str
    what: str
    before: str
    after: str
    nodes: tuple[str, ...] = ()


def compare(before: Evidence, after: Evidence) -> list[Change]:
    """Worse things first. Equal changes of several nodes are one."""
    # Names of nodes, target and warnings are what a published report leaves out.
    public = LEFT_OUT in (before.target, after.target)
    changes = [*_run(before, after, public=public)]
    old = {node.node: node for node in before.nodes}
    new = {node.node: node for node in after.nodes}
    gone, come = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    if public and len(old) != len(new):
        changes.append(Change("changed", "nodes", "how many", str(len(old)), str(len(new))))
    elif not public and (gone or come):
        changes.append(Change("changed", "nodes", "which", names(gone) or "–", names(come) or "–"))
    same_lock = before.lock_digest == after.lock_digest
    by_change: dict[tuple[Kind, str, str, str, str], list[str]] = {}
    for one, other in _pairs(before.nodes, after.nodes):
        for change in _node(one, other, same_lock=same_lock):
            key = (change.kind, change.topic, change.what, change.before, change.after)
            by_change.setdefault(key, []).append(other.node)
    changes += [Change(*key, nodes=tuple(nodes)) for key, nodes in by_change.items()]
    order = ("worse", "slipped", "changed")
    return sorted(changes, key=lambda change: order.index(change.kind))


def is_idle(evidence: Evidence) -> bool:
    """Whether the run found all in place by stamps: it changed nothing, read no file and ran no program."""
    idle = all(node.status == "unchanged" and node.root_level != "measured" for node in evidence.nodes)
    return idle and not any(computed(check) for check in all_checks(evidence))


def exit_code(changes: Sequence[Change]) -> ExitCode:
    """1 for a new failure or drift, 6 for a figure that slipped; other changes are no failure."""
    codes = {"worse": ExitCode.CHECK_FAILED, "slipped": ExitCode.BELOW_FLOOR, "changed": ExitCode.OK}
    return gravest(codes[change.kind] for change in changes)


def _run(before: Evidence, after: Evidence, *, public: bool) -> Iterator[Change]:
    for name in ("stack", "profile", *(() if public else ("target",)), "lock_digest", "envbuild"):
        one, other = getattr(before, name), getattr(after, name)
        if one != other:
            yield Change("changed", "run", name.replace("_", " "), one, other)
    for text in () if public else after.warnings:
        if text not in before.warnings:
            yield Change("changed", "run", "warning", "–", text)


def _pairs(old: Sequence[NodeEvidence], new: Sequence[NodeEvidence]) -> Iterator[tuple[NodeEvidence, NodeEvidence]]:
    """Nodes of one name; of two sites without any, each against the first one of the other."""
    known = {node.node: node for node in old}
    common = [(known[node.node], node) for node in new if node.node in known]
    yield from common or [(old[0], node) for node in new if old]


def _node(one: NodeEvidence, other: NodeEvidence, *, same_lock: bool) -> Iterator[Change]:
    if one.status != other.status and (one.status in GOOD) != (other.status in GOOD):
        kind: Kind = "changed" if other.status in GOOD else "worse"
        now = f"{other.status}: {reason(other)}" if other.error else other.status
        yield Change(kind, "node", "outcome", one.status, now)
    pythons = [{"Python": version} if (version := python_of(node)) else {} for node in (one, other)]
    if one.root and other.root and one.root != other.root:
        # The root covers the interpreter's full version: another one gives another root of the same lock.
        same = same_lock and one.variant_digest == other.variant_digest and (pythons[0] == pythons[1] or {} in pythons)
        yield Change("worse" if same else "changed", "contents", "Merkle root", one.root[:12], other.root[:12])
    if all(pythons):
        yield from _texts("contents", pythons[0], pythons[1])
    drifted = [item for item in other.drift if item not in one.drift]
    if drifted or other.drift_count > one.drift_count:
        files = "".join(f", {item.get('kind')} {item.get('path')}" for item in drifted[:_SHOWN])
        yield Change("worse", "contents", "drifted files", str(one.drift_count), f"{other.drift_count}{files}")
    if one.facts and other.facts:
        facts = one.facts, other.facts
        if any(it.hostname == LEFT_OUT for it in facts):
            facts = _as_published(facts[0]), _as_published(facts[1])
        old, new = (dict(fact_rows(it)) for it in facts)
        if facts[0].brief or facts[1].brief:  # what a brief probe does not name it did not look for
            old, new = ({name: it[name] for name in it if name in old and name in new} for it in (old, new))
        yield from _texts("machine", old, new)
    if one.variant_digest and other.variant_digest:
        yield from _texts("contents", {"variant": one.variant_digest}, {"variant": other.variant_digest}, most=12)
    if all(node.image or node.environment for node in (one, other)):
        yield from _texts("image", _image(one), _image(other))
    if one.packages and other.packages:
        yield from _texts("package of the base", one.base_packages, other.base_packages)
        yield from _texts("package", one.packages, other.packages)
        yield from _texts("source", _commits(one), _commits(other), most=12)
    yield from _checks(one, other)


def _as_published(facts: NodeFacts) -> NodeFacts:
    return NodeFacts.from_plain(public_fields(facts, {}))


def _texts(topic: str, one: Mapping[str, str], other: Mapping[str, str], most: int | None = None) -> Iterator[Change]:
    """What is said of a name that both tell otherwise, at `most` so many characters of it."""
    for name in dict.fromkeys((*one, *other)):
        if one.get(name) != other.get(name):
            before, after = ((node.get(name) or "–")[:most] for node in (one, other))
            yield Change("changed", topic, name, before, after)


def _image(node: NodeEvidence) -> dict[str, str]:
    if node.image is None:
        return {}
    kind, sign, digest = (node.image.digest or "").rpartition(":")
    return {"id": node.image.id[:12], "digest": f"{kind}{sign}{digest[:12]}"}


def _commits(node: NodeEvidence) -> dict[str, str]:
    return {str(source.get("name")): str(source.get("commit") or "") for source in node.sources}


def _checks(one: NodeEvidence, other: NodeEvidence) -> Iterator[Change]:
    known = {check.name: check for check in one.checks}
    for check in other.checks:
        was = known.get(check.name)
        unread = any(it is not None and it.status == "not-run" and it.level == "not-checked" for it in (was, check))
        if unread or (was is None and check.status != "failed"):
            continue
        if was is None or was.status != check.status:
            kind: Kind = "worse" if check.status == "failed" else "changed"
            before = was.status if was else "–"
            yield Change(kind, "check", check.name, before, f"{check.status}: {check.says}")
        if was is not None:
            yield from _texts("launch", _launched(was), _launched(check))
            if was.comparison and check.comparison and was.comparison.verdict != check.comparison.verdict:
                # One that fell below its claim fails its check, too.
                verdicts = [one.verdict.replace("-", " ") for one in (was.comparison, check.comparison)]
                yield Change("changed", "claim", check.name, verdicts[0], verdicts[1])
            yield from _metrics(was, check, same=_launched(was) == _launched(check))
            old, new = _losses(was), _losses(check)
            if old and new and old != new:
                yield Change("changed", "loss", check.name, _course(old), _course(new))


def _launched(check: Check) -> dict[str, str]:
    """What of a stack's own ran, in which degrees and on how many GPUs."""
    launch = mapping(check.details.get("launch"))
    settings = {key: launch[key] for key in ("model", "nodes", "gpus_per_node") if key in launch}
    settings |= mapping(launch.get("degrees"))
    return {key.replace("_", " "): str(value) for key, value in settings.items()}


def _losses(check: Check) -> list[float]:
    return numbers(check.details.get("losses"))


def _course(losses: Sequence[float]) -> str:
    return f"{losses[0]:.5g} to {losses[-1]:.5g} in {plural(len(losses), 'step')}"


def _compared(was: Check, now: Check) -> list[tuple[Metric, Metric]]:
    """The figures that both have in one unit."""
    known = {metric.name: metric for metric in was.metrics}
    pairs = [(known[metric.name], metric) for metric in now.metrics if metric.name in known]
    return [(old, new) for old, new in pairs if old.unit == new.unit]


def _within(old: Metric, new: Metric) -> bool:
    return old.least <= new.median <= old.greatest


def _metrics(was: Check, now: Check, *, same: bool) -> Iterator[Change]:
    """A median outside the other's least and greatest is a change; on the worse side of the `same` work it slipped."""
    for old, new in _compared(was, now):
        if _within(old, new):
            continue
        worse = (new.median > old.greatest) == (new.lower_is_better or old.lower_is_better)
        percent = f" ({100 * new.median / old.median - 100:+.1f} %)" if old.median else ""
        side = f", {'worse' if worse else 'better'} than all values before" if same else ""
        kind: Kind = "slipped" if same and worse else "changed"
        yield Change(kind, "figure", f"{new.name}, {new.unit}", _spread(old), f"{_spread(new)}{percent}{side}")


def _spread(metric: Metric) -> str:
    return f"{number(metric.median)} ({number(metric.least)} to {number(metric.greatest)}, n = {metric.n})"


_MARKS = {"worse": ("✗", "red"), "slipped": ("↓", "red"), "changed": ("·", "")}
_SAYS = (
    ("worse", "thing", "got worse"), ("slipped", "median", "worse than all values before"),
    ("changed", "thing", "changed"),
)  # fmt: skip


def sentence(changes: Sequence[Change]) -> str:
    """`2 things got worse, 1 median worse than all values before, 3 things changed`."""
    counts = Counter[str](change.kind for change in changes)
    parts = (f"{plural(counts[kind], noun)} {verb}" for kind, noun, verb in _SAYS if counts[kind])
    return ", ".join(parts) or "no difference in what both runs checked"


def _verdict(after: Evidence, changes: Sequence[Change]) -> tuple[bool, str]:
    """Whether all is well, and that in words; what `changes` leave open, the verdict of `after` says."""
    bad = any(change.kind != "changed" for change in changes)
    failed = f". {make_verdict(after).sentence}" if after.exit and not bad else ""
    return not bad and not after.exit, sentence(changes) + failed


def _roots(before: Evidence, after: Evidence) -> str:
    """Whether both runs have the same contents, by the Merkle roots of their nodes."""
    pairs = [(one, other) for one, other in _pairs(before.nodes, after.nodes) if one.root and other.root]
    roots = list(dict.fromkeys(str(other.root)[:12] for one, other in pairs if one.root == other.root))
    differing = sum(one.root != other.root for one, other in pairs)
    if differing:
        return f"Merkle roots differ on {differing} of {plural(len(pairs), 'node')}"
    measured = all(node.root_level == "measured" for pair in pairs for node in pair)
    level = "measured in both runs" if measured else "from a stamp in at least one run"
    same = ", the environment is the same, file by file" if measured else ""
    return f"Merkle roots are equal ({', '.join(roots)}, {level}){same}" if pairs else "no Merkle roots to compare"


def lines(before: Evidence, after: Evidence, changes: Sequence[Change]) -> list[tuple[str, str]]:
    """Lines of (text, style)."""
    good, says = _verdict(after, changes)
    title = f"{'✓' if good else '✗'} {after.run} against {before.run}: {_roots(before, after)}; {says}"
    out = [(visible(title), "bold green" if good else "bold red")]
    for change in changes:
        mark, colour = _MARKS[change.kind]
        where = f" on {equality.names(change.nodes)}" if change.nodes else ""
        text = f"{change.topic} {change.what}{where}: {change.before} → {change.after}"
        out.append((f"  {mark} {visible(text)}", colour))
    differing = {change.what for change in changes if change.topic == "loss"}
    for name, course in _trained(before, after).items():
        if name not in differing:
            out.append((f"  = {visible(f'loss {name}: {course}, equal at every step')}", ""))
    if alike := _alike(before, after):
        out.append((f"  = {plural(alike, 'figure')}: the median is between the earlier run's least and greatest", ""))
    return out


def _alike(before: Evidence, after: Evidence) -> int:
    """How many figures of both runs are no change."""
    checks = [(one.checks, other.checks) for one, other in _pairs(before.nodes, after.nodes)]
    pairs = [(was, now) for old, new in checks for now in new for was in old if was.name == now.name]
    return sum(_within(*figures) for was, now in pairs for figures in _compared(was, now))


def _trained(before: Evidence, after: Evidence) -> dict[str, str]:
    """The checks whose loss both runs have, and how it went."""
    pairs = _pairs(before.nodes, after.nodes)
    both = [(check, {it.name for it in one.checks if _losses(it)}) for one, other in pairs for check in other.checks]
    return {check.name: _course(_losses(check)) for check, known in both if check.name in known and _losses(check)}
