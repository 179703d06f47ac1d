"""What an error code means: `envbuild help CODE`, from the table of docs/reference/errors.md and the rules."""

from __future__ import annotations

import inspect
import re

from envbuild import resources
from envbuild.errors import ExitCode
from envbuild.regular_file import read_text

# What a code means whose messages are those of the check or program that failed.
_MEANS = {
    "below-floor": "a measured figure is below its floor: the environment works, and is slower than it has to be",
    "build-failed": "a source could not be compiled or installed; the environment in use stays in use",
    "check-failed": "a check of the environment failed",
    "drift": "a file, package or commit of the environment differs from its lock or stamp; `envbuild verify STACK` "
    "names each, and `envbuild provision STACK --repair` builds the environment again",
    "smoke-failed": "a smoke test failed",
    "step-failed": "a step of the plan failed on a node",
}


def explanation(code: str) -> str:
    """Its exit code, and for each of its messages the cause and the next step; empty where no error has this code."""
    rows = [row for row in _rows() if row[0] == code]
    rule = _of_rule(code)
    if not rows:
        return rule
    lines = [f"{code}: {_ending({row[1] for row in rows})}", *([f"  {_MEANS[code]}"] if code in _MEANS else ())]
    for _, _, what, why, hint in rows:
        if code in _MEANS and not re.search("[a-z]{2}", what):
            continue
        labelled = [
            (label, text)
            for label, text in (("", what), ("  why:  ", why), ("  hint: ", hint))
            if re.search("[a-z]{2}", text)
        ]
        lines += ["", *(f"  {label}{text}" for label, text in labelled)] if labelled else []
    return "\n".join(
        [
            *lines,
            "",
            "Capitals and … stand for names, numbers and texts of the failure itself.",
            *(["", rule] if rule else ()),
        ]
    )


def codes() -> list[str]:
    """Every code that an error can have."""
    return sorted({row[0] for row in _rows()} | _rules().keys())


def _ending(numbers: set[str]) -> str:
    """`exit code 75 (try again)`; a "…" where the exit code is that of the check which failed."""
    known = [f"{number} ({ExitCode(int(number)).name.lower().replace('_', ' ')})" for number in sorted(numbers - {"…"})]
    return f"exit code {' or '.join(known)}" if known else "the exit code depends on what failed"


def _rows() -> list[list[str]]:
    """Code, exit code, what, why and hint of each row, without the escapes of Markdown."""
    lines = read_text(resources.error_table()).splitlines()
    rows = [re.split(r" (?<!\\)\| ", line.removeprefix("| ").removesuffix(" |")) for line in lines if line[:3] == "| `"]
    plain = [
        [cell.strip().replace("\\|", "|").replace("\\[", "[").replace("&lt;", "<") for cell in row] for row in rows
    ]
    return [[row[0].strip("`"), *row[1:]] for row in plain]


def _of_rule(code: str) -> str:
    says = _rules().get(code, "")
    return f"{code}: a rule that decides which variant fits a node (a refusal: exit code 7)\n\n{says}" if says else ""


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
