"""Verb `meet`: one node's part of the joint smoke test, an all-reduce over several nodes that torchrun starts.

All nodes of a test are asked at the same time. They meet first (`rendezvous.py`), then each starts torchrun with
its rank. Every sum is checked on every rank; bandwidth is that of the slowest rank of each repeat, and the same on all
nodes. A node whose partner did not come has a check that was not run: it is the partner that failed.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from envbuild.node.protocol import Json, plural
from envbuild.node.read_text import read
from envbuild.node.smoke import rendezvous, smoke
from envbuild.node.smoke.check import Part, Spec, Work, bus_bandwidth
from envbuild.node.smoke.programs.common import SHARED
from envbuild.node.smoke.runner import Outcome, Scratch, child_environment, how_it_ended, read_events, run_processes
from envbuild.node.variables import VISIBLE, visible_devices

NAME = "smoke/nodes/all-reduce"
METRIC = "multi_node_busbw_gbps"
_INTERFACES = (("GLOO_SOCKET_IFNAME", "%s"), ("NCCL_SOCKET_IFNAME", "=%s"))
_OUTPUT = 6000


def run(request: Json) -> tuple[bool, Json]:
    """Entry point of the verb; args and result are in docs/dev/node-verbs.md. Raises NodeError `nodes-cannot-meet`."""
    args = request["args"]
    environment = str(args.get("environment") or "")
    smoke.check_there(environment)
    place = dict(args["place"]) if args.get("place") else rendezvous.in_job(args.get("most"))
    if place["nodes"] < 2 or place["rank"] >= place["nodes"]:
        return False, smoke.summary([])
    spec = Spec(environment, {"environment": args.get("variables") or {}}, bool(args.get("cuda")))
    part = Part(NAME)
    rank, nodes, token, seconds = place["rank"], place["nodes"], str(args["token"]), float(args.get("wait", 60.0))
    ranks = _startable(spec, int(args["ranks"]))
    if rank == 0:
        meeting = rendezvous.receive(place["ports"], nodes, token, seconds, ranks)
    else:
        meeting = rendezvous.join(place["addresses"], place["ports"], rank, token, seconds, ranks)
    if meeting.missing:
        # This node came and its partners did not.
        names = dict(enumerate(place.get("names") or ()))
        who = ", ".join(names.get(number, f"the node of rank {number}") for number in meeting.missing[:8])
        check = part.stop().check()
        check.update(status="not-run", says=f"did not come within {seconds:g} s: {who}")
        return False, smoke.summary([dict(check, details={"missing": meeting.missing})])
    with Scratch(spec.environment, spec.variables, args.get("tmp")) as scratch:
        JointTest(Work(spec, scratch, float(args.get("deadline", 600.0))), rank, nodes, meeting).run(part)
    floors = {str(name): float(value) for name, value in (args.get("floors") or {}).items()}
    smoke.apply_floors([part], floors)
    return False, smoke.summary([part.check()])


def _startable(spec: Spec, asked: int) -> int:
    """How many ranks this node can start: what is asked for, with GPUs no more than its ranks will see; one at least.

    What was counted before is of another process: a job, a login or a target may say which are visible.
    """
    child = child_environment(spec.environment, spec.variables, "")
    named = visible_devices(child.get(VISIBLE)) if spec.cuda else None
    return asked if named is None else max(1, min(asked, len(named)))


@dataclass
class JointTest:
    """One node of the test, once all have met: `meeting.ranks` processes here, `nodes` times as many in all."""

    work: Work
    rank: int
    nodes: int
    meeting: rendezvous.Meeting

    def __post_init__(self) -> None:
        """Nothing is started yet."""
        self.ranks = self.meeting.ranks
        self.world = self.nodes * self.ranks
        self.backend = "nccl" if self.work.spec.cuda else "gloo"

    def run(self, part: Part) -> None:
        """Start torchrun, wait for it at most until the deadline, judge."""
        scratch = self.work.scratch
        events, request = scratch.fresh("events"), scratch.fresh("request")
        left = self.work.left()
        with open(request, "w", encoding="utf-8") as file:
            json.dump({"backend": self.backend, "events": events, "until": time.monotonic() + left}, file)
        child = dict(scratch.child(), **{SHARED: request})
        for name, form in _INTERFACES if self.meeting.interface else ():
            # The way to the first node, where neither the stack nor the target says one.
            child.setdefault(name, form % self.meeting.interface)
        outcome = run_processes(scratch, self._command(), child, [{}], left)[0]
        ranks = []
        for local in range(self.ranks):
            one = Outcome(returncode=0, events=read_events(f"{events}-{local}"))
            one.timed_out = outcome.timed_out and not one.of("done")
            ranks.append(one)
        self._judge(part, outcome, ranks)
        part.details.update(
            {
                "backend": self.backend,
                "ranks": self.world,
                "nodes": self.nodes,
                "node_rank": self.rank,
                "address": self.meeting.address,
                "port": self.meeting.port,
                "interface": child.get(_INTERFACES[self.work.spec.cuda][0], "").lstrip("="),
            }
        )
        if outcome.returncode != 0 or part.failures:
            part.details["output"] = self._output(events, outcome)
        words = (plural(self.world, "rank"), plural(self.nodes, "node"), self.backend)
        part.says = "the sum over %s on %s (torchrun, %s) is exact in every size and dtype" % words
        part.stop()

    def _command(self) -> list[str]:
        """torchrun, as its module, so that no script of the environment has to name its interpreter."""
        scratch = self.work.scratch
        python = os.path.join(scratch.environment, "bin", "python")
        # Underscores: torch before 2.0 knows no other form.
        words = [f"--nnodes={self.nodes}", f"--node_rank={self.rank}", f"--nproc_per_node={self.ranks}"]
        words += [f"--master_addr={self.meeting.address}", f"--master_port={self.meeting.port}", "--max_restarts=0"]
        run = [python] + scratch.flags() + ["-m", "torch.distributed.run"] + words + ["--no_python"]
        return run + scratch.program("allreduce")

    def _judge(self, part: Part, outcome: Outcome, ranks: list[Outcome]) -> None:
        for local, one in enumerate(ranks):
            who = f"rank {self.rank * self.ranks + local} of {self.world}"
            part.failures.extend(f"{who}: {event.get('what')}" for event in one.of("failure"))
            ended = how_it_ended(one, self.work.deadline)
            if ended and (one.timed_out or not one.of("failure")):
                part.failures.append(f"{who} {ended}")
        if not outcome.timed_out and outcome.returncode != 0:
            part.failures.append(f"torchrun ended with exit code {outcome.returncode}")
        elif outcome.timed_out and not part.failures:
            part.failures.append(f"torchrun did not end within {self.work.deadline:g} s: other nodes did not leave")
        self._judge_ranks(part, [one.facts() for one in ranks])

    def _judge_ranks(self, part: Part, facts: list[Json]) -> None:
        """Every rank of every node must have been there, as one job with the backend that was asked for."""
        first = self.rank * self.ranks
        for local, fact in enumerate(facts):
            place = (fact.get("rank"), fact.get("world"), fact.get("backend"))
            if "rank" in fact and place != (first + local, self.world, self.backend):
                part.failures.append("rank %d says it is rank %s of %s with %s" % (first + local, *place))
            present = fact.get("present")
            if present is not None and present != list(range(self.world)):
                part.failures.append(f"{self.world} ranks were asked for and {len(present)} took part")
        if any("present" not in fact for fact in facts):
            part.failures.append("not every rank of this node was counted")
        seconds, size = facts[0].get("seconds"), facts[0].get("bytes")
        if not isinstance(seconds, list) or not seconds or not isinstance(size, int):
            part.failures.append(f"the metric {METRIC} was not reported")
            return
        part.add_metric(bus_bandwidth(METRIC, seconds, size, self.world))  # the slowest rank's of each repeat
        part.details["bytes"] = size

    def _output(self, events: str, outcome: Outcome) -> str:
        """Stacks of the ranks that hang, then the end of what torchrun printed."""
        texts = []
        for local in range(self.ranks):
            text = read(f"{events}-{local}.stacks", _OUTPUT // 2).strip()
            if text:
                texts.append(f"rank {self.rank * self.ranks + local}\n{text}")
        room = max(1000, _OUTPUT - sum(map(len, texts)))
        return "\n".join(texts + [outcome.stderr[-room:]])[: 2 * _OUTPUT]
