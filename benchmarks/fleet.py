"""Eight SSH nodes on this machine: nothing to do, probing, and 25 usual packages, against Ansible as people use it.

Goals: no-op <= 0.5x of `ansible -m ping` on the same nodes (as installed; as tuned is reported); probe of 8 nodes
<= 1 s; 25 packages <= 0.4x of a hand-written playbook of 20 usual tasks; each file comes over the wide-area network
once. Needs root (network namespaces) and mmdebstrap. `--nodes N` for another number, `--only noop,probe,packages`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import yaml

from benchmarks.cold import PACKAGES
from benchmarks.measure import Case, measure, print_table, program, ratio, spread
from benchmarks.playbook import write_playbook
from tests.fleet.nodes import Fleet, Node, unpack_tree, why_not

PREFIX = "/opt/envbuild"
# The Python of the nodes' Debian.
PYTHON = "3.11"


def main() -> None:
    """Measure what is asked for and print a table each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="noop,probe,packages")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(f"no nodes can be had here: {reason}")
    wanted = options.only.split(",")
    with tempfile.TemporaryDirectory() as text, _fleet(options.nodes, Path(text)) as fleet:
        place = Place(Path(text), fleet)
        if "noop" in wanted or "probe" in wanted:
            _small(place, options.runs, wanted)
        if "packages" in wanted:
            _packages(place, max(1, options.runs // 2))


@contextmanager
def _fleet(count: int, folder: Path) -> Iterator[Fleet]:
    fleet, tree = Fleet(), folder / "tree"
    try:
        unpack_tree("full", tree)
        fleet.start(count, tree)
        yield fleet
    finally:
        fleet.close()


class Place:
    """Files that both sides use: targets by number of nodes, an inventory, the environment of the programs."""

    def __init__(self, folder: Path, fleet: Fleet) -> None:
        self.folder, self.fleet, self.nodes = folder, fleet, fleet.nodes
        home = folder / "home"
        home.mkdir()
        self.env = {
            **os.environ,
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "ENVBUILD_RUNS": str(folder / "runs"),
            # Ansible at its best: all nodes at once, pipelining.
            "ANSIBLE_FORKS": str(len(self.nodes)),
            "ANSIBLE_PIPELINING": "True",
            "ANSIBLE_HOME": str(home / ".ansible"),
        }

    def target(self, count: int, stack: Path, **more: Any) -> list[str]:
        """The options that mean the first `count` nodes and a stack."""
        first = self.nodes[0].connection().to_json_dict()
        told = {"name": f"nodes{count}", "extends": "ssh", "hosts": [node.address for node in self.nodes[:count]],
                "connection": first, "prefix": PREFIX, **more}  # fmt: skip
        path = self.folder / f"{'-'.join((f'nodes{count}', stack.stem, *more))}.yaml"
        path.write_text(yaml.safe_dump(told))
        return ["--target", str(path), "--stack", str(stack)]

    def inventory(self, count: int) -> str:
        """An Ansible inventory of the first `count` nodes."""
        node = self.nodes[0]
        options = f"-o UserKnownHostsFile={node.known_hosts} -o StrictHostKeyChecking=yes"
        lines = [f"{each.address} ansible_user=root" for each in self.nodes[:count]]
        told = {"ansible_ssh_private_key_file": str(node.identity), "ansible_ssh_common_args": f"'{options}'",
                "ansible_python_interpreter": "/usr/bin/python3"}  # fmt: skip
        path = self.folder / f"inventory{count}.ini"
        path.write_text("\n".join(["[gpu]", *lines, "[gpu:vars]", *(f"{k}={v}" for k, v in told.items()), ""]))
        return str(path)

    def ping(self, count: int) -> list[str]:
        """`ansible -m ping` of the first `count` nodes."""
        return [program("ansible"), "-i", self.inventory(count), "gpu", "-m", "ping"]

    def close_connections(self) -> None:
        """End what Ansible keeps open for a minute: neither side has a connection when it begins."""
        for socket in (Path(self.env["ANSIBLE_HOME"]) / "cp").glob("*"):
            subprocess.run(
                ["ssh", "-O", "exit", "-o", f"ControlPath={socket}", "node"], capture_output=True, check=False
            )

    def envbuild(self, *argv: str) -> bytes:
        """Run envbuild; its standard output."""
        done = subprocess.run([program("envbuild"), *argv], env=self.env, capture_output=True, check=False)
        if done.returncode:
            sys.exit(f"envbuild {' '.join(argv)}: exit {done.returncode}\n{done.stderr.decode()[-3000:]}")
        return done.stdout


def _small(place: Place, runs: int, wanted: Sequence[str]) -> None:
    """Nothing to do on 1, 2, 4 ... nodes, and probing them."""
    stack = _stack(place, "small", ["six==1.16.0"], ["six"])
    count = len(place.nodes)
    place.envbuild("provision", *place.target(count, stack, delivery="controller"), "--quiet")
    counts = [each for each in (1, 2, 4, 8, 16) if each < count] + [count]
    noop, ping, tuned, probe = {}, {}, {}, {}
    usual = {key: value for key, value in place.env.items() if key not in ("ANSIBLE_FORKS", "ANSIBLE_PIPELINING")}
    for each in counts:
        options = place.target(each, stack, delivery="controller")
        again = json.loads(place.envbuild("provision", *options, "--json"))
        assert again["steps_run"] == 0, "there was something to do"
        cases = [
            Case("provision", [program("envbuild"), "provision", *options, "--json"], env=place.env),
            Case("ping", place.ping(each), place.close_connections, usual),
            Case("tuned ping", place.ping(each), place.close_connections, place.env),
            Case(
                "probe",
                [program("envbuild"), "doctor", "--facts-out", "facts.json", *options[:2], "--json"],
                env=place.env,
            ),
        ]
        samples = measure(cases, runs=runs)
        noop[each], ping[each], tuned[each], probe[each] = samples.values()
    if "noop" in wanted:
        rows = []
        for each in counts:
            row = [str(each), spread(noop[each].wall)]
            for theirs in (ping[each], tuned[each]):
                row += [spread(theirs.wall), f"{ratio(noop[each].wall, theirs.wall):.2f}"]
            rows.append([*row, f"{ratio(noop[each].cpu, tuned[each].cpu):.2f}", "<= 0.5" * (each == count)])
        headers = [
            "nodes",
            "provision, wall s",
            "ansible -m ping, wall s",
            "ratio",
            "tuned, wall s",
            "ratio",
            "CPU",
            "goal",
        ]
        print_table(f"nothing to do, 0 Ansible tasks (n = {runs})", headers, rows)
        print(f"  tuned: {count} forks and pipelining, and CPU against that; else as Ansible is installed")
        print(f"  each node adds {_slope(noop, counts):.0f} ms of CPU here (ping: {_slope(tuned, counts):.0f} ms)")
    if "probe" in wanted:
        rows = [[str(each), spread(probe[each].wall), spread(probe[each].cpu)] for each in counts]
        print_table(f"probe (n = {runs})", ["nodes", "wall s (goal: 8 nodes <= 1)", "CPU s"], rows)
        least, slope = min(probe[counts[0]].cpu), _slope(probe, counts)
        print(
            f"  each node adds {slope:.0f} ms of CPU here; 64 nodes on paper: {least + 63 * slope / 1000:.1f} s of CPU"
        )


def _slope(samples: dict[int, Any], counts: Sequence[int]) -> float:
    """CPU milliseconds that one more node costs on this machine, from the least of the first and the last number."""
    if len(counts) < 2:
        return 0.0
    more = float(min(samples[counts[-1]].cpu) - min(samples[counts[0]].cpu))
    return 1000 * more / (counts[-1] - counts[0])


def _packages(place: Place, runs: int) -> None:
    """25 packages on all nodes: envbuild, and a playbook of 20 tasks with an index near the nodes."""
    count = len(place.nodes)
    stack = _stack(place, "usual", PACKAGES, ["numpy", "yaml"])
    variant = f"cp{PYTHON.replace('.', '')}-linux_x86_64"
    requirements = place.folder / "requirements.txt"
    requirements.write_bytes(
        place.envbuild("lock", "export", str(stack), "--variant", variant, "--format", "requirements")
    )
    wheels = place.folder / "wheels"
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "-d", str(wheels)]
    subprocess.run(
        [*download, "--python-version", PYTHON, "--only-binary", ":all:", "-r", str(requirements)], check=True
    )
    with index(place.fleet.gateway, wheels) as (address, requests):
        playbook = write_playbook(place.folder, requirements, address, place.fleet.gateway)
        options = place.target(count, stack)
        settings = f"[global]\nindex-url = {address}/simple/\ntrusted-host = {place.fleet.gateway}\n"
        for node in place.nodes:
            node.run(["sh", "-c", "cat > /etc/pip.conf"], stdin=settings)
        by_hand = [program("ansible-playbook"), "-i", place.inventory(count), str(playbook)]
        clean = partial(_clean, place.nodes)
        cases = [
            Case("envbuild provision", [program("envbuild"), "provision", *options, "--quiet"], clean, place.env),
            Case("ansible-playbook, 20 tasks", by_hand, clean, place.env),
        ]
        samples = measure(cases, runs=runs, warmup=0)
        _clean(place.nodes)
        requests.clear()
        place.envbuild("provision", *options, "--quiet")
        got = Counter(requests)
    ours, theirs = samples.values()
    print_table(
        f"25 packages on {count} nodes, smoke test included (n = {runs})",
        ["command", "wall s", "CPU s here", "wall ratio", "goal"],
        [
            [cases[0].name, spread(ours.wall), spread(ours.cpu), f"{ratio(ours.wall, theirs.wall):.2f}", "<= 0.4"],
            [cases[1].name, spread(theirs.wall), spread(theirs.cpu), "1", ""],
        ],
    )
    files = [path for path in got if path.endswith(".whl")]
    print(f"  the index was asked {sum(got[path] for path in files)} times for {len(files)} files by {count} nodes")


def _stack(place: Place, name: str, packages: Sequence[str], imports: Sequence[str]) -> Path:
    path = place.folder / f"{name}.yaml"
    profile = {"python": [PYTHON], "packages": list(packages), "imports": list(imports)}
    path.write_text(yaml.safe_dump({"name": name, "summary": "for a benchmark", "profiles": {"exact": profile}}))
    place.envbuild("lock", "create", str(path))
    return path


def _clean(nodes: Sequence[Node]) -> None:
    """Nothing of an earlier run on the nodes: neither the environments nor caches of pip and uv."""
    for node in nodes:
        node.run(["sh", "-c", f"rm -rf {PREFIX} /opt/by-hand /root/.cache"], timeout=300)


@contextmanager
def index(host: str, wheels: Path) -> Iterator[tuple[str, list[str]]]:
    """A package index over a folder of wheels; yields its address and the list of paths asked for."""
    requests: list[str] = []
    simple = wheels.parent / "simple"
    for wheel in wheels.iterdir():
        page = simple / wheel.name.split("-")[0].lower().replace("_", "-").replace(".", "-")
        page.mkdir(parents=True, exist_ok=True)
        with (page / "index.html").open("a") as out:
            out.write(f'<a href="/wheels/{wheel.name}">{wheel.name}</a>\n')

    class Answer(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            super().do_GET()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer((host, 0), partial(Answer, directory=str(wheels.parent)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{host}:{server.server_port}", requests
    finally:
        server.shutdown()


if __name__ == "__main__":
    main()
