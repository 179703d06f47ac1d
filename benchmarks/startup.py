"""Start-up: CPU time of short commands over a bare interpreter.

Goals: `--version` and `envbuild` alone <= 4x, `--help` <= 10x, a completed name <= 60 ms more;
`plan` and `explain` of one node from recorded facts <= 28x: a quarter of a second where the interpreter takes 9 ms.
"""

from __future__ import annotations

import os
import sys

from benchmarks.measure import Case, measure, print_table, program, ratio, spread

_TAB = {"_ENVBUILD_COMPLETE": "bash_complete", "COMP_WORDS": "envbuild provision --target ", "COMP_CWORD": "3"}
_RECORDED = ("--target", "azure-nd96", "--facts", "azure-nd96")


def main() -> None:
    """Measure and print."""
    envbuild = program("envbuild")
    cases = [
        Case("python -c pass", [sys.executable, "-c", "pass"]),
        Case("envbuild --version", [envbuild, "--version"]),
        Case("envbuild", [envbuild]),
        Case("tab after --target", [envbuild], env={**os.environ, **_TAB}),
        Case("envbuild --help", [envbuild, "--help"]),
        Case("envbuild stack list", [envbuild, "stack", "list"]),
        Case("envbuild plan", [envbuild, "plan", *_RECORDED]),
        Case("envbuild explain", [envbuild, "explain", "opt-175b", *_RECORDED]),
    ]
    samples = measure(cases, runs=15, warmup=2)
    bare = samples["python -c pass"].cpu
    goals = {"envbuild --version": "<= 4", "envbuild": "<= 4", "envbuild --help": "<= 10"}
    goals["tab after --target"] = "<= 60 ms over python"
    goals |= dict.fromkeys(("envbuild plan", "envbuild explain"), "<= 28")
    print_table(
        "start-up, CPU seconds (n = 15)",
        ["command", "median (least-greatest)", "ratio", "goal"],
        [[name, spread(s.cpu), f"{ratio(s.cpu, bare):.1f}", goals.get(name, "")] for name, s in samples.items()],
    )


if __name__ == "__main__":
    main()
