"""Start-up: CPU time of `--version` and `--help` over a bare interpreter. Goals: <= 4x and <= 10x."""

from __future__ import annotations

import sys

from benchmarks.measure import Case, measure, print_table, program, ratio, spread


def main() -> None:
    """Measure and print."""
    envbuild = program("envbuild")
    cases = [
        Case("python -c pass", [sys.executable, "-c", "pass"]),
        Case("envbuild --version", [envbuild, "--version"]),
        Case("envbuild --help", [envbuild, "--help"]),
        Case("envbuild stack list", [envbuild, "stack", "list"]),
    ]
    samples = measure(cases, runs=15, warmup=2)
    bare = samples["python -c pass"].cpu
    goals = {"envbuild --version": "<= 4", "envbuild --help": "<= 10"}
    print_table(
        "start-up, CPU seconds (n = 15)",
        ["command", "median (least-greatest)", "ratio", "goal"],
        [[name, spread(s.cpu), f"{ratio(s.cpu, bare):.1f}", goals.get(name, "")] for name, s in samples.items()],
    )


if __name__ == "__main__":
    main()
