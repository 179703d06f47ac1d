"""The nearest known name, for hints."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that most resembles `name`, None when none does."""
    # A long name costs quadratic time to compare and resembles nothing.
    found = difflib.get_close_matches(name[:100], list(known), n=1, cutoff=0.55)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint sentence: the nearest name, or the list of names."""
    names = sorted(known)
    near = nearest(name, names)
    if near:
        return f"did you mean `{near}`?"
    return f"known: {', '.join(names)}" if names else ""
