"""Smoke program `training`: a small GPT learns a sequence for a fixed number of steps; the loss must fall.

Runs inside the environment; needs torch 1.8 or newer and no numpy. The sequence x → 3·x + 7 (mod the vocabulary) is
learnable exactly, so a model that does not learn it has a broken forward pass, backward pass or optimizer.
"""

import contextlib
import math
import time
from typing import Any, Dict, List

import torch
from torch import nn
from torch.nn import functional

from .common import Channel, torch_version

# The loss of the last steps must be at most this part of the first one (which is about ln(vocabulary)).
LOSS_FACTOR = 0.5
_CPU = {"vocabulary": 61, "width": 64, "layers": 2, "heads": 4, "length": 64, "batch": 16, "steps": 60}
_CUDA = {"vocabulary": 509, "width": 768, "layers": 12, "heads": 12, "length": 512, "batch": 8, "steps": 80}
_RATE = {"cpu": 3e-3, "cuda": 3e-4}


class Block(nn.Module):  # type: ignore[misc]
    """Causal self-attention and an MLP, each after a layer norm and added to the stream."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        """`width` must be a multiple of `heads`."""
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        future = torch.triu(torch.ones(length, length), diagonal=1).to(torch.bool)
        self.register_buffer("future", future)

    def forward(self, x: Any) -> Any:
        """(batch, length, width) to the same shape."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.shape[3])
        weights = functional.softmax(scores.masked_fill(self.future[:length, :length], float("-inf")), dim=-1)
        mixed = torch.matmul(weights, value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.mlp(self.norm2(x))


class SmallGPT(nn.Module):  # type: ignore[misc]
    """Token and position embedding, blocks, a last layer norm and a head."""

    def __init__(self, shape: Dict[str, int]) -> None:
        """`shape` is like the tables of this module."""
        super().__init__()
        width = shape["width"]
        self.token = nn.Embedding(shape["vocabulary"], width)
        self.position = nn.Embedding(shape["length"], width)
        blocks = [Block(width, shape["heads"], shape["length"]) for _ in range(shape["layers"])]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, shape["vocabulary"], bias=False)

    def forward(self, tokens: Any) -> Any:
        """(batch, length) of token numbers to (batch, length, vocabulary) logits."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        return self.head(self.norm(self.blocks(x)))


def batch(shape: Dict[str, int], generator: Any) -> Any:
    """(batch, length + 1) token numbers on the CPU; each row starts anywhere in the sequence."""
    rows = [torch.randint(0, shape["vocabulary"], (shape["batch"],), generator=generator)]
    for _ in range(shape["length"]):
        rows.append((rows[-1] * 3 + 7) % shape["vocabulary"])
    return torch.stack(rows, dim=1)


def _precision(device: Any) -> Any:
    """bfloat16 autocast where GPU and torch have it, else nothing."""
    if device.type == "cuda" and torch_version(torch) >= [1, 10] and torch.cuda.get_device_capability(device)[0] >= 8:
        return torch.autocast(device_type="cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()


class Trainer:
    """Model, optimizer and data of one run, with a fixed seed."""

    def __init__(self, shape: Dict[str, int], device: Any) -> None:
        """Everything is made on the CPU first, so that the start is the same on every device."""
        torch.manual_seed(1234)
        self.shape = shape
        self.device = device
        self.model = SmallGPT(shape).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=_RATE[device.type])
        self.generator = torch.Generator()
        self.generator.manual_seed(99)

    def step(self) -> float:
        """One step; the loss before it."""
        tokens = batch(self.shape, self.generator).to(self.device)
        with _precision(self.device):
            logits = self.model(tokens[:, :-1])
            flat = logits.reshape(-1, self.shape["vocabulary"]).float()
            loss = functional.cross_entropy(flat, tokens[:, 1:].reshape(-1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())  # waits for the GPU


def _short(values: List[float]) -> List[float]:
    """Five digits: enough for a curve."""
    return [float("%.5g" % value) for value in values]


def main(args: Dict[str, Any], channel: Channel) -> None:
    """Train, tell the losses and tokens/s; the first step pays for start-up and is told apart."""
    device = torch.device("cuda", 0) if args["cuda"] else torch.device("cpu")
    shape = _CUDA if args["cuda"] else _CPU
    channel.stage("building the model on %s" % device)
    trainer = Trainer(shape, device)
    losses = []  # type: List[float]
    times = []  # type: List[float]
    for number in range(1, shape["steps"] + 1):
        channel.stage("step %d of %d" % (number, shape["steps"]))
        started = time.perf_counter()
        loss = trainer.step()
        seconds = time.perf_counter() - started
        if not math.isfinite(loss):
            channel.failure("the loss is %s at step %d" % (loss, number))
            break
        losses.append(loss)
        times.append(seconds)
    channel.facts({"shape": shape, "steps_done": len(losses), "device": str(device), "torch": str(torch.__version__)})
    curve = _short(losses)
    channel.facts({"losses": curve, "step_seconds": _short(times), "first_step_seconds": sum(times[:1])})
    if len(losses) == shape["steps"]:
        channel.facts({"loss_first": curve[0], "loss_last": curve[-1], "loss_factor_allowed": LOSS_FACTOR})
        middle = sorted(losses[-5:])[len(losses[-5:]) // 2]  # one step alone may be off
        if not middle <= LOSS_FACTOR * losses[0]:
            channel.failure(
                "the loss did not fall: %.4g at first, %.4g as the median of the last 5 steps, "
                "it must reach %g of the first" % (losses[0], middle, LOSS_FACTOR)
            )
        tokens = shape["batch"] * shape["length"]
        channel.metric("training_tokens_per_second", "token/s", [tokens / seconds for seconds in times[1:]])
