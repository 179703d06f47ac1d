"""`plan` of azure-nd96 from recorded facts: 1,024 nodes against one. Goals: CPU <= 2.4x, peak memory <= 2x.

The nodes differ in what no rule reads: names, addresses, GPU ids and free space.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Case, measure, print_table, program, ratio, spread
from envbuild import resources

_PEAK = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
_PEAK += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"


def _fleet(folder: Path, count: int) -> Path:
    """Facts of `count` nodes of one class."""
    one = json.loads((resources.catalog() / "facts" / "azure-nd96.json").read_text())
    nodes = []
    for number in range(count):
        node = json.loads(json.dumps(one))
        node["node"] = node["hostname"] = f"hpc-{number + 1}"
        node["prefix"]["free_bytes"] = 10**13 + number * 10**6
        for index, gpu in enumerate(node["gpus"]):
            gpu["uuid"] = f"GPU-{number}-{index}"
        nodes.append(node)
    path = folder / f"{count}.json"
    path.write_text(json.dumps(nodes))
    return path


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as top:
        cases = [
            Case(str(count), [program("envbuild"), "plan", "--target", "azure-nd96", "--facts",
                              str(_fleet(Path(top), count))])
            for count in (1, 64, 1024)
        ]  # fmt: skip
        samples = measure(cases, runs=5)
        peaks = {
            case.name: int(subprocess.check_output([sys.executable, "-c", _PEAK, *case.argv])) * 1024 for case in cases
        }
    one = samples["1"]
    print_table(
        "plan of azure-nd96 from recorded facts (n = 5)",
        ["nodes", "wall s", "CPU s", "CPU ratio", "goal", "peak MB"],
        [
            [name, spread(each.wall), spread(each.cpu), f"{ratio(each.cpu, one.cpu):.2f}",
             "<= 2.4" if name == "1024" else "", f"{peaks[name] / 1e6:.0f}"]
            for name, each in samples.items()
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
