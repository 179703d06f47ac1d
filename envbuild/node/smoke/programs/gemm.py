"""Smoke program `machine`, first half: matrix products against an expected result, on the CPU and on every GPU.

Runs inside the environment; needs torch 1.8 or newer and no numpy. The expected result is computed in float64 on the
same device, by element-wise products and sums, so that it shares no matrix-product code with what it checks: a few rows
entirely, and the whole product against a random vector of signs (Freivalds' check). All GPUs are timed at once.
"""

import math
import statistics
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch

from .common import NO_GPU, Channel, torch_version

# Greatest allowed difference, as a part of sqrt(K): entries of A and B are normal, so entries of A·B are about sqrt(K).
# float32 lies between what it gives at K = 8192 (2e-5 measured on an H200) and what TF32 would give (about 1e-3).
TOLERANCE = {"float64": 1e-12, "float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}
# The last one of each is what floors are about.
_CPU_SIZES = (256, 512, 1024)
_CUDA_SIZES = (1024, 2048, 4096, 8192)
_ROWS = 8
_BLOCK = 512
_SECONDS = 0.3  # of products of one size and type on a GPU
_LIMITED, _SWING = 4096, 1.2  # from this size on those of 16 bits reach its power limit: it swings once a second or so
_SAMPLES = (10, 300)  # at least; at most, as many as its queue holds: small products are timed several at once
_QUEUE = 900  # starts; with more one GPU would be waited for before the next has work


def _inputs(size: int, dtype: Any, device: Any) -> Tuple[Any, Any]:
    generator = torch.Generator(device=device)
    generator.manual_seed(20210614)
    a = torch.randn(size, size, generator=generator, device=device)
    b = torch.randn(size, size, generator=generator, device=device)
    return a.to(dtype), b.to(dtype)


def _times_vector(matrix: Any, vector: Any) -> Any:
    """matrix (m×k, any dtype) · vector (k, float64) in float64 without a matrix-product routine."""
    parts = []
    for start in range(0, matrix.shape[0], _BLOCK):
        parts.append((matrix[start : start + _BLOCK].to(torch.float64) * vector).sum(1))
    return torch.cat(parts)


class Expected:
    """The expected result of one pair of inputs, on their device."""

    def __init__(self, a: Any, b: Any) -> None:
        """Compute the rows and the vector."""
        size = a.shape[0]
        generator = torch.Generator()
        generator.manual_seed(7)
        signs = torch.randint(0, 2, (size,), generator=generator).to(torch.float64) * 2 - 1
        self.signs = signs.to(a.device)
        self.vector = _times_vector(a, _times_vector(b, self.signs))
        rows = sorted({i * (size - 1) // (_ROWS - 1) for i in range(_ROWS)})
        self.rows = [(index, _times_vector(b.T, a[index].to(torch.float64))) for index in rows]

    def worst(self, product: Any) -> Tuple[float, float]:
        """Greatest difference in the rows and against the vector, as parts of sqrt(K) and of K."""
        size = product.shape[0]
        rows = 0.0
        for index, value in self.rows:
            difference = (product[index].to(torch.float64) - value).abs().max().item()
            part = difference / size**0.5
            rows = part if part != part or part > rows else rows  # NaN wins, so that it is never lost
        vector = (_times_vector(product, self.signs) - self.vector).abs().max().item() / size
        return rows, vector


def _check(channel: Channel, what: str, dtype_name: str, expected: Expected, product: Any) -> Dict[str, float]:
    rows, vector = expected.worst(product)
    limit = TOLERANCE[dtype_name]
    if not rows <= limit:
        channel.failure("%s: wrong result, a row differs by %.3g sqrt(K), tolerance %.3g" % (what, rows, limit))
    if not vector <= limit:
        channel.failure("%s: wrong result, the product with a vector differs by %.3g K" % (what, vector))
    return {"rows": rows, "vector": vector, "tolerance": limit} if rows == rows and vector == vector else {}


def _cpu(channel: Channel, sizes: Sequence[int]) -> None:
    device = torch.device("cpu")
    for dtype, name in ((torch.float32, "float32"), (torch.float64, "float64")):
        for size in sizes:
            what = "CPU %s %d×%d" % (name, size, size)
            channel.stage("GEMM on the " + what)
            a, b = _inputs(size, dtype, device)
            product = torch.matmul(a, b)  # pays for start-up
            values = []
            for _ in range(10):
                started = time.perf_counter()
                product = torch.matmul(a, b)
                values.append(_tflops(size, time.perf_counter() - started))
            difference = _check(channel, what, name, Expected(a, b), product)
            channel.facts({"cpu_%s_difference" % name: difference})
            channel.metric("gemm_cpu_%s_%stflops" % (name, _label(size, sizes)), "TFLOP/s", values)


def _label(size: int, sizes: Sequence[int]) -> str:
    """The size in the name of a metric; that of the largest one, which floors are about, has none."""
    return "" if size == sizes[-1] else "%d_" % size


def _tflops(size: int, seconds: float) -> float:
    return 2.0 * size**3 / seconds / 1e12


def _graphs() -> bool:
    return torch_version(torch) >= [2, 0]


class OnGpu:
    """The matrix products of one size and dtype on one GPU; those of several GPUs run at the same time."""

    def __init__(self, index: int, size: int, dtype: Any) -> None:
        """Inputs and expected result; products that pay for start-up, and one that says how many fit the time."""
        self.device = torch.device("cuda", index)
        self.size = size
        self.a, self.b = _inputs(size, dtype, self.device)
        self.expected = Expected(self.a, self.b)
        self.product = torch.matmul(self.a, self.b)
        self._events = []  # type: List[Any]
        self._at_once = self._samples = 1
        wanted = _SWING if size >= _LIMITED and dtype != torch.float32 else _SECONDS
        for _ in range(2):  # the first time is that of a start, where products are small
            self._multiply = self._recorded()
            self.start()
            seconds = 2.0 * size**3 / (self.finish()[0] * 1e12)
            self._at_once = math.ceil(wanted / _SAMPLES[1] / seconds)
        self._multiply = self._recorded()
        starts = 2 + (1 if _graphs() else self._at_once)
        self._samples = max(_SAMPLES[0], min(round(wanted / (seconds * self._at_once)), _QUEUE // starts))

    def _recorded(self) -> Callable[[], None]:
        """What computes the products of a sample: several with one start, so that starts are not what is measured.

        All into one place: with a new one for each, products of 2048 had 2.7 % less on an H100 (medians, n = 4).
        """

        def multiply() -> None:
            for _ in range(self._at_once):
                torch.matmul(self.a, self.b, out=self.product)

        if self._at_once == 1 or not _graphs():
            return multiply
        # Its own stream: torch's is of the GPU that recorded first, and of any other records nothing.
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self.device)
        with torch.cuda.device(self.device), torch.cuda.graph(graph, stream=stream):
            multiply()
        replay = graph.replay  # type: Callable[[], None]
        return replay

    def start(self) -> None:
        """Put all of them into the GPU's queue; what is checked is what they compute."""
        self._events = []
        self.product.zero_()
        with torch.cuda.device(self.device):
            for _ in range(self._samples):
                pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                pair[0].record()
                self._multiply()
                pair[1].record()
                self._events.append(pair)

    def finish(self) -> List[float]:
        """Wait for them; TFLOP/s of each sample."""
        torch.cuda.synchronize(self.device)
        took = [first.elapsed_time(last) / 1e3 / self._at_once for first, last in self._events]
        return [_tflops(self.size, seconds) for seconds in took]


def _cuda(channel: Channel, count: int) -> None:
    if torch_version(torch) < [1, 12]:
        torch.backends.cuda.matmul.allow_tf32 = False
    else:  # off by itself, but for a variable of NVIDIA's images
        torch.set_float32_matmul_precision("highest")
    half = min(torch.cuda.get_device_capability(index)[0] for index in range(count)) < 8
    low = (torch.float16, "float16", "fp16") if half else (torch.bfloat16, "bfloat16", "bf16")
    for size in _CUDA_SIZES:
        _cuda_size(channel, count, size, low)
    _cuda_size(channel, count, _CUDA_SIZES[-1], (torch.float32, "float32", "float32"))
    channel.facts({"size": _CUDA_SIZES[-1]})


def _cuda_size(channel: Channel, count: int, size: int, kind: Tuple[Any, str, str]) -> None:
    """All GPUs at once; measured is the slowest one, of the largest size also what each of them gives."""
    dtype, name, short = kind
    what = ["GPU %d %s %d×%d" % (index, name, size, size) for index in range(count)]
    gpus = []
    for index in range(count):
        channel.stage("expected result on " + what[index])
        gpus.append(OnGpu(index, size, dtype))
    for gpu in gpus:
        gpu.start()
    by_gpu = []  # type: List[List[float]]
    for index, gpu in enumerate(gpus):
        channel.stage("GEMM on " + what[index])
        values = gpu.finish()
        difference = _check(channel, what[index], name, gpu.expected, gpu.product)
        if size == _CUDA_SIZES[-1]:
            channel.facts({"gpu%d_%s_difference" % (index, short): difference})
            channel.facts({"gpu%d_%s_tflops" % (index, short): statistics.median(values)})
        by_gpu.append(values)
    channel.metric(
        "gemm_cuda_%s_%stflops" % (short, _label(size, _CUDA_SIZES)), "TFLOP/s", min(by_gpu, key=statistics.median)
    )


def main(args: Dict[str, Any], channel: Channel) -> None:
    """CPU always; every visible GPU where the request says `cuda`."""
    channel.facts({"torch": str(torch.__version__), "threads": torch.get_num_threads()})
    if args["cuda"]:
        channel.stage("looking for GPUs")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = [torch.cuda.get_device_name(index) for index in range(count)]
        # As nvidia-smi names them; torch before 2.4 does not know it.
        known = [getattr(torch.cuda.get_device_properties(index), "uuid", None) for index in range(count)]
        uuids = {str(index): "GPU-%s" % uuid for index, uuid in enumerate(known) if uuid}
        channel.facts({"gpus": count, "gpu_names": names, "gpu_uuids": uuids})
        if count == 0:
            channel.failure(NO_GPU)
    cuda = bool(args["cuda"])
    channel.facts({"cpu_size": _CPU_SIZES[-1]})
    _cpu(channel, _CPU_SIZES[-1:] if cuda else _CPU_SIZES)
    if cuda and count:
        _cuda(channel, count)
