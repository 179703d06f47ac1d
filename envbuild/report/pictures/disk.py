"""What the environment takes of the disk that it lies on."""

from __future__ import annotations

from envbuild.model.evidence import Evidence, NodeEvidence
from envbuild.report.pictures.draw import Bar, Label, Picture, Row, Shape, Table, share, short
from envbuild.report.view import gibibytes, number
from envbuild.text import plural

MOST = 8
_LINE = 40


def picture(evidence: Evidence) -> Picture | None:
    """One bar for each node, those with the least room first."""
    nodes = [node for node in evidence.nodes if node.bytes is not None and _disk(node) is not None]
    nodes.sort(key=lambda node: _free(node) / _total(node))
    if not nodes:
        return None
    shapes = [shape for index, node in enumerate(nodes[:MOST]) for shape in _line(node, index * _LINE)]
    first = nodes[0]
    says = (
        f"The environment has {gibibytes(first.bytes)} in {number(first.files or 0)} files. Least room is on "
        f"{first.node}: {gibibytes(_free(first))} of {gibibytes(_total(first))} were free before the run."
    )
    if len(nodes) > MOST:
        says += f" Shown are {MOST} of {plural(len(nodes), 'node')}."
    rows = tuple(_row(node) for node in nodes[:400])
    table = Table(
        ("Node", "File system", "Environment", "Files", "Free before", "Of"), rows, 2, max(0, len(nodes) - 400)
    )
    keys = (("range", "taken before"), ("k3", "environment"), ("track", "free"))
    return Picture("disk", "Disk", says, _LINE * min(MOST, len(nodes)), tuple(shapes), table, keys)


def _disk(node: NodeEvidence) -> tuple[int, int] | None:
    disk = node.facts.prefix if node.facts else None
    if disk is None or not disk.total_bytes or disk.free_bytes is None:
        return None
    return disk.free_bytes, disk.total_bytes


def _free(node: NodeEvidence) -> int:
    return (_disk(node) or (0, 1))[0]


def _total(node: NodeEvidence) -> int:
    return (_disk(node) or (0, 1))[1]


def _line(node: NodeEvidence, y: float) -> list[Shape]:
    total, free, size = _total(node), _free(node), node.bytes or 0
    taken = share(total - free, total)
    new = 0.0 if node.status == "unchanged" else max(0.3, share(size, total))
    return [
        Label(0, y + 13, f"{short(node.node, 24)}: {gibibytes(free)} free of {gibibytes(total)}"),
        Bar(0, y + 19, 100, 14, "track"),
        Bar(0, y + 19, taken, 14, "range", f"taken before: {gibibytes(total - free)}"),
        Bar(min(99.7, taken), y + 19, new, 14, "k3", f"environment: {gibibytes(size)}"),
    ]


def _row(node: NodeEvidence) -> Row:
    system = node.facts.prefix.filesystem if node.facts else ""
    size, files = gibibytes(node.bytes), number(node.files or 0)
    return node.node, system or "–", size, files, gibibytes(_free(node)), gibibytes(_total(node))
