"""Checks of Apex's compiled extensions against plain torch in float64. Each function takes a `Case`.

Apex has changed its API since 2021: what is there is called by the names and parameters that it has, and the case says
which. What a version never offered (bfloat16 in 2021) is told apart from what it should offer and does not.
"""

import importlib
import inspect
from functools import partial
from typing import Any, List, Tuple

import torch
from torch.nn import functional

from .compare import DEVICE, Case, MissingApiError, backward, given, learned, need, random, wait

_HALVES = ("float16", "bfloat16")
_ALL = ("float32", "float16", "bfloat16")
_CHUNK = 2048 * 32  # Apex's own chunk size: 65536 elements
# One element, an odd number, one below and above the chunk, several chunks.
_SIZES = (1, 17, 1023, _CHUNK - 1, _CHUNK + 1, 3 * _CHUNK + 5)
_LAUNCH = 111  # more tensors than one launch takes (110)


def _parameters(callable_: Any) -> List[str]:
    try:
        return list(inspect.signature(callable_).parameters)
    except (TypeError, ValueError):
        return []


def _signs(seed: int, size: int) -> Any:
    """±(0.5 to 1.5): gradients whose squares neither vanish nor overflow in float16."""
    values = random(seed, size)
    magnitude = 0.5 + torch.sigmoid(values)
    return torch.where(values >= 0, magnitude, -magnitude)


# --- amp_C: the optimizer and the multi-tensor kernels


def fused_adam(case: Case) -> None:
    """`apex.optimizers.FusedAdam` in both modes against torch.optim.AdamW and Adam in float64, five steps."""
    optimizer = need(importlib.import_module("apex.optimizers"), "FusedAdam")
    known = _parameters(optimizer.__init__)
    if "adam_w_mode" not in known:
        raise MissingApiError("FusedAdam has no adam_w_mode (parameters: %s)" % ", ".join(known))
    later = [name for name in ("set_grad_none", "capturable", "master_weights") if name in known]
    case.api = "FusedAdam(adam_w_mode%s)" % "".join(", " + name for name in later)
    for decoupled in (True, False):

        def work(dtype: str, decoupled: bool = decoupled) -> None:
            reference = torch.optim.AdamW if decoupled else torch.optim.Adam
            what = "FusedAdam against torch.optim.%s, %s" % (reference.__name__, dtype)
            case.stage(what)
            sizes = _SIZES + (5,) * _LAUNCH
            pairs = [given(random(index, size), dtype) for index, size in enumerate(sizes)]
            ours = [torch.nn.Parameter(values.clone()) for values, _ in pairs]
            theirs = [torch.nn.Parameter(values.clone()) for _, values in pairs]
            settings = {"lr": 0.05, "betas": (0.9, 0.999), "eps": 1e-4, "weight_decay": 0.2}
            ours_step = optimizer(ours, adam_w_mode=decoupled, **settings)
            theirs_step = reference(theirs, **settings)
            for step in range(5):
                for index, size in enumerate(sizes):
                    ours[index].grad, theirs[index].grad = given(_signs(1000 * step + index, size), dtype)
                ours_step.step()
                theirs_step.step()
            wait()
            # Half types: the parameter is rounded after each step, and in old versions both moments too.
            steps = None if dtype == "float32" else 16.0
            got, expected = (torch.cat([value.detach().reshape(-1) for value in group]) for group in (ours, theirs))
            case.close(what, got, expected, dtype, steps, scale=1.0)

        case.each(_ALL, ("float32", "float16"), work)
    case.dtypes = [name for name in _ALL if name in case.dtypes]


def _flag() -> Any:
    return torch.zeros(1, dtype=torch.int32, device=DEVICE)


def _many(dtype: str) -> Tuple[List[Any], List[Any]]:
    """Tensors of all sizes, one that starts at an odd address, and more than one launch takes."""
    pairs = [given(random(index, size), dtype) for index, size in enumerate(_SIZES + (3,) * _LAUNCH)]
    values, doubles = [list(part) for part in zip(*pairs)]  # noqa: B905 - strict= is of Python 3.10
    shifted, shifted_doubles = given(random(777, 4098), dtype)
    return values + [shifted[1:]], doubles + [shifted_doubles[1:]]


def multi_tensor_norm(case: Case) -> None:
    """`amp_C.multi_tensor_l2norm`, of all tensors and of each."""
    norm = need(importlib.import_module("amp_C"), "multi_tensor_l2norm")
    case.api = "amp_C.multi_tensor_l2norm"

    def work(dtype: str) -> None:
        what = "multi-tensor L2 norm, %s" % dtype
        case.stage(what)
        values, doubles = _many(dtype)
        total, norms = norm(_CHUNK, _flag(), [values], True)
        expected = torch.stack([part.norm() for part in doubles])
        # Half inputs are exact in float32, where the sum is made.
        case.close(what, total.reshape(-1), expected.norm().reshape(-1), "float32")
        case.close(what + ", of each tensor", norms, expected, "float32")
        total, _ = norm(_CHUNK, _flag(), [values], False)
        case.close(what + " alone", total.reshape(-1), expected.norm().reshape(-1), "float32")

    case.each(_ALL, ("float32", "float16"), work)


def multi_tensor_scale(case: Case) -> None:
    """`amp_C.multi_tensor_scale` between dtypes; its flag must tell infinity and NaN from numbers."""
    scale = need(importlib.import_module("amp_C"), "multi_tensor_scale")
    case.api = "amp_C.multi_tensor_scale"

    def work(dtype: str) -> None:
        values, doubles = _many(dtype)
        for target in sorted({"float32", dtype}):
            what = "multi-tensor scale, %s to %s" % (dtype, target)
            case.stage(what)
            into = [torch.full_like(value, float("nan"), dtype=getattr(torch, target)) for value in values]
            flag = _flag()
            scale(_CHUNK, flag, [values, into], 0.3)
            for got, expected in zip(into, doubles):  # noqa: B905 - strict= is of Python 3.10
                case.close(what, got, expected * 0.3, target, 4.0)
            case.true("%s: the overflow flag is set without an overflow" % what, int(flag.item()) == 0)
        for bad in (float("inf"), float("nan")):
            flag, poisoned = _flag(), [value.clone() for value in values]
            poisoned[4][-1] = bad
            scale(_CHUNK, flag, [poisoned, [torch.empty_like(value) for value in poisoned]], 1.0)
            case.true("multi-tensor scale, %s: %g does not set the overflow flag" % (dtype, bad), int(flag.item()) != 0)

    case.each(_ALL, ("float32", "float16"), work)


# --- fused_layer_norm_cuda


_SHAPES = ((3, 17), (1, 33), (129, 1024), (65, 4097))


def layer_norm(case: Case) -> None:
    """FusedLayerNorm and, where it is there, MixedFusedLayerNorm, forward and backward."""
    module = importlib.import_module("apex.normalization")
    plain = need(module, "FusedLayerNorm")
    mixed = getattr(module, "MixedFusedLayerNorm", None)
    case.api = "FusedLayerNorm" + (", MixedFusedLayerNorm" if mixed else "")

    def work(dtype: str) -> None:
        for rows, width in _SHAPES:
            layer = plain(width, eps=1e-5).to(DEVICE).to(getattr(torch, dtype))
            compare_layer_norm(case, "FusedLayerNorm", layer, (rows, width), dtype, dtype)
            bare = plain(width, eps=1e-5, elementwise_affine=False)
            compare_layer_norm(case, "FusedLayerNorm without weights", bare, (rows, width), dtype, dtype)
            if mixed is None:
                continue
            for source in sorted({"float32", dtype}):  # the output has the dtype of the weights
                layer = mixed(width, eps=1e-5).to(DEVICE).to(getattr(torch, dtype))
                name = "MixedFusedLayerNorm to %s" % dtype
                compare_layer_norm(case, name, layer, (rows, width), source, dtype)

    case.each(_ALL, ("float32", "float16"), work)


def compare_layer_norm(case: Case, name: str, layer: Any, shape: Tuple[int, int], dtype: str, weights: str) -> None:
    """One layer (weight and bias in dtype `weights`, or none) against float64; input in `dtype`."""
    rows, width = shape
    what = "%s %d×%d, %s" % (name, rows, width, dtype)
    case.stage(what)
    values, doubles = learned(random(rows, rows, width) * 2 + 0.5, dtype)
    affine = getattr(layer, "weight", None) is not None
    expected_weight = expected_bias = None
    if affine:
        weight, expected_weight = learned(1 + 0.3 * random(2, width), weights)
        bias, expected_bias = learned(0.5 * random(3, width), weights)
        layer.weight.data.copy_(weight.data)
        layer.bias.data.copy_(bias.data)
    output = layer(values)
    expected = functional.layer_norm(doubles, (width,), expected_weight, expected_bias, 1e-5)
    produced = str(output.dtype).replace("torch.", "")
    if not case.true("%s: the output is %s" % (what, produced), produced in (dtype, weights)):
        return
    backward(output, expected, random(width, rows, width), produced)
    # Old versions multiply and add in the half type: three roundings of normalised values, which are up to about 4.
    case.close(what, output, expected, produced, scale=4.0)
    case.close(what + ", gradient of the input", values.grad, doubles.grad, dtype, scale=4.0)
    if affine and expected_weight is not None and expected_bias is not None:
        size = 4.0 * rows**0.5  # sums over the rows
        case.close(what + ", gradient of the weight", layer.weight.grad, expected_weight.grad, weights, scale=size)
        case.close(what + ", gradient of the bias", layer.bias.grad, expected_bias.grad, weights, scale=size)


# --- xentropy_cuda


def xentropy(case: Case) -> None:
    """`SoftmaxCrossEntropyLoss` with and without label smoothing; the padding label counts nothing."""
    loss = need(importlib.import_module("apex.contrib.xentropy"), "SoftmaxCrossEntropyLoss")
    known = _parameters(loss.forward)
    for name in ("smoothing", "padding_idx", "half_to_float"):
        if name not in known:
            raise MissingApiError("SoftmaxCrossEntropyLoss.forward has no %s (%s)" % (name, ", ".join(known)))
    case.api = "SoftmaxCrossEntropyLoss.apply(logits, labels, smoothing, padding_idx, half_to_float)"

    def work(dtype: str) -> None:
        # A block reads at least one warp's worth of a row that does not start at a multiple of 16 bytes: vocabularies.
        for rows, classes in ((5, 1001), (33, 1024), (17, 50257)):
            for smoothing in (0.0, 0.1):
                _cross_entropy(case, loss, (rows, classes), dtype, smoothing)

    case.each(_ALL, ("float32", "float16"), work)


def _cross_entropy(case: Case, loss: Any, shape: Tuple[int, int], dtype: str, smoothing: float) -> None:
    rows, classes = shape
    what = "cross entropy %d×%d, %s, smoothing %g" % (rows, classes, dtype, smoothing)
    case.stage(what)
    logits, doubles = learned(2 * random(rows, rows, classes), dtype)
    generator = torch.Generator()
    generator.manual_seed(classes)
    labels = torch.randint(1, classes, (rows,), generator=generator).to(DEVICE)
    labels[:: max(2, rows // 3)] = 0  # the padding label
    # Half types only with half_to_float, as Megatron-LM and metaseq call it; the other way has no backward in Apex.
    got = loss.apply(logits, labels, smoothing, 0, dtype != "float32")
    logarithms = functional.log_softmax(doubles, dim=-1)
    chosen = logarithms.gather(1, labels.unsqueeze(1)).squeeze(1)
    expected = -(1 - smoothing) * chosen - smoothing * logarithms.mean(dim=-1)
    expected = expected * (labels != 0).to(torch.float64)
    # The loss is a difference of terms of up to about 12 (the logarithm of the number of classes).
    case.close(what, got, expected, "float32", scale=12.0)
    backward(got, expected, 0.5 + torch.sigmoid(random(9, rows)), "float32")
    # Probabilities are as small as 1e-5: the scale is small against them in sum and large against a denormal float16.
    case.close(what + ", gradient", logits.grad, doubles.grad, dtype, None if dtype == "float32" else 8.0, 1e-3)


# --- mlp_cuda and fused_dense_cuda: cuBLAS with an epilogue


def _chain(parts: List[Any], values: Any, activation: Any) -> Any:
    for weight, bias in zip(parts[::2], parts[1::2]):  # noqa: B905 - strict= is of Python 3.10
        values = activation(functional.linear(values, weight, bias))
    return values


def _compare_layers(
    case: Case, what: str, parts: List[Any], module: Any, expect: Any, dtype: str, smooth: bool = True, scale: float = 1
) -> None:
    """A module whose parameters are set to known ones: forward and, where what it computes is `smooth`, backward.

    `parts`: its parameters, each weight before its bias; `expect`: what these and an input give in float64. `scale`: of
    the gradient of the first weight.
    """
    case.stage(what)
    doubles = []
    for index, part in enumerate(parts):
        wanted = random(index, *part.shape)
        value, double = learned(wanted / part.shape[1] ** 0.5 if wanted.dim() == 2 else wanted, dtype)
        part.data.copy_(value.data)
        doubles.append(double)
    values, inputs = learned(random(11, 40, parts[0].shape[1]), dtype)
    output, expected = module(values), expect(doubles, inputs)
    # float32 products may run in TF32, whose inputs have 10 bits.
    tolerance = "tensorfloat32" if dtype == "float32" else dtype
    case.close(what, output, expected, tolerance, 8.0, scale=1.0)
    if not smooth:
        return  # its derivative jumps where rounding moves a value over 0
    backward(output, expected, random(12, *expected.shape), dtype)
    case.close(what + ", gradient of the input", values.grad, inputs.grad, tolerance, 16.0, scale=1.0)
    case.close(what + ", gradient of the first weight", parts[0].grad, doubles[0].grad, tolerance, 16.0, scale=scale)


def mlp(case: Case) -> None:
    """`apex.mlp.MLP`: forward with ReLU, forward and backward with the smooth sigmoid."""
    layer = need(importlib.import_module("apex.mlp"), "MLP")
    known = _parameters(layer.__init__)
    case.api = "MLP(%s)" % ", ".join(name for name in known if name != "self")
    kinds = (("relu", functional.relu), ("sigmoid", torch.sigmoid)) if "activation" in known else ()

    def work(dtype: str) -> None:
        for sizes in ((64, 128, 32), (480, 1024, 512, 8)):
            for kind, function in kinds:
                _compare_mlp(case, layer, sizes, kind, function, dtype)

    if not kinds:
        raise MissingApiError("MLP has no `activation` (parameters: %s)" % ", ".join(known))
    case.each(("float32", "float16"), ("float32", "float16"), work)


def _compare_mlp(case: Case, layer: Any, sizes: Tuple[int, ...], kind: str, function: Any, dtype: str) -> None:
    module = layer(list(sizes), bias=True, activation=kind).to(DEVICE).to(getattr(torch, dtype))
    parts = []
    for index, pair in enumerate(zip(module.weights, module.biases)):  # noqa: B905 - strict= is of Python 3.10
        # As torch keeps it: `weights` may hold the tensors from before `.to`.
        names = ("weight_%d" % index, "bias_%d" % index)
        parts += [getattr(module, name, part) for name, part in zip(names, pair)]  # noqa: B905
    what = "MLP %s with %s, %s" % ("-".join(map(str, sizes)), kind, dtype)
    expect = partial(_chain, activation=function)
    _compare_layers(case, what, parts, module, expect, dtype, smooth=kind != "relu")


def fused_dense(case: Case) -> None:
    """`apex.fused_dense`: a product with bias, and two with a GELU between."""
    module = importlib.import_module("apex.fused_dense")
    dense = need(module, "FusedDense")
    with_gelu = getattr(module, "FusedDenseGeluDense", None)
    case.api = "FusedDense" + (", FusedDenseGeluDense" if with_gelu else "")

    def work(dtype: str) -> None:
        _compare_dense(case, dense(480, 1024), ("weight", "bias"), (480, 1024), dtype)
        if with_gelu is not None:
            names = ("weight1", "bias1", "weight2", "bias2")
            _compare_dense(case, with_gelu(256, 512, 128), names, (256, 512, 128), dtype)

    case.each(_HALVES, ("float16",), work)


def _compare_dense(case: Case, module: Any, names: Tuple[str, ...], sizes: Tuple[int, ...], dtype: str) -> None:
    def expect(parts: List[Any], values: Any) -> Any:
        values = functional.linear(values, parts[0], parts[1])
        # cuBLASLt's GELU is the tanh form, up to 5e-4 from the exact one.
        return functional.linear(functional.gelu(values), *parts[2:]) if parts[2:] else values

    module = module.to(DEVICE).to(getattr(torch, dtype))
    what = "%s %s, %s" % (type(module).__name__, "-".join(map(str, sizes)), dtype)
    parts = [getattr(module, name) for name in names]
    _compare_layers(case, what, parts, module, expect, dtype, scale=8.0)
