"""What the evidence holds for each badge of an artifact evaluation. Reviewers award them, never envbuild."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.utils import canonicalize_name

from envbuild.model.evidence import Evidence
from envbuild.report.sections.claims import Claim
from envbuild.report.sections.pins import Pin
from envbuild.report.sources import built_names
from envbuild.report.verdict import GOOD, all_checks, of_logs
from envbuild.text import plural


@dataclass(frozen=True)
class Badge:
    """One badge, the tone of its evidence, and the evidence in lines."""

    name: str
    tone: str
    says: tuple[str, ...]


def badges(evidence: Evidence, found: tuple[Claim, ...], pins: tuple[Pin, ...]) -> tuple[Badge, ...]:
    """Available, Functional, Reproduced."""
    return _available(evidence, pins), _functional(evidence), _reproduced(found)


def _available(evidence: Evidence, pins: tuple[Pin, ...]) -> Badge:
    every = (source for node in evidence.nodes for source in node.sources)
    sources = {(str(each.get("name")), bool(each.get("commit")), bool(each.get("tree"))) for each in every}
    pinned = sum(commit and tree for _, commit, tree in sources)
    due = {canonicalize_name(pin.name) for pin in pins}.difference(*map(built_names, evidence.nodes))
    hashed = due - {canonicalize_name(pin.name) for pin in pins if pin.sha256 in ("", "unrecorded")}
    says = [f"{len(hashed):,} of {plural(len(due), 'package')} by sha256"] if hashed else []
    says += [f"{pinned} of {plural(len(sources), 'source')} by commit and tree"] if sources else []
    whole = bool(hashed) and hashed == due and pinned == len(sources)
    return Badge(
        "Available", "green" if whole else "amber", tuple(says) or ("no hash and no commit is in the evidence",)
    )


def _functional(evidence: Evidence) -> Badge:
    good = sum(node.status in GOOD for node in evidence.nodes)
    checks = all_checks(evidence)
    passed, failed = (sum(check.status == status for check in checks) for status in ("passed", "failed"))
    says = [
        f"{good} of {plural(len(evidence.nodes), 'node')} ready",
        f"{plural(passed, 'check')} passed, {failed} failed",
    ]
    skipped = len(checks) - passed - failed
    says += [f"{skipped} not run"] if skipped else []
    bad = failed or good < len(evidence.nodes)
    if of_logs(evidence) and not bad:
        return Badge("Functional", "amber", ("nothing ran here: a log was read",))
    return Badge("Functional", "red" if bad else "green" if passed else "amber", tuple(says))


def _reproduced(found: tuple[Claim, ...]) -> Badge:
    told = [claim for claim in found if claim.claimed != "–"]
    floors = [claim for claim in found if claim.floor != "–"]
    says = [f"{sum(c.tone == 'green' for c in told)} of {plural(len(told), 'claim')} reached"] if told else []
    for verdict, words in (("not comparable", "not comparable"), ("above the claim", "far above")):
        count = sum(claim.verdict == verdict for claim in told)
        says += [f"{plural(count, 'claim')} {words}"] if count else []
    says += [f"{sum(c.tone == 'green' for c in floors)} of {plural(len(floors), 'floor')} held"] if floors else []
    if not told:
        says.append("no claim of the document was measured in this run")
    tones = {claim.tone for claim in (*told, *floors)}
    return Badge(
        "Reproduced", "red" if "red" in tones else "amber" if not told or "amber" in tones else "green", tuple(says)
    )
