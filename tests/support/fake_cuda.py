"""A fake CUDA: `torch.cuda` answered by the CPU and NCCL by gloo; a text for the folder of the smoke programs."""

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

_MEMORY = 16 * 1024**3  # bytes that the stand-in says it has
# torch's functions that make a tensor on the device that they are given.
# fmt: off
_FACTORIES = [
    "arange", "as_tensor", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace", "ones",
    "ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "scalar_tensor",
    "tensor", "zeros", "zeros_like", "Generator",
]
# fmt: on
_METHODS = ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")
_TYPES = ("Bool", "Byte", "Char", "Short", "Int", "Long", "Half", "BFloat16", "Float", "Double")


def install(gpus: int) -> None:
    """Replace what a script asks of CUDA; `gpus`: of how many it is told."""
    _devices(gpus)
    _memory()
    _random()
    _tensors()
    _collectives()


class _Properties:
    """A device as `get_device_properties` describes it."""

    name = "CPU trial"
    major, minor = 8, 0
    multi_processor_count = 1
    total_memory = _MEMORY
    warp_size = 32


class Event:
    """A point in time."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Not recorded yet."""
        self._at = 0.0

    def record(self, *_: Any) -> None:
        """Now."""
        self._at = time.perf_counter()

    def elapsed_time(self, other: "Event") -> float:
        """Milliseconds until the other."""
        return (other._at - self._at) * 1000

    def query(self) -> bool:
        """Everything is done at once."""
        return True

    wait = synchronize = lambda *_: None


class Stream:
    """Everything happens in order anyway."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """The one stream."""
        self.device = torch.device("cpu")
        self.cuda_stream = self.stream_id = 0

    def __enter__(self) -> "Stream":
        """Work in it."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Leave it."""

    def __eq__(self, other: object) -> bool:
        """All are one."""
        return isinstance(other, Stream)

    __hash__ = object.__hash__

    def record_event(self, event: Any = None) -> Any:
        """An event of now."""
        event = event or Event()
        event.record()
        return event

    def query(self) -> bool:
        """Nothing is outstanding."""
        return True

    wait_event = wait_stream = synchronize = lambda *_: None


class _Anyone:
    """A sequence that has the same element everywhere."""

    def __init__(self, element: Any) -> None:
        self._element = element

    def __getitem__(self, _: Any) -> Any:
        return self._element


def _devices(gpus: int) -> None:
    stream = Stream()
    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda call, **_: call(),
        "device_count": lambda: gpus,
        "current_device": lambda: 0,
        "set_device": lambda _: None,
        "synchronize": lambda *_, **__: None,
        "get_device_name": lambda *_: _Properties.name,
        "get_device_capability": lambda *_: (_Properties.major, _Properties.minor),
        "get_device_properties": lambda *_: _Properties(),
        "get_arch_list": lambda: ["sm_80"],
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "stream": lambda given: given or contextlib.nullcontext(),
        "device": lambda _: contextlib.nullcontext(),
        "device_of": lambda _: contextlib.nullcontext(),
        "Stream": Stream,
        "Event": Event,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(torch.cuda.nvtx, name, lambda *_, **__: 0)


def _memory() -> None:
    for when in ("", "max_"):
        for what in ("memory_allocated", "memory_reserved", "memory_cached"):
            setattr(torch.cuda, when + what, lambda *_: 0)
    for name in ("empty_cache", "ipc_collect", "set_per_process_memory_fraction"):
        setattr(torch.cuda, name, lambda *_: None)
    for what in ("max_memory_allocated", "max_memory_cached", "peak_memory_stats", "accumulated_memory_stats"):
        setattr(torch.cuda, "reset_" + what, lambda *_: None)
    torch.cuda.memory_stats = lambda *_: {}
    torch.cuda.memory_summary = lambda *_, **__: ""
    torch.cuda.mem_get_info = lambda *_: (_MEMORY, _MEMORY)


def _random() -> None:
    """One generator, the CPU's. Seeding the "GPU" seeds it too, as each rank's own order of draws then has it."""
    torch.cuda.default_generators = _Anyone(torch.default_generator)
    torch.cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    for name in ("manual_seed", "manual_seed_all"):
        setattr(torch.cuda, name, lambda seed: torch.default_generator.manual_seed(int(seed)) and None)
    torch.cuda.initial_seed = torch.initial_seed


def on_cpu(device: Any) -> Any:
    """The device in its place: what names a GPU (`0`, `cuda:1`) is the CPU, everything else stays."""
    if isinstance(device, bool) or device is None:
        return device
    if isinstance(device, int) or str(device).startswith("cuda"):
        return torch.device("cpu")
    return device


def _moved(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        if "device" in more:
            more["device"] = on_cpu(more["device"])
        return function(*args, **more)

    return call


def _tensors() -> None:
    for name in _FACTORIES:
        if isinstance(getattr(torch, name), type):
            continue
        setattr(torch, name, _moved(getattr(torch, name)))
    for name in _METHODS:
        setattr(torch.Tensor, name, _moved(getattr(torch.Tensor, name)))
    for name in _TYPES:
        setattr(torch.cuda, name + "Tensor", getattr(torch, name + "Tensor"))
    _methods(torch.Tensor.to, torch.Tensor.type, torch.nn.Module.to)


def _methods(move: Any, kind: Any, move_module: Any) -> None:
    """The ways to a device that tensors and modules have."""

    def to(self: Any, *args: Any, **more: Any) -> Any:
        first = on_cpu(args[0]) if args and isinstance(args[0], (int, str, torch.device)) else None
        args = (first, *args[1:]) if first is not None else args
        return move(self, *args, **dict(more, device=on_cpu(more["device"])) if "device" in more else more)

    def module_to(self: Any, *args: Any, **more: Any) -> Any:
        args = tuple(on_cpu(each) if isinstance(each, (int, str, torch.device)) else each for each in args)
        return move_module(self, *args, **dict(more, device=on_cpu(more["device"])) if "device" in more else more)

    def type_(self: Any, wanted: Any = None, *args: Any, **more: Any) -> Any:
        if wanted is None:
            return kind(self).replace("torch.", "torch.cuda.", 1)
        return kind(self, wanted.replace(".cuda", "") if isinstance(wanted, str) else wanted, *args, **more)

    torch.Tensor.to, torch.Tensor.type, torch.nn.Module.to = to, type_, module_to
    torch.Tensor.cuda = torch.Tensor.pin_memory = torch.nn.Module.cuda = lambda self, *_, **__: self
    torch.Tensor.is_pinned = lambda *_: False
    torch.Tensor.is_cuda = property(lambda _: True)
    torch.Tensor.record_stream = lambda *_: None
    torch.Tensor.get_device = lambda _: 0


def _collectives() -> None:
    """gloo where NCCL is asked for, and what gloo has not: averages, and the two operations on one flat tensor."""
    for name in ("init_process_group", "new_group"):
        setattr(dist, name, _gloo(getattr(dist, name), name == "init_process_group"))
    all_reduce = dist.all_reduce
    average = getattr(dist.ReduceOp, "AVG", None)

    def reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        if average is None or op != average:
            return all_reduce(tensor, op, group, async_op)
        all_reduce(tensor, dist.ReduceOp.SUM, group)
        tensor.div_(dist.get_world_size(group))
        return _Done() if async_op else None

    # DeepSpeed names what it gives them, as torch does.
    def scatter(
        output: Any,
        input: Any,  # noqa: A002 - torch's own name
        op: Any = dist.ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        whole = input.detach().clone()
        reduce(whole, op, group)
        ranks = dist.get_world_size(group)
        output.copy_(whole.reshape(ranks, -1)[dist.get_rank(group)].reshape(output.shape))
        return _Done() if async_op else None

    def gather(output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        parts = [torch.empty_like(input_tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, input_tensor.contiguous(), group)
        output_tensor.copy_(torch.cat([part.reshape(-1) for part in parts]).reshape(output_tensor.shape))
        return _Done() if async_op else None

    dist.all_reduce = reduce
    for names, function in (
        (("reduce_scatter_tensor", "_reduce_scatter_base"), scatter),
        (("all_gather_into_tensor", "_all_gather_base"), gather),
    ):
        for name in names:
            setattr(dist, name, function)


class _Done:
    """A piece of work that has ended already."""

    wait = lambda *_: True  # noqa: E731
    is_completed = wait


def _gloo(function: Callable[..., Any], first: bool) -> Callable[..., Any]:
    """The same with gloo for NCCL; `first`: the backend is its first argument, and must be said."""

    @functools.wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        more.pop("device_id", None)
        if first and args:
            args = ("gloo", *args[1:])
        elif first or more.get("backend") is not None:
            more["backend"] = "gloo"
        more.pop("pg_options", None)
        return function(*args, **more)

    return call
