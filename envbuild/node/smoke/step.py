"""Smoke item `step`: the stack's own training script takes a few steps on synthetic data, and its loss must fall.

It runs on all GPUs that are there, one rank each. The item's `step` has the script, its words and how
its log is read (`model/step.py`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from typing import Any, Mapping

from envbuild.node import paths
from envbuild.node.protocol import Json
from envbuild.node.smoke import training_data, training_log
from envbuild.node.smoke.check import Part, Spec, Work, plural
from envbuild.node.smoke.programs.common import OPEN_MPI_AS_ROOT, OPEN_MPI_OVERSUBSCRIBED, SHARED
from envbuild.node.smoke.runner import Outcome, causes_first, how_it_ended, last_words, run_processes

_KEPT = 1024 * 1024  # bytes of each rank's output: a script prints its arguments before its losses
_SHOWN = 4000  # characters of it in the evidence of a failure
_NAME = re.compile(r"\{([a-z0-9_]+)\}")
# The environment belongs to no scheduler's task: what one has set would make the ranks look for others.
_FOREIGN = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "PALS_")


def run(work: Work, step: Json) -> Part:
    """The check."""
    part = Part("smoke/step")
    ranks = int(work.run("gpus", {}, alone=True).facts().get("gpus") or 0)
    if step.get("launcher") == "mpi" and _mpiexec(work.spec) is None:
        ranks = min(ranks, 1)  # which needs none
    if ranks < 1:
        part.failures.append("no GPU is visible")
        return part.stop()
    folder = work.scratch.fresh("step")
    os.mkdir(folder)
    if step.get("data"):
        training_data.write_gpt2(folder)  # the one kind that there is
    values = values_for(ranks, folder)
    for name, content in (step.get("files") or {}).items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(fill(content, values), file)
    try:
        outcomes = _start(work, step, values)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _judge(part, outcomes, step, ranks, work.deadline)
    return part.stop()


def values_for(ranks: int, work: str) -> Json:
    """What `{name}` stands for in words and files: two sequences a rank and two microbatches a step."""
    tensor = 1 if ranks % 2 else 2
    data = ranks // tensor
    return {"ranks": ranks, "tensor": tensor, "data": data, "batch": 4 * data, "work": work}


def fill(content: Any, values: Mapping[str, Any]) -> Any:
    """The content with every `{name}` replaced; a text that is one name becomes the value itself.

    Raises KeyError for a name that has no value, or that has none for a place in a text.
    """
    if isinstance(content, dict):
        return {key: fill(value, values) for key, value in content.items()}
    if isinstance(content, list):
        return [fill(value, values) for value in content]
    if not isinstance(content, str):
        return content
    whole = _NAME.fullmatch(content)
    if whole:
        return values[whole.group(1)]

    def text(match: re.Match[str]) -> str:
        value = values[match.group(1)]
        if value is None:
            raise KeyError(match.group(1))
        return str(value)

    return _NAME.sub(text, content)


def _mpiexec(spec: Spec) -> str | None:
    return shutil.which("mpiexec", path=paths.search_path(spec.environment, os.environ.get("PATH")))


def _start(work: Work, step: Json, values: Json) -> list[Outcome]:
    """Start all ranks and wait for them; one outcome for each process that was started here."""
    scratch, ranks = work.scratch, values["ranks"]
    tree = os.path.join(scratch.environment, "src", str(step["source"]))
    request: Json = {
        "tree": tree,
        "script": os.path.join(tree, str(step["script"])),
        "words": [str(word) for word in fill(list(step.get("arguments") or []), values)],
        "work": values["work"],
        "ranks": ranks,
    }
    child = {key: value for key, value in scratch.child().items() if not key.startswith(_FOREIGN)}
    child.update({key: str(value) for key, value in (step.get("environment") or {}).items()})
    child.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)})
    argv, left = scratch.program("step"), work.left()
    if step.get("launcher") != "mpi":
        # What torchrun tells a rank on one node.
        places = [{"RANK": str(n), "LOCAL_RANK": str(n), "LOCAL_WORLD_SIZE": str(ranks)} for n in range(ranks)]
        requests = [dict(request, variables=dict(place, GROUP_RANK="0")) for place in places]
        return run_processes(scratch, argv, child, requests, left, _KEPT)
    # All ranks under one mpiexec, which hands them no request: they read it from a file.
    events, path = scratch.fresh("events"), scratch.fresh("request")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(dict(request, variables={}, events=events, deadline=left), file)
    child.update({**OPEN_MPI_AS_ROOT, **OPEN_MPI_OVERSUBSCRIBED, SHARED: path})
    mpiexec = _mpiexec(work.spec)
    launcher = [mpiexec, "-n", str(ranks)] if mpiexec else []
    return run_processes(scratch, launcher + argv, child, [{"events": events}], left, _KEPT)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _judge(part: Part, outcomes: list[Outcome], step: Json, ranks: int, deadline: float) -> None:
    """Every rank must have ended well, all have said that they are done, and the loss must have fallen."""
    several = len(outcomes) > 1
    for rank, outcome in causes_first(outcomes):
        who = f"rank {rank} of {ranks}" if several else plural(ranks, "rank")
        reasons = [str(event.get("what")) for event in outcome.of("failure")]
        ended = how_it_ended(outcome, deadline)
        if ended and not reasons:
            reasons = [ended + f"; its last line: {_last(outcome.stderr) or 'none'}"]
        part.failures.extend(f"{who}: {what}" for what in reasons)
        if reasons:
            part.details["output"] = (part.details.get("output", "") + outcome.stderr[-_SHOWN:])[-2 * _SHOWN :]
    done = sum(len(outcome.of("done")) for outcome in outcomes)
    if not part.failures and done != ranks:
        part.failures.append(f"{plural(ranks, 'rank')} were asked for and {done} ended well")
    texts = [outcome.stderr for outcome in outcomes]
    steps, form = int(step["steps"]), str(step["log"])
    losses = training_log.losses(form, texts)
    part.details.update({"ranks": ranks, "script": step["script"], "losses": [loss for _, loss in losses]})
    part.details["last_lines"] = [_last(text) for text in texts]
    wrong = training_log.judge(losses, steps)
    if wrong and not part.failures:
        part.failures.append(wrong)
        part.details["output"] = texts[-1][-_SHOWN:]
    elif not wrong:
        fell = f"the loss fell from {losses[0][1]:.4g} to {losses[-1][1]:.4g} in {steps} steps"
        part.says = f"{step['script']}: {fell} on {plural(ranks, 'rank')}"


def _last(text: str) -> str:
    """The last line of a rank's output that is not empty, before the stacks that it printed at its deadline."""
    output = re.split(r"^Timeout \([0-9:.]+\)!$", text, maxsplit=1, flags=re.MULTILINE)[0]
    return last_words(output)
