"""What a code or status means: `envbuild help CODE`, from the tables in docs/reference, the rules and the findings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from envbuild import resources
from envbuild.catalog.loader import list_stacks, load_stack
from envbuild.errors import ExitCode
from envbuild.regular_file import read_text

# What a code means whose messages are those of the check or program that failed.
_MEANS = {
    "below-floor": "a measured figure is below its floor: the environment works, and is slower than it has to be",
    "build-failed": "a source could not be compiled or installed; the environment in use stays in use",
    "check-failed": "a check of the environment failed",
    "drift": "a file, package or commit of the environment differs from its lock or stamp; `envbuild verify STACK` "
    "names each, and `envbuild provision STACK --repair` builds the environment again",
    "manifest-differs": "a field of the stack file is not what the lock was made from; `envbuild lock create STACK` "
    "makes the lock again",
    "package-yanked": "a locked version was withdrawn by its maker; it stays locked",
    "plan-unconfirmed": "the plan was shown and not carried out: it was declined, or no terminal could be asked",
    "python-open": "no file of the page names one Python: the draft takes the one that fits, and says why",
    "report-claim-differs": "the comparison with a claim does not follow from the values and the claim",
    "report-figure-differs": "a figure does not follow from the values behind it",
    "report-lock-invalid": "the lock in the report cannot be read, or its digests do not hold",
    "smoke-failed": "a smoke test failed",
    "stale-service": "the page uses a service, repository or file that is gone or was replaced",
    "step-failed": "a step of the plan failed on a node",
    "torch-absent": "the code or its packages need torch, and no file names it",
}
# The words of reports, plans and `--json` that are no codes.
STATUSES = {
    "ok": "status of a node: the command did its work, and no check failed",
    "unchanged": "status of a node: the environment in use is the wanted one already; no step ran",
    "failed": "status of a node or a check: a step or the check failed; its error says why",
    "unreachable": "status of a node: envbuild could not reach it, or got no answer",
    "refused": "status of a node: no variant of the lock fits it; `envbuild plan` names the rule",
    "not-begun": "status of a node: not started, because too many other nodes failed",
    "passed": "status of a check: what it looked at is as it must be",
    "skipped": "status of a check: it does not apply to this node; its sentence says why",
    "not-run": "status of a check: something before it failed, or could not be reached",
    "measured": "level of a check: envbuild read or measured it in this run",
    "stamped": "level of a check: envbuild took it from the stamp, and read no contents",
    "not-checked": "level of a check: nobody looked; the report lists it under what was not checked",
    "deviation": "word of a check that passed with a reservation: the report lists it, and the exit code stays 0",
    "working-tree": "name of a check: a source is a folder of yours, at this commit, with these changes",
    "closure": "name of a check, smoke/sound/closure: whether every module that the code imports is there",
    "reproduced": "verdict on a claim: on the same number of the same GPUs, the figure reaches at least 97 % of it",
    "below": "verdict on a claim: the figure is less than 97 % of it",
    "not-comparable": "verdict on a claim: another GPU, number of GPUs or launch than the claim's",
    "no-claim": "verdict on a claim: the document claims nothing for this run",
    "allow": "decision of a rule: the variant fits the node",
    "patch": "decision of a rule: the variant fits with a patch of its source",
    "warn": "decision of a rule: it works with a reservation, or a value is not verified",
    "refuse": "decision of a rule: the variant cannot work on the node",
    "wrong": "kind of a finding: the document is wrong, and was when it was written",
    "stale": "kind of a finding: it was right when the document was written, and is not now",
    "unpinned": "kind of a finding: the document names no version or commit",
    "trap": "kind of a finding: it works only in some places, or fails without a message",
    "note": "kind of a finding: worth knowing; nothing breaks",
}


def explanation(code: str) -> str:
    """What a code, an exit code or a status means; of an error its messages with cause and next step. Else empty."""
    parts = [f"{code}: {STATUSES[code]}"] if code in STATUSES else []
    parts += [*_of_errors(code), *_of_exit(code), *_of_rule(code), *_of_finding(code)]
    # The second finding of one rule in a draft.
    return "\n\n".join(parts) or (explanation(code[: match.start()]) if (match := re.search(r"-\d+$", code)) else "")


def _of_errors(code: str) -> Iterator[str]:
    rows = [row for row in _rows() if row[0] == code]
    if not rows:
        return
    lines = [f"{code}: {_ending({row[1] for row in rows})}", *([f"  {_MEANS[code]}"] if code in _MEANS else ())]
    for _, number, what, why, hint in rows:
        if code in _MEANS and not re.search("[a-z]{2}", what):
            continue
        label = "  draft: " if number == "none" else "  hint: "
        labelled = [
            (label, text)
            for label, text in (("", what), ("  why:  ", why), (label, hint))
            if re.search("[a-z]{2}", text)
        ]
        lines += ["", *(f"  {label}{text}" for label, text in labelled)] if labelled else []
    yield "\n".join([*lines, "", "Capitals and … stand for names, numbers and texts of the failure itself."])


def _of_exit(code: str) -> Iterator[str]:
    """Of an exit code all codes that end in it."""
    ending = sorted({row[0] for row in _rows() if row[1] == code})
    if ending or code in map(str, map(int, ExitCode)):
        yield f"{_ending({code})}{': ' * bool(ending)}{', '.join(ending)}"


def _of_finding(code: str) -> Iterator[str]:
    """Of a finding about the document of a shipped stack what `explain` says of it."""
    for name in list_stacks():
        for finding in load_stack(name).stack.findings:
            if finding.id == code:
                texts = (("says", finding.says), ("truth", finding.truth), ("does", finding.does))
                lines = [f"  {label + ':':7}{text}" for label, text in texts if text]
                yield "\n".join([f"{code}: a finding ({finding.severity}) about the document of {name}", "", *lines])


def codes() -> list[str]:
    """Every code of an error, a rule or a finding, and every status."""
    findings = {finding.id for name in list_stacks() for finding in load_stack(name).stack.findings}
    return sorted({row[0] for row in _rows()} | _rules().keys() | STATUSES.keys() | findings)


def _ending(numbers: set[str]) -> str:
    """`exit code 75 (try again)`; a "…" where the exit code is that of the check which failed."""
    if "none" in numbers:
        return "a finding of `envbuild init` and `up` about a setup page"
    known = [f"{number} ({ExitCode(int(number)).name.lower().replace('_', ' ')})" for number in sorted(numbers - {"…"})]
    return f"exit code {' or '.join(known)}" if known else "the exit code depends on what failed"


def _rows() -> list[list[str]]:
    """Code, exit code, what, why and hint of each row, without the escapes of Markdown."""
    lines = [line for page in resources.code_tables() for line in read_text(page).splitlines() if line[:3] == "| `"]
    rows = [re.split(r" (?<!\\)\| ", line.removeprefix("| ").removesuffix(" |")) for line in lines]
    plain = [
        [cell.strip().replace("\\|", "|").replace("\\[", "[").replace("&lt;", "<") for cell in row]
        for row in rows
        if len(row) == 5  # other tables of these pages have fewer
    ]
    return [[row[0].strip("`"), *row[1:]] for row in plain]


def _of_rule(code: str) -> Iterator[str]:
    if says := _rules().get(code):
        yield f"{code}: a rule that decides which variant fits a node (a refusal: exit code 7)\n\n{says}"


def _rules() -> dict[str, str]:
    """What each rule asks, by its name."""
    from envbuild.resolve.compat_read import load_compat
    from envbuild.resolve.engine import OF_NODE, RULES

    pairs = {row.id: f"{row.says}; what works: {row.fix}" for row in load_compat().package_rules}
    return {
        **pairs,
        **OF_NODE,
        **{rule: (inspect.getdoc(check) or "").partition(": ")[2] for rule, check in RULES.items()},
    }
