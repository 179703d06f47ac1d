"""For a CPU trial: compiled CUDA kernels of Apex and Megatron, answered by plain torch under their own names."""

import importlib.abc
import importlib.machinery
import math
import sys
from types import ModuleType
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch.nn import functional

# Kernels that envbuild built ahead of time lie in this package, see node/build/kernels.py.
AHEAD = "envbuild_kernels"
# Where kernels are looked for: at the top, there, and in the wheel that a Megatron makes of itself.
_PACKAGES = ("", AHEAD, "megatron.fused_kernels")


def _overflow(flag: Any, tensor: Any) -> None:
    if not bool(torch.isfinite(tensor.float()).all()):
        flag.fill_(1)


def multi_tensor_scale(_: int, flag: Any, lists: List[List[Any]], scale: float) -> None:
    """Second list = first list x scale; the flag becomes 1 where a value is not finite."""
    for source, target in zip(*lists):  # noqa: B905 - strict= is of Python 3.10
        target.copy_(source.float() * scale)
        _overflow(flag, source)


def multi_tensor_axpby(_: int, flag: Any, lists: List[List[Any]], a: float, b: float, check: int) -> None:
    """Third list = a x first + b x second."""
    for x, y, out in zip(*lists):  # noqa: B905 - strict= is of Python 3.10
        for index, tensor in enumerate((x, y)):
            if check in (-1, index):
                _overflow(flag, tensor)
        out.copy_(a * x.float() + b * y.float())


def multi_tensor_l2norm(_: int, __: Any, lists: List[List[Any]], per_tensor: bool = False) -> Tuple[Any, Any]:
    """The norm of all values, and of each tensor where it is asked for."""
    norms = torch.stack([tensor.float().norm() for tensor in lists[0]]) if lists[0] else torch.zeros(1)
    return norms.norm().reshape(1), norms if per_tensor else torch.zeros(0)


def multi_tensor_adam(
    _: int,
    __: Any,
    lists: List[List[Any]],
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    decoupled: int,
    corrected: int,
    decay: float,
) -> None:
    """One step of Adam (`decoupled` 0) or AdamW (1) on lists of gradients, parameters and both moments."""
    first = 1 - math.pow(beta1, step) if corrected else 1.0
    second = 1 - math.pow(beta2, step) if corrected else 1.0
    for gradient, parameter, mean, square in zip(*lists):  # noqa: B905 - strict= is of Python 3.10
        value, g = parameter.float(), gradient.float()
        if not decoupled:
            g = g + decay * value
        mean.mul_(beta1).add_(g.to(mean.dtype), alpha=1 - beta1)
        square.mul_(beta2).addcmul_(g.to(square.dtype), g.to(square.dtype), value=1 - beta2)
        update = (mean.float() / first) / ((square.float() / second).sqrt() + epsilon)
        if decoupled:
            update = update + decay * value
        parameter.copy_(value - rate * update)


def _softmax_grad(gradient: Any, result: Any, scale: Any) -> Any:
    g, y = gradient.float(), result.float()
    return ((g - (g * y).sum(-1, keepdim=True)) * y * float(scale)).to(gradient.dtype)


def _causal_softmax(x: Any, scale: Any) -> Any:
    # As the kernel's launcher demands it: 128 threads, 32 or fewer to a row, two rows each where those are short.
    power = 1 << max(0, int(x.shape[-1]) - 1).bit_length()
    at_once = 128 // min(32, power) * (2 if power <= 128 else 1)
    if x.shape[0] % at_once:
        raise RuntimeError("attn_batches %% batches_per_block == 0 failed: %d by %d" % (x.shape[0], at_once))
    hidden = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax((x.float() * float(scale)).masked_fill(hidden, -10000.0), -1).to(x.dtype)


def _masked_softmax(x: Any, mask: Any, scale: Any) -> Any:
    return torch.softmax((x.float() * float(scale)).masked_fill(mask.bool(), -10000.0), -1).to(x.dtype)


def _norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, epsilon: float) -> Tuple[Any, Any, Any]:
    axes = tuple(range(-len(shape), 0))
    wide = x.float()
    mean = wide.mean(axes)
    inverse = (wide.var(axes, unbiased=False) + epsilon).rsqrt()
    result = functional.layer_norm(wide, tuple(shape), weight.float(), bias.float(), epsilon)
    return result.to(weight.dtype), mean.reshape(-1), inverse.reshape(-1)


def _norm_grad(gradient: Any, *saved: Any) -> Tuple[Any, Any, Any]:
    x, shape, weight, bias = saved[2:6]
    ones = x.shape[: x.dim() - len(shape)] + (1,) * len(shape)
    inverse = saved[1].reshape(ones)
    if saved[0] is None:  # to save memory Apex kept the result, not what was normed, and no mean
        x, mean = (x.float() - bias.float()) / weight.float() / inverse, torch.zeros_like(inverse)
    else:
        mean = saved[0].reshape(ones)
    # Not by autograd: an Apex that makes its kernels operators of torch calls this where autograd is off.
    backward = torch.ops.aten.native_layer_norm_backward
    wide = (x.float(), tuple(shape), mean, inverse, weight.float(), bias.float())
    found = backward(gradient.float(), *wide, [True, True, True])
    return found[0].to(gradient.dtype), found[1].to(weight.dtype), found[2].to(bias.dtype)


_NORM = {
    "forward_affine": _norm,
    "forward_affine_mixed_dtypes": _norm,
    "backward_affine": _norm_grad,
    "backward_affine_mixed_dtypes": _norm_grad,
}
# By module: the functions that the stacks' trees call. What else they look up is there and refuses when it is called.
KERNELS: Dict[str, Dict[str, Any]] = {
    "amp_C": {
        "multi_tensor_scale": multi_tensor_scale,
        "multi_tensor_axpby": multi_tensor_axpby,
        "multi_tensor_l2norm": multi_tensor_l2norm,
        "multi_tensor_adam": multi_tensor_adam,
    },
    "fused_layer_norm_cuda": _NORM,
    "fused_mix_prec_layer_norm_cuda": _NORM,
    "scaled_upper_triang_masked_softmax_cuda": {"forward": _causal_softmax, "backward": _softmax_grad},
    "scaled_masked_softmax_cuda": {
        "forward": _masked_softmax,
        "backward": _softmax_grad,
        "get_batch_per_block": lambda *_: 1,
    },
    # MegatronAPP's transfers: one pipeline stage prepares them and makes none.
    "shm_tensor_new_rdma": dict.fromkeys(
        ("init_shared_memory", "init_forward_rdma", "init_backward_rdma"), lambda *_: None
    ),
    "scaled_softmax_cuda": {
        "forward": lambda x, scale: torch.softmax(x.float() * float(scale), -1).to(x.dtype),
        "backward": _softmax_grad,
    },
}


class _Kernel(ModuleType):
    """A module of KERNELS; a function that the real one has and this one has not raises when it is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_: Any, **__: Any) -> Any:
            raise NotImplementedError("CPU trial: %s.%s has no answer in plain torch" % (self.__name__, name))

        return missing


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the kernels before anything that was built, under their own names and as built ahead of time."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[Any]:
        """A spec for a module of KERNELS, None for every other."""
        package, _, own = name.rpartition(".")
        known = package in _PACKAGES and own in KERNELS
        return importlib.machinery.ModuleSpec(name, self) if known else None

    def create_module(self, spec: Any) -> Any:
        """The module, filled."""
        module = _Kernel(spec.name)
        for name, function in KERNELS[spec.name.rpartition(".")[2]].items():
            setattr(module, name, function)
        return module

    def exec_module(self, module: Any) -> None:
        """Nothing is left to do."""


class _Package(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for the package of kernels where none was built."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[Any]:
        """A spec for the package alone."""
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name == AHEAD else None

    def create_module(self, spec: Any) -> Any:
        """Python's own."""
        return None

    def exec_module(self, module: Any) -> None:
        """Empty."""


def install() -> None:
    """Put the kernels in front of the path of imports."""
    sys.meta_path.insert(0, _Finder())
    sys.meta_path.append(_Package())
