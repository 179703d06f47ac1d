"""Images. `image dockerfile --check` over all shipped stacks; goal: < 1 s CPU in all."""

from __future__ import annotations

from benchmarks.measure import Case, measure, print_table, program, spread


def main() -> None:
    """Measure and print."""
    command = [program("envbuild"), "image", "dockerfile", "--check"]
    (sample,) = measure([Case("envbuild image dockerfile --check", command)], runs=7).values()
    print_table(
        "generated containers/ against the locks, six stacks (n = 7)",
        ["command", "wall s", "CPU s", "goal"],
        [["envbuild image dockerfile --check", spread(sample.wall), spread(sample.cpu), "< 1 s CPU"]],
    )


if __name__ == "__main__":
    main()
