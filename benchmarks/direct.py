"""A cold `provision --target local` of one small package, its steps called directly and through the playbook."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import Case, measure, print_table, program, ratio, spread
from benchmarks.noop import small_stack


def main() -> None:
    """Build into an empty prefix again and again, both ways in turn."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder, "prefix")
        stack = small_stack(Path(folder))
        env = {**os.environ, "ENVBUILD_RUNS": f"{folder}/runs"}
        command = [
            program("envbuild"),
            "provision",
            "--target",
            "local",
            "--stack",
            str(stack),
            "--prefix",
            str(prefix),
        ]
        subprocess.run([program("envbuild"), "lock", "create", str(stack)], env=env, check=True, capture_output=True)

        def empty() -> None:
            shutil.rmtree(prefix, ignore_errors=True)

        cases = [
            Case("steps called directly", command, before=empty, env=env),
            Case("--ansible", [*command, "--ansible"], before=empty, env=env),
        ]
        samples = measure(cases, runs=7)
    ours, ansible = samples.values()
    print_table(
        "a cold provision of one small package (n = 7)",
        ["command", "wall s", "CPU s", "wall ratio", "CPU ratio"],
        [
            [cases[0].name, spread(ours.wall), spread(ours.cpu), f"{ratio(ours.wall, ansible.wall):.2f}",
             f"{ratio(ours.cpu, ansible.cpu):.2f}"],
            [cases[1].name, spread(ansible.wall), spread(ansible.cpu), "1", "1"],
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
