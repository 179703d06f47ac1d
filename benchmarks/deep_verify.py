"""Deep verify: bytes per second against `sha256sum` over the same files on all cores. Goal: >= 0.8x.

Measures the environment of torch-smoke that is in use on this machine (`make provision` builds it).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Case, measure, print_table, program, ratio, spread


def main() -> None:
    """Measure and print."""
    found = subprocess.run([program("envbuild"), "env", "activate", "--json"], capture_output=True, check=False)
    if found.returncode:
        sys.exit("no environment of torch-smoke is in use; `make provision` builds one")
    path = json.loads(found.stdout)["path"]
    size = json.loads(Path(path, ".envbuild/stamp.json").read_text())["bytes"]
    every = f"cd {path} && find . -type f -print0 | xargs -0 -n 64 -P {os.cpu_count()} sha256sum"
    cases = [
        Case("envbuild verify", [program("envbuild"), "verify", "--quiet"]),
        Case("sha256sum, all cores", ["sh", "-c", every]),
    ]
    ours, theirs = measure(cases, runs=5).values()
    rows = [
        [case.name, spread(sample.wall), f"{size / sorted(sample.wall)[len(sample.wall) // 2] / 1e6:.0f}"]
        for case, sample in zip(cases, (ours, theirs), strict=True)
    ]
    rows[0] += [f"{ratio(theirs.wall, ours.wall):.2f}x", ">= 0.8x"]
    rows[1] += ["1", ""]
    print_table(
        f"deep verify of {size / 1e6:.0f} MB, page cache warm (n = 5)",
        ["command", "wall s", "MB/s", "throughput", "goal"],
        rows,
    )


if __name__ == "__main__":
    main()
