"""What a training step needs of a GPU's memory: parameters, gradients, optimizer states, activations and logits.

Sources: [ZeRO] Rajbhandari et al. 2020, section 3.1, mixed precision with Adam; [K] Korthikanti et al. 2022, Reducing
Activation Recomputation in Large Transformer Models, sections 4.1 and 4.2. What Megatron-LM of 2021 does beyond them is
read from its code and said where it counts. Bytes everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

# [ZeRO]: 2 for the fp16 weight, 2 for its gradient, 12 for Adam: weight, momentum and variance in fp32.
STATE = 16
# While the optimizer steps, Megatron holds all gradients once more in fp32.
STEP = STATE + 4
# Logits in fp16 and in fp32 at once; the loss and its gradient are computed in place of the latter.
LOGIT = 6


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
    tokens = shape.sequence * case.micro_batch * shape.hidden
    attention = 5 * shape.heads * shape.sequence / shape.hidden
    return tokens * (10 + (24 + attention) / case.tmp)


def logits(shape: Shape, case: Case) -> float:
    """The logits of one microbatch at their peak."""
    return LOGIT * shape.sequence * case.micro_batch * shape.vocabulary / case.tmp


def peak(shape: Shape, case: Case) -> float:
    """The most that any GPU holds in a step, without CUDA's context, NCCL's buffers and gaps between blocks.

    1F1B: stage i holds min(microbatches, PP - i) microbatches. With recomputation each is the input of every layer
    (2sbh [K, section 5]) and the stage's output; the layer that runs backward has its activations once more.
    """
    return max(_stage(shape, case, stage) for stage in range(case.pp))


def _stage(shape: Shape, case: Case, stage: int) -> float:
    count = parameters(shape, case, stage)
    flying = min(case.microbatches, case.pp - stage)
    one = layer_activations(shape, case)
    if case.recompute:
        kept = flying * (shape.layers / case.pp + 1) * 2 * shape.sequence * case.micro_batch * shape.hidden
    else:
        kept, one = flying * shape.layers / case.pp * one, 0.0
    head = logits(shape, case) if stage == case.pp - 1 else 0.0
    return max(STEP * count, STATE * count + kept + max(one, head))
