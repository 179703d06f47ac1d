"""Checks of Megatron-LM's fused kernels and of flash-attn against plain torch in float64. Each takes a `Case`."""

import importlib
from typing import Any, Tuple

import torch

from .apex import compare_layer_norm
from .compare import Case, MissingApiError, backward, given, learned, need, random

_HALVES = ("float16", "bfloat16")
# (sequences × heads, length), and (sequences, heads, queries, keys): what Megatron-LM's own guard lets through. Lengths
# are multiples of 4 from 20 to 2048; a block takes 8 rows of up to 128 keys or 4 longer ones, and takes them whole.
_TRIANGLES = ((8, 20), (16, 100), (4, 132), (4, 1000), (4, 2048))
_RECTANGLES = ((2, 2, 24, 36), (1, 2, 20, 300), (1, 4, 64, 1000), (2, 4, 128, 128))
_SCALE = 0.35


def _softmax(case: Case, what: str, kernel: Any, arguments: Tuple[Any, ...], expected: Any, dtype: str) -> None:
    """Forward with `arguments` (the scale comes last), then backward from what it gave; both in one way for all."""
    got = need(kernel, "forward")(*(arguments + (_SCALE,)))
    # One rounding of probabilities as small as 1/2048; the scale keeps denormal float16 values out of it.
    if not case.close(what, got, expected, dtype, scale=1e-3):
        return
    upstream, double = given(random(5, *expected.shape), dtype)
    probabilities = got.detach().to(torch.float64)
    # The kernel writes its result over the gradients that it is given.
    gradient = need(kernel, "backward")(upstream.clone(), got, _SCALE)
    inner = (double * probabilities).sum(-1, keepdim=True)
    # A difference of two terms, each of which a kernel may round before: two units in the last place of each.
    terms = _SCALE * probabilities * (double.abs() + inner.abs())
    expected = _SCALE * probabilities * (double - inner)
    case.close(what + ", gradient", gradient, expected, dtype, 8.0, scale=1e-3 + terms / 4)


def triangular_softmax(case: Case) -> None:
    """`scaled_upper_triang_masked_softmax_cuda`: no position sees a later one."""
    kernel = importlib.import_module("scaled_upper_triang_masked_softmax_cuda")
    case.api = "forward(input, scale), backward(gradient, result, scale)"

    def work(dtype: str) -> None:
        for batches, length in _TRIANGLES:
            what = "triangular softmax %d×%d×%d, %s" % (batches, length, length, dtype)
            case.stage(what)
            values, doubles = given(3 * random(length, batches, length, length), dtype)
            future = torch.triu(torch.ones(length, length, device=doubles.device), diagonal=1).to(torch.bool)
            expected = torch.softmax((doubles * _SCALE).masked_fill(future, float("-inf")), dim=-1)
            _softmax(case, what, kernel, (values,), expected, dtype)

    case.each(_HALVES, ("float16",), work)


def masked_softmax(case: Case, name: str = "scaled_masked_softmax_cuda", masked: bool = True) -> None:
    """`scaled_masked_softmax_cuda`, with a mask of its own for each sequence, shared by its heads; and its relatives.

    `scaled_softmax_cuda` is not `masked`, `generic_scaled_masked_softmax_cuda` is of any length.
    """
    kernel = importlib.import_module(name)
    case.api = "forward(input, %sscale), backward(gradient, result, scale)" % ("mask, " if masked else "")

    def work(dtype: str) -> None:
        for batch, heads, queries, keys in _RECTANGLES:
            what = "%s %d×%d×%d×%d, %s" % (name[:-5].replace("_", " "), batch, heads, queries, keys, dtype)
            case.stage(what)
            values, doubles = given(3 * random(keys, batch, heads, queries, keys), dtype)
            hidden = (random(keys + 1, batch, 1, queries, keys) > 0.4).to(values.device)
            hidden[..., 0] = False  # a row that sees nothing has no agreed result
            arguments = (values, hidden) if masked else (values,)
            scores = doubles * _SCALE
            expected = torch.softmax(scores.masked_fill(hidden, -10000.0) if masked else scores, dim=-1)
            _softmax(case, what, kernel, arguments, expected, dtype)

    case.each(_HALVES, ("float16",), work)


class _MegatronNorm:
    """Megatron's layer norm kernel behind the face of a module, as its own autograd function calls it."""

    def __init__(self, kernel: Any, width: int, dtype: str, device: Any) -> None:
        self.kernel = kernel
        self.width = width
        self.weight = torch.nn.Parameter(torch.ones(width, device=device, dtype=getattr(torch, dtype)))
        self.bias = torch.nn.Parameter(torch.zeros(width, device=device, dtype=getattr(torch, dtype)))

    def __call__(self, values: Any) -> Any:
        kernel, width = self.kernel, self.width

        class Function(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(context: Any, values: Any, weight: Any, bias: Any) -> Any:
                output, mean, inverse = need(kernel, "forward_affine")(values, (width,), weight, bias, 1e-5)
                context.save_for_backward(values, weight, bias, mean, inverse)
                return output

            @staticmethod
            def backward(context: Any, gradient: Any) -> Any:
                values, weight, bias, mean, inverse = context.saved_tensors
                arguments = (gradient.contiguous(), mean, inverse, values, (width,), weight, bias, 1e-5)
                return tuple(need(kernel, "backward_affine")(*arguments))

        return Function.apply(values, self.weight, self.bias)


def megatron_layer_norm(case: Case) -> None:
    """`fused_mix_prec_layer_norm_cuda`: the output has the dtype of the weights."""
    kernel = importlib.import_module("fused_mix_prec_layer_norm_cuda")
    case.api = "forward_affine, backward_affine"

    def work(dtype: str) -> None:
        for rows, width in ((3, 17), (129, 1024), (65, 4097)):
            for source in sorted({dtype, "float32"}):
                layer = _MegatronNorm(kernel, width, dtype, given(random(0, 1), dtype)[0].device)
                name = "Megatron's layer norm to %s" % dtype
                compare_layer_norm(case, name, layer, (rows, width), source, dtype)

    case.each(("float32", "float16", "bfloat16"), ("float32", "float16"), work)


def _attention(query: Any, key: Any, value: Any, causal: bool) -> Any:
    """Plain attention of (batch, length, heads, width) tensors."""
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    scores = torch.matmul(query, key.transpose(-2, -1)) / query.shape[-1] ** 0.5
    if causal:
        future = torch.triu(torch.ones(scores.shape[-2:], device=scores.device), diagonal=1).to(torch.bool)
        scores = scores.masked_fill(future, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), value).transpose(1, 2)


def flash_attention(case: Case) -> None:
    """`flash_attn.flash_attn_func` (2.x), forward and backward, causal and not, odd lengths too."""
    module = importlib.import_module("flash_attn")
    version = str(getattr(module, "__version__", "?"))
    function = getattr(module, "flash_attn_func", None)
    if function is None:
        if version.split(".")[0] in ("0", "1"):
            case.skipped = "flash-attn %s: the check speaks the interface of 2.x" % version
            return
        raise MissingApiError("flash-attn %s has no flash_attn_func" % version)
    case.api = "flash_attn_func of %s" % version

    def work(dtype: str) -> None:
        for shape in ((2, 128, 4, 64), (1, 113, 3, 40), (1, 257, 2, 128)):
            for causal in (False, True):
                _compare_attention(case, function, shape, causal, dtype)

    case.each(_HALVES, ("float16",), work)


def _compare_attention(case: Case, function: Any, shape: Tuple[int, int, int, int], causal: bool, dtype: str) -> None:
    what = "flash attention %d×%d×%d×%d%s, %s" % (shape + (", causal" if causal else "", dtype))
    case.stage(what)
    ours, theirs = zip(*[learned(random(shape[1] + index, *shape), dtype) for index in range(3)])  # noqa: B905 - strict= is of Python 3.10
    output = function(ours[0], ours[1], ours[2], causal=causal)
    expected = _attention(theirs[0], theirs[1], theirs[2], causal)
    backward(output, expected, random(31, *shape), dtype)
    # Probabilities and their gradients are rounded to the half type before the second product.
    case.close(what, output, expected, dtype, 4.0, scale=1.0)
    for name, part, double in zip(("query", "key", "value"), ours, theirs):  # noqa: B905 - strict= is of Python 3.10
        case.close("%s, gradient of the %s" % (what, name), part.grad, double.grad, dtype, 8.0, scale=1.0)
