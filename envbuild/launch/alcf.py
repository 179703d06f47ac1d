"""ALCF's Megatron-DeepSpeed: one MPI command for all nodes, with the variables of the guide as parameters.

Computes what the scripts compute (`ALCF/args.sh`, `launch.sh` at the pinned commit); the command itself is the stack's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from envbuild.launch.request import Count, Order, Parameters, Value, fill, model_row, read, require, require_shape
from envbuild.model.common import Text
from envbuild.model.finding import package_name
from envbuild.model.launch import Command, Default, Launch, LaunchFile, ModelSize
from envbuild.model.stack import mpi_on_nodes
from envbuild.node import program_files
from envbuild.node.smoke.programs.common import OPEN_MPI_OVERSUBSCRIBED

if TYPE_CHECKING:
    from envbuild.model.stack import Profile

PORT = 5432
_MASKED = 4096  # tokens that the tree's fused softmax takes, which masks by itself
_BARE = ("none", "system")  # bases without packages of the site
_RANKS = ("envbuild.node.smoke.programs", "mpi_ranks")
_PORT = ("alcf-deepspeed-port", "RANK and LOCAL_RANK from MPI's variables, so that DeepSpeed takes MASTER_PORT")
_DEVIATIONS = (
    ("alcf-exit-code", "one command in the foreground; its exit code is the run's"),
    ("alcf-seed", "a fixed seed, the same on every rank and every start"),
    ("alcf-unknown-key", "MODEL_SIZE_KEY comes from the table, other keys are refused"),
    ("alcf-tensor-parallel", "the degrees are said; MPSIZE is kept when it is given, with pipeline stages too"),
    ("alcf-flash-attention", "0 means off"),
    ("alcf-hosfile", "one host file for the launcher, the world size and the log"),
    ("alcf-wrong-base", "python3 of the environment, not the first on PATH"),
    ("alcf-data-path", "DATA_DIR and DATA_TYPE instead of a folder chosen by host name"),
    ("alcf-setup-scripts", "LAUNCHER instead of the host name's first letters"),
    ("alcf-wandb", "WANDB_MODE=disabled unless you say otherwise"),
    ("alcf-master-address", "of several nodes, MASTER_ADDR is the first on every node, not 127.0.0.1"),
)


class AlcfParameters(Parameters):
    """The variables of the guide and of its scripts, by their own names."""

    model_size_key: Text = Field(alias="MODEL_SIZE_KEY", description="row of the model table")
    model_type: Literal["gpt", "bert"] = Field(alias="MODEL_TYPE", description="which pretrain_*.py is started")
    sequence_length: Count = Field(alias="SEQ_LEN", description="sequence length in tokens and number of positions")
    micro_batch: Count = Field(alias="MICRO_BATCH", description="micro-batch size of a GPU")
    accumulation: Count = Field(alias="GAS", description="gradient accumulation steps")
    sp_type: Literal["megatron", "ds"] = Field(
        alias="SP_TYPE", description="sequence parallel of Megatron or DeepSpeed"
    )
    zero: Annotated[int, Field(ge=0, le=3)] = Field(alias="ZERO_STAGE", description="ZeRO stage; above 0 on the CPU")
    pipeline_parallel: Count = Field(alias="PPSIZE", description="pipeline stages")
    spsize: Count = Field(alias="SPSIZE", description="DeepSpeed sequence parallel; SP_TYPE=ds computes it")
    mpsize: Count | None = Field(None, alias="MPSIZE", description="tensor parallel; all GPUs of the job when not said")
    use_sequence_parallel: bool | None = Field(
        None, alias="USE_SEQUENCE_PARALLEL", description="Megatron's sequence parallel; on with SP_TYPE=megatron"
    )
    flash_v1: bool = Field(False, alias="USE_FLASH_ATTN_V1", description="flash attention 1")
    flash_v2: bool = Field(False, alias="USE_FLASH_ATTN_V2", description="flash attention 2")
    flash_triton: bool = Field(False, alias="USE_FLASH_ATTN_TRITON", description="flash attention in Triton")
    wandb_mode: Literal["disabled", "offline", "online"] = Field(
        alias="WANDB_MODE", description="wandb; compute nodes reach the network through a proxy at most"
    )
    data_dir: Text = Field(alias="DATA_DIR", description="folder of the data, the vocabulary and the merges")
    data_type: Text = Field(alias="DATA_TYPE", description="name of the data without .bin and .idx")
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(alias="SEED", description="seed of all ranks")
    iterations: Count = Field(alias="TRAIN_ITERS", description="iterations")
    launcher: Literal["mpiexec", "mpirun", "srun"] = Field(
        alias="LAUNCHER",
        description="mpiexec of PALS (Polaris) or MPICH, mpirun of Open MPI (ThetaGPU), srun (Perlmutter)",
    )


def make(order: Order) -> Launch:
    """The MPI command, and the DeepSpeed file that it reads."""
    given, defaults = read(AlcfParameters, order)
    model = model_row(order.reference, given.model_size_key, "MODEL_SIZE_KEY")
    flash = _flash(given)
    variable = f"USE_FLASH_ATTN_{flash}".upper()
    has_flash = [f"`--profile {name}`" for name, profile in order.profiles.items() if "flash_attn" in profile.imports]
    require(
        # What the profile stands on of the site may have it.
        flash is None or _asks_for_flash(order.profile) or any(base.kind not in _BARE for base in order.profile.bases),
        f"{variable}=1, and the profile {order.profile_name} has no flash-attn",
        why="the script stops without it (finding alcf-flash-attention)",
        hint=", or ".join([f"leave {variable} out", *has_flash]),
    )
    one_node = "".join(mpi_on_nodes(order.profiles, order.profile_name, order.place.nodes))
    others = [f"`--profile {name}`" for name, profile in order.profiles.items() if not profile.mpi_for_one_node]
    require(not one_node, f"{order.place.nodes} nodes: {one_node}", hint=" or ".join(["`--nodes 1`", *others]))
    degrees, computed = _degrees(given, model, order.place.gpus)
    # Megatron's own, which SP_TYPE=ds replaces.
    sequence_parallel = given.sp_type == "megatron" and given.use_sequence_parallel is not False
    require(
        given.zero < 2 or given.pipeline_parallel == 1,
        f"ZeRO {given.zero} with {given.pipeline_parallel} pipeline stages",
        why="DeepSpeed's pipeline engine takes ZeRO 0 and 1 only (rule zero-needs-no-pipeline)",
        hint="ZERO_STAGE=1, or PPSIZE=1",
    )
    values = _values(order, given, model, degrees, flash, sequence_parallel=sequence_parallel)
    config = order.config_file("zero-3" if given.zero == 3 else "zero", values)
    python, ranks = order.place.program("python3"), f"{order.place.output}/mpi_ranks.py"
    files = () if order.takes_mpi_flag() else (LaunchFile(path=ranks, text=program_files.text(*_RANKS)),)
    address, port = order.place.rendezvous(PORT)
    environment = {
        **order.data.environment,
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(order.place.gpus),
        "WANDB_MODE": given.wandb_mode,
    }
    starts = fill(order.data.before[given.launcher], values)
    if given.launcher == "mpirun":
        # Open MPI takes along to other nodes what it is told to alone.
        starts += tuple(word for name in environment if name not in starts for word in ("-x", name))
        # A job tells it of one slot a node, for that is how jobs of ours start a program on each.
        environment |= OPEN_MPI_OVERSUBSCRIBED
    argv = (
        *starts,
        *((python, ranks) if files else ()),
        python,
        f"{order.directory()}/pretrain_{given.model_type}.py",
        *fill(order.data.arguments, values),
    )
    return order.launch(
        model.name,
        degrees=degrees,
        files=(config, *files),
        commands=(Command(argv=argv, environment=environment, directory=order.directory()),),
        defaults=(*defaults, *computed),
        deviations=order.deviations(*_DEVIATIONS, *((_PORT,) if files else ())),
        notes=(*_notes(order, given), *order.without_timers(given.pipeline_parallel)),
    )


def _flash(given: AlcfParameters) -> str | None:
    """Name of the one flash attention that is on; the scripts take the first of several silently."""
    on = [name for name in ("v1", "v2", "triton") if getattr(given, f"flash_{name}")]
    require(len(on) < 2, f"flash attention {' and '.join(on)} at once", hint="one USE_FLASH_ATTN_… at a time")
    return on[0] if on else None


def _asks_for_flash(profile: Profile) -> bool:
    return "flash_attn" in profile.imports or "flash-attn" in map(package_name, profile.packages)


def _degrees(given: AlcfParameters, model: ModelSize, gpus: int) -> tuple[dict[str, int], list[Default]]:
    """Parallel degrees and batch sizes as args.sh has them, except that an MPSIZE that is said is kept.

    And the parameters that it computed.
    """
    computed: list[Default] = []
    tensor, sequence = given.mpsize or 0, given.spsize
    if not tensor:
        tensor = max(1, gpus // given.pipeline_parallel)
        stages = f" over {given.pipeline_parallel} pipeline stages" if given.pipeline_parallel > 1 else ""
        why = f"tensor parallel: all {gpus} GPUs of the job{stages}"
        computed.append(Default(name="MPSIZE", value=str(tensor), why=why))
    if given.sp_type == "ds":
        sequence = 1 if tensor == gpus else gpus
        require(
            tensor in (1, gpus),
            f"SP_TYPE=ds with MPSIZE={tensor}",
            why="the scripts set MPSIZE back to 1 there without a message",
            hint=f"MPSIZE=1 for sequence parallel {gpus}, or leave it out for tensor parallel {gpus}",
        )
        computed.append(Default(name="SPSIZE", value=str(sequence), why="what SP_TYPE=ds makes of MPSIZE"))
    if given.use_sequence_parallel is None:
        on = str(int(given.sp_type == "megatron"))
        computed.append(Default(name="USE_SEQUENCE_PARALLEL", value=on, why=f"what SP_TYPE={given.sp_type} means"))
    data = require_shape(model, gpus, tensor, given.pipeline_parallel, sequence)
    # args.sh divides what all GPUs take in a step by each degree in turn, rounding down, and never below 1.
    batch = max(1, gpus * given.micro_batch * given.accumulation // tensor // given.pipeline_parallel // sequence)
    sizes = {"data": data, "global-batch": batch, "micro-batch": given.micro_batch}
    return {"tensor": tensor, "pipeline": given.pipeline_parallel, "sequence": sequence, **sizes}, computed


def _values(
    order: Order,
    given: AlcfParameters,
    model: ModelSize,
    degrees: dict[str, int],
    flash: str | None,
    *,
    sequence_parallel: bool,
) -> dict[str, Value]:
    place = order.place
    name = _run_name(given, model, degrees, flash, sequence_parallel=sequence_parallel)
    return {
        **order.place_values(PORT, model),
        **given.model_dump(),
        "world": place.gpus,
        "global_batch": degrees["global-batch"],
        "tensor_parallel": degrees["tensor"],
        "sequence_degree": degrees["sequence"],
        "one_stage": given.pipeline_parallel == 1,
        "stages": given.pipeline_parallel > 1,
        "sequence_parallel": sequence_parallel,
        "timers": not order.without_timers(given.pipeline_parallel),
        "mpi_flag": order.takes_mpi_flag(),
        "cpu_optimizer": given.zero > 0,
        "wandb": given.wandb_mode != "disabled",
        "data": given.model_type == "gpt",
        "data_dir": given.data_dir.rstrip("/"),
        "tensorboard": f"{place.output}/outputs/{name}/tensorboard",
        "config": f"{place.output}/ds_config-gpt.json",
    }


def _run_name(
    given: AlcfParameters, model: ModelSize, degrees: dict[str, int], flash: str | None, *, sequence_parallel: bool
) -> str:
    """The name of a run as args.sh puts it together, so that old results are found beside new ones."""
    parts: list[str] = [given.model_type]
    parts += ["SP"] if sequence_parallel else []
    parts += ["actCkpt"]
    parts += [f"flashAttn_{flash}"] if flash else []
    parts += [model.name, f"z{given.zero}", f"seqlen{given.sequence_length}"]
    parts += [f"mp{degrees['tensor']}", f"pp{given.pipeline_parallel}", f"sp{degrees['sequence']}"]
    parts += [f"nl{model.layers}", f"hs{model.hidden}", f"gb{degrees['global-batch']}", f"mb{given.micro_batch}"]
    return "_".join(parts)


def _notes(order: Order, given: AlcfParameters) -> tuple[str, ...]:
    notes = []
    if given.data_dir == order.data.defaults.get("DATA_DIR"):
        notes.append(
            f"DATA_DIR={given.data_dir} is the folder of a workshop of 2023; expect that it cannot be read: "
            f"`envbuild data {order.stack}` makes small data for `--set DATA_DIR=DIR`"
        )
    if _flash(given) is not None and not _asks_for_flash(order.profile):
        notes.append("flash-attn is the module's own, if it has one; nothing here asks for it")
    if given.launcher == "mpiexec" and "LAUNCHER" not in order.values:
        notes.append("mpiexec --ppn is that of PALS (Cray, ALCF) or MPICH; of Open MPI, `--set LAUNCHER=mpirun`")
    if order.place.hostfile is None and given.launcher != "srun":
        notes.append(f"no host file: {given.launcher} starts on the nodes of the job that it runs in")
    # 0.18.3 is the oldest that was read, 0.19.3 the first without it.
    if given.pipeline_parallel > 1 and order.deepspeed_since("0.18.3") and not order.deepspeed_since("0.19.3"):
        notes.append(
            "this DeepSpeed divides gradients by the microbatches once more at every stage before the last, so that "
            "clipping and the tied embedding go wrong (finding alcf-pipeline-gradients); PPSIZE=1 is right"
        )
    if given.sequence_length > _MASKED and given.pipeline_parallel == 1 and _flash(given) is None:
        notes.append(
            f"nothing masks attention beyond {_MASKED} tokens without flash attention: every token sees those that "
            "follow (finding alcf-no-mask)"
        )
    if given.sp_type == "ds":
        notes.append("the scripts themselves say that SP_TYPE=ds with MPSIZE of all GPUs has no effect")
    return tuple(notes)
