"""A stand-in for torch of a few kilobytes, on numpy: what the smoke programs use of it, on the CPU.

What it computes is right, and its ranks really meet and sum over sockets, so that nodes and containers can be tested
with images that are made in seconds. Nothing else of torch is here.
"""

import numpy as np

__version__ = "2.1.0+cpu"
float32, float64, int64 = (np.dtype(name) for name in ("float32", "float64", "int64"))


class version:  # noqa: N801 - torch's own name
    cuda = None


class cuda:  # noqa: N801
    is_initialized = staticmethod(lambda: False)


class device:  # noqa: N801
    def __init__(self, type, index=None):  # noqa: A002
        self.type, self.index = type, index


class Tensor(np.ndarray):
    device = "cpu"

    def to(self, what):
        return self.astype(what) if isinstance(what, np.dtype) else self

    def abs(self):
        return np.abs(self)

    def clone(self):
        return self.copy()

    def t(self):
        return self.T

    def mul_(self, factor):
        self *= factor
        return self

    def copy_(self, values, non_blocking=False):
        self[...] = values
        return self

    def numel(self):
        return self.size

    def element_size(self):
        return self.itemsize


class Generator:
    def __init__(self, device=None):
        self.device = device

    def manual_seed(self, seed):
        self.numbers = np.random.default_rng(seed)


def tensor(values, dtype=None, device=None):
    return np.array(values, dtype=dtype).view(Tensor)


def zeros(*shape, dtype=None, device=None):
    return np.zeros(shape, dtype).view(Tensor)


def arange(*bounds, dtype=None, device=None):
    return np.arange(*bounds, dtype=dtype).view(Tensor)


def empty_like(values, device=None):
    return np.empty_like(values)


def randn(*shape, generator, device=None):
    return generator.numbers.standard_normal(shape).astype(float32).view(Tensor)


def randint(low, high, shape, generator):
    return generator.numbers.integers(low, high, shape).view(Tensor)


def cat(parts):
    return np.concatenate(parts).view(Tensor)


def nonzero(values):
    return np.argwhere(values).view(Tensor)


def matmul(left, right):
    return np.matmul(left, right)


def get_num_threads():
    return 1


def set_num_threads(count):
    pass
