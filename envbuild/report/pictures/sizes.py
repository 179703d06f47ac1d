"""Matrix products and all-reduces by size, beside the floor: what a machine gives where floors are not asked for."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.model.evidence import Check, Evidence, Metric
from envbuild.report.pictures.draw import Picture, Shape
from envbuild.report.pictures.measured import HIGH, Found, keys, line, table_of
from envbuild.report.verdict import node_checks
from envbuild.report.view import below_floor, figure, kind_and_size
from envbuild.text import number

_LARGEST = {"gemm_cud": "size", "gemm_cpu": "cpu_size", "all_redu": "bytes"}


def pictures(evidence: Evidence) -> Iterator[Picture]:
    """One for each kind of product, and one for the all-reduce, where several sizes were measured."""
    kinds: dict[str, dict[int, list[Found]]] = {}
    for node, check in node_checks(evidence):
        for metric in check.metrics:
            if (sized := _sized(check, metric)) is not None:
                kind, size = sized
                kinds.setdefault(kind, {}).setdefault(size, []).append((node.node, metric))
    for kind, by_size in sorted(kinds.items()):
        if len(by_size) > 1:
            yield _picture(kind, dict(sorted(by_size.items())))


def _sized(check: Check, metric: Metric) -> tuple[str, int] | None:
    """Kind and size (rows of a product, MiB) of a figure; the size of the largest one is in the check's details."""
    named = kind_and_size(metric)
    if named is None:
        return None
    kind, size = named
    if size is not None:
        return kind, size
    told = check.details.get(_LARGEST[kind[:8]])
    size = told if isinstance(told, int) and 0 < told < 2**62 else 0
    size = size >> 20 if kind == "all_reduce" else size
    return (kind, size) if size else None


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
    table = table_of("Size", [(who, _size(kind, size), m) for size, found in by_size.items() for who, m in found])
    title = f"{figure(kind + ('_busbw_gbps' if kind == 'all_reduce' else '_tflops'))}, by size"
    name, height = f"sizes-{kind.replace('_', '-')}", HIGH * len(by_size)
    return Picture(name, title, says, height, tuple(shapes), table, keys(bool(floors)))
