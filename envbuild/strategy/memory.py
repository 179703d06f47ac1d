"""What a training step holds of a GPU's memory, and what torch's allocator takes for it. Bytes everywhere.

Two figures that differ by several GiB: what tensors hold at once (torch's `max_memory_allocated`), and what the
allocator reserves for them, gaps between blocks included. CUDA's context and NCCL's buffers come on top of both.

Sources: [ZeRO] Rajbhandari et al. 2020, section 3.1, mixed precision with Adam; [K] Korthikanti et al. 2022, Reducing
Activation Recomputation in Large Transformer Models, sections 4.1 and 4.2; [M] Megatron-LM of 2021 as the artifact
runs it (`--fp16 --DDP-impl local --checkpoint-activations`), by file. Its own code, run on tensors without data for
thirteen cases (PP 1, 4; TMP 1, 2; with and without recomputation), held what `held` says within 0.1 %, and on an H100
in ten cases within 0.5 %.
"""

from __future__ import annotations

from dataclasses import dataclass

# [ZeRO]: 2 for the fp16 weight, 2 for its gradient, 12 for Adam: weight, momentum and variance in fp32. [M]
# model/distributed.py: gradients lie in one buffer of the weights' type; optimizer.py: Adam works on fp32 copies.
STATE = 16
# [M] optimizer.py, _copy_model_grads_to_main_grads: all gradients once more in fp32, until the next step begins.
STEP = STATE + 4
# [M] gpt_model.py, post_language_model_processing: logits in fp16 and in fp32 at once; the loss and its gradient
# (mpu/cross_entropy.py) are computed in place of the latter.
LOGIT = (2, 4)
# cuBLAS takes 32 MiB on Hopper (less elsewhere) for the thread that runs forward, and again for autograd's.
WORKSPACES = 2 * 32 * 2**20
# What CUDA's context, its kernels and NCCL took beside torch's allocator in each of ten runs on one H100.
OUTSIDE = 2.4 * 2**30

# (how many, bytes of one)
Tensors = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Shape:
    """A GPT: `sequence` and `vocabulary` in tokens."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """Data, tensor and pipeline parallel degrees and the microbatches of a step; `recompute`: of whole layers."""

    global_batch: int
    dp: int
    tmp: int
    pp: int
    microbatches: int
    recompute: bool = True

    @property
    def gpus(self) -> int:
        """How many GPUs it takes."""
        return self.dp * self.tmp * self.pp

    @property
    def micro_batch(self) -> int:
        """Sequences of one microbatch."""
        return self.global_batch // self.dp // self.microbatches

    def __str__(self) -> str:
        """As the document writes a combination, and its microbatches."""
        return f"DP {self.dp}, TMP {self.tmp}, PP {self.pp}, {self.microbatches} microbatches of {self.micro_batch}"


def parameters(shape: Shape, case: Case, stage: int) -> float:
    """Parameters on one GPU of a pipeline stage, counted from 0: its layers and, at both ends, the embedding.

    With PP 1 both ends share it. A layer has 12 h^2 + 13 h [K, appendix A]; tensor parallel divides the matrices.
    """
    layers = shape.layers / case.pp * (12 * shape.hidden**2 / case.tmp + 13 * shape.hidden)
    table = shape.vocabulary * shape.hidden / case.tmp
    first = table + shape.sequence * shape.hidden if stage == 0 else 0.0
    last = table if stage == case.pp - 1 and case.pp > 1 else 0.0
    return layers + first + last


def layer_activations(shape: Shape, case: Case) -> float:
    """What one layer keeps for its backward pass of one microbatch: sbh (10 + 24/t + 5as/ht) [K, equation 2]."""
    return _size(_layer(shape, case))


def logits(shape: Shape, case: Case) -> float:
    """The logits of one microbatch at their peak."""
    return sum(LOGIT) * _tokens(shape, case) * shape.vocabulary / case.tmp


def held(shape: Shape, case: Case) -> float:
    """The most that tensors hold on any GPU in a step: while the optimizer steps, or while a microbatch is computed."""
    most = 0.0
    for stage in range(case.pp):
        count = parameters(shape, case, stage)
        work = max(_size(tensors) for tensors in _moments(shape, case, stage))
        most = max(most, STEP * count, STATE * count + work)
    return most + WORKSPACES


def reserved(shape: Shape, case: Case) -> float:
    """What torch's allocator takes of the fullest GPU for them, nearly.

    In the first step it makes Adam's states, which stay, between the fp32 gradients, which go. Their room is in pieces
    then, of a layer's largest matrix at most, and a larger tensor can make no use of it.
    """
    piece = 4 * 4 * shape.hidden**2 / case.tmp
    most = 0.0
    for stage in range(case.pp):
        count = parameters(shape, case, stage)
        for tensors in _moments(shape, case, stage):
            large = _size([tensor for tensor in tensors if tensor[1] > piece])
            most = max(most, STATE * count + large + max((STEP - STATE) * count, _size(tensors) - large))
    return most + WORKSPACES


def _size(tensors: Tensors) -> float:
    return sum(count * size for count, size in tensors)


def _tokens(shape: Shape, case: Case) -> int:
    return shape.sequence * case.micro_batch


def _layer(shape: Shape, case: Case) -> Tensors:
    """What `layer_activations` sums up, in the order of [K, section 4.1]: last its 5as/ht."""
    x = _tokens(shape, case) * shape.hidden
    y, q = x / case.tmp, case.micro_batch * shape.heads * shape.sequence**2 / case.tmp
    return [(4, 2 * x), (2, x), (1, 6 * y), (1, 2 * y), (2, 8 * y), (2, 2 * q), (1, q)]


def _moments(shape: Shape, case: Case, stage: int) -> list[Tensors]:
    """What a stage holds beside its states when it holds most: in a layer's backward pass, or while the loss is made.

    1F1B: stage i has min(microbatches, PP - i) microbatches. With recomputation each is the input of every layer (2sbh
    [K, section 5]; [M] mpu/random.py keeps it whole on every rank) and, for the next stage, its output.
    [M] fused_bias_gelu.py, bias_gelu_back: where nothing fuses it (torch from 2.0 on), it has six more maps of 4sbh. By
    then the map that went out of it is free for the gradient that comes in, and so are the layer's second mask and,
    with recomputation, its input.
    """
    first, last = stage == 0, stage == case.pp - 1
    x = _tokens(shape, case) * shape.hidden
    gelu: Tensors = [(6, 8 * x / case.tmp)]
    flying = min(case.microbatches, case.pp - stage)
    layers = shape.layers / case.pp
    if case.recompute:
        kept = [(flying * layers, 2.0 * x)]
        # What the layer gives once more, and its gradient.
        backward = [*_layer(shape, case), (-1, 2 * x), (-1, x), *gelu, (2, 2 * x)]
    else:
        kept = [(flying * layers * count, size) for count, size in _layer(shape, case)]
        backward = [(-1, x), *gelu, (1, 2 * x)]
    # The embedding's own mask, the output that is sent on, and the attention mask of [M] benchmark_gpt_one_case.py.
    kept += [(flying * first, x), (flying * (not last), 2 * x), (1, case.micro_batch * shape.sequence**2)]
    # With PP 1 the head's gradient waits for the embedding's: they are one weight.
    table = [(first and last, 2 * shape.vocabulary * shape.hidden / case.tmp)]
    logit = _tokens(shape, case) * shape.vocabulary / case.tmp
    # The last layer's output transposed, and normed.
    head = [(2, 2 * x), *((1, size * logit) for size in LOGIT)]
    return [[*kept, *table, *backward], *([[*kept, *head]] if last else [])]
