"""README of a kit: each claim with its command, what to expect, what was found, and what it costs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from envbuild.catalog.loader import list_stacks
from envbuild.kit.manifest import Manifest
from envbuild.model.evidence import Check, Evidence
from envbuild.report.claimed import SAME
from envbuild.report.equality import sentence
from envbuild.report.render import shown, template
from envbuild.report.sections.claims import Claim
from envbuild.report.verdict import all_checks
from envbuild.report.view import View
from envbuild.text import plural

README = "README.md"
UNKNOWN = "not measured"
# Ended by `timeout` in any case, so that "under 30 minutes" holds.
KICK = "timeout 30m envbuild provision torch-smoke --target local"


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


def lock_name(evidence: Evidence) -> str:
    """What the lock of a report is called in its kit."""
    return f"{evidence.stack}.{evidence.profile}.lock.toml"


def stack_name(evidence: Evidence) -> str:
    """What the file of a stack of the authors' own is called in a kit."""
    return f"{evidence.stack}.yaml"


def readme(manifest: Manifest, evidence: Evidence, *, signed: bool, own: bool) -> bytes:
    """The text; `own`: whether the kit has the file of a stack that envbuild does not ship."""
    view = shown(evidence)
    return template("kit.md.j2").render(
        view=view, kit=manifest, signed=signed, lock_name=lock_name(evidence), kick=KICK, run=commands(view),
        own=stack_name(evidence) if own else "", rows=rows(view), shipped=evidence.stack in list_stacks(),
        gpus=sum(len(node.facts.gpus) for node in evidence.nodes if node.facts),
    ).encode()  # fmt: skip


def commands(view: View) -> Commands:
    """The commands of a run; the one that was given stands for its own verb."""
    given, verify = view.commands
    own = {"provision": "provision", "bench": "figures", "strategy": "figures", "smoke": "figures"}
    words = {verb: verify.replace("envbuild verify", f"envbuild {verb}", 1) for verb in ("provision", "smoke")}
    run = {"provision": words["provision"], "verify": verify, "figures": words["smoke"]}
    if view.evidence.verb in own:
        run[own[view.evidence.verb]] = given
    return Commands(**run)


def rows(view: View) -> tuple[Row, ...]:
    """The contents first, then every figure that has a claim or a floor."""
    run = commands(view)
    claims = (claim for claim in view.claims if claim.claimed != "–" or claim.floor != "–")
    figures = (_figure(view.evidence, claim, run) for claim in claims)
    return (*_contents(view.evidence, run), *_smoke(view.evidence, run), *figures)


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
    expected = f"at least {claim.floor} {claim.unit}"
    if claim.floor == "–":
        worse = f"or no more than {100 - 100 * SAME:.0f} % worse, on what it was claimed for"
        expected = f"{claim.claimed} {claim.unit}, {worse}"
    here = f"{claim.measured} {claim.unit}; {claim.says}"
    hours = claim.gpu_hours
    if hours == "–":
        hours = _hours(evidence, lambda check: any(metric.name == claim.name for metric in check.metrics))
    return Row(f"{claim.name}, {claim.where}", run.figures, expected, here, hours)


def _hours(evidence: Evidence, counts: Callable[[Check], bool]) -> str:
    """GPUs of the nodes times what these checks took; an hour of a GPU counts whether it was busy or not."""
    checks = [(node.facts, check.seconds) for node in evidence.nodes for check in node.checks if counts(check)]
    known = [len(facts.gpus) * seconds for facts, seconds in checks if facts is not None and seconds is not None]
    if not known or len(known) < len(checks):
        return UNKNOWN
    return f"{sum(known) / 3600:.2g}" if any(known) else "none"
