"""The least number of nodes for a stack's largest model, from its memory model."""

from __future__ import annotations

import math
from typing import NamedTuple

from envbuild.model.reference import ModelSize, Reference


class LeastNodes(NamedTuple):
    """`nodes` for `model`; `needed_gb` and `node_gb` in 10^9 bytes, `source` says what the model rests on."""

    model: str
    nodes: int
    parameters: int
    needed_gb: float
    node_gb: float
    source: str


def parameters(size: ModelSize) -> int:
    """Weights of a GPT of that size: 12 h² a layer with its biases and norms (13 h), embeddings and positions."""
    hidden = size.hidden
    layers = size.layers * (12 * hidden * hidden + 13 * hidden)
    return layers + ((size.vocabulary or 0) + (size.sequence or 0)) * hidden + 2 * hidden


def least_nodes(reference: Reference | None) -> LeastNodes | None:
    """The answer for the model that the memory model names, None when the stack has no memory model."""
    memory = reference.memory if reference else None
    size = next((m for m in reference.models if memory and m.name == memory.model), None) if reference else None
    if memory is None or size is None:
        return None
    count = parameters(size)
    needed = count * memory.bytes_per_parameter / 1e9
    node = memory.gpu_gb * memory.gpus_per_node * memory.usable
    return LeastNodes(memory.model, max(1, math.ceil(needed / node)), count, needed, node, memory.source)
