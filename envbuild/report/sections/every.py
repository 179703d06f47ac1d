"""All of it for one page."""

from __future__ import annotations

from dataclasses import dataclass

from envbuild.model.evidence import Evidence
from envbuild.report.pictures.draw import Picture
from envbuild.report.pictures.every import pictures
from envbuild.report.sections.badges import Badge, badges
from envbuild.report.sections.claims import Claim, claims
from envbuild.report.sections.gaps import Gap, gaps
from envbuild.report.sections.outliers import Outliers, outliers
from envbuild.report.sections.pins import Pin, pins
from envbuild.report.view import NodeClass, classes
from envbuild.text import grouped, plural


@dataclass(frozen=True)
class Sections:
    """`level` says how sure the contents are, and when they were looked at."""

    level: str
    claims: tuple[Claim, ...]
    badges: tuple[Badge, ...]
    pins: tuple[Pin, ...]
    classes: tuple[NodeClass, ...]
    outliers: Outliers | None
    gaps: tuple[Gap, ...]
    pictures: tuple[Picture, ...]


def sections(evidence: Evidence) -> Sections:
    """Everything that is made from the evidence for a page. Pure."""
    told, locked, alike = claims(evidence), pins(evidence), classes(evidence.nodes)
    return Sections(
        level=" ".join(filter(None, (_level(evidence), _compared(told)))),
        claims=told,
        badges=badges(evidence, told, locked),
        pins=locked,
        classes=alike,
        outliers=outliers(evidence.nodes, alike),
        gaps=gaps(evidence, told, locked),
        pictures=pictures(evidence),
    )


def _compared(told: tuple[Claim, ...]) -> str:
    """How the claims of a document came out; empty where none was measured."""
    words = [claim.verdict.replace(" the claim", " its claim") for claim in told if claim.claimed != "–"]
    said = ", ".join(f"{len(alike)} {word}" for word, alike in grouped(words, str).items())
    return f"{plural(len(words), 'claim')}: {said}." if said else ""


def _level(evidence: Evidence) -> str:
    """`Contents measured on 2 nodes, 2026-03-02 10:00 UTC.`"""
    rooted = [node for node in evidence.nodes if node.root]
    measured = sum(node.root_level == "measured" for node in rooted)
    if not rooted:
        return "Contents not checked."
    when = f"{evidence.finished[:10]} {evidence.finished[11:16]} UTC"
    if measured == len(rooted):
        return f"Contents measured on {plural(measured, 'node')}, {when}."
    if measured:
        return f"Contents measured on {measured} of {plural(len(rooted), 'node')}, {when}; stamped on the others."
    return f"Contents stamped on {plural(len(rooted), 'node')}, not measured in this run."
