"""The patches of Megatron-LM and its forks, of Alpa's artifact, and of names that numpy and torch dropped."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from tests.node.patch_support import apply, run, samples, shape
from tests.support.files import write_files

STUBS = {
    "torch/__init__.py": """
import os, types
cuda = types.SimpleNamespace(
    device_count=lambda: int(os.environ.get("GPUS", "0")), get_device_capability=lambda i: (8, 6) if i else (9, 0)
)
""",
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": """
import types
CUDA_HOME = "/usr/local/cuda"
def load(**options):
    print("built", options["name"], *options["extra_cuda_cflags"])
    return types.ModuleType(options["name"])
""",
}


LOAD = "import fused_kernels as k; k.load(None); import made_cuda; print(made_cuda.__name__, 'by name')"


def load(folder: Path, program: str = LOAD, **environment: str) -> subprocess.CompletedProcess[str]:
    write_files(folder / "stubs", STUBS)
    return run(program, folder / "megatron", folder / "stubs", folder / "installed", **environment)


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({"TORCH_CUDA_ARCH_LIST": "9.0"}, "built made_cuda -O3 -gencode arch=compute_90,code=sm_90 "),
        (
            {"TORCH_CUDA_ARCH_LIST": "8.0 9.0a+PTX", "GPUS": "2"},
            "built made_cuda -O3 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a"
            " -gencode arch=compute_90a,code=compute_90a ",
        ),
        (
            {"GPUS": "2"},
            "built made_cuda -O3 -gencode arch=compute_86,code=sm_86 -gencode arch=compute_90,code=sm_90 ",
        ),
        ({}, "no GPU is visible: set TORCH_CUDA_ARCH_LIST"),
        ({"TORCH_CUDA_ARCH_LIST": "Hopper"}, "'Hopper' is not an architecture"),
    ],
)
def test_kernels_are_compiled_for_the_target_or_not_at_all(
    tmp_path: Path, environment: dict[str, str], shown: str
) -> None:
    shape(tmp_path, "megatron-fused-arch")
    assert apply(tmp_path, "megatron-fused-arch")["hits"] == 3
    assert apply(tmp_path, "megatron-fused-import")["hits"] == 1
    done = load(tmp_path, **environment)
    if shown.startswith("built"):
        assert done.stdout == f"{shown}--use_fast_math -maxrregcount=50\nmade_cuda by name\n", done.stderr
    else:
        assert (done.returncode, done.stdout) == (1, "") and shown in done.stderr


OURS, APEX = "envbuild_kernels/made_cuda.py", "made_cuda.py"
AHEAD = "print('ahead of time')\n"
OF_APEX = "print('of Apex')\n"


@pytest.mark.parametrize(
    ("installed", "shown"),
    [
        ({OURS: AHEAD}, "ahead of time\nenvbuild_kernels.made_cuda by name\n"),
        ({APEX: OF_APEX}, "built made_cuda\nmade_cuda by name\n"),
        ({OURS: AHEAD, APEX: OF_APEX}, "ahead of time\nenvbuild_kernels.made_cuda by name\n"),
        ({OURS: "raise ImportError('undefined symbol')\n"}, ""),
    ],
    ids=["built ahead", "of another package", "both", "built ahead and broken"],
)
def test_a_kernel_that_was_built_ahead_of_time_is_used_and_no_other(
    tmp_path: Path, installed: dict[str, str], shown: str
) -> None:
    shape(tmp_path, "megatron-fused-import")
    assert "No module named 'made_cuda'" in load(tmp_path).stderr
    apply(tmp_path, "megatron-fused-import")
    write_files(tmp_path / "installed", installed)
    done = load(tmp_path)
    assert [line.split(" -")[0] for line in done.stdout.splitlines()] == shown.splitlines(), done.stderr
    assert shown or "undefined symbol" in done.stderr
    if APEX in installed:
        assert load(tmp_path, "import made_cuda; " + LOAD).stdout == "of Apex\n" + done.stdout


CLIP = "megatron/optimizer/clip_grads.py"


@pytest.mark.parametrize(("gpus", "count"), [(1, 1), (8, 8), (16, 8)])
def test_the_result_row_is_right_and_can_be_read(tmp_path: Path, gpus: int, count: int) -> None:
    file = shape(tmp_path, "alpa-result-row")
    assert apply(tmp_path, "alpa-result-row")["hits"] == 2
    space: dict[str, object] = {}
    exec(file.read_text(), space)
    devices, value = space["row"](gpus, space["Fake"](1.0))  # type: ignore[operator]
    assert devices == count
    assert ast.literal_eval(value) == {"tflops": 1.0, "count": 2}


SOFTMAX = """\
template <typename input_t, int log2_elements>
__global__ void {name}(input_t *out, const input_t *in)
{{
    constexpr int WARP_ITERATIONS = (1 << log2_elements) / 32;
    constexpr int ELEMENTS_PER_LDG_STG = 4;
}}
"""


BOTH = SOFTMAX.format(name="forward") + SOFTMAX.format(name="backward")
SHORT = BOTH.replace("STG = 4;", "STG = (WARP_ITERATIONS < 4) ? 1 : 4;")
SOFTMAXES = [f"megatron/fused_kernels/scaled_{name}softmax.h" for name in ("masked_", "upper_triang_masked_")]
NUMPY = "import numpy as np\nx = "
SIX_OF = "import torch\nfrom {} import {}\n\nlimit = inf\n"


def replaced(patch: str, old: str, new: str) -> dict[str, tuple[str, str]]:
    """The first sample of a patch, before and after."""
    sample = samples(patch)[0]
    assert old in sample["before"]
    return {sample["path"]: (sample["before"], sample["before"].replace(old, new))}


TEXTS: dict[str, tuple[str, int, dict[str, tuple[str, str]]]] = {
    "the all-reduce of gradients is off": (
        "megatron-no-tie", 1,
        replaced("megatron-no-tie", "last.share_word_embeddings:", "last.share_word_embeddings and False:"),
    ),
    "numpy's names": (
        "numpy-aliases", 6,
        {
            "a/b.py": (NUMPY + "np.float\n", NUMPY + "float\n"),
            "whole.py": ("import numpy\nx = [numpy.int, numpy.bool, numpy.object]\n",
                         "import numpy\nx = [int, bool, object]\n"),
            "others.py": ("import os, numpy as np\nx = np.float\n", "import os, numpy as np\nx = float\n"),
            "function.py": ("def f():\n    import numpy as np\n    return np.complex\n",
                            "def f():\n    import numpy as np\n    return complex\n"),
        },
    ),
    **{
        f"{names} of math": (
            "megatron-torch-six", 1, {CLIP: (SIX_OF.format("torch._six", names), SIX_OF.format("math", names))}
        )
        for names in ("inf", "inf, nan")
    },
    "ranks start with torch.distributed.run": (
        "alpa-launch-torchrun", 2, replaced("alpa-launch-torchrun", "distributed.launch", "distributed.run")
    ),
    "short rows of the softmax": ("megatron-softmax-short", 4, dict.fromkeys(SOFTMAXES, (BOTH, SHORT))),
}  # fmt: skip


@pytest.mark.parametrize(("name", "hits", "files"), TEXTS.values(), ids=TEXTS)
def test_the_text_of_a_source_becomes_what_it_should(
    tmp_path: Path, name: str, hits: int, files: dict[str, tuple[str, str]]
) -> None:
    write_files(tmp_path, {path: before for path, (before, _) in files.items()})
    assert apply(tmp_path, name)["hits"] == hits
    for path, (_, after) in files.items():
        assert (tmp_path / path).read_text().startswith(f"{after}{'//' if path.endswith('.h') else '#'} envbuild patch")
