"""What a GPU gives to plain torch, timed without envbuild: beside it stand the figures of `envbuild smoke` on it.

`python benchmarks/gpu.py [SMOKE.json]`: bf16 products by size (one start each, and one for many), copies, a small GPT.
SMOKE.json is what `envbuild smoke --json` of any stack printed on the same idle machine. Needs torch and a GPU, nothing
of envbuild. Goals: products and copies within 3 %, training at least 0.97 x.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

# Size to seconds of products: a GPU at its power limit swings about once a second, which the larger ones bring it to.
SECONDS = {1024: 0.3, 2048: 0.3, 4096: 1.2, 8192: 1.2}
WIDTH, LAYERS, HEADS, LENGTH, BATCH, WORDS, STEPS = 768, 12, 12, 512, 8, 509, 80


def seconds(work: Callable[[], object], repeats: int, rest: bool = True) -> float:
    """Median of the seconds that the GPU needs, between two events; two more before warm up.

    `rest`: the GPU waits for the host after each. Without, all are in its queue at once, as in a training step.
    """
    events = []
    for _ in range(repeats + 2):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        if rest:
            last.synchronize()
        events.append((first, last))
    torch.cuda.synchronize()
    return statistics.median(first.elapsed_time(last) / 1e3 for first, last in events[2:])


def products() -> Iterator[tuple[str, float]]:
    """TFLOP/s: `_one`, every product between events; `_starts`, started by itself; else 1 ms of them by one start.

    `_rests`: with a rest after each start. The name alone is for SECONDS without one, as the smoke test has it: a GPU
    that works on lowers its clock when it reaches its power limit.
    """
    for size, long in SECONDS.items():
        a, b = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
        out = torch.empty_like(a)
        each = seconds(lambda a=a, b=b, out=out: torch.matmul(a, b, out=out), 20)  # type: ignore[misc]
        many = max(1, int(1e-3 * 6e14 / (2 * size**3)))

        def all_of_them(a: Any = a, b: Any = b, out: Any = out, many: int = many) -> None:
            for _ in range(many):
                torch.matmul(a, b, out=out)

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            all_of_them()
        flops = 2 * size**3 / 1e12
        name = f"gemm_cuda_bf16_{'' if size == max(SECONDS) else f'{size}_'}tflops"
        yield f"{name}_one", flops / each
        yield f"{name}_starts", flops / (seconds(all_of_them, 50) / many)
        short = seconds(graph.replay, 50)
        yield f"{name}_rests", flops / (short / many)
        yield name, flops / (seconds(graph.replay, int(max(long / short, 10)), rest=False) / many)


def copies() -> Iterator[tuple[str, float]]:
    """GB/s within the GPU (read and written), from and to pinned memory of the host."""
    source = torch.ones(2 << 30, dtype=torch.uint8, device="cuda")
    into = torch.empty_like(source)
    yield "copy_device_gbps", 2 * source.numel() / 1e9 / seconds(lambda: into.copy_(source), 10)
    host, there = torch.ones(256 << 20, dtype=torch.uint8).pin_memory(), source[: 256 << 20]
    size = host.numel() / 1e9
    yield "copy_host_to_device_gbps", size / seconds(lambda: there.copy_(host, non_blocking=True), 10)
    yield "copy_device_to_host_gbps", size / seconds(lambda: host.copy_(there, non_blocking=True), 10)


class Layer(nn.Module):  # type: ignore[misc]
    """Causal attention and an MLP."""

    def __init__(self) -> None:
        """Of the one width."""
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.register_buffer("future", torch.triu(torch.ones(LENGTH, LENGTH), 1).bool())

    def forward(self, x: Any) -> Any:
        """Softmax by hand, as the smoke test has it: torch's fused attention is not what is compared."""
        parts = self.qkv(self.norms[0](x)).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = (parts[0] @ parts[1].transpose(-2, -1) / (WIDTH // HEADS) ** 0.5).masked_fill(self.future, -torch.inf)
        x = x + self.out((scores.softmax(-1) @ parts[2]).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.mlp(self.norms[1](x))


def training() -> Iterator[tuple[str, float]]:
    """Token/s of the median step."""
    tokens, places = nn.Embedding(WORDS, WIDTH).cuda(), nn.Embedding(LENGTH, WIDTH).cuda()
    layers = nn.Sequential(
        *(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
    ).cuda()
    adam = torch.optim.Adam([p for each in (tokens, places, layers) for p in each.parameters()], lr=3e-4)
    took = []
    for _ in range(STEPS):
        began = time.perf_counter()
        rows = [torch.randint(0, WORDS, (BATCH,))]
        for _ in range(LENGTH):
            rows.append((rows[-1] * 3 + 7) % WORDS)
        batch = torch.stack(rows, dim=1).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            out = layers(tokens(batch[:, :-1]) + places(torch.arange(LENGTH, device="cuda")))
            loss = functional.cross_entropy(out.reshape(-1, WORDS).float(), batch[:, 1:].reshape(-1))
        adam.zero_grad()
        loss.backward()
        adam.step()
        loss.item()
        took.append(time.perf_counter() - began)
    yield "training_tokens_per_second", BATCH * LENGTH / statistics.median(took[1:])


def told(path: str) -> dict[str, float]:
    """Medians of every metric anywhere in a JSON document, by name."""
    found: dict[str, float] = {}

    def look(at: Any) -> None:
        if isinstance(at, dict) and {"name", "median"} <= set(at):
            found[at["name"]] = at["median"]
        for each in at.values() if isinstance(at, dict) else at if isinstance(at, list) else ():
            look(each)

    look(json.loads(Path(path).read_text()))
    return found


def main() -> None:
    """A row for each measure."""
    smoke = told(sys.argv[1]) if sys.argv[1:] else {}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name, value in (*products(), *copies(), *training()):
        beside = f"{smoke[name]:12.1f}  {smoke[name] / value:5.2f} x" if name in smoke else ""
        print(f"{name:40} {value:12.1f} {beside}")


if __name__ == "__main__":
    main()
