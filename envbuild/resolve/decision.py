"""Making decisions: one function a verdict, and the law that unverified data never refuse alone."""

from __future__ import annotations

from collections.abc import Callable

from envbuild.model.facts import NodeFacts
from envbuild.model.resolution import Decision, Verdict
from envbuild.resolve.compat import Compat, Note
from envbuild.resolve.request import Request

Decisions = tuple[Decision, ...]
Check = Callable[[NodeFacts, Request, Compat], Decisions]
NOTHING: Decisions = ()
OURS = Note("envbuild: what a node must have to build on", "2026-11-20")


def decision(
    rule: str,
    verdict: Verdict,
    what: str,
    compared: tuple[str, str],
    note: Note,
    instead: str | None = None,
    torch: str | None = None,
) -> Decision:
    """One decision. A refusal that rests on data which are not firm becomes a warning that says so."""
    if verdict == "refuse" and not note.firm:
        verdict, what = "warn", f"{what} (by data that are not verified, so it is not refused)"
    return Decision(
        rule=rule,
        verdict=verdict,
        what=what,
        compared=compared,
        source=note.source,
        verified=note.verified,
        instead=instead,
        torch=torch,
    )


def refused(decisions: Decisions) -> bool:
    """True when one of them refuses."""
    return "refuse" in [item.verdict for item in decisions]  # asked ten times a node
