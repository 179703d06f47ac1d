"""Which nodes change together, and how many may fail before no further wave begins. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envbuild.errors import EnvbuildError


@dataclass(frozen=True)
class Share:
    """A number of nodes, or a percentage of all."""

    number: int
    percent: bool = False

    def of(self, total: int) -> int:
        """The number of nodes out of `total`, rounded down."""
        return total * self.number // 100 if self.percent else min(self.number, total)


def parse_share(text: str, option: str, *, least: int) -> Share:
    """`4` or `25%` of an option. Raises EnvbuildError `share-invalid` (exit 2) for anything else, or below `least`."""
    found = re.fullmatch(r"([0-9]{1,6})(%?)", text.strip())
    share = Share(int(found.group(1)), bool(found.group(2))) if found else None
    if share is None or share.number < least or (share.percent and share.number > 100):
        raise EnvbuildError(
            "share-invalid",
            f"invalid value for {option}: {text}",
            why=f"it has to be a number from {least}, or a percentage from {least}% to 100%",
            hint=f"`{option} 4` or `{option} 25%`",
        )
    return share


@dataclass(frozen=True)
class Batches:
    """`size`: nodes of one wave (None: all). `most`: how many nodes may fail (None: any number)."""

    size: Share | None = None
    most: Share | None = None

    def waves(self, nodes: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The nodes in waves, in their order; a wave has one node at least."""
        size = max(1, self.size.of(len(nodes))) if self.size is not None else max(1, len(nodes))
        return [nodes[begin : begin + size] for begin in range(0, len(nodes), size)]

    def spent(self, failed: int, total: int) -> bool:
        """Whether more nodes have failed than allowed."""
        return self.most is not None and failed > self.most.of(total)
