"""Smoke program `machine`, first half: matrix products against an expected result, on the CPU and on every GPU.

Runs inside the environment; needs torch 1.8 or newer and no numpy. The expected result is computed in float64 by
element-wise products and sums, so that it shares no matrix-product code with what it checks: a few rows entirely, and
the whole product against a random vector of signs (Freivalds' check).
"""

import time
from typing import Any, Dict, List, Tuple

import torch

from .common import Channel, begin, torch_version

# Greatest allowed difference, as a part of sqrt(K): entries of A and B are normal, so entries of A·B are about sqrt(K).
# float32 lies between what it gives at K = 8192 (2e-5 measured on an H200) and what TF32 would give (about 1e-3).
TOLERANCE = {"float64": 1e-12, "float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}
_CPU_SIZE = 1024
_CUDA_SIZE = 8192
_ROWS = 8
_BLOCK = 512


def _inputs(size: int, dtype: Any) -> Tuple[Any, Any]:
    generator = torch.Generator()
    generator.manual_seed(20210614)
    a = torch.randn(size, size, generator=generator)
    b = torch.randn(size, size, generator=generator)
    return a.to(dtype), b.to(dtype)


def _times_vector(matrix: Any, vector: Any) -> Any:
    """matrix (m×k, any dtype) · vector (k, float64) in float64 without a matrix-product routine."""
    parts = []
    for start in range(0, matrix.shape[0], _BLOCK):
        parts.append((matrix[start : start + _BLOCK].to(torch.float64) * vector).sum(1))
    return torch.cat(parts)


def _expected_row(row: Any, b: Any) -> Any:
    """row (k) · b (k×n) in float64, without a matrix-product routine."""
    row = row.to(torch.float64)
    total = torch.zeros(b.shape[1], dtype=torch.float64)
    for start in range(0, b.shape[0], _BLOCK):
        total += (row[start : start + _BLOCK].unsqueeze(1) * b[start : start + _BLOCK].to(torch.float64)).sum(0)
    return total


class Expected:
    """The expected result of one pair of inputs (CPU tensors)."""

    def __init__(self, a: Any, b: Any) -> None:
        """Compute the rows and the vector once; used for every device."""
        size = a.shape[0]
        generator = torch.Generator()
        generator.manual_seed(7)
        self.signs = torch.randint(0, 2, (size,), generator=generator).to(torch.float64) * 2 - 1
        self.vector = _times_vector(a, _times_vector(b, self.signs))
        rows = sorted({i * (size - 1) // (_ROWS - 1) for i in range(_ROWS)})
        self.rows = [(index, _expected_row(a[index], b)) for index in rows]

    def worst(self, product: Any) -> Tuple[float, float]:
        """Greatest difference in the rows and against the vector, as parts of sqrt(K) and of K."""
        size = product.shape[0]
        rows = 0.0
        for index, value in self.rows:
            difference = (product[index].to(torch.float64) - value).abs().max().item()
            rows = _greater(rows, difference / size**0.5)
        vector = (_times_vector(product, self.signs) - self.vector).abs().max().item() / size
        return rows, vector


def _greater(left: float, right: float) -> float:
    """The greater one; NaN wins, so that it is never lost."""
    return right if right != right or right > left else left


def _check(channel: Channel, what: str, dtype_name: str, expected: Expected, product: Any) -> Dict[str, float]:
    rows, vector = expected.worst(product)
    limit = TOLERANCE[dtype_name]
    if not rows <= limit:
        channel.failure("%s: wrong result, a row differs by %.3g sqrt(K), tolerance %.3g" % (what, rows, limit))
    if not vector <= limit:
        channel.failure("%s: wrong result, the product with a vector differs by %.3g K" % (what, vector))
    return {"rows": rows, "vector": vector, "tolerance": limit} if rows == rows and vector == vector else {}


def _time(a: Any, b: Any, repeats: int, cuda: bool) -> Tuple[Any, List[float]]:
    """The last product and TFLOP/s of each timed one; the first, which pays for start-up, is not timed."""
    product = torch.matmul(a, b)
    values = []
    for _ in range(repeats):
        if cuda:
            torch.cuda.synchronize(a.device)
        started = time.perf_counter()
        product = torch.matmul(a, b)
        if cuda:
            torch.cuda.synchronize(a.device)
        values.append(2.0 * a.shape[0] ** 3 / (time.perf_counter() - started) / 1e12)
    return product, values


def _cpu(channel: Channel) -> None:
    for dtype, name in ((torch.float32, "float32"), (torch.float64, "float64")):
        what = "CPU %s %d×%d" % (name, _CPU_SIZE, _CPU_SIZE)
        channel.stage("GEMM on the " + what)
        a, b = _inputs(_CPU_SIZE, dtype)
        product, values = _time(a, b, 10, False)
        difference = _check(channel, what, name, Expected(a, b), product)
        channel.facts({"cpu_%s_difference" % name: difference})
        channel.metric("gemm_cpu_%s_tflops" % name, "TFLOP/s", values)


def _cuda(channel: Channel, count: int) -> None:
    if torch_version(torch) < [1, 12]:
        torch.backends.cuda.matmul.allow_tf32 = False  # newer ones have it off, and their own way to say so
    half = torch.cuda.get_device_capability(0)[0] < 8
    low = (torch.float16, "float16", "fp16") if half else (torch.bfloat16, "bfloat16", "bf16")
    for dtype, name, short in (low, (torch.float32, "float32", "float32")):
        a, b = _inputs(_CUDA_SIZE, dtype)
        channel.stage("expected result for %s %d×%d" % (name, _CUDA_SIZE, _CUDA_SIZE))
        expected = Expected(a, b)
        pooled = []  # type: List[float]
        for index in range(count):
            what = "GPU %d %s %d×%d" % (index, name, _CUDA_SIZE, _CUDA_SIZE)
            channel.stage("GEMM on " + what)
            device = torch.device("cuda", index)
            product, values = _time(a.to(device), b.to(device), 20, True)
            difference = _check(channel, what, name, expected, product.cpu())
            channel.facts({"gpu%d_%s_difference" % (index, short): difference})
            channel.facts({"gpu%d_%s_tflops" % (index, short): sorted(values)[len(values) // 2]})
            pooled.extend(values)
        channel.metric("gemm_cuda_%s_tflops" % short, "TFLOP/s", pooled)


def main() -> None:
    """CPU always; every visible GPU where the request says `cuda`."""
    request = begin()
    channel = request.channel
    channel.facts({"torch": str(torch.__version__), "threads": torch.get_num_threads()})
    if request.args["cuda"]:
        channel.stage("looking for GPUs")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = [torch.cuda.get_device_name(index) for index in range(count)]
        channel.facts({"gpus": count, "gpu_names": names})
        if count == 0:
            channel.failure("torch sees no GPU (driver missing, too old for this build, or CUDA_VISIBLE_DEVICES empty)")
    _cpu(channel)
    if request.args["cuda"] and count:
        _cuda(channel, count)
    channel.done()


if __name__ == "__main__":
    main()
