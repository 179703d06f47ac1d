"""Matrix products and all-reduces by size, beside the floor: what a machine gives where floors are not asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.model.evidence import Check, Evidence, Metric
from envbuild.report.pictures.draw import Picture, Row, Shape, Table
from envbuild.report.pictures.measured import HIGH, TABLE, Found, floor_text, line
from envbuild.report.view import below_floor, figure, number

_NAME = re.compile(r"(gemm_(?:cpu|cuda)_[a-z0-9]{1,12}|all_reduce)(?:_([0-9]{1,9})(?:_mib)?)?_(?:tflops|busbw_gbps)")

_LARGEST = {"gemm_cud": "size", "gemm_cpu": "cpu_size", "all_redu": "bytes"}


def pictures(evidence: Evidence) -> Iterator[Picture]:
    """One for each kind of product, and one for the all-reduce, where several sizes were measured."""
    kinds: dict[str, dict[int, list[Found]]] = {}
    for node in evidence.nodes:
        for check in node.checks:
            for metric in check.metrics:
                if (sized := _sized(check, metric)) is not None:
                    kind, size = sized
                    kinds.setdefault(kind, {}).setdefault(size, []).append((node.node, metric))
    for kind, by_size in sorted(kinds.items()):
        if len(by_size) > 1:
            yield _picture(kind, dict(sorted(by_size.items())))


def _sized(check: Check, metric: Metric) -> tuple[str, int] | None:
    """Kind and size (rows of a product, MiB) of a figure; the size of the largest one is in the check's details."""
    match = _NAME.fullmatch(metric.name)
    if match is None:
        return None
    if match[2] is not None:
        return match[1], int(match[2])
    told = check.details.get(_LARGEST[match[1][:8]])
    size = told if isinstance(told, int) and 0 < told < 2**62 else 0
    size = size >> 20 if match[1] == "all_reduce" else size
    return (match[1], size) if size else None


def _size(kind: str, size: int) -> str:
    """`64 MiB`, `8 GiB`; of a product `8192 × 8192`."""
    if kind != "all_reduce":
        return f"{size} × {size}"
    return f"{size >> 10} GiB" if size >= 1024 and not size % 1024 else f"{size} MiB"


def _picture(kind: str, by_size: dict[int, list[Found]]) -> Picture:
    every = [metric for found in by_size.values() for _, metric in found]
    most = max(max(metric.greatest, metric.floor or 0.0) for metric in every)
    shapes: list[Shape] = []
    for index, (size, found) in enumerate(by_size.items()):
        shapes += line(found, index * HIGH, _size(kind, size), most)
    best = max(every, key=lambda metric: metric.median)
    least = min(by_size[min(by_size)], key=lambda each: each[1].median)[1]
    floors = [metric for metric in every if metric.floor is not None]
    says = (
        f"{number(least.median)} {least.unit} at {_size(kind, min(by_size))}, "
        f"at most {number(best.median)}, medians of nodes. "
    )
    missed = "A floor is missed." if any(map(below_floor, floors)) else "The floor is held."
    says += missed if floors else "No floor was asked for."
    rows: list[Row] = [
        (who, _size(kind, size), number(m.median), number(m.least), number(m.greatest), floor_text(m), str(m.n), m.unit)
        for size, found in by_size.items()
        for who, m in found
    ]
    headers = ("Node", "Size", "Median", "Least", "Greatest", "Floor", "n", "Unit")
    table = Table(headers, tuple(rows[:TABLE]), 2, max(0, len(rows) - TABLE))
    keys = (("range", "least to greatest"), ("median", "median of a node"), *((("floor", "floor"),) if floors else ()))
    title = f"{figure(kind + ('_busbw_gbps' if kind == 'all_reduce' else '_tflops'))}, by size"
    return Picture(f"sizes-{kind.replace('_', '-')}", title, says, HIGH * len(by_size), tuple(shapes), table, keys)
