"""The patches of Megatron-LM and its forks, of Alpa's artifact, and of names that numpy and torch dropped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node.patch_support import apply, samples, shape, write
from tests.support.programs import completed

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


def run(folder: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    for name, text in STUBS.items():
        write(folder / "stubs", name, text)
    path = os.pathsep.join(map(str, (folder / "megatron", folder / "stubs", folder / "installed")))
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("TORCH_", "CUDA_"))}
    return completed([sys.executable, "-c", code], env={**clean, "PYTHONPATH": path, **environment}, timeout=60)


LOAD = "import fused_kernels as k; k.load(None); import made_cuda; print(made_cuda.__name__, 'by name')"


@pytest.mark.parametrize(
    ("environment", "flags"),
    [
        ({"TORCH_CUDA_ARCH_LIST": "9.0"}, "-gencode arch=compute_90,code=sm_90"),
        (
            {"TORCH_CUDA_ARCH_LIST": "8.0 9.0a+PTX", "GPUS": "2"},
            "-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a"
            " -gencode arch=compute_90a,code=compute_90a",
        ),
        ({"GPUS": "2"}, "-gencode arch=compute_86,code=sm_86 -gencode arch=compute_90,code=sm_90"),
    ],
)
def test_kernels_are_compiled_for_the_target(tmp_path: Path, environment: dict[str, str], flags: str) -> None:
    shape(tmp_path, "megatron-fused-arch")
    assert apply(tmp_path, "megatron-fused-arch")["hits"] == 3
    assert apply(tmp_path, "megatron-fused-import")["hits"] == 1
    done = run(tmp_path, LOAD, **environment)
    assert done.stdout.splitlines() == [
        f"built made_cuda -O3 {flags} --use_fast_math -maxrregcount=50",
        "made_cuda by name",
    ], done.stderr


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "no GPU is visible: set TORCH_CUDA_ARCH_LIST"),
        ({"TORCH_CUDA_ARCH_LIST": "Hopper"}, "'Hopper' is not an architecture"),
    ],
)
def test_without_a_known_architecture_nothing_is_built(tmp_path: Path, environment: dict[str, str], said: str) -> None:
    shape(tmp_path, "megatron-fused-arch")
    apply(tmp_path, "megatron-fused-arch")
    done = run(tmp_path, LOAD, **environment)
    assert done.returncode == 1
    assert said in done.stderr
    assert "built" not in done.stdout


def test_a_kernel_that_was_built_ahead_of_time_is_used_as_it_is(tmp_path: Path) -> None:
    shape(tmp_path, "megatron-fused-import")
    assert "No module named 'made_cuda'" in run(tmp_path, LOAD).stderr
    apply(tmp_path, "megatron-fused-import")
    write(tmp_path, "installed/envbuild_kernels/made_cuda.py", "print('ahead of time')\n")
    done = run(tmp_path, LOAD)
    assert done.stdout.splitlines() == ["ahead of time", "envbuild_kernels.made_cuda by name"], done.stderr


@pytest.mark.parametrize("ahead", [True, False])
def test_a_kernel_of_another_package_does_not_stand_in(tmp_path: Path, ahead: bool) -> None:
    shape(tmp_path, "megatron-fused-import")
    apply(tmp_path, "megatron-fused-import")
    write(tmp_path, "installed/made_cuda.py", "print('of Apex')\n")
    if ahead:
        write(tmp_path, "installed/envbuild_kernels/made_cuda.py", "print('ahead of time')\n")
    lines = run(tmp_path, LOAD).stdout.splitlines()
    assert [line.split()[0] for line in lines] == (
        ["ahead", "envbuild_kernels.made_cuda"] if ahead else ["built", "made_cuda"]
    )
    first = run(tmp_path, "import made_cuda; " + LOAD).stdout.splitlines()
    assert first == ["of Apex", *lines]


def test_a_kernel_built_ahead_that_cannot_be_loaded_is_not_hidden_by_a_build(tmp_path: Path) -> None:
    shape(tmp_path, "megatron-fused-import")
    apply(tmp_path, "megatron-fused-import")
    write(tmp_path, "installed/envbuild_kernels/made_cuda.py", "raise ImportError('undefined symbol')\n")
    done = run(tmp_path, LOAD)
    assert "undefined symbol" in done.stderr
    assert "built" not in done.stdout


CLIP = "megatron/optimizer/clip_grads.py"


@pytest.mark.parametrize(("gpus", "count"), [(1, 1), (8, 8), (16, 8)])
def test_the_result_row_is_right_and_can_be_read(tmp_path: Path, gpus: int, count: int) -> None:
    import ast

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
    "numpy's float": ("numpy-aliases", 1, {"a/b.py": (NUMPY + "np.float\n", NUMPY + "float\n")}),
    "numpy's whole name": (
        "numpy-aliases", 3,
        {"a.py": ("import numpy\nx = [numpy.int, numpy.bool, numpy.object]\n",
                  "import numpy\nx = [int, bool, object]\n")},
    ),
    "numpy among others": (
        "numpy-aliases", 1,
        {"a.py": ("import os, numpy as np\nx = np.float\n", "import os, numpy as np\nx = float\n")},
    ),
    "numpy in a function": (
        "numpy-aliases", 1,
        {"a.py": ("def f():\n    import numpy as np\n    return np.complex\n",
                  "def f():\n    import numpy as np\n    return complex\n")},
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
    for path, (before, _) in files.items():
        write(tmp_path, path, before)
    assert apply(tmp_path, name)["hits"] == hits
    for path, (_, after) in files.items():
        assert (tmp_path / path).read_text().startswith(f"{after}{'//' if path.endswith('.h') else '#'} envbuild patch")
