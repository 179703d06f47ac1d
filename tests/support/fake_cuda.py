"""A fake CUDA: `torch.cuda` answered by the CPU and NCCL by gloo; a text for the folder of the smoke programs.

As torch has them, a graph records what is started on the GPU of its stream, where the stream that it makes itself is of
the GPU that recorded first. What is started on another GPU is not recorded, but computed at once.
"""

import time

import torch
import torch.distributed as dist

_MEMORY = 16 * 1024**3  # bytes that the stand-in says it has
_FACTORIES = ("arange", "empty_like", "full_like", "ones", "randint", "randn", "tensor", "zeros")
_current = [0]


class _Properties:
    major, minor = 8, 0
    total_memory = _MEMORY


class _Event:
    def __init__(self, **_):
        self.at = 0.0

    def record(self, *_):
        self.at = time.perf_counter()

    def elapsed_time(self, other):
        return (other.at - self.at) * 1000

    def query(self):
        return True

    wait = synchronize = lambda *_: None


class _Device:
    def __init__(self, device):
        self.index = device if isinstance(device, int) else torch.device(device).index

    def __enter__(self):
        self.before, _current[0] = _current[0], self.index

    def __exit__(self, *_):
        _current[0] = self.before


class _Stream:
    def __init__(self, device=None):
        self.index = _current[0] if device is None else device.index


class _Graph:
    def __init__(self):
        self.recorded = []

    def replay(self):
        for function, args, more in self.recorded:
            function(*args, **more)


class _Capture:
    own = None

    def __init__(self, graph, stream=None):
        _Capture.own = _Capture.own or _Stream()
        self.graph, self.stream = graph, stream or _Capture.own

    def __enter__(self):
        self.matmul, record = torch.matmul, self.graph.recorded.append
        if self.stream.index == _current[0]:
            torch.matmul = lambda *args, matmul=torch.matmul, **more: record((matmul, args, more))

    def __exit__(self, *_):
        torch.matmul = self.matmul


def install(gpus):
    """Replace what a program asks of CUDA; `gpus`: of how many it is told."""
    answers = {
        "is_available": True, "device_count": gpus, "set_device": None, "synchronize": None, "empty_cache": None,
        "get_device_name": "a stand-in", "get_device_capability": (_Properties.major, _Properties.minor),
        "get_device_properties": _Properties(), "mem_get_info": (_MEMORY, _MEMORY),
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    torch.cuda.device, torch.cuda.Stream, torch.cuda.Event = _Device, _Stream, _Event
    torch.cuda.CUDAGraph, torch.cuda.graph = _Graph, _Capture
    for name in _FACTORIES:
        setattr(torch, name, _moved(getattr(torch, name)))
    torch.Tensor.to = _moved(torch.Tensor.to)
    torch.Tensor.pin_memory = lambda self: self
    begin = dist.init_process_group
    dist.init_process_group = lambda _, **more: begin("gloo", **more)


def _moved(function):
    """The same where the CPU is each GPU that its arguments name."""

    def cpu(value):
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value

    return lambda *args, **more: function(*map(cpu, args), **{name: cpu(value) for name, value in more.items()})
