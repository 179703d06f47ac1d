"""Metaseq's opt-baselines: nodes and trials the right way round, a prefix of its own, and the least number of nodes.

On one GPU, which opt-baselines refuses, what it would start: metaseq/cli/train.py with its words.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from envbuild.explain.memory import parameters as weights
from envbuild.launch.command import Value, fill
from envbuild.launch.parameters import Count, Parameters, model_row, read, require
from envbuild.launch.request import Order
from envbuild.launch.topology import Place
from envbuild.model.common import Text
from envbuild.model.launch import Command, Default, Deviation, Launch, LaunchFile
from envbuild.model.reference import ModelSize

END = "done training in"
# What the pinned scaled_upper_triang_masked_softmax.h counts in 32 bits: scores of a layer on a GPU.
_SCORES = 2**31
PORT = 29500
_ONE_GPU = '''\
"""Train as opt-baselines would have it, on the one GPU that it refuses: its own words, then those of the command."""

import runpy
import sys
from types import SimpleNamespace

from metaseq.launcher.opt_baselines import get_grid
from metaseq.launcher.opt_job_constants import MODEL_SIZES

model, script, *ours = sys.argv[1:]
asked = dict(model_size=model, benchmark=True, num_nodes=1, num_gpus=max(2, MODEL_SIZES[model].model_parallel))
unset = dict.fromkeys(("data", "profile", "max_update", "max_epoch", "restore_file", "reset_dataloader"))
grid = get_grid(SimpleNamespace(**asked, **unset, no_save_dir=True, disable_validation=False, circleci=False))
words = [word for each in grid for word in ([each.name] if each.binary_flag else [each.name, str(each.values[0])])]
sys.argv = [script, *words, *ours]
runpy.run_path(script, run_name="__main__")
'''
_DEVIATIONS = (
    ("opt-t-and-n", "-t 1 trial on -n nodes, not the other way round"),
    ("opt-prefix", "a prefix from the model size and the job, so that no run is skipped"),
    ("opt-local-nodes", "the number of nodes that there are, not 128"),
    ("opt-175b-nodes", "fewer nodes than the memory model allows are refused"),
    ("opt-exit-code", "success is read from the log"),
)


class MetaseqParameters(Parameters):
    """What the document's two commands set."""

    model_size: Text = Field(description="row of the model table")
    trials: Count = Field(description="-t, trials of the sweep; a benchmark has one")
    prefix: Text | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="-p, name of the run; a run whose folder exists is skipped",
    )
    where: Literal["azure", "aws", "fair"] = Field(description="whose defaults metaseq takes")
    submit: Literal["local", "salloc", "sbatch"] | None = Field(
        None, description="local: here on one node; salloc: in the job that runs; sbatch: opt-baselines submits its own"
    )
    checkpoints: Text | None = Field(None, description="folder of the run; must be writable from every node")
    gpu_gb: Count | None = Field(None, description="memory of a GPU in 10^9 bytes, for the least number of nodes")


def make(order: Order) -> Launch:
    """The one opt-baselines command."""
    given, taken = read(MetaseqParameters, order.values, order.data.defaults)
    model = model_row(order.reference, given.model_size, "model_size")
    place = order.place
    if place.gpus == 1:
        return _one_gpu(order, given, taken, model)
    copies, batch = _bounds(order, model, given.gpu_gb)
    submit, whence = _submit(given, place)
    prefix = given.prefix or f"test-{model.name}" + (f"-{place.job}" if place.job else "")
    checkpoints = given.checkpoints or f"{place.output}/checkpoints"
    values: dict[str, Value] = {
        "model": model.name,
        "trials": given.trials,
        "gpus_per_node": place.gpus_per_node,
        "nodes": place.nodes,
        "prefix": prefix,
        "local": submit == "local",
        "salloc": submit == "salloc",
        "where": given.where,
        "checkpoints": checkpoints,
    }
    said = [
        (given.submit, "submit", submit, whence),
        (given.prefix, "prefix", prefix, "model size and job"),
        (given.checkpoints, "checkpoints", checkpoints, "metaseq's own default is a folder of its authors' cluster"),
    ]
    command = Command(
        node=0,
        argv=(place.program("opt-baselines"), *fill(order.data.arguments, values)),
        environment=dict(order.data.environment),
        directory=place.output,
        ends=END,
    )
    return order.launch(
        model.name,
        degrees={"tensor": model.model_parallel or 1, "data": copies, "sequences-a-rank": batch},
        commands=(command,),
        defaults=(*taken, *(Default(name=n, value=v, why=w) for own, n, v, w in said if own is None)),
        deviations=order.deviations(*_DEVIATIONS),
        notes=(*_notes(submit, prefix), *_too_many_scores(model, batch)),
    )


def _one_gpu(order: Order, given: MetaseqParameters, taken: tuple[Default, ...], model: ModelSize) -> Launch:
    """The one rank, without model parallelism; a step's tokens in as many parts as the softmax needs."""
    place = order.place
    sequences = (model.batch_tokens or 0) // (model.sequence or 1)
    most = _SCORES // (model.heads * (model.sequence or 1) ** 2)
    batch = max(n for n in range(1, min(sequences, most) + 1) if sequences % n == 0)
    address, port = place.rendezvous(PORT)
    own = f"{place.output}/one_gpu.py"
    checkpoints = given.checkpoints or f"{place.output}/checkpoints"
    ours = {"--model-parallel-size": 1, "--batch-size": batch, "--update-freq": sequences // batch}
    argv = (
        *(*place.torchrun(), "--nproc_per_node", "1", "--master_addr", address, "--master_port", str(port)),
        *(own, model.name, f"{place.source(order.data.source)}/metaseq/cli/train.py", "--save-dir", checkpoints),
        *(str(word) for pair in ours.items() for word in pair),
    )
    return order.launch(
        model.name,
        degrees={"tensor": 1, "data": 1, "sequences-a-rank": batch, "parts-of-a-step": sequences // batch},
        files=(LaunchFile(path=own, text=_ONE_GPU),),
        commands=(
            Command(
                node=0,
                argv=argv,
                environment={**order.data.environment, "OMP_NUM_THREADS": "2"},
                directory=place.output,
                ends=END,
            ),
        ),
        defaults=taken,
        deviations=_one_gpu_deviations(order, model),
        notes=("whether the model fits one GPU is not known; of 8m and 125m it is",),
    )


def _one_gpu_deviations(order: Order, model: ModelSize) -> tuple[Deviation, ...]:
    parallel = model.model_parallel or 1
    instead = f", not {parallel}" if parallel > 1 else ""
    return order.deviations(
        ("opt-one-gpu", f"metaseq/cli/train.py with opt-baselines' words; model parallel 1{instead}; tokens in parts"),
        ("opt-exit-code", "success is read from the log"),
    )


def _submit(given: MetaseqParameters, place: Place) -> tuple[str, str]:
    """How the run is submitted, and from what that follows."""
    if place.nodes == 1:
        return given.submit or "local", "one node"
    require(
        given.submit != "local",
        f"submit=local with {place.nodes} nodes",
        why="opt-baselines sets the number of nodes back to 1 there without a message (finding opt-local-nodes)",
        hint="submit=salloc in a job, submit=sbatch from a login node",
    )
    if place.job:
        return given.submit or "salloc", f"{place.nodes} nodes of a job"
    return given.submit or "sbatch", f"{place.nodes} nodes, not in a job"


def _bounds(order: Order, model: ModelSize, gpu_gb: int | None) -> tuple[int, int]:
    """Copies of the model and sequences of each rank; refuses what opt_baselines.py refuses, or lets become 0."""
    place, parallel = order.place, model.model_parallel or 1
    require(place.gpus_per_node >= 2, "opt-baselines wants two GPUs a node at least", hint="--nodes 1, or more GPUs")
    require(
        place.gpus % parallel == 0,
        f"{model.name} wants a multiple of {parallel} GPUs, and {place.gpus} are there",
        hint=f"--nodes {math.lcm(place.gpus_per_node, parallel) // place.gpus_per_node}",
    )
    least = _least_nodes(order, model, gpu_gb)
    require(
        place.nodes >= least,
        f"{model.name} needs {least} nodes of {place.gpus_per_node} GPUs, and {place.nodes} are there",
        why="the memory model of the stack (finding opt-175b-nodes); arithmetic, not measured",
        hint=f"--nodes {least}, or a smaller model",
    )
    copies = place.gpus // parallel
    sequences = (model.batch_tokens or 0) // copies // (model.sequence or 1)
    require(
        sequences >= 1,
        f"{model.name} on {place.gpus} GPUs leaves each rank a batch of 0",
        why=f"{model.batch_tokens} tokens a step / {copies} copies / {model.sequence} tokens a sequence",
        hint=f"{(model.batch_tokens or 0) // (model.sequence or 1) * parallel} GPUs at most",
    )
    return copies, sequences


def _least_nodes(order: Order, model: ModelSize, gpu_gb: int | None) -> int:
    memory = order.reference.memory
    if memory is None or memory.model != model.name:
        return 1
    node = (gpu_gb or memory.gpu_gb) * memory.usable * order.place.gpus_per_node
    return math.ceil(weights(model) * memory.bytes_per_parameter / 1e9 / node)


def _notes(submit: str, prefix: str) -> tuple[str, ...]:
    notes = [f"its exit code is 0 even after a crash: success is the line with {END!r} in the log"]
    if submit == "sbatch":
        notes.append("opt-baselines submits a job of its own and returns at once")
    if submit != "local":
        notes.append(f"a run whose log is there already is skipped without an error: another prefix than {prefix} then")
    return tuple(notes)


def _too_many_scores(model: ModelSize, batch: int) -> tuple[str, ...]:
    """A note where the batch of a rank has more scores of attention than the kernel counts."""
    parallel = model.model_parallel or 1
    scores = batch * (model.heads // parallel) * (model.sequence or 1) ** 2
    whole = (model.batch_tokens or 0) * (model.heads // parallel) * (model.sequence or 1)
    if scores <= _SCORES:
        return ()
    return (
        f"{batch} sequences a rank are {scores / _SCORES:.1f} times the scores that the pinned softmax counts in "
        f"32 bits: expect a crash or wrong figures with fewer than {math.ceil(whole / _SCORES) * parallel} GPUs",
    )
