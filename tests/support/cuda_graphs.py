"""CUDA graphs of a processor that stands in for several GPUs: a text for the folder of the smoke programs.

As torch has them: a graph records what is started on the GPU of its stream, where the stream that it makes itself is of
the GPU that recorded first. What is started on another GPU is not recorded, but computed at once.
"""

import torch

_current = [0]


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


def install():
    """In place of torch's own, which know no processor; after `fake_cuda.install`."""
    torch.cuda.device, torch.cuda.Stream = _Device, _Stream
    torch.cuda.CUDAGraph, torch.cuda.graph = _Graph, _Capture
