"""NVIDIA/apex by commit: what its setup.py had at which time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_DIGITS = 8
Ranges = tuple[tuple[int, int], ...]


class ApexHistory(NamedTuple):
    """The known commits by their first digits, and by ranges of places among them: `flags`, and `raises`.

    `raises`: where setup.py stops when nvcc and torch differ in the CUDA minor version.
    """

    places: Mapping[str, int]
    flags: Mapping[str, Ranges]
    raises: Ranges

    def knows(self, commit: str) -> bool:
        """Whether a commit is one of the history that was read."""
        return commit[:_DIGITS] in self.places

    def has_flag(self, commit: str, flag: str) -> bool:
        """Whether setup.py takes a flag (`cuda_ext`) at a known commit."""
        return _within(self.places[commit[:_DIGITS]], self.flags.get(flag, ()))

    def flags_at(self, commit: str) -> tuple[str, ...]:
        """The flags that setup.py takes at a known commit."""
        return tuple(flag for flag in self.flags if self.has_flag(commit, flag))

    def raises_at(self, commit: str) -> bool:
        """Whether setup.py stops at another CUDA minor version at a known commit."""
        return _within(self.places[commit[:_DIGITS]], self.raises)


def apex_history(row: Mapping[str, Any]) -> ApexHistory:
    """The contents of compat/apex.yaml, with the text of apex_commits.txt under `commits`."""
    return ApexHistory(
        places={commit: place for place, commit in enumerate(str(row["commits"]).split())},
        flags={flag: _ranges(ranges) for flag, ranges in row["flags"].items()},
        raises=_ranges(row["raises"]),
    )


def _ranges(rows: list[list[int]]) -> Ranges:
    return tuple((int(first), int(last)) for first, last in rows)


def _within(place: int, ranges: Ranges) -> bool:
    return any(first <= place <= last for first, last in ranges)
