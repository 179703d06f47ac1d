"""Shipped stacks, read once a process."""

from __future__ import annotations

from functools import cache

from envbuild.catalog.loader import LoadedStack, load_stack


@cache
def shipped_stack(name: str) -> LoadedStack:
    """What `load_stack` gives for a name; nobody may change it."""
    return load_stack(name)
