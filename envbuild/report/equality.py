"""Whether all nodes have one Merkle root, or which nodes deviate and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from envbuild.model.evidence import Deviation, Equality, Evidence, Files, NodeEvidence
from envbuild.text import few, grouped

# How many different roots are looked into; a fleet with more has no usual one.
COMPARED = 8
SHOWN = 3
_NAMES = 8


def equality_of(
    nodes: Sequence[NodeEvidence], files_of: Callable[[Sequence[NodeEvidence]], Mapping[str, Files]] | None
) -> Equality | None:
    """What the nodes with an environment have in common; None where there is nothing to compare.

    `files_of` gets nodes of which each stands for others, and says by name what files they have; it is only called
    where roots differ. None: files are not compared, for nobody is to be asked.
    """
    stamped = [node for node in nodes if node.root]
    if len(stamped) < 2:
        return None
    groups = list(grouped((node for node in stamped if not node.drift_count), lambda node: str(node.root)).values())
    if not groups:
        return None
    equal = max(groups, key=len)  # of equally many the first
    root, others = str(equal[0].root), [group for group in groups if group is not equal]
    deviating = [_drifted(node) for node in stamped if node.drift_count]
    if others:
        usual = equal[0]
        files = files_of([usual, *(group[0] for group in others[:COMPARED])]) if files_of is not None else {}
        for group in others:
            differs = _differs(usual, group[0])
            if files_of is not None:
                differs += (_files(files.get(usual.node), files.get(group[0].node)),)
            deviating.append(Deviation(nodes=_names(group), root=group[0].root, differs=differs))
    return Equality(root=root, python=python_of(equal[0]) or None, nodes=_names(equal), deviating=tuple(deviating))


def without_cause(nodes: Iterable[NodeEvidence], equality: Equality | None) -> list[NodeEvidence]:
    """Nodes with another root than most, although variant and interpreter are the same: a stamp was changed."""
    if equality is None or equality.python is None:
        return []
    by_name = {node.node: node for node in nodes}
    variant = by_name[equality.nodes[0]].variant_digest
    deviating = (by_name[name] for group in equality.deviating for name in group.nodes)
    alike = (node for node in deviating if (node.variant_digest, python_of(node)) == (variant, equality.python))
    return [node for node in alike if node.root != equality.root]


def _names(nodes: Iterable[NodeEvidence]) -> tuple[str, ...]:
    return tuple(node.node for node in nodes)


def _drifted(node: NodeEvidence) -> Deviation:
    """A node whose files are not those of its own stamp any more."""
    named = [f"{item.get('kind')} {item.get('path')}" for item in node.drift[:SHOWN]]
    more = f" and {left} more" if (left := node.drift_count - len(named)) > 0 else ""
    differs = f"drifted since it was stamped: {', '.join(named)}{more}"
    return Deviation(nodes=(node.node,), root=node.root, differs=(differs,))


def _differs(usual: NodeEvidence, other: NodeEvidence) -> tuple[str, ...]:
    """Two lines at most: variant or interpreter, and packages."""
    lines = []
    if usual.variant_digest != other.variant_digest:
        here, there = ((node.variant_digest or "unknown")[:12] for node in (other, usual))
        lines.append(f"variant {here}, not {there}")
    elif (python := python_of(other)) != (before := python_of(usual)):
        lines.append(f"Python {python or 'unknown'}, not {before or 'unknown'}")
    packages = [
        f"{name} {other.packages.get(name, 'absent')}, not {usual.packages.get(name, 'absent')}"
        for name in sorted({*usual.packages, *other.packages})
        if usual.packages.get(name) != other.packages.get(name)
    ]
    if packages and usual.packages and other.packages:
        lines.append(_some("package", packages, len(usual.packages)))
    return tuple(lines)


def _files(files_there: Files | None, here: Files | None) -> str:
    """Which files are other, missing or extra."""
    if files_there is None or here is None:
        return "its files could not be compared"
    files = sorted(path for path in {*files_there, *here} if files_there.get(path) != here.get(path))
    differences = [
        f"{'missing' if path not in here else 'extra' if path not in files_there else 'changed'} {path}"
        for path in files
    ]
    return _some("file", differences, len(files_there))


def _some(noun: str, texts: Sequence[str], total: int) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return f"{len(texts)} of {total} {noun}s differ{'s' * (len(texts) == 1)}: {'; '.join(texts[:SHOWN])}{more}"


def python_of(node: NodeEvidence) -> str:
    """The interpreter's full version, as the check of the stamp or the smoke test saw it."""
    versions = (check.details.get("python") for check in node.checks)
    return next((version for version in versions if isinstance(version, str)), "")


def sentence(evidence: Evidence) -> str:
    """`8 nodes, one root 9b2e44d0aa17 (measured)`, or how many deviate; empty if nothing can be compared."""
    equality = evidence.equality
    if equality is None:
        return ""
    count = len(equality.nodes) + sum(len(group.nodes) for group in equality.deviating)
    if not equality.deviating:
        return f"{count} nodes, one root {equality.root[:12]} ({_level(evidence, count)})"
    bad = count - len(equality.nodes)
    have = f"{len(equality.nodes)} of {count} nodes have the root {equality.root[:12]}"
    return f"{have}; {bad} deviate{'s' * (bad == 1)} ({_level(evidence, count)})"


def _level(evidence: Evidence, count: int) -> str:
    """On how many nodes the root was measured in this run; the others have it in their stamp."""
    measured = sum(node.root is not None and node.root_level == "measured" for node in evidence.nodes)
    if not measured:
        return "stamped"
    return "measured" if measured == count else f"measured on {measured}"


def names(nodes: Sequence[str], most: int = _NAMES) -> str:
    """Node names as clusters write them, `gpu[01-60]`, shortened to one line."""
    from envbuild.hostlist import fold_hosts

    folded = fold_hosts(nodes)
    return folded if len(folded) <= 60 else few(nodes, most)
