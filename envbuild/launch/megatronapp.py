"""MegatronAPP: torchrun on each pod, the workers after the master's port is open, addresses from arguments."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from envbuild.launch.request import Count, Order, Parameters, Value, fill, model_row, read, require, require_shape
from envbuild.model.common import Text
from envbuild.model.launch import Command, Default, Launch, ModelSize

PORT = 6000
_ORDER_EDIT = "megatronapp-tensor-order"
_DEVIATIONS = (
    ("app-master-address", "the master's address is an argument, on the workers too"),
    ("app-layers-divide", "stages x chunks must divide the layers"),
    ("app-infiniband-addresses", "addresses and GPUs a node are variables, not constants of a build"),
    ("app-semaphores", "shared memory is named by job and removed by its own run only"),
    ("app-two-pods", "nothing in the sources is edited; data and checkpoints lie outside of them"),
    ("app-trace-stdout", "the trace lines come with the program's own output, without the helper's"),
)


def _addresses(text: str) -> str:
    parts = text.split(",")
    if not all(part and not part.startswith("-") and set(part) <= set("0123456789abcdefABCDEF.:") for part in parts):
        raise ValueError("addresses are numeric and separated by commas")
    return text


class AppParameters(Parameters):
    """Degrees of the pipeline, batch sizes, addresses, and where data and checkpoints lie."""

    model: Text = Field(description="row of the model table")
    pipeline_parallel: Count = Field(description="pipeline stages")
    model_chunks: Count | None = Field(
        None, description="virtual stages of a GPU; times the stages it divides the layers"
    )
    tensor_parallel: Count = Field(description="tensor parallel")
    micro_batch: Count = Field(description="sequences a GPU and microbatch")
    global_batch: Count = Field(description="sequences a step")
    iterations: Count = Field(alias="train_iters", description="iterations; the trace tools of the document want 20")
    data: Text | None = Field(None, description="folder of the prepared data, the vocabulary and the merges")
    checkpoints: Text | None = Field(None, description="folder of the checkpoints")
    addresses: Annotated[Text, AfterValidator(_addresses)] | None = Field(
        None, description="InfiniBand addresses of the nodes in the order of their ranks, separated by commas"
    )


def make(order: Order) -> Launch:
    """One command a node; rank 0 is the master, the others wait for its port."""
    given, taken = read(AppParameters, order)
    model = model_row(order.reference, given.model, "model")
    place = order.place
    usual = _chunks_default(order, given.pipeline_parallel)
    chunks, computed = given.model_chunks or int(usual.value), () if given.model_chunks else (usual,)
    data, microbatches = _bounds(order, given, model, chunks)
    values: dict[str, Value] = {
        **order.place_values(PORT, model),
        **given.model_dump(),
        "virtual": given.pipeline_parallel > 1,
        "virtual_layers": model.layers // (given.pipeline_parallel * chunks),
        "data": (given.data or f"{place.data or place.output}/datasets").rstrip("/"),
        "checkpoints": (given.checkpoints or f"{place.output}/checkpoints").rstrip("/"),
    }
    few = "one stage, without virtual ones" if given.pipeline_parallel == 1 else "three stages at least"
    return order.launch(
        model.name,
        degrees={
            "pipeline": given.pipeline_parallel,
            "chunks": chunks,
            "tensor": given.tensor_parallel,
            "data": data,
            "global-batch": given.global_batch,
            "micro-batch": given.micro_batch,
            "microbatches": microbatches,
        },
        commands=_commands(order, given, values),
        defaults=(*taken, *computed),
        deviations=order.deviations(
            *_DEVIATIONS, ("app-two-stages", f"{few}, and microbatches that the stages divide")
        ),
        notes=_notes(order, given, data),
    )


def _chunks_default(order: Order, stages: int) -> Default:
    if stages == 1:
        return Default(name="model_chunks", value="1", why="one stage has no virtual ones")
    many = order.place.nodes > 1
    where = "run_master.sh and run_worker.sh (4 layers a virtual stage)" if many else "run_single.sh"
    chunks = order.data.defaults["chunks_of_many" if many else "chunks_of_one"]
    return Default(name="model_chunks", value=chunks, why=f"what {where} starts")


def _commands(order: Order, given: AppParameters, values: dict[str, Value]) -> tuple[Command, ...]:
    place = order.place
    environment = {**order.data.environment, "MEGATRONAPP_GPUS_PER_NODE": str(place.gpus_per_node)}
    if place.nodes > 1 and given.addresses:
        environment["MEGATRONAPP_NODE_ADDRESSES"] = given.addresses
    if place.job:
        environment["MEGATRONAPP_JOB"] = place.job

    def argv(rank: int) -> tuple[str, ...]:
        before = fill(order.data.before["torchrun"], {**values, "rank": rank})
        return (*place.torchrun(), *before, "pretrain_gpt.py", *fill(order.data.arguments, values))

    return order.of_nodes(argv, environment, PORT)


def _bounds(order: Order, given: AppParameters, model: ModelSize, chunks: int) -> tuple[int, int]:
    """Data-parallel degree and microbatches; refuses what the code asserts or rounds down silently."""
    stages = given.pipeline_parallel
    require(
        model.layers % (stages * chunks) == 0,
        f"{stages} stages x {chunks} chunks do not divide the {model.layers} layers of {model.name}",
        why="the script divides and rounds down without a message (finding app-layers-divide)",
        hint="stages x chunks of " + ", ".join(str(n) for n in range(1, model.layers + 1) if model.layers % n == 0),
    )
    require(
        stages > 2 or stages == chunks == 1,
        f"{stages} pipeline stage{'s' if stages > 1 else ''} are too few for virtual stages",
        why="megatron/arguments.py asserts more than 2 where virtual stages are given (finding app-two-stages)",
        hint="pipeline_parallel=4; or pipeline_parallel=1 without model_chunks, which is no pipeline",
    )
    data = require_shape(model, order.place.gpus, given.tensor_parallel, stages)
    instead = " or ".join(f"--profile {name}" for name in order.editing(_ORDER_EDIT))
    require(
        stages == 1 or given.tensor_parallel == 1 or order.edited(_ORDER_EDIT),
        f"tensor parallel {given.tensor_parallel} with virtual stages trains on wrong gradients",
        why="each rank of a stage computes what has arrived for it, and their sums are those of different microbatches "
        "(finding app-tensor-order)",
        hint="tensor_parallel=1" + (f"; or {instead}, which has the edit {_ORDER_EDIT}" if instead else ""),
    )
    step = given.micro_batch * data
    require(
        given.global_batch % step == 0 and given.global_batch // step % stages == 0,
        f"global batch {given.global_batch} / (micro-batch {given.micro_batch} x data parallel {data}) is no multiple "
        f"of the {stages} stages",
        why="the interleaved schedule wants a multiple of the stages as its number of microbatches",
        hint=f"global_batch={max(1, round(given.global_batch / step / stages)) * step * stages}",
    )
    if given.addresses and order.place.nodes > 1:
        count = len(given.addresses.split(","))
        require(
            count == order.place.nodes,
            f"{count} InfiniBand addresses for {order.place.nodes} nodes",
            hint="one address a node, in the order of the ranks",
        )
    return data, given.global_batch // step


def _notes(order: Order, given: AppParameters, data: int) -> tuple[str, ...]:
    notes = []
    if given.pipeline_parallel == 1:
        notes.append("one stage: no pipeline, no virtual stages and no transfers; the document's run has four stages")
    elif not order.edited("megatronapp-finish"):
        notes.append(
            "the embedding's gradients are not summed between the first and the last stage, whose copies drift apart "
            "(finding app-unfinished-gradients)"
        )
    if given.pipeline_parallel > 1 and data > 1 and "--use-distributed-optimizer" in order.data.arguments:
        notes.append(
            "the embedding's gradients are not summed whole over the first and the last stage, as the distributed "
            "optimizer cuts them at other places there (finding app-sharded-embedding): compare losses with data "
            "parallel 1"
        )
    if order.place.nodes > 1 and not given.addresses:
        notes.append(
            "no InfiniBand addresses (addresses=A,B): all ranks take shared memory, which works within one node only"
        )
    if order.place.job is None:
        notes.append(
            "shared memory is named by MASTER_PORT where no job id is known; two runs on one host need two ports"
        )
    return tuple(notes)
