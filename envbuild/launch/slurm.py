"""Microsoft's Megatron-DeepSpeed: one srun for all nodes where Slurm is, one of them by deepspeed; else torchrun."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from envbuild.launch.request import Count, Order, Parameters, Value, fill, model_row, read, require, require_shape
from envbuild.model.common import Text
from envbuild.model.launch import BenchmarkCase, Command, Default, Deviation, Launch, ModelSize
from envbuild.node.read_text import integer

# torchrun takes the rank of its node from there where no word says it: under srun all nodes have the same words.
_NODE_RANK = "PET_NODE_RANK"
_RANKED = ("bash", "-c", f'{_NODE_RANK}=$SLURM_NODEID exec "$@"', "node")
# The document's formula: the dynamic ports from 49152 on, by job id.
FIRST_PORT, PORTS = 49152, 16384


class SlurmParameters(Parameters):
    """What the two scripts have as constants."""

    model: Text = Field(description="row of the model table")
    zero: Annotated[int, Field(ge=0, le=3)] = Field(
        alias="zero_stage", description="ZeRO stage; the pipeline engine takes 0 and 1"
    )
    iterations: Count = Field(alias="train_iters", description="iterations")
    data: Text | None = Field(None, description="folder of the data, the vocabulary and the merges")
    data_name: Text = Field(description="name of the data without .bin and .idx")
    tensor_parallel: Count | None = Field(None, description="tensor parallel")
    pipeline_parallel: Count | None = Field(None, description="pipeline stages")
    global_batch: Count | None = Field(None, description="sequences a step")
    micro_batch: Count | None = Field(None, description="sequences a GPU and microbatch")


def make(order: Order) -> Launch:
    """The srun command, or without Slurm one command a node, and the DeepSpeed file that it reads."""
    given, taken = read(SlurmParameters, order)
    model = model_row(order.reference, given.model, "model")
    require(
        given.zero < 2,
        f"ZeRO {given.zero} is not possible with this code",
        why="every run of this commit with --deepspeed is a pipeline model, and DeepSpeed's pipeline engine takes ZeRO "
        "0 and 1 only (finding slurm-zero-with-pipeline, rule zero-needs-no-pipeline)",
        hint="zero_stage=1",
    )
    require(
        given.zero == 1 or not order.deepspeed_since("0.19"),
        "ZeRO 0 ends after the first step with this DeepSpeed",
        why="megatron/training.py reads the loss scale under a name that is gone (finding slurm-zero-none)",
        hint="zero_stage=1",
    )
    require(
        not (order.place.direct and order.place.image),
        "srun starts the image, and this target has no Slurm",
        hint="the built environment instead of --image, or a target with `scheduler: {kind: slurm}`",
    )
    case = _case(order, model)
    shape, computed = _shape(given, case, order.place.nodes)
    data = _bounds(order, model, shape)
    values = _values(order, given, model, shape)
    several = order.place.nodes > 1
    # deepspeed --num_gpus drops CUDA_VISIBLE_DEVICES, and without it takes all GPUs, however many are asked for.
    torchrun = several or order.place.direct
    argv = (
        *(() if order.place.direct else (*fill(order.data.before["srun"], values), *(_RANKED if several else ()))),
        *(order.place.torchrun() if torchrun else [order.place.program("deepspeed")]),
        *fill(order.data.before["torchrun" if torchrun else "deepspeed"], values),
        f"{order.directory()}/pretrain_gpt.py",
        *fill(order.data.arguments, values),
    )
    return order.launch(
        model.name,
        degrees={
            **{name.replace("_", "-"): number for name, number in shape.items()},
            "data": data,
            "microbatches": shape["global_batch"] // shape["micro_batch"] // data,
        },
        files=(order.config_file("deepspeed", values),),
        commands=tuple(
            Command(node=node, argv=argv, environment={**order.data.environment, **ranked}, directory=order.directory())
            for node, ranked in _nodes(order)
        ),
        defaults=(*taken, *computed),
        deviations=_deviations(order),
        notes=_notes(order, given, shape["pipeline_parallel"]),
    )


def _nodes(order: Order) -> list[tuple[int | None, dict[str, str]]]:
    """The nodes that have a command, None: one for all, and what each is told of its rank."""
    if not order.place.direct:
        return [(None, {})]
    nodes = order.place.nodes
    return [(node, {_NODE_RANK: str(node)} if nodes > 1 else {}) for node in range(nodes)]


def _case(order: Order, model: ModelSize) -> BenchmarkCase:
    """The case of the scripts that is nearest: this model, one node or several."""
    rows = [case for case in order.reference.cases if case.model == model.name and case.tmp and case.pp]
    require(bool(rows), f"no script launches the model {model.name}", hint=f"model={order.data.defaults['model']}")
    many = order.place.nodes > 1
    return min(rows, key=lambda case: (((case.hosts or 1) > 1) != many, case.gpus))


def _shape(given: SlurmParameters, case: BenchmarkCase, nodes: int) -> tuple[dict[str, int], tuple[Default, ...]]:
    """Degrees and batch sizes: what is given, else the case's, said aloud."""
    script = "several nodes" if nodes > 1 else "one node"
    wanted = {
        "tensor_parallel": (given.tensor_parallel, case.tmp),
        "pipeline_parallel": (given.pipeline_parallel, case.pp),
        "global_batch": (given.global_batch, case.global_batch),
        "micro_batch": (given.micro_batch, case.micro_batch_size),
    }
    shape = {name: own or (theirs or 1) for name, (own, theirs) in wanted.items()}
    computed = tuple(
        Default(name=name, value=str(shape[name]), why=f"the document's script for {script} and {case.model}")
        for name, (own, _) in wanted.items()
        if own is None
    )
    return shape, computed


def _bounds(order: Order, model: ModelSize, shape: dict[str, int]) -> int:
    """Data-parallel degree; refuses what cannot run on these nodes."""
    place = order.place
    tensor, pipeline = shape["tensor_parallel"], shape["pipeline_parallel"]
    require(
        place.gpus >= tensor * pipeline,
        f"{model.name} as it is set needs {tensor * pipeline} GPUs and {place.nodes} x {place.gpus_per_node} are there",
        why=f"tensor {tensor} x pipeline {pipeline}",
        hint=f"--nodes {-(-tensor * pipeline // place.gpus_per_node)}, or smaller degrees",
    )
    require(
        tensor <= place.gpus_per_node,
        f"tensor parallel {tensor} is more than the {place.gpus_per_node} GPUs of a node",
        hint=f"tensor_parallel={place.gpus_per_node} at most",
    )
    data = require_shape(model, place.gpus, tensor, pipeline)
    step = shape["micro_batch"] * data
    require(
        shape["global_batch"] % step == 0,
        f"the global batch {shape['global_batch']} is no multiple of {step}",
        why=f"micro-batch {shape['micro_batch']} x data parallel {data}",
        hint=f"global_batch={-(-shape['global_batch'] // step) * step}",
    )
    return data


def _values(order: Order, given: SlurmParameters, model: ModelSize, shape: dict[str, int]) -> dict[str, Value]:
    place = order.place
    number = integer(place.job) or 0
    folder = (given.data or place.data or place.output).rstrip("/")
    return {
        **order.place_values(FIRST_PORT + number % PORTS, model),
        **given.model_dump(),
        **shape,
        "num_gpus": not place.gres,
        "directory": order.directory(),
        "mounts": ",".join(dict.fromkeys((order.directory(), place.output, folder))),
        "data": folder,
        "config": f"{place.output}/ds_config.json",
        "timers": not order.without_timers(shape["pipeline_parallel"]),
    }


def _notes(order: Order, given: SlurmParameters, stages: int) -> tuple[str, ...]:
    notes = ["without srun: the target has no Slurm"] if order.place.direct else []
    notes += order.without_timers(stages)
    if order.place.nodes > 1 and order.place.job is None:
        notes.append("no job id: the port is the first of its range")
    if given.data is None:
        notes.append(f"the data are looked for in {order.place.data or order.place.output}")
    return tuple(notes)


def _deviations(order: Order) -> tuple[Deviation, ...]:
    gpus = "and their GPUs" if order.place.gres else "alone, as Slurm knows of no GPUs here"
    several = order.place.nodes > 1
    reason = "torchrun, not deepspeed: it takes" if order.place.direct else "no --num_gpus: DeepSpeed takes"
    given = ("slurm-gpus-given", f"{reason} the GPUs of CUDA_VISIBLE_DEVICES")
    asked = ("slurm-no-gpus-asked", f"srun asks for the nodes {gpus}")
    return order.deviations(
        *(() if order.place.direct else (asked,)),
        ("slurm-step-nodelist", "the master address is the first of the job's node list, handed in"),
        *((("slurm-rendezvous-host", "the first node listens, and each is told its rank"),) if several else ()),
        *((given,) if not several and (order.place.direct or order.place.gres) else ()),
        ("slurm-loss-scale", "no --loss-scale: the DeepSpeed file governs"),
        ("slurm-zero-with-pipeline", "ZeRO 2 and 3 are refused"),
        ("slurm-workspace", "runs in the pinned source; what it writes goes to the output folder"),
        ("slurm-local-tag", "the image by registry or .sqsh file, as it is given"),
    )
