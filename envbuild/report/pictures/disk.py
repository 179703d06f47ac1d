"""What the environment takes of the disk that it lies on."""

from __future__ import annotations

from envbuild.model.evidence import Evidence, NodeEvidence
from envbuild.report.pictures.draw import Bar, Label, Picture, Row, Shape, Table, share, short
from envbuild.report.view import gibibytes
from envbuild.text import number, plural

MOST = 8
_LINE = 40


def picture(evidence: Evidence) -> Picture | None:
    """One bar for each node, those with the least room first."""
    nodes = [(node, *disk) for node in evidence.nodes if node.bytes is not None and (disk := _disk(node)) is not None]
    nodes.sort(key=lambda each: each[1] / each[2])
    if not nodes:
        return None
    shapes = [shape for index, each in enumerate(nodes[:MOST]) for shape in _line(*each, index * _LINE)]
    first, free, total = nodes[0]
    says = (
        f"The environment has {gibibytes(first.bytes)} in {number(first.files or 0)} files. Least room is on "
        f"{first.node}: {gibibytes(free)} of {gibibytes(total)} were free before the run."
    )
    if len(nodes) > MOST:
        says += f" Shown are {MOST} of {plural(len(nodes), 'node')}."
    headers = ("Node", "File system", "Environment", "Files", "Free before", "Of")
    table = Table.of(headers, [_row(*each) for each in nodes], 2)
    keys = (("range", "taken before"), ("k3", "environment"), ("track", "free"))
    return Picture("disk", "Disk", says, _LINE * min(MOST, len(nodes)), tuple(shapes), table, keys)


def _disk(node: NodeEvidence) -> tuple[int, int] | None:
    """Bytes that were free before, and all."""
    disk = node.facts.prefix if node.facts else None
    if disk is None or not disk.total_bytes or disk.free_bytes is None:
        return None
    return disk.free_bytes, disk.total_bytes


def _line(node: NodeEvidence, free: int, total: int, y: float) -> list[Shape]:
    size = node.bytes or 0
    taken = share(total - free, total)
    new = 0.0 if node.status == "unchanged" else max(0.3, share(size, total))
    return [
        Label(0, y + 13, f"{short(node.node, 24)}: {gibibytes(free)} free of {gibibytes(total)}"),
        Bar(0, y + 19, 100, 14, "track"),
        Bar(0, y + 19, taken, 14, "range", f"taken before: {gibibytes(total - free)}"),
        Bar(min(99.7, taken), y + 19, new, 14, "k3", f"environment: {gibibytes(size)}"),
    ]


def _row(node: NodeEvidence, free: int, total: int) -> Row:
    system = node.facts.prefix.filesystem if node.facts else ""
    size, files = gibibytes(node.bytes), number(node.files or 0)
    return node.node, system or "–", size, files, gibibytes(free), gibibytes(total)
