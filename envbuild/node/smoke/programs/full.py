"""Smoke program `full`: a GPT of 125 M parameters trains eagerly and under torch.compile; tokens per second and MFU.

Runs inside the environment; needs torch 2.0 or newer. The shape is that of GPT-3's smallest model (12 layers, 768 wide,
12 heads) with 16 sequences of 2048 (fewer where GPU memory is short), bfloat16 autocast and fused AdamW, on one GPU.
"""

import statistics
import time
from typing import Any, Dict, List, Tuple

import torch
from torch.nn import functional

from .common import Channel, begin, torch_version
from .training import Block, SmallGPT, batch

SHAPE = {"vocabulary": 50304, "width": 768, "layers": 12, "heads": 12, "length": 2048, "batch": 16}
_WARM_UP = 3
_STEPS = 10
_RATE = 3e-4
# For the model with its optimizer, and as much again for each sequence: most of that are logits and their gradients.
_NEEDED = 3 << 30
# Older GPUs emulate bfloat16, and torch.compile leaves what needs it as it is, with a warning.
_NATIVE_BF16 = (8, 0)


class FusedBlock(Block):
    """The block with torch's own fused attention."""

    def mix(self, query: Any, key: Any, value: Any) -> Any:
        """(batch, heads, length, part of the width) three times to the same shape."""
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def flop_per_token(shape: Dict[str, int], parameters: int) -> float:
    """FLOP of forward and backward pass: 6 a parameter that is multiplied, 12·layers·width·length for attention.

    After Chowdhery et al. 2022 (PaLM), appendix B. The tables of tokens and positions are looked up, not multiplied.
    """
    tables = (shape["vocabulary"] + shape["length"]) * shape["width"]
    return 6.0 * (parameters - tables) + 12.0 * shape["layers"] * shape["width"] * shape["length"]


def fitting(free: int, sequences: int) -> int:
    """The batch, halved until `free` bytes of GPU memory hold it; 0 where they do not hold one sequence."""
    while sequences and free < (sequences + 1) * _NEEDED:
        sequences //= 2
    return sequences


def compiled_graphs() -> int:
    """How many graphs torch.compile has compiled in this process; 0 also where torch does not count them."""
    try:
        from torch._dynamo.utils import counters
    except ImportError:
        return 0
    return int(counters["stats"]["unique_graphs"])


class Training:
    """One model with its optimizer, eager or compiled."""

    def __init__(self, shape: Dict[str, int], device: Any, backend: str) -> None:
        """`backend` of torch.compile, empty for none."""
        torch.manual_seed(1234)
        self.shape, self.device = shape, device
        model = SmallGPT(shape, FusedBlock).to(device)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, fused=device.type == "cuda")
        self.model = torch.compile(model, backend=backend) if backend else model

    def step(self, tokens: Any) -> Any:
        """One step on (batch, length + 1) token numbers; the loss before it, on the device."""
        with torch.autocast(device_type=self.device.type, dtype=torch.bfloat16):
            logits = self.model(tokens[:, :-1])
            loss = functional.cross_entropy(
                logits.reshape(-1, self.shape["vocabulary"]).float(), tokens[:, 1:].flatten()
            )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def measure(channel: Channel, shape: Dict[str, int], device: Any, backend: str) -> Tuple[List[float], int]:
    """Tokens per second of each step after the warm-up, and how many parameters there are; the loss must fall.

    None a second where torch.compile compiled nothing: that was the eager model again.
    """
    name = "compiled" if backend else "eager"
    channel.stage("building the %s model on %s" % (name, device))
    training = Training(shape, device, backend)
    generator = torch.Generator()
    generator.manual_seed(99)
    tokens = batch(shape, generator).to(device)
    losses = []  # type: List[Any]
    times = []  # type: List[float]
    for number in range(1, _WARM_UP + _STEPS + 1):
        channel.stage("%s step %d" % (name, number))
        started = time.perf_counter()
        losses.append(float(training.step(tokens).item()))  # waits for the GPU
        times.append(time.perf_counter() - started)
    if not losses[-1] < losses[0]:  # also for NaN
        channel.failure(
            "the %s model: the loss did not fall, %.4g at first, %.4g at last" % (name, losses[0], losses[-1])
        )
    channel.facts({"%s_first_step_seconds" % name: round(times[0], 3), "%s_loss" % name: [losses[0], losses[-1]]})
    if backend and not compiled_graphs():
        channel.facts({"not_compiled": "torch.compile ran, and torch counted no graph that it compiled"})
        return [], training.parameters
    rates = [shape["batch"] * shape["length"] / took for took in times[_WARM_UP:]]
    channel.metric("full_%s_tokens_per_second" % name, "token/s", rates)
    return rates, training.parameters


def not_run(device: Any, shape: Dict[str, int]) -> str:
    """Why this GPU cannot run the model at all; nothing where it can. `shape` gets the batch that fits."""
    free, asked = torch.cuda.mem_get_info(device)[0], shape["batch"]
    shape["batch"] = fitting(free, asked)
    if not shape["batch"]:
        return "not run: %.1f GiB of GPU memory are free, and one sequence needs %d" % (free / 2**30, _NEEDED >> 29)
    return "" if torch.cuda.is_bf16_supported() else "not run: torch %s has no bfloat16 here" % torch.__version__


def main() -> None:
    """Eager, then compiled."""
    args, channel = begin()
    shape = dict(SHAPE, **(args.get("shape") or {}))
    device = torch.device(args["device"])
    if torch_version(torch) < [2, 0]:
        channel.failure("torch %s has no torch.compile" % torch.__version__)
        channel.done()
        return
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else "CPU"
    why = not_run(device, shape) if cuda else ""
    channel.facts({"shape": shape, "device": name, "torch": str(torch.__version__), "not_run": why})
    if not why:
        train(channel, args, shape, device, name)
    channel.done()


def train(channel: Channel, args: Dict[str, Any], shape: Dict[str, int], device: Any, name: str) -> None:
    """Both halves, and MFU of the compiled one where the request knows the peak of a GPU of this `name`."""
    _, parameters = measure(channel, shape, device, "")
    flop = flop_per_token(shape, parameters)
    model = "GPT of %.0f M parameters, batch %d × %d" % (parameters / 1e6, shape["batch"], shape["length"])
    channel.facts({"model": model, "flop_per_token": flop})
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _NATIVE_BF16:
        channel.facts({"not_compiled": "torch.compile not run: no native bfloat16 on %s" % name})
        return
    rates, _ = measure(channel, shape, device, str(args["backend"]))
    peak = args["peaks"].get(name)
    if peak and rates:
        percent = 100 * statistics.median(rates) * flop / (peak * 1e12)
        channel.facts({"mfu_percent": round(percent, 1), "peak_tflops": peak})


if __name__ == "__main__":
    main()
