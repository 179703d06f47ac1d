"""What the checks of compiled extensions share: the device, inputs, references in float64, and when they are close.

References are what torch's own kernels compute on the same device, in float64: no code of the extension is among them.

A difference is allowed up to `steps` units in the last place of the dtype that the kernel computes or stores in, taken
at the size of the expected value plus `scale`, the size of what is added up on the way. The same number of units bounds
the whole tensor's relative difference (Frobenius norm), where a kernel that forgets a term cannot hide. NaN is never
close. Below the smallest normal number, the distance between denormal ones takes the place of the unit.
"""

import re
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

import torch

DEVICE = "cuda"

# Units in the last place. Half types: the kernels here compute in float32 and round their result, some of them two or
# three terms of it: a few units. float32: sums of up to some 4000 terms, whose rounding errors grow like the square
# root of the count, and the approximate exp, division and square root of `--use_fast_math` (CUDA C++ Programming
# Guide, Intrinsic Functions: 2 to about 30 units in the ranges used here).
STEPS = {"float32": 64.0, "float16": 4.0, "bfloat16": 4.0}

# What a kernel that does not know a dtype says: PyTorch's dispatch macros, Apex, Megatron-LM, flash-attn.
_UNSUPPORTED = re.compile(
    r"not implemented for|only supports? (?:fp16|bf16|Ampere|float)|supported for Half type only|Only fp16 and bf16|"
    r"unsupported (?:data ?)?type|not supported on|must have data ?type",
    re.IGNORECASE,
)
_BROKEN_CONTEXT = re.compile(r"CUDA error|CUDA out of memory|device-side assert|cudaError", re.IGNORECASE)


# What a launch says where the object has no machine code for this GPU, and no PTX that could be compiled for it.
_NO_CODE = "no kernel image is available"


def words(error: BaseException) -> str:
    """Its first line, at most 300 characters: torch has advice in the others. That it is of other GPUs is added."""
    text = str(error).strip().split("\n")[0][:300]
    if _NO_CODE not in text:
        return text
    own = " than sm_%d%d" % torch.cuda.get_device_capability() if DEVICE == "cuda" else ""
    return "%s: it was built for other GPUs%s" % (text, own)


def epsilon(dtype: str) -> float:
    """One unit in the last place at 1: 2^-23, 2^-10 and 2^-7; `tensorfloat32` has the 10 bits of float16."""
    return 2.0**-10 if dtype == "tensorfloat32" else float(torch.finfo(getattr(torch, dtype)).eps)


def denormal(dtype: str) -> float:
    """The distance between the smallest numbers, below which nothing can be told apart: 2^-24 in float16."""
    limits = torch.finfo(torch.float32 if dtype == "tensorfloat32" else getattr(torch, dtype))
    return float(limits.tiny) * float(limits.eps)


def random(seed: int, *shape: int) -> Any:
    """Normal values on the CPU in float32, the same on every machine."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    return torch.randn(*shape, generator=generator)


def given(values: Any, dtype: str) -> Tuple[Any, Any]:
    """(`values` in the dtype, the same rounded values in float64), both on the device."""
    rounded = values.to(getattr(torch, dtype)).to(DEVICE)
    return rounded, rounded.to(torch.float64)


def learned(values: Any, dtype: str) -> Tuple[Any, Any]:
    """The same, of which gradients are asked."""
    rounded, double = given(values, dtype)
    return rounded.requires_grad_(True), double.requires_grad_(True)


def backward(output: Any, expected: Any, upstream: Any, dtype: str) -> None:
    """Hand both results the same gradient."""
    rounded, double = given(upstream, dtype)
    output.backward(rounded)
    expected.backward(double)


def wait() -> None:
    """Let the GPU finish, so that an error belongs to the check that made it."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def on_device(cuda: bool) -> bool:
    """Whether the device is there; `cuda`: GPUs are part of what is asked."""
    return DEVICE != "cuda" or (cuda and torch.cuda.is_available())


class MissingApiError(Exception):
    """An extension is there and what it should offer is not."""


class BrokenContextError(Exception):
    """The GPU's context is lost; nothing more can be checked in this process."""


class Case:
    """The comparisons of one check: failures, the part of the tolerance that was used, and what was called."""

    def __init__(self, stage: Optional[Callable[[str], None]] = None) -> None:
        """`stage` is told what is being compared."""
        self.failures = []  # type: list[str]
        self.compared = 0
        self.used = {}  # type: dict[str, float]
        self.dtypes = []  # type: list[str]
        self.unsupported = {}  # type: dict[str, str]
        self.api = ""
        self.skipped = ""
        self._stage = stage

    def stage(self, what: str) -> None:
        """Say what comes next; named when the process dies in it."""
        if self._stage:
            self._stage(what)

    def close(
        self, what: str, got: Any, expected: Any, dtype: str, steps: Optional[float] = None, scale: Any = 0.0
    ) -> bool:
        """Compare with the expected float64 values; a failure says where and by how much.

        `scale`: what is added to each expected value before the tolerance is taken, one number or one for each value.
        """
        self.compared += 1
        steps = STEPS.get(dtype, 8.0) if steps is None else steps
        expected = expected.detach().to(torch.float64)
        got = got.detach().to(expected.device).to(torch.float64)
        if got.shape != expected.shape:
            return self._fail("%s: the shape is %s, not %s" % (what, tuple(got.shape), tuple(expected.shape)))
        if not bool(torch.isfinite(expected).all()):
            return self._fail("%s: the reference itself is not finite" % what)
        unit = steps * epsilon(dtype)
        difference = (got - expected).abs()
        allowed = unit * (expected.abs() + scale) + steps * denormal(dtype)
        wrong = ~(difference <= allowed)  # NaN is no less than anything
        count = int(wrong.sum().item())
        if count:
            at = int(torch.nonzero(wrong.reshape(-1))[0].item())
            pair = (got.reshape(-1)[at].item(), expected.reshape(-1)[at].item(), allowed.reshape(-1)[at].item())
            return self._fail(
                "%s: wrong in %d of %d values, value %d is %.6g instead of %.6g (tolerance %.2g)"
                % ((what, count, got.numel(), at) + pair)
            )
        size = expected.norm().item()
        norm = difference.norm().item()
        if not norm <= unit * size + 1e-300:
            return self._fail("%s: differs by %.2g of its norm, tolerance %.2g" % (what, norm / (size or 1.0), unit))
        part = float((difference / allowed.clamp_min(1e-300)).max().item()) if got.numel() else 0.0
        self.used[dtype] = max(self.used.get(dtype, 0.0), part)
        return True

    def exact(self, what: str, got: Any, expected: Any) -> bool:
        """The same shape and the same values, bit by bit in effect."""
        self.compared += 1
        got, expected = got.detach().to("cpu"), expected.detach().to("cpu")
        if got.shape != expected.shape or not bool((got == expected).all()):
            return self._fail("%s: %s instead of %s" % (what, _short(got), _short(expected)))
        return True

    def true(self, what: str, holds: bool) -> bool:
        """A property that must hold."""
        self.compared += 1
        return True if holds else self._fail(what)

    def report(self) -> Dict[str, Any]:
        """The case as JSON for the event `ended`: its first 20 failures, the number of all, and what was compared."""
        values = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        used = {name: round(part, 4) for name, part in self.used.items()}
        return dict(values, failures=self.failures[:20], failure_count=len(self.failures), used=used)

    def _fail(self, text: str) -> bool:
        self.failures.append(text)
        return False

    def each(self, dtypes: Iterable[str], must: Iterable[str], work: Callable[[str], None]) -> None:
        """Run `work` for each dtype; one that the kernel refuses is a failure only when it `must` be there."""
        for dtype in dtypes:
            if dtype == "bfloat16" and DEVICE == "cuda" and torch.cuda.get_device_capability()[0] < 8:
                self.unsupported[dtype] = "this GPU has no bfloat16 arithmetic"
                continue
            try:
                work(dtype)
                wait()
            except (RuntimeError, TypeError, ValueError) as error:
                text = words(error)
                if _BROKEN_CONTEXT.search(str(error)):
                    self.failures.append("%s: %s" % (dtype, text))
                    raise BrokenContextError(text) from error
                if _UNSUPPORTED.search(str(error)) and dtype not in tuple(must):
                    self.unsupported[dtype] = text
                    continue
                self.failures.append("%s: %s: %s" % (dtype, type(error).__name__, text))
            else:
                self.dtypes.append(dtype)


def _short(tensor: Any) -> str:
    values = ", ".join("%g" % value for value in tensor.reshape(-1)[:4].to(torch.float64).tolist())
    return "%s of shape %s" % (values, tuple(tensor.shape))


def need(holder: Any, *names: str) -> Any:
    """The first attribute of these names that is there. Raises MissingApiError when none is."""
    for name in names:
        value = getattr(holder, name, None)
        if value is not None:
            return value
    raise MissingApiError("%s has no %s" % (getattr(holder, "__name__", holder), " or ".join(names)))
