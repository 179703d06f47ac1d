"""No-op: a second `provision` against a bare `ansible -m ping localhost`. Goal: <= 0.6x, with no step carried out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Case, measure, print_table, program, ratio, spread


def main() -> None:
    """Provision a tiny stack once, then time the runs that have nothing to do."""
    with tempfile.TemporaryDirectory() as folder:
        stack = small_stack(Path(folder))
        env = {**os.environ, "ENVBUILD_PREFIX": f"{folder}/prefix", "ENVBUILD_RUNS": f"{folder}/runs"}
        command = [program("envbuild"), "provision", "--target", "local", "--stack", str(stack), "--json"]
        subprocess.run([program("envbuild"), "lock", "create", str(stack)], env=env, check=True, capture_output=True)
        subprocess.run(command, env=env, check=True, capture_output=True)
        again = subprocess.run(command, env=env, check=True, capture_output=True)
        tasks = json.loads(again.stdout)["steps_run"]
        ansible_env = {**env, "ANSIBLE_LOCALHOST_WARNING": "False"}
        cases = [
            Case("envbuild provision (nothing to do)", command, env=env),
            Case(
                "ansible -m ping localhost",
                [program("ansible"), "-m", "ping", "localhost", "-e", f"ansible_python_interpreter={sys.executable}"],
                env=ansible_env,
            ),
        ]
        samples = measure(cases, runs=7)
    ours, ping = samples.values()
    print_table(
        f"no-op, {tasks} steps (n = 7)",
        ["command", "wall s", "CPU s", "wall ratio", "CPU ratio", "goal"],
        [
            [cases[0].name, spread(ours.wall), spread(ours.cpu), f"{ratio(ours.wall, ping.wall):.2f}",
             f"{ratio(ours.cpu, ping.cpu):.2f}", "<= 0.6"],
            [cases[1].name, spread(ping.wall), spread(ping.cpu), "1", "1", ""],
        ],
    )  # fmt: skip


def small_stack(folder: Path) -> Path:
    """A stack of one small package for the interpreter that runs this."""
    path = folder / "small.yaml"
    path.write_text(
        "name: small\nsummary: one small package\nprofiles:\n  exact:\n"
        f"    python: ['{sys.version_info[0]}.{sys.version_info[1]}']\n"
        "    packages: [six==1.16.0]\n    imports: [six]\n"
    )
    return path


if __name__ == "__main__":
    main()
