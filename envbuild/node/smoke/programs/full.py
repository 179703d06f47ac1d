"""Smoke program `full`: a GPT of 125 M parameters trains eagerly and under torch.compile; tokens per second and MFU.

Runs inside the environment; needs torch 2.0 or newer. The shape is that of GPT-3's smallest model (12 layers, 768 wide,
12 heads) with 16 sequences of 2048, bfloat16 autocast and fused AdamW, on one GPU.
"""

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


class Training:
    """One model with its optimizer, eager or compiled."""

    def __init__(self, shape: Dict[str, int], device: Any, backend: str) -> None:
        """`backend` of torch.compile, empty for none."""
        torch.manual_seed(1234)
        self.shape, self.device = shape, device
        model = SmallGPT(shape, FusedBlock).to(device)
        self.parameters = sum(each.numel() for each in model.parameters())
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
    """Tokens per second of each step after the warm-up, and how many parameters there are; the loss must fall."""
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
    rates = [shape["batch"] * shape["length"] / took for took in times[_WARM_UP:]]
    channel.metric("full_%s_tokens_per_second" % name, "token/s", rates)
    return rates, training.parameters


def main() -> None:
    """Eager, then compiled."""
    request = begin()
    args, channel = request.args, request.channel
    shape = dict(SHAPE, **(args.get("shape") or {}))
    device = torch.device(args["device"])
    if torch_version(torch) < [2, 0]:
        channel.failure("torch %s has no torch.compile" % torch.__version__)
        channel.done()
        return
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    measure(channel, shape, device, "")
    rates, parameters = measure(channel, shape, device, str(args["backend"]))
    flop = flop_per_token(shape, parameters)
    said = "GPT of %.0f M parameters, batch %d × %d" % (parameters / 1e6, shape["batch"], shape["length"])
    channel.facts(
        {"model": said, "shape": shape, "device": name, "flop_per_token": flop, "torch": str(torch.__version__)}
    )
    peak = next((each for known, each in sorted(args["peaks"].items()) if " %s " % known in " %s " % name), None)
    if peak:
        percent = 100 * sorted(rates)[len(rates) // 2] * flop / (peak * 1e12)
        channel.facts({"mfu_percent": round(percent, 1), "peak_tflops": peak})
    channel.done()


if __name__ == "__main__":
    main()
