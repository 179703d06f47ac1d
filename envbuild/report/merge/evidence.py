"""What the evidence of several parts gives together. Pure: whoever has the parts computes the very same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from envbuild.errors import EnvbuildError
from envbuild.model.evidence import BuiltVariant, Evidence, NodeEvidence, Part, run_exit
from envbuild.report.fleet_equality import equality_of

_LOCAL = "localhost"
_SAME = ("verb", "stack", "profile", "target", "lock_digest")


@dataclass(frozen=True)
class PartEvidence:
    """The evidence of one part, and the sha256 of its bytes."""

    sha256: str
    evidence: Evidence


def part_of(text: bytes, evidence: Evidence) -> PartEvidence:
    """A part from the bytes of its `evidence.json`."""
    return PartEvidence(hashlib.sha256(text).hexdigest(), evidence)


def merged(parts: Iterable[PartEvidence], envbuild: str) -> Evidence:
    """One evidence, without attachments, in the order in which the parts began; `envbuild` is the version that merges.

    Nodes stay as they are, but for two things: one that was reached as `localhost` is called by its host name, and
    steps count from the beginning of the first part. Raises EnvbuildError as `agree` does, ValueError as `share` does.
    """
    ordered = sorted(parts, key=lambda part: (_moment(part.evidence.started), part.evidence.run))
    agree(ordered)
    every = [part.evidence for part in ordered]
    first = every[0]
    shares = [share(part, first.started) for part in ordered]
    flat = [node for _, nodes in shares for node in nodes]
    digest = hashlib.sha256("".join(part.sha256 for part in ordered).encode()).hexdigest()
    return Evidence(
        envbuild=envbuild,
        verb=first.verb,
        run=f"{first.run.rpartition('-')[0]}-{digest[:4]}",
        started=first.started,
        finished=max((each.finished for each in every), key=_moment),
        stack=first.stack,
        profile=first.profile,
        target=first.target,
        lock_digest=first.lock_digest,
        exit=run_exit(flat),
        nodes=tuple(flat),
        deviations=tuple(dict.fromkeys(text for each in every for text in each.deviations)),
        warnings=tuple(dict.fromkeys(text for each in every for text in each.warnings)),
        tools=dict(sorted(set.intersection(*(set(each.tools.items()) for each in every)))),
        steps_run=sum(each.steps_run for each in every),
        equality=equality_of(flat, None),
        variants=_variants(every),
        findings=tuple({found.id: found for each in every for found in each.findings}.values()),
        parts=tuple(row for row, _ in shares),
    )


def share(part: PartEvidence, began: str) -> tuple[Part, tuple[NodeEvidence, ...]]:
    """The row and the nodes of a part in the merged evidence of a run that `began` then.

    Raises ValueError for a time without its zone.
    """
    found = part.evidence
    later = (_moment(found.started) - _moment(began)).total_seconds()
    nodes = tuple(_node(node, later) for node in found.nodes)
    names = tuple(node.node for node in nodes)
    row = Part(
        run=found.run, started=found.started, finished=found.finished, exit=found.exit, sha256=part.sha256, nodes=names
    )
    return row, nodes


def agree(parts: Sequence[PartEvidence]) -> None:
    """Whether they are parts of one run.

    Raises EnvbuildError `merge-too-few` (exit 2); `merge-nested`, `merge-part-twice`, `merge-differs`,
    `merge-node-twice` (exit 7).
    """
    if len(parts) < 2:
        raise EnvbuildError("merge-too-few", "one report is nothing to merge", hint="name two or more")
    first, seen = parts[0].evidence, dict[str, str]()
    variants = {frozenset(_digests(part.evidence)) for part in parts} - {frozenset()}
    for part in parts:
        run = part.evidence.run
        if part.evidence.parts:
            raise EnvbuildError("merge-nested", f"the report of {run} is merged itself", hint="merge all parts at once")
        for name in _SAME:
            one, other = getattr(first, name), getattr(part.evidence, name)
            if one != other:
                says = f"{run} has the {name.replace('_', ' ')} {other}, {first.run} has {one}"
                raise EnvbuildError("merge-differs", says, hint="only parts of one run can be merged")
        for key in (run, *sorted(_identities(part.evidence))):
            if key in seen:
                code = "merge-part-twice" if key == run else "merge-node-twice"
                raise EnvbuildError(code, f"{key} is in {seen[key]} and in {run}", hint="give each node once")
        seen |= dict.fromkeys([run, *_identities(part.evidence)], run)
    if len(variants) > 1:
        raise EnvbuildError(
            "merge-differs", "the parts have other variants of the lock", hint="only equal ones can be merged"
        )


def _identities(evidence: Evidence) -> set[str]:
    """What a node of another part must not have: name, host name, the ids of GPUs."""
    facts = [node.facts for node in evidence.nodes if node.facts]
    gpus = {gpu.uuid for each in facts for gpu in each.gpus if gpu.uuid}
    return {*map(_name, evidence.nodes), *(each.hostname for each in facts), *gpus}


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text} is a time without its zone")
    return found


def _digests(evidence: Evidence) -> set[str]:
    return {node.variant_digest for node in evidence.nodes if node.variant_digest}


def _name(node: NodeEvidence) -> str:
    return node.facts.hostname if node.node == _LOCAL and node.facts else node.node


def _node(node: NodeEvidence, later: float) -> NodeEvidence:
    steps = tuple(step.model_copy(update={"began": step.began + later}) for step in node.steps)
    return node.model_copy(update={"node": _name(node), "steps": steps})


def _variants(every: Iterable[Evidence]) -> tuple[BuiltVariant, ...]:
    """Each once, with the files that fit the nodes of any part."""
    found = dict[str, BuiltVariant]()
    for variant in (each for evidence in every for each in evidence.variants):
        known = found.get(variant.digest, variant)
        rows = tuple(dict.fromkeys((*known.packages, *variant.packages)))
        found[variant.digest] = known.model_copy(update={"packages": rows})
    return tuple(found.values())
