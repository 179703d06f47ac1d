"""Written traces in the shape of MegatronAPP's: what each rank of a small pipeline would print."""

from __future__ import annotations

from pathlib import Path

BEGIN = 1700000000.0


def passes(ranks: int, stages: int, microbatches: int, *, begin: float = BEGIN) -> list[tuple[float, str]]:
    """(time, line) of one iteration: all forward, then all backward; a forward pass 10 ms, a backward pass 20 ms."""
    out = []
    for rank in range(ranks):
        at = begin + 0.01 * (rank // (ranks // stages))
        for direction, seconds in (("forward", 0.01), ("backward", 0.02)):
            if direction == "backward":
                late = stages - 1 - rank // (ranks // stages)
                at = begin + 0.01 * (stages - 1 + microbatches) + 0.02 * late
            for index in range(microbatches):
                out.append((at, f"{rank}, {index}, {direction} start, {at:.6f}%"))
                at += seconds
                out.append((at, f"{rank}, {index}, {direction} finished, {at:.6f}%"))
        out.append((at, f"{rank}, 0, can reduce, {at:.6f}%"))
    return out


def iteration(ranks: int, stages: int, microbatches: int, *, begin: float = BEGIN, marks: bool = True) -> list[str]:
    """The lines of one iteration, in order of time."""
    rows = passes(ranks, stages, microbatches, begin=begin)
    if marks:
        rows += [
            (begin - 0.001, f"rank {rank} iteration starts at timestamp {begin - 0.001:.6f}%") for rank in range(ranks)
        ]
        end = max(at for at, _ in rows) + 0.001
        rows += [(end, f"rank {rank} iteration ends at timestamp {end:.6f}%") for rank in range(ranks)]
    return [line for _, line in sorted(rows)]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
