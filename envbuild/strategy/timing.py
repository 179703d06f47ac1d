"""How long a training step takes, well enough to rank cases: arithmetic, memory traffic, links, and the bubble.

Floating-point operations as the artifact counts them (Narayanan et al. 2021, Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM, section 5.1): a layer's forward pass has 24bsh^2 + 4bs^2h, its backward pass
twice as many, and recomputation the forward pass once more. The shares below are fitted to eleven measured runs (six on
H200, five on V100: tests/strategy/data/measured.yaml), which the estimate meets within 25 %; their order within one
model and GPU is what counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from envbuild.strategy.memory import Case, Shape, layer_activations, logits, parameters

_GEMM = 0.7  # of the dense peak
_COPY = 0.88  # of the memory bandwidth; measured for a device copy
_LINK = 0.38  # of NVLink's sum of both directions, as bus bandwidth of an all-reduce; measured with 4 and 8 H200
_TRAFFIC = 3  # how often kernels pass over a layer's activations
_PASS = 2e-4  # seconds of launching one pass over a layer
_LATENCY = 2e-5  # seconds of an all-reduce over nothing
_OPTIMIZER = 60  # bytes a parameter: unscale, norm, clip, Adam, copy back


@dataclass(frozen=True, slots=True)
class Machine:
    """`tflops`: dense fp16 peak; memory in bytes; memory bandwidth and NVLink in GB/s of a GPU, network of a node."""

    gpu: str
    gpus_per_node: int
    tflops: float
    memory: float
    bandwidth: float
    nvlink: float
    network: float


def flops(shape: Shape, global_batch: int) -> float:
    """Operations of one step with recomputation, as the artifact counts them (benchmark/util.py)."""
    tokens, hidden = global_batch * shape.sequence, shape.hidden
    layers = 96 * tokens * shape.layers * hidden**2 * (1 + shape.sequence / (6 * hidden))
    return layers + 6 * tokens * hidden * shape.vocabulary


def tflops(shape: Shape, case: Case, machine: Machine) -> float:
    """What a case is estimated to reach, in TFLOP/s per GPU."""
    return flops(shape, case.global_batch) / seconds(shape, case, machine) / case.gpus / 1e12


def seconds(shape: Shape, case: Case, machine: Machine) -> float:
    """One step. 1F1B: the slowest stage works without pause but for PP - 1 microbatches at both ends."""
    bandwidth = machine.bandwidth * 1e9 * _COPY
    layers = shape.layers / case.pp * _layer(shape, case, machine)
    head = _head(shape, case, machine)
    stages = [layers] * (case.pp - 1) + [layers + head]
    sent = 2 * shape.sequence * case.micro_batch * shape.hidden
    inside = case.gpus <= machine.gpus_per_node
    link = machine.nvlink * 1e9 * _LINK / 4 if inside else machine.network * 1e9
    handed = 2 * sent / link if case.pp > 1 else 0.0
    pipeline = (case.microbatches - 1) * (max(stages) + handed) + sum(stages) + 2 * (case.pp - 1) * handed
    most = max(parameters(shape, case, stage) for stage in range(case.pp))
    # Megatron's data-parallel ranks of a stage are neighbours; its stages are farthest apart.
    reduced = _all_reduce(2 * most, case.dp, machine, spread=case.dp * case.tmp)
    return pipeline + reduced + _OPTIMIZER * most / bandwidth


def _layer(shape: Shape, case: Case, machine: Machine) -> float:
    """One layer forward, once more for recomputation, and backward, for one microbatch."""
    tokens, hidden = shape.sequence * case.micro_batch, shape.hidden
    passes = 4 if case.recompute else 3
    operations = (24 * tokens * hidden**2 + 4 * tokens * shape.sequence * hidden) / case.tmp
    one = operations / (machine.tflops * 1e12 * _GEMM)
    one += _TRAFFIC * layer_activations(shape, case) / (machine.bandwidth * 1e9 * _COPY) + _PASS
    # Two all-reduces in every pass over a layer; a backward pass is two of ours.
    reduced = _all_reduce(2 * tokens * hidden, case.tmp, machine, spread=case.tmp)
    return passes * one + 2 * (passes - 1) * reduced


def _head(shape: Shape, case: Case, machine: Machine) -> float:
    """The logits and their loss, forward and backward."""
    operations = 6 * shape.sequence * case.micro_batch * shape.hidden * shape.vocabulary / case.tmp
    traffic = _TRAFFIC * logits(shape, case) / (machine.bandwidth * 1e9 * _COPY)
    return operations / (machine.tflops * 1e12 * _GEMM) + traffic


def _all_reduce(size: float, ranks: int, machine: Machine, *, spread: int) -> float:
    """A ring over `ranks` GPUs that lie within `spread` neighbours."""
    if ranks == 1:
        return 0.0
    link = machine.nvlink * _LINK if spread <= machine.gpus_per_node else machine.network
    return size * 2 * (ranks - 1) / ranks / (link * 1e9) + _LATENCY
