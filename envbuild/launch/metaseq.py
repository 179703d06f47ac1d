"""Metaseq's opt-baselines: nodes and trials in the right order, its own prefix, and the least number of nodes.

On one GPU, and on one node if a rank's sequences are more than the softmax accepts, it starts metaseq/cli/train.py
instead, with the same options and a step's tokens in parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from envbuild.explain.view import parameters as weights
from envbuild.launch.request import Count, Order, Parameters, Place, Value, fill, model_row, read, require
from envbuild.model.common import Text
from envbuild.model.launch import Command, Default, Launch, LaunchFile, ModelSize
from envbuild.resolve.compat import rows_like
from envbuild.resolve.compat_read import load_compat
from envbuild.text import plural

END = "done training in"
# What the pinned scaled_upper_triang_masked_softmax.h takes: scores of a layer on a GPU, which it counts in 32 bits, of
# so many sequences x heads as make whole blocks of 128 threads.
_SCORES = 2**31
_BLOCK = 4
# Fewer sequences at a time than this leave a GPU idle: a choice, not measured.
_FEW = 8
PORT = 29500
# Processors that metaseq asks Slurm for with each GPU, and binds to as the nodes there have them.
_OWN_CPUS = {"azure": 12, "aws": 12, "fair": 10}
_FEW_GPUS = '''\
"""Train as opt-baselines would have it, on GPUs that are too few for it: its own words, then those of the command."""

import runpy
import sys
from types import SimpleNamespace

from metaseq.launcher.opt_baselines import get_grid
from metaseq.launcher.opt_job_constants import MODEL_SIZES

model, gpus, script, *ours = sys.argv[1:]
# It refuses one GPU, and fewer than share a model.
gpus = max(int(gpus), 2, MODEL_SIZES[model].model_parallel)
asked = dict(model_size=model, benchmark=True, num_nodes=1, num_gpus=gpus)
unset = dict.fromkeys(("data", "profile", "max_update", "max_epoch", "restore_file", "reset_dataloader"))
grid = get_grid(SimpleNamespace(**asked, **unset, no_save_dir=True, disable_validation=False, circleci=False))
words = [word for each in grid for word in ([each.name] if each.binary_flag else [each.name, str(each.values[0])])]
sys.argv = [script, *words, *ours]
runpy.run_path(script, run_name="__main__")
'''
_DEVIATIONS = (
    ("opt-t-and-n", "-t 1 trial on -n nodes, not the other way round"),
    ("opt-prefix", "a prefix of this run, so that no other run of a job is skipped"),
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
    cpus_per_gpu: Count | None = Field(
        None, description="processors of a rank on several nodes, bound to none; metaseq's own are of where's nodes"
    )
    checkpoints: Text | None = Field(None, description="folder of the run; must be writable from every node")
    gpu_gb: Count | None = Field(None, description="memory of a GPU in 10^9 bytes, for the least number of nodes")


@dataclass(frozen=True, slots=True)
class _Step:
    """How the ranks of `nodes` x `per_node` GPUs share a step: `parallel` of them have one of `copies` of the model.

    Each has its `sequences` in `parts` (0: in none that the softmax takes). `least`: nodes that the model needs,
    of GPUs with `gpu_gb`.
    """

    model: ModelSize
    nodes: int
    per_node: int
    parallel: int
    copies: int
    sequences: int
    parts: int
    least: int
    gpu_gb: float


def make(order: Order) -> Launch:
    """The one opt-baselines command, or one torchrun on a node where a rank's sequences are too many for it."""
    given, taken = read(MetaseqParameters, order)
    model = model_row(order.reference, given.model_size, "model_size")
    place = order.place
    step = _step(order, model, given.gpu_gb)
    checkpoints = given.checkpoints or f"{place.output}/checkpoints"
    prefix = given.prefix or f"test-{model.name}" + (f"-{place.job}" if place.job else "")
    defaults = (
        (
            given.prefix,
            "prefix",
            prefix,
            "model size and job" if place.job else "model size; `--job NUMBER` adds the job",
        ),
        (given.checkpoints, "checkpoints", checkpoints, "metaseq's own default is a folder of its authors' cluster"),
    )
    taken = (*taken, *(Default(name=n, value=v, why=w) for own, n, v, w in defaults if own is None))
    if place.nodes == 1 and (place.gpus == 1 or step.parts > 1):
        # A run goes on from the checkpoint in its folder. Each trial of bench has a fresh one; elsewhere only the job
        # or the prefix tells runs apart.
        return _few_gpus(order, given, taken, step, f"{checkpoints}/{prefix}.ngpu{place.gpus}")
    submit, whence = _submit(given, place)
    if given.submit is None:
        taken = (*taken, Default(name="submit", value=submit, why=whence))
    values: dict[str, Value] = {
        **given.model_dump(),
        "model": model.name,
        "gpus_per_node": place.gpus_per_node,
        "nodes": place.nodes,
        "prefix": prefix,
        "local": submit == "local",
        "salloc": submit == "salloc",
        "cpus": given.cpus_per_gpu,
        "checkpoints": checkpoints,
    }
    command = Command(
        node=0,
        argv=(place.program("opt-baselines"), *fill(order.data.arguments, values)),
        environment=dict(order.data.environment),
        directory=place.output,
        ends=END,
        # srun has the ranks print there, into train.log and train.stderr.JOB.
        logs=f"{checkpoints}/{prefix}.*.ngpu{place.gpus}/train.*" if submit == "salloc" else None,
    )
    return order.launch(
        model.name,
        degrees={"tensor": step.parallel, "data": step.copies, "sequences-a-rank": step.sequences},
        commands=(command,),
        defaults=taken,
        deviations=order.deviations(*_DEVIATIONS),
        notes=_notes(given, submit),
    )


def _few_gpus(order: Order, given: MetaseqParameters, taken: tuple[Default, ...], step: _Step, folder: str) -> Launch:
    """The ranks of one node; a step's tokens are the document's as opt-baselines rounds them, in `parts`."""
    place, model = order.place, step.model
    idle = {
        "submit": given.submit not in (None, "local"),
        "trials": given.trials != 1,
        "where": "where" in order.values,
        "cpus_per_gpu": given.cpus_per_gpu is not None,
    }
    require(
        not any(idle.values()),
        f"submit, trials, where and cpus_per_gpu are opt-baselines' own, and on {place.gpus} GPUs it does not start "
        + model.name,
        why="finding opt-few-gpus",
        hint="leave out " + " and ".join(name for name, flagged in idle.items() if flagged),
    )
    address, port = place.rendezvous(PORT)
    own = f"{place.output}/few_gpus.py"
    batch = step.sequences // step.parts
    # The softmax may need parts so small that they, and not the model, are what is measured.
    few = f"{batch} of {step.sequences} sequences at a time: words/s are no measure of the document's run"
    ours = {"--model-parallel-size": step.parallel, "--batch-size": batch, "--update-freq": step.parts}
    argv = (
        *(*place.torchrun(), "--nproc_per_node", str(place.gpus)),
        *("--master_addr", address, "--master_port", str(port), own, model.name, str(place.gpus)),
        *(f"{place.source(order.data.source)}/metaseq/cli/train.py", "--save-dir", folder),
        *(str(word) for pair in ours.items() for word in pair),
    )
    asked = model.model_parallel or 1
    instead = f", not {asked}" if asked != step.parallel else ""
    does = f"metaseq/cli/train.py with opt-baselines' words; model parallel {step.parallel}{instead}"
    return order.launch(
        model.name,
        degrees={
            "tensor": step.parallel,
            "data": step.copies,
            "sequences-a-rank": batch,
            "parts-of-a-step": step.parts,
        },
        files=(LaunchFile(path=own, text=_FEW_GPUS),),
        commands=(
            Command(
                node=0,
                argv=argv,
                environment={**order.data.environment, "OMP_NUM_THREADS": "2"},
                directory=place.output,
                ends=END,
            ),
        ),
        defaults=tuple(default for default in taken if default.name not in idle),
        deviations=order.deviations(
            ("opt-few-gpus", f"{does}; a step's tokens in {step.parts} parts" if step.parts > 1 else does),
            ("opt-exit-code", "success is read from the log"),
        ),
        notes=(
            f"started again in the same folder, it goes on from its checkpoint in {folder}: "
            "`--set prefix=NAME` begins anew",
            "that the model fits these GPUs is arithmetic, not measured; 8m and 125m were run, on at most two GPUs",
            *([few] if step.parts > 1 and batch < _FEW else []),
        ),
    )


def _submit(given: MetaseqParameters, place: Place) -> tuple[str, str]:
    """How the run is submitted, and from what that follows."""
    if place.nodes == 1:
        return given.submit or "local", "one node"
    require(
        not place.direct,
        f"opt-baselines starts {place.nodes} nodes with Slurm's own programs, and this target has no Slurm",
        hint="--nodes 1, or a target with `scheduler: {kind: slurm}`",
    )
    require(
        given.submit != "local",
        f"submit=local with {place.nodes} nodes",
        why="opt-baselines sets the number of nodes back to 1 there without a message (finding opt-local-nodes)",
        hint="submit=salloc in a job, submit=sbatch from a login node",
    )
    if place.job:
        return given.submit or "salloc", f"{place.nodes} nodes of a job"
    return given.submit or "sbatch", f"{place.nodes} nodes, not in a job"


def _step(order: Order, model: ModelSize, gpu_gb: int | None) -> _Step:
    """How the step is shared. Refuses what cannot be, with the places where it can."""
    memory = _gpu_gb(order, gpu_gb)

    def share(nodes: int, per_node: int) -> _Step:
        gpus = nodes * per_node
        parallel = 1 if gpus == 1 else model.model_parallel or 1
        copies = gpus // parallel
        # As opt_baselines.py divides them.
        sequences = (model.batch_tokens or 0) // max(copies, 1) // (model.sequence or 1)
        parts, least = _parts(model, parallel, sequences), _least_nodes(order, model, memory, per_node)
        return _Step(model, nodes, per_node, parallel, copies, sequences, parts, least, memory)

    step = share(order.place.nodes, order.place.gpus_per_node)
    if refusal := _refusal(step):
        what, why = refusal
        require(False, what, why=why, hint=_runs_on(step, share, direct=order.place.direct))
    return step


def _refusal(step: _Step) -> tuple[str, str] | None:
    """What is wrong with these GPUs and this step, and why; None: nothing is."""
    model, gpus = step.model, step.nodes * step.per_node
    if step.per_node == 1 and step.nodes > 1:
        return "opt-baselines wants two GPUs a node at least", ""
    if gpus % step.parallel:
        return f"{model.name} wants a multiple of {step.parallel} GPUs, and {gpus} are there", ""
    if step.nodes < step.least:
        return (
            f"{model.name} is too large for {plural(step.nodes, 'node')} of {plural(step.per_node, 'GPU')}",
            f"the memory model of the stack wants {step.least} nodes at least (finding opt-175b-nodes) of GPUs with "
            f"{step.gpu_gb:g} GB, and its softmax may want more; arithmetic, not measured",
        )
    # What opt_baselines.py lets become 0, and what the softmax takes: on one node in parts, on several in one.
    if not step.sequences:
        return (
            f"{model.name} on {gpus} GPUs leaves each rank a batch of 0",
            f"{model.batch_tokens} tokens a step / {step.copies} copies / {model.sequence} tokens a sequence",
        )
    if not step.parts or (step.nodes > 1 and step.parts > 1):
        heads = model.heads // step.parallel
        times = step.sequences * heads * (model.sequence or 1) ** 2 / _SCORES
        many = f"these are {times:.2f} times the scores that it counts in 32 bits"
        odd = f"it wants a multiple of {_BLOCK} of sequences x {heads} heads"
        taken = (
            "no part of which is one that the softmax takes" if step.nodes == 1 else "which the softmax does not take"
        )
        return (
            f"{model.name} on {gpus} GPUs leaves each rank {step.sequences} sequences, {taken}",
            f"{many if times > 1 and step.nodes > 1 else odd} (finding opt-few-gpus)",
        )
    return None


def _runs_on(step: _Step, share: Callable[[int, int], _Step], *, direct: bool) -> str:
    """Options for the nearest number of nodes that is not refused, and all of them, of as many of their GPUs as can be.

    `direct`: one node. Fewer GPUs of a node are taken where else more nodes than asked for were needed.
    """
    model, parallel = step.model, step.model.model_parallel or 1
    ranks = (model.batch_tokens or 0) // (model.sequence or 1) * parallel
    places = []
    for gpus in range(step.per_node - step.per_node % parallel or step.per_node, 0, -parallel):
        most = 1 if direct else max(1, ranks // gpus)
        if nodes := [number for number in range(1, most + 1) if not _refusal(share(number, gpus))]:
            places.append((gpus, nodes))
            if nodes[0] <= step.nodes:
                break
    if not places:
        return "nodes of more GPUs, or a smaller model"
    gpus, nodes = min(places, key=lambda place: place[1][0] > step.nodes)
    nearest = min(nodes, key=lambda number: abs(number - step.nodes))
    changed = (("--nodes", nearest, step.nodes), ("--gpus-per-node", gpus, step.per_node))
    options = " ".join(f"{name} {now}" for name, now, was in changed if now != was)
    smaller = ", or a smaller model" if nearest > step.nodes else ""
    numbers = ", ".join([*map(str, nodes[:8]), *(["..."] if len(nodes) > 8 else [])])
    runs = f"by memory and softmax {model.name} runs with {plural(gpus, 'GPU')} a node on so many nodes: {numbers}"
    return f"`{options}`{smaller}; {runs}"


def _parts(model: ModelSize, parallel: int, sequences: int) -> int:
    """In how many parts a rank has its sequences of a step: as few as the pinned softmax takes; 0: it takes none."""
    heads = model.heads // parallel

    def taken(batch: int) -> bool:
        return batch * heads % _BLOCK == 0 and batch * heads * (model.sequence or 1) ** 2 <= _SCORES

    return next((n for n in range(1, sequences + 1) if sequences % n == 0 and taken(sequences // n)), 0)


def _least_nodes(order: Order, model: ModelSize, gpu_gb: float, per_node: int) -> int:
    """How many nodes the memory model of the stack wants for a model; 1 without a memory model."""
    memory = order.reference.memory
    if memory is None:
        return 1
    node = gpu_gb * memory.usable * per_node
    return math.ceil(weights(model) * memory.bytes_per_parameter / 1e9 / node)


def _gpu_gb(order: Order, gpu_gb: int | None) -> float:
    """Memory of a GPU: `gpu_gb`, else the least of the target's GPU, else that of the stack's memory model."""
    if gpu_gb is not None:
        return gpu_gb
    rows = rows_like(order.place.gpu, load_compat()) if order.place.gpu else []
    usual = order.reference.memory.gpu_gb if order.reference.memory else 0.0
    return min((row.memory_gb for row in rows), default=usual)


def _notes(given: MetaseqParameters, submit: str) -> tuple[str, ...]:
    notes = [f"the exit code of opt-baselines is 0 even after a crash: success is the line with {END!r} in the log"]
    if submit == "sbatch":
        notes.append(
            "typed on a login node, opt-baselines submits a job of its own and returns at once; it knows no partition, "
            "account or time of the target: `--print-script` prints a job that does"
        )
    if submit != "local" and given.cpus_per_gpu is None:
        notes.append(
            f"it asks Slurm for {_OWN_CPUS[given.where]} processors a GPU and binds ranks as on the nodes of "
            f"{given.where}: for other nodes give `--set cpus_per_gpu=N`, a node's processors by its GPUs"
        )
    if submit != "local":
        notes.append(
            "it skips a run whose log is there already, without an error: another run in one job needs "
            "another `--set prefix=NAME`"
        )
    return tuple(notes)
