"""What a reviewer can try, as rows: claim, the command that tries it, what is to be expected, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from envbuild.model.evidence import Check, Evidence
from envbuild.report.claimed import SAME
from envbuild.report.equality import sentence
from envbuild.report.sections.claims import Claim, claims
from envbuild.report.verdict import all_checks
from envbuild.report.view import make_view
from envbuild.text import plural

UNKNOWN = "not measured"


@dataclass(frozen=True)
class Row:
    """One claim; `here` is what this run found, `hours` GPU-hours as measured, `none` or `not measured`."""

    claim: str
    command: str
    expected: str
    here: str
    hours: str


@dataclass(frozen=True)
class Commands:
    """What builds the environment, reads it, and tries its figures, for the same stack and place."""

    provision: str
    verify: str
    figures: str


def commands(evidence: Evidence) -> Commands:
    """The commands of a run; the one that was given stands for its own verb."""
    given, verify = make_view(evidence).commands
    own = {"provision": "provision", "bench": "figures", "strategy": "figures", "smoke": "figures"}.get(evidence.verb)
    words = {verb: verify.replace("envbuild verify", f"envbuild {verb}", 1) for verb in ("provision", "smoke")}
    found = {"provision": words["provision"], "verify": verify, "figures": words["smoke"]}
    return Commands(**(found | ({own: given} if own else {})))


def rows(evidence: Evidence) -> tuple[Row, ...]:
    """The contents first, then every figure that has a claim or a floor."""
    run = commands(evidence)
    compared = (claim for claim in claims(evidence) if claim.compared)
    return (*_contents(evidence, run), *_smoke(evidence, run), *(_figure(evidence, claim, run) for claim in compared))


def _contents(evidence: Evidence, run: Commands) -> Iterator[Row]:
    rooted = [node for node in evidence.nodes if node.root]
    if rooted:
        roots = ", ".join(dict.fromkeys(str(node.root)[:12] for node in rooted))
        levels = ", ".join(dict.fromkeys(str(node.root_level or "stamped") for node in rooted))
        here = sentence(evidence) or f"{plural(len(rooted), 'node')}, root {roots} ({levels})"
        expected = f"exit code 0, and the Merkle root {roots} with the same variant and interpreter version"
        yield Row("the environment holds what the lock says", run.verify, expected, here, "none")


def _smoke(evidence: Evidence, run: Commands) -> Iterator[Row]:
    ran = [check for check in all_checks(evidence) if check.name.startswith("smoke/") and check.status != "not-run"]
    if ran:
        counts = Counter(check.status for check in ran)
        here = ", ".join(f"{count} {status}" for status, count in counts.items())
        hours = _hours(evidence, lambda check: check in ran)
        yield Row("it computes: the smoke test of the lock", run.figures, "exit code 0, no check failed", here, hours)


def _figure(evidence: Evidence, claim: Claim, run: Commands) -> Row:
    if claim.floor != "–":
        expected = f"at least {claim.floor} {claim.unit}"
    elif claim.claimed == "–":
        expected = "nothing: no figure is published for this"
    else:
        expected = (
            f"{claim.claimed} {claim.unit}, or no more than {100 - 100 * SAME:.0f} % worse, on what it was claimed for"
        )
    here = f"{claim.measured} {claim.unit}; {claim.says}"
    hours = claim.gpu_hours
    if hours == "–":
        hours = _hours(evidence, lambda check: any(metric.name == claim.name for metric in check.metrics))
    return Row(f"{claim.name}, {claim.where}", run.figures, expected, here, hours)


def _hours(evidence: Evidence, counts: Callable[[Check], bool]) -> str:
    """GPUs of the nodes times what these checks took; an hour of a GPU counts whether it was busy or not."""
    found = [(node.facts, check.seconds) for node in evidence.nodes for check in node.checks if counts(check)]
    known = [len(facts.gpus) * seconds for facts, seconds in found if facts is not None and seconds is not None]
    if not known or len(known) < len(found):
        return UNKNOWN
    return f"{sum(known) / 3600:.2g}" if any(known) else "none"
