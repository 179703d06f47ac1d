"""What of a smoke test is run: all of it, or what `smoke --only ITEM` and `ITEM/CHECK` name."""

# The others of `extensions` are known to the environment alone.
from __future__ import annotations

from collections.abc import Iterable, Sequence

_CHECKS = {"machine": ("gemm", "copies", "all-reduce"), "extensions": ("imports",), "nodes": ("all-reduce",)}


def known(items: Iterable[str]) -> list[str]:
    """Every name that can be given for a smoke list, and of which a whole test of it has a check."""
    found = []
    for item in items:
        found.append(item)
        found.extend(f"{item}/{check}" for check in _CHECKS.get(item, ()))
    return found


def unknown(only: Sequence[str], items: Sequence[str]) -> list[str]:
    """The names that a smoke list does not have."""
    good = known(items)
    free = tuple(f"{item}/" for item in items if item == "extensions")
    return [name for name in only if name not in good and not name.startswith(free or ("\0",))]


def chosen(only: Sequence[str], name: str) -> bool:
    """Whether an item, or a check as `ITEM/CHECK`, is run; without names everything is."""
    return not only or any((name + "/").startswith(one + "/") or one.startswith(name + "/") for one in only)
