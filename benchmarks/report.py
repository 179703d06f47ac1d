"""Reports: the page of one node, of 64 nodes with 1,000 pins and of 1,024 nodes, and what checking one costs.

Goals: a page of one node 0.5 s, of 64 nodes 2 s and 2 MB, `report verify` 1 s; 1,024 nodes 10 s and 500 MB.
CPU seconds, and their ratio to the page of one node, as a laden machine stretches everything else.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import print_table
from envbuild.model.evidence import Evidence
from envbuild.report.recheck.verify import verify_report
from envbuild.report.render import render_html, render_json, render_markdown

RUNS = 5


def evidence(nodes: int, pins: int) -> Evidence:
    """A run whose nodes have eight GPUs each, and everything that a page can draw."""
    from tests.report import samples

    data = samples.fleet(nodes).to_json_dict()
    names = [f"package-{number}" for number in range(pins)]
    for node in data["nodes"]:
        node["packages"] = dict.fromkeys(names, "1.2.3")
    data["variants"][0]["packages"] = [
        {"name": name, "version": "1.2.3", "file": f"{name}.whl", "sha256": f"{at:064x}", "index": "pypi"}
        for at, name in enumerate(names)
    ]
    return Evidence.from_plain(data)


def one(nodes: int, pins: int) -> None:
    """In a process of its own, because of the memory: CPU seconds of page and check, bytes of the page, peak MB."""
    run = evidence(nodes, pins)
    text = render_json(run).encode()
    begun = time.process_time()
    html = render_html(run, text)
    page = time.process_time() - begun
    with tempfile.TemporaryDirectory() as folder:
        for name, data in (
            ("evidence.json", text),
            ("report.html", html.encode()),
            ("report.md", render_markdown(run).encode()),
        ):
            (Path(folder) / name).write_bytes(data)
        begun = time.process_time()
        verify_report(Path(folder))
        check = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(page, check, len(html.encode()) / 1e6, peak)


def main() -> None:
    """Measure in turn and print."""
    cases = [("one node", 1, 60), ("64 nodes, 1,000 pins", 64, 1000), ("1,024 nodes", 1024, 60)]
    goals = ["0.5 s", "2 s, 2 MB; verify 1 s", "10 s, 500 MB"]
    found: dict[str, list[list[float]]] = {name: [] for name, _, _ in cases}
    for _ in range(RUNS):
        for case in cases:
            call = [sys.executable, "-m", "benchmarks.report", *map(str, case[1:])]
            done = subprocess.run(call, capture_output=True, text=True, check=True)
            found[case[0]].append([float(word) for word in done.stdout.split()])
    middle = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
    base = middle["one node"][0]
    rows = [
        [name, f"{page:.2f}", f"{page / base:.1f}x", f"{check:.2f}", f"{size:.2f}", f"{peak:.0f}", goal]
        for (name, (page, check, size, peak)), goal in zip(middle.items(), goals, strict=True)
    ]
    headers = ["report", "page, CPU s", "ratio", "verify, CPU s", "page, MB", "peak MB", "goal"]
    print_table(f"reports (n = {RUNS})", headers, rows)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        one(*map(int, sys.argv[1:]))
    else:
        main()
