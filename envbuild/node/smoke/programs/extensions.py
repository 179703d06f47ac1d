"""Smoke program `extensions`: the compiled extensions that are installed import, and compute what plain torch does.

Runs inside the environment; needs torch 1.8 or newer. Each step is an event before and an event after, so that the
reader can go on behind a step that crashed: a kernel may end the process, or take the GPU's context with it.
"""

import importlib
import importlib.util
import sys
import time
import traceback
from functools import partial
from typing import Any, Dict, List, Tuple

import torch

from . import apex, host_extensions, megatron_kernels
from .common import NO_GPU, Channel, other_machine
from .compare import BrokenContextError, Case, MissingApiError, on_device, words

_PLAIN, _GENERIC = "scaled_softmax_cuda", "generic_scaled_masked_softmax_cuda"
# Name of the check, the extension it needs, whether that needs a GPU, and the function.
CHECKS = (
    ("apex-flatten", "apex_C", False, host_extensions.flatten),
    ("fused-adam", "amp_C", True, apex.fused_adam),
    ("multi-tensor-norm", "amp_C", True, apex.multi_tensor_norm),
    ("multi-tensor-scale", "amp_C", True, apex.multi_tensor_scale),
    ("layer-norm", "fused_layer_norm_cuda", True, apex.layer_norm),
    ("cross-entropy", "xentropy_cuda", True, apex.xentropy),
    ("mlp", "mlp_cuda", True, apex.mlp),
    ("fused-dense", "fused_dense_cuda", True, apex.fused_dense),
    ("triangular-softmax", "scaled_upper_triang_masked_softmax_cuda", True, megatron_kernels.triangular_softmax),
    ("masked-softmax", "scaled_masked_softmax_cuda", True, megatron_kernels.masked_softmax),
    ("softmax", _PLAIN, True, partial(megatron_kernels.masked_softmax, name=_PLAIN, masked=False)),
    ("generic-softmax", _GENERIC, True, partial(megatron_kernels.masked_softmax, name=_GENERIC)),
    ("megatron-layer-norm", "fused_mix_prec_layer_norm_cuda", True, megatron_kernels.megatron_layer_norm),
    ("flash-attention", "flash_attn_2_cuda", True, megatron_kernels.flash_attention),
    ("megatron-data", "envbuild_kernels.helpers", False, host_extensions.megatron_data),
    ("metaseq-batches", "metaseq.data.data_utils_fast", False, host_extensions.metaseq_batches),
    ("metaseq-blocks", "metaseq.data.token_block_utils_fast", False, host_extensions.metaseq_blocks),
    ("mpi", "mpi4py.MPI", False, host_extensions.mpi),
)


# The package of kernels that were built ahead of time.
KERNELS = "envbuild_kernels."
# What Apex has under the same names, at the top level: a check of its own where both are there.
TWINS = frozenset(module for name, module, _, _ in CHECKS if name.endswith("softmax"))
TWIN = "apex-"


def installed(name: str) -> bool:
    """Whether the module is there; a parent package that fails to import says that it is, and the step says why."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        return not (error.name and (name == error.name or name.startswith(error.name + ".")))
    except Exception:  # noqa: BLE001 - a package's __init__ may raise anything
        return True


def place(name: str) -> str:
    """Where a module lies: kernels that were built ahead of time stand before others of the same name."""
    ahead = KERNELS + name
    return ahead if "." not in name and installed(ahead) else name


def checks() -> List[Tuple[str, str, str, bool, Any]]:
    """(name, module as the function knows it, module that is checked, needs a GPU, function) of all that is known."""
    rows = []  # type: List[Tuple[str, str, str, bool, Any]]
    for name, module, gpu, function in CHECKS:
        where = place(module)
        rows.append((name, module, where, gpu, function))
        if where != module and module in TWINS and installed(module):
            rows.append((TWIN + name, module, module, gpu, function))
    return rows


def steps(expected: List[str]) -> Tuple[List[str], List[str]]:
    """(steps, extensions that are known here and not installed); a step is `import NAME` or the name of a check."""
    known = [module for _, module, _, _ in CHECKS]
    plan = ["import %s" % name for name in expected if name not in known]
    there = {module: installed(place(module)) for module in dict.fromkeys(known)}
    plan += ["import %s" % name for name in dict.fromkeys(known) if name in expected and not there[name]]
    plan += [name for name, module, _, _, _ in checks() if there[module]]
    return plan, [name for name in there if not there[name]]


def _import(name: str) -> str:
    """Why it cannot be imported; empty when it can."""
    if name.startswith("mpi4py"):
        importlib.import_module("mpi4py").rc.initialize = False
    try:
        importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - a module may raise anything, SystemExit included
        return "import %s: %s: %s%s" % (name, type(error).__name__, str(error)[:400], other_machine(error))
    return ""


def _no_driver(problem: str) -> bool:
    return "libcuda.so" in problem or "NVIDIA driver" in problem


def _run(case: Case, function: Any, module: str, where: str, gpu: bool, cuda: bool) -> bool:
    """One check of the module `where`, which `function` knows as `module`; False when the process cannot go on."""
    own = sys.modules.get(module)
    problem = _import(where)
    if where == module or problem:
        return _compare(case, function, where, problem, gpu, cuda)
    # The checks know it by its own name, as the source does once it is patched; behind them that is free again.
    sys.modules[module] = sys.modules[where]
    try:
        return _compare(case, function, where, problem, gpu, cuda)
    finally:
        del sys.modules[module]
        if own is not None:
            sys.modules[module] = own


def _compare(case: Case, function: Any, module: str, problem: str, gpu: bool, cuda: bool) -> bool:
    """As `_run`; `problem`: why the module cannot be imported."""
    if problem and not (gpu and not cuda and _no_driver(problem)):
        case.failures.append(problem)
        return True
    if gpu and not on_device(cuda):
        case.skipped = "no GPU here; %s" % ("it needs the driver" if problem else "%s imports" % module)
        return True
    try:
        function(case)
    except MissingApiError as error:
        case.failures.append("the extension is there and its interface is not: %s" % error)
    except BrokenContextError:
        return False
    except Exception as error:  # noqa: BLE001 - foreign code; whatever it is, the check has failed and says so
        at = traceback.extract_tb(sys.exc_info()[2])[-1]
        text = "%s: %s (%s line %d)" % (type(error).__name__, words(error), at[0].split("/")[-1], at[1])
        case.failures.append(text)
        return "CUDA error" not in str(error)
    if not case.failures and not case.skipped and case.compared == 0:
        why = "; ".join("%s: %s" % pair for pair in sorted(case.unsupported.items()))
        case.skipped = "nothing could be compared: %s" % (why or "no reason was given")
    return True


def _step(channel: Channel, step: str, cuda: bool) -> bool:
    channel.emit("begun", {"step": step})
    channel.stage(step)
    started = time.perf_counter()
    case, going = Case(channel.stage), True
    if step.startswith("import "):
        where = step[len("import ") :]
        problem = _import(where)
        if problem and not cuda and _no_driver(problem):
            case.skipped = "%s needs the NVIDIA driver" % where
        elif problem:
            case.failures.append(problem)
    else:
        _, module, where, gpu, function = next(check for check in checks() if check[0] == step)
        going = _run(case, function, module, where, gpu, cuda)
    seconds = round(time.perf_counter() - started, 3)
    channel.emit("ended", dict(case.report(), step=step, module=where, seconds=seconds))
    return going


def main(args: Dict[str, Any], channel: Channel) -> None:
    """All steps, or the ones that a reader names after a crash."""
    cuda = bool(args["cuda"])
    todo = args.get("todo")
    if todo is None:
        channel.stage("looking for extensions")
        if cuda and not torch.cuda.is_available():
            channel.failure(NO_GPU)
        todo, absent = steps([str(name) for name in args.get("expected") or []])
        only, every = args.get("only"), ["imports"] + [step for step in todo if not step.startswith("import ")]
        if only:
            todo = [step for step in todo if ("imports" if step.startswith("import ") else step) in only]
        names = [torch.cuda.get_device_name(0)] if cuda and torch.cuda.is_available() else []
        channel.facts({"torch": str(torch.__version__), "gpu": names, "not_there": absent, "steps": todo})
        channel.facts({"checks": every})
    for step in todo:
        if not _step(channel, step, cuda):
            channel.emit("again", {})  # this process lost its GPU; the reader starts another for the rest
            break
