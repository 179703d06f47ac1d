"""Checks of extensions that need no GPU: apex_C, index builders of Megatron and metaseq, mpi4py with the site's MPI."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Callable, List, Tuple

import torch

from .common import OPEN_MPI_AS_ROOT, OPEN_MPI_OVERSUBSCRIBED
from .compare import Case, need

_RANKS = 2
_MPI_DEADLINE = 60.0
_SAY = (
    "print('envbuild-begun', flush=True)\n"
    "from mpi4py import MPI\nw = MPI.COMM_WORLD\n"
    "total = w.allreduce(w.Get_rank() + 1)\n"
    "print('envbuild-rank', w.Get_rank(), w.Get_size(), total, flush=True)\n"
)


def flatten(case: Case) -> None:
    """`apex_C.flatten` and `unflatten`: the same values there and back, in every dtype."""
    module = importlib.import_module("apex_C")
    flatten_, unflatten = need(module, "flatten"), need(module, "unflatten")
    case.api = "flatten, unflatten"
    for dtype in ("float32", "float16", "int64"):
        case.stage("apex_C, %s" % dtype)
        parts = [(torch.arange(rows * 7) - 40).reshape(rows, 7).to(getattr(torch, dtype)) for rows in (1, 3, 64)]
        flat = flatten_(parts)
        case.exact("flatten, %s" % dtype, flat, torch.cat([part.reshape(-1) for part in parts]))
        back = unflatten(flat, parts)
        if case.true("unflatten, %s: %d tensors" % (dtype, len(back)), len(back) == len(parts)):
            for got, part in zip(back, parts):  # noqa: B905 - strict= is of Python 3.10
                case.exact("unflatten, %s" % dtype, got, part)
        case.dtypes.append(dtype)


def _array(values: List[int]) -> Any:
    return importlib.import_module("numpy").array(values, dtype="int64")


def megatron_data(case: Case) -> None:
    """`helpers` of Megatron's data: samples begin where they should, and the numbers that it prints arrive.

    With a C++ library of its own beside torch's, a module prints its words and then loses its first number, or dies.
    """
    numpy = importlib.import_module("numpy")
    build = need(importlib.import_module("envbuild_kernels.helpers"), "build_sample_idx")
    case.api = "build_sample_idx"
    sizes, order, length = [5, 7, 3], [1, 0, 2, 2, 0, 1], 4
    places = [[at, offset] for at, document in enumerate(order) for offset in range(sizes[document])]
    arrays = [numpy.array(values, dtype="int32") for values in (sizes, order)]
    case.stage("30 tokens of 6 documents in samples of %d" % length)
    begins, output = _printed(lambda: build(arrays[0], arrays[1], length, 2, sum(sizes)).tolist())
    case.true("samples of %d tokens begin at %s" % (length, begins), begins == places[::length])
    match = re.search(r"number of documents:(.*)", output)
    if match:
        what = "it prints %r for 3 documents: another C++ library than torch's is in it" % match.group(1).strip()
        case.true(what, match.group(1).strip() == "3")


def _printed(call: Callable[[], Any]) -> Tuple[Any, str]:
    """What `call` returns, and what it wrote to file descriptor 1, from C++ too."""
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            result = call()
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        return result, file.read().decode("utf-8", "replace")


def metaseq_batches(case: Case) -> None:
    """`metaseq.data.data_utils_fast`: batches hold every index once, in order, within their bounds."""
    module = importlib.import_module("metaseq.data.data_utils_fast")
    by_vector, by_function = need(module, "batch_by_size_vec"), need(module, "batch_by_size_fn")
    case.api = "batch_by_size_vec, batch_by_size_fn"
    lengths = [(index * 37) % 23 + 1 for index in range(501)]
    for most_tokens, most_rows, multiple in ((64, 7, 1), (64, -1, 1), (-1, 5, 1), (128, 16, 4)):
        bounds = (most_tokens, most_rows, multiple)
        what = "batches of at most %d tokens and %d rows, multiple %d" % bounds
        case.stage(what)
        for batches in (
            by_vector(_array(list(range(501))), _array(lengths), *bounds),
            by_function(_array(list(range(501))), lambda index: lengths[int(index)], *bounds),
        ):
            case.true("%s: an index is missing or out of order" % what, _joined(batches) == list(range(501)))
            longest = [(len(batch), max(lengths[int(index)] for index in batch)) for batch in batches]
            if most_rows > 0:
                case.true("%s: a batch has too many rows" % what, all(rows <= most_rows for rows, _ in longest))
            if most_tokens > 0:
                case.true("%s: a batch has too many tokens" % what, all(r * n <= most_tokens for r, n in longest))
    case.stage("equal lengths")
    equal = by_vector(_array(list(range(10))), _array([10] * 10), 40, -1, 1)
    case.true("ten rows of 10 tokens, 40 a batch: %s" % [len(b) for b in equal], [len(b) for b in equal] == [4, 4, 2])


def _joined(batches: Any) -> List[int]:
    return [int(index) for batch in batches for index in batch]


def metaseq_blocks(case: Case) -> None:
    """`metaseq.data.token_block_utils_fast`: blocks cut a stream of documents where they should."""
    module = importlib.import_module("metaseq.data.token_block_utils_fast")
    slices, places = need(module, "_get_slice_indices_fast"), need(module, "_get_block_to_dataset_index_fast")
    case.api = "_get_slice_indices_fast, _get_block_to_dataset_index_fast"
    sizes = [5, 1, 9, 4, 4]
    ends = [5, 6, 15, 19, 23]
    case.stage("blocks of 7 tokens")
    blocks = slices(_array(sizes), "none", 7, 0).tolist()
    case.true("blocks of 7 tokens: %s" % blocks, blocks == [[0, 7], [7, 14], [14, 21], [21, 23]])
    documents = slices(_array(sizes), "eos", 7, 0).tolist()
    expected = [[end - size, end] for size, end in zip(sizes, ends)]  # noqa: B905 - strict= is of Python 3.10
    case.true("one block a document: %s" % documents, documents == expected)
    rows = places(_array(sizes), importlib.import_module("numpy").array(blocks, dtype="int64")).tolist()
    # [first document, offset in it, last document] of each block
    case.true("documents of the blocks: %s" % rows, rows == [[0, 0, 2], [2, 1, 2], [2, 8, 4], [4, 2, 4]])


def mpi(case: Case) -> None:
    """mpi4py: two ranks of the site's mpiexec must see each other; a wheel of another MPI sees one rank twice."""
    importlib.import_module("mpi4py").rc.initialize = False  # this process is no rank; its children are
    module = importlib.import_module("mpi4py.MPI")
    case.api = str(need(module, "Get_library_version")()).strip("\0\n ").split("\n")[0][:120]
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    program = beside if os.access(beside, os.X_OK) else shutil.which("mpiexec") or shutil.which("mpirun")
    if program is None:
        case.skipped = "no mpiexec here; mpi4py is linked to %s" % case.api
        return
    case.stage("%s -n %d" % (program, _RANKS))
    argv = [program, "-n", str(_RANKS), sys.executable, "-I", "-B", "-c", _SAY]
    try:
        done = subprocess.run(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=_MPI_DEADLINE,
            env={**os.environ, **OPEN_MPI_AS_ROOT, **OPEN_MPI_OVERSUBSCRIBED},
        )
    except subprocess.TimeoutExpired:
        case.skipped = "%s did not end within %g s" % (program, _MPI_DEADLINE)
        return
    output = done.stdout.decode("utf-8", "replace")
    judge_ranks(case, output, done.returncode, program)


def judge_ranks(case: Case, output: str, code: int, program: str) -> None:
    """What the ranks said; where none even began, the launcher could not start them, which says nothing of mpi4py."""
    lines = [line.split()[-4:] for line in output.splitlines() if "envbuild-rank" in line]
    lines = [line[1:] for line in lines if len(line) == 4 and line[0] == "envbuild-rank"]
    if not lines:
        begun = sum(line.strip().endswith("envbuild-begun") for line in output.splitlines())
        why = _telling(output)
        if begun:
            what = "%s of %s began and MPI did not start: %s; mpi4py is linked to %s"
            case.true(what % ("%d rank%s" % (begun, "" if begun == 1 else "s"), program, why, case.api), False)
        else:
            case.skipped = "%s started no rank (exit %d): %s" % (program, code, why)
        return
    sizes = sorted({size for _, size, _ in lines})
    what = "%d ranks were started by %s and each sees a world of %s: mpi4py is linked to another MPI (%s)"
    if case.true(what % (_RANKS, program, ", ".join(sizes), case.api), sizes == [str(_RANKS)]):
        ranks = sorted(rank for rank, _, _ in lines)
        case.true("the ranks are %s" % ", ".join(ranks), ranks == [str(rank) for rank in range(_RANKS)])
        wanted = str(_RANKS * (_RANKS + 1) // 2)
        case.true("the sum over the ranks is wrong: %s" % lines, all(total == wanted for _, _, total in lines))
        case.true("%s ended with exit code %d" % (program, code), code == 0)


def _telling(output: str) -> str:
    """The line of a failed launch that says most: what is not supported, an error, or else the last one with words."""
    lines = [line.strip() for line in output.splitlines() if re.search("[A-Za-z]", line)]
    lines = [line for line in lines if "envbuild-begun" not in line]
    for word in ("unsupported", "not supported", "Error", "error", "refused"):
        for line in lines:
            if word in line:
                return line[:300]
    return lines[-1][:300] if lines else "no word"
