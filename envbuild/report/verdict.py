"""The headline of a run: one sentence, as sure as the checks allow, and one with counts. No markup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from envbuild.catalog.loader import list_stacks, load_stack
from envbuild.errors import ExitCode
from envbuild.model.common import LEFT_OUT
from envbuild.model.evidence import Check, Evidence, NodeEvidence
from envbuild.report.claimed import is_far_above
from envbuild.text import few, grouped, number, plural

# Details of checks whose sentences are warnings of the run.
GPU_WARNINGS = ("gpus_in_use", "slow_gpus")
Tone = Literal["good", "partial", "bad"]
# Verbs that look at what another run has made.
LOOKING = frozenset({"verify", "smoke", "bench", "strategy"})
GOOD = frozenset({"ok", "unchanged"})
# Checks that read contents; which of the two there is depends on where the environment lies.
_CONTENTS = ("files", "pack")


@dataclass(frozen=True)
class Verdict:
    """One sentence, its tone, and a second one with counts."""

    sentence: str
    detail: str
    tone: Tone


def node_checks(evidence: Evidence) -> list[tuple[NodeEvidence, Check]]:
    """The checks of all nodes, each with its node."""
    return [(node, check) for node in evidence.nodes for check in node.checks]


def all_checks(evidence: Evidence) -> list[Check]:
    """The checks of all nodes."""
    return [check for _, check in node_checks(evidence)]


def make_verdict(evidence: Evidence) -> Verdict:
    """Whether the run succeeded, and if not the first problem, in one sentence."""
    name = f"{evidence.stack} ({evidence.profile})"
    # Nodes that were not begun are so because others failed.
    bad = sorted((node for node in evidence.nodes if node.status not in GOOD), key=lambda n: n.status == "not-begun")
    failed = [check for check in all_checks(evidence) if check.status == "failed"]
    count = len(evidence.nodes)
    if evidence.exit == ExitCode.OK and not bad and not failed:
        # Asked whether it is what it was, "nobody looked" is no yes.
        asked = (
            (evidence.verb == "verify" and _unread(evidence))
            or (evidence.verb == "smoke" and any(map(_none_passed, evidence.nodes)))
            or of_logs(evidence)
            or any(map(far_above, all_checks(evidence)))
            or doubts(evidence)
            or any(check.details.get("differed") for check in all_checks(evidence))
        )
        good: Tone = "partial" if asked else "good"
        sentence = " ".join((_good_sentence(evidence, name, plural(count, "node")), *_taken_for_granted(evidence)))
        return Verdict(sentence, _counts(evidence), good)
    tone: Tone = "partial" if len(bad) < count and evidence.exit == ExitCode.PARTIAL else "bad"
    if bad:
        where = f"{len(bad)} of {plural(count, 'node')}" if count > 1 else bad[0].node
        sentence = f"{name} {_state(bad[0])} on {where}: {_reason(bad[0], count)}."
    elif failed:
        sentence = f"{name} fails {plural(len(failed), 'check')}: {failed[0].name}: {failed[0].says.rstrip('.')}."
    else:
        sentence = f"{name} ended with exit code {evidence.exit}, {exit_meaning(evidence.exit)}."
    return Verdict(sentence, _counts(evidence), tone)


def _state(node: NodeEvidence) -> str:
    """What is said of a node that failed; a run that failed says nothing of the environment below it."""
    own = next((check for check in node.checks if check.name == "bench" and check.status == "failed"), None)
    if own is None:
        return "is not ready"
    return "is below its claim" if own.details.get("only_floors") else "failed its own run"


def _good_sentence(evidence: Evidence, name: str, where: str) -> str:
    unread = _unread(evidence)
    passed = sum(check.status == "passed" for check in all_checks(evidence))
    if evidence.verb == "verify":
        if unread:
            return f"{_last_read(unread)}: {name} on {where} has the stamp of its lock and the stamped packages."
        if all(node.root_level == "measured" for node in evidence.nodes):
            return f"{name} on {where} matches its stamp for this lock: every file that the root covers was read."
        sentences = "; ".join(dict.fromkeys(check.says for check in all_checks(evidence)))
        return f"{name} on {where}: {sentences or 'no check ran'}."
    if evidence.verb == "bench":
        ran = "did not run here; its log says" if of_logs(evidence) else f"ran on {where}:"
        return f"{name} {ran} {_measured(evidence)}."
    if evidence.verb == "strategy":
        searches = (check.says for check in all_checks(evidence) if check.name == "strategy")
        return f"{name} ran on {where}: {next(searches, 'nothing was tried')}."
    if evidence.verb == "smoke":
        alike = grouped(evidence.nodes, _smoked)
        did = (f"{what} on {plural(len(nodes), 'node')}" for what, nodes in alike.items())
        return f"{name} {', '.join(did)}."
    if evidence.nodes and all(node.status == "unchanged" for node in evidence.nodes):
        read = f"; {_last_read(unread)}" if unread else ""
        return f"{name} was already in place on {where}, by its stamp{read}."
    checked = f"{plural(passed, 'check')} passed" if passed else "no check ran"
    some = f"; contents not read on {len(unread)} of {where}" if unread else ""
    return f"{name} is provisioned on {where}; {checked}{some}."


def _smoked(node: NodeEvidence) -> str:
    """What a smoke test came to on a node where nothing failed: of the whole one, or of what it was limited to."""
    restrictions = (check.details.get("only") for check in node.checks if check.name == "smoke/only")
    only = ", ".join(dict.fromkeys(str(name) for names in restrictions if isinstance(names, list) for name in names))
    if _none_passed(node):
        return f"ran no check of {only}" if only else "ran no check"
    return f"passes {only or 'its smoke test'}"


def _none_passed(node: NodeEvidence) -> bool:
    return not any(check.status == "passed" and computed(check) for check in node.checks)


def of_logs(evidence: Evidence) -> list[Check]:
    """The checks that read a log of a run elsewhere: nothing ran on this machine."""
    return [check for check in all_checks(evidence) if check.name == "bench" and check.level == "not-checked"]


def computed(check: Check) -> bool:
    """Whether the check is of a program that ran in the environment: a smoke test, or the stack's own run."""
    return check.name.startswith("smoke/") or check.name.split()[0] in ("bench", "trial")


def far_above(check: Check) -> bool:
    """Whether a figure is too far above its claim to come from the same work."""
    lower = any(metric.lower_is_better for metric in check.metrics)
    return check.comparison is not None and is_far_above(check.comparison, lower_is_better=lower)


def _measured(evidence: Evidence) -> str:
    """The figure of a stack's own run and what it says beside its claim."""
    comparison = next((check.comparison for check in all_checks(evidence) if check.comparison is not None), None)
    if comparison is None:
        return "nothing was measured"
    return f"{number(comparison.measured, comparison.claim)} {comparison.unit}, {comparison.why}"


def _unread(evidence: Evidence) -> list[Check]:
    """The checks of contents that were not made, one of each node at most."""
    return [check for check in all_checks(evidence) if check.name in _CONTENTS and check.level == "not-checked"]


def _last_read(unread: list[Check]) -> str:
    """That contents were not read, and when they were: of several nodes the longest ago."""
    oldest = min(unread, key=lambda check: str(check.details.get("read_at") or ""))
    at, differed = oldest.details.get("read_at"), any(check.details.get("differed") for check in unread)
    if not at:
        return "contents not read"
    later = " or later" if len({check.details.get("read_at") for check in unread}) > 1 else ""
    return f"contents not read; last read on {at}{later}{', and differed from the stamp then' if differed else ''}"


def _taken_for_granted(evidence: Evidence) -> list[str]:
    """What a reader would think was checked and was not, as one more sentence; empty where there is nothing."""
    unchecked = [_shown(check) for check in all_checks(evidence) if check.level == "not-checked"]
    elsewhere = {_shown(check) for check in (*_unread(evidence), *of_logs(evidence))}
    rest = [text for text in dict.fromkeys(unchecked) if text not in elsewhere]
    return doubts(evidence) + ([f"Not checked: {'; '.join(rest)}."] if rest else [])


def _shown(check: Check) -> str:
    """What a check says; its name where that is not published."""
    return check.name if check.says == LEFT_OUT else check.says


def doubts(evidence: Evidence) -> list[str]:
    """Why good checks do not show that the code works, a sentence each: what misses, changed or failed."""
    missing = open_modules(evidence)
    says = [f"Missing: {plural(len(missing), 'module')} that its code imports, {few(missing, 4)}."] if missing else []
    if any(check.details.get("unimported") for check in all_checks(evidence)):
        says.append("None of its code was imported.")
    if changed := code_changed(evidence):
        says.append(f"Changed after the smoke test: {plural(changed, 'file')} of code.")
    for at, failed in failed_before(evidence).items():
        says.append(f"Failed in the smoke test of {at}: {few(failed, 2, '; ').rstrip('.')}.")
    if changed:
        says.append("The smoke test did not run again.")
    return says


def no_document(evidence: Evidence) -> str:
    """What is said of a shipped stack without a document; of another stack, the evidence does not know."""
    maybe = evidence.stack not in list_stacks() or load_stack(evidence.stack).stack.document is not None
    return "" if maybe or evidence.findings else "the stack has no document, so there is no figure to reproduce"


def open_modules(evidence: Evidence) -> list[str]:
    """The modules that the code imports and no package provides."""
    return sorted({str(name) for check in all_checks(evidence) for name in check.details.get("open") or ()})


def failed_before(evidence: Evidence) -> dict[str, list[str]]:
    """What failed in earlier smoke tests and was not good since, by date."""
    failed = dict[str, list[str]]()
    for check in all_checks(evidence):
        if "failed_at" in check.details:
            says = failed.setdefault(str(check.details["failed_at"]), [])
            what = str(check.details.get("failed") or check.name)  # a published report has the date alone
            says += [what] * (what not in says)
    return failed


def code_changed(evidence: Evidence) -> int:
    """How many files of working trees are not as the last smoke test has read them, on the node with the most."""
    counts = ([int(check.details.get("code_changed") or 0) for check in node.checks] for node in evidence.nodes)
    return max(map(sum, counts), default=0)


def _reason(node: NodeEvidence, count: int) -> str:
    what = str((node.error or {}).get("what") or "")
    # Most errors of a node begin with its name.
    if what.startswith(f"{node.node} ") and count > 1:
        return what.rstrip(".")
    return f"{node.node}: {reason(node)}" if count > 1 else reason(node)


def reason(node: NodeEvidence) -> str:
    """Why a node is not good, without its name."""
    if node.error:
        what = str(node.error.get("what") or node.error.get("code") or node.status)
        return what.removeprefix(f"{node.node}: ").rstrip(".")
    failed = [check for check in node.checks if check.status == "failed"]
    if failed:
        return f"{failed[0].name}: {failed[0].says}".rstrip(".")
    return f"{node.status}, {exit_meaning(node.exit)}"


def exit_meaning(code: int) -> str:
    """An exit code in words."""
    try:
        return ExitCode(code).name.lower().replace("_", " ")
    except ValueError:
        return "an unknown code"


def _counts(evidence: Evidence) -> str:
    checks = all_checks(evidence)
    words = []
    for status in ("passed", "failed", "skipped", "not-run"):
        number = sum(check.status == status for check in checks)
        if number or status == "passed":
            words.append(f"{number:,} {status.replace('-', ' ')}")
    parts = ["Checks: " + ", ".join(words)]
    if evidence.deviations:
        parts.append(plural(len(evidence.deviations), "deviation"))
    if evidence.warnings:
        parts.append(plural(len(evidence.warnings), "warning"))
    return "; ".join(parts) + "."
