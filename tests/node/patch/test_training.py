"""The patches without which a training script does not start or dies in its first step; what comes out really runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node.patch_support import apply, refused, run, shape, write
from tests.support.programs import completed, executable


def mends(folder: Path, patch: str, hits: int, program: str, failed: str, shown: str, **environment: str) -> None:
    """Until the patch is applied, the program fails with these words; then it shows that."""
    assert failed in run(program, folder, **environment).stderr
    assert apply(folder, patch)["hits"] == hits
    assert run(program, folder, **environment).stdout == shown


# Of the query, five dimensions: steps, batch, groups, heads of a group (the last two are key and value), width.
COMMA = "# envbuild patch alcf-transformer-comma: 1 hit\n"
STEP = "from megatron.model.transformer import Attention, Tensor\n"
STEP += "print(Attention().split_tensor(Tensor(64, 2, 8, 3, 8))[0].shape)"


def test_d51_the_query_of_the_pinned_attention_gets_four_dimensions_after_the_patch_before(tmp_path: Path) -> None:
    file = shape(tmp_path, "alcf-split-tensor")
    refused(tmp_path, "alcf-split-tensor", {str(file.relative_to(tmp_path)): file.read_text()}, "patch-precondition")
    file.write_text(file.read_text() + COMMA)
    mends(tmp_path, "alcf-split-tensor", 1, STEP, "shape (64, 2, 8, 3, -1, 8) is invalid", "(64, 2, 8, 8)\n")
    # The slice of the other function and the one that is not reshaped stay.
    assert file.read_text().count("mixed.shape[:-1]") == 2


ACCELERATOR = """\
import functools


class Accelerator:
    FloatTensor = HalfTensor = BFloat16Tensor = functools.partial(list)


def get_accelerator():
    return Accelerator()
"""
TENSORS = """\
class FloatTensor: pass
class HalfTensor: pass
class BFloat16Tensor: pass
class cuda:
    class FloatTensor: pass
    class HalfTensor: pass
    class BFloat16Tensor: pass
"""


def test_types_of_a_pipeline_are_types_with_a_newer_deepspeed(tmp_path: Path) -> None:
    file = shape(tmp_path, "alcf-tensor-types")
    write(tmp_path, "deepspeed/accelerator.py", ACCELERATOR)
    write(tmp_path, "torch.py", TENSORS)
    step = "import torch\nfrom megatron.model import module\n"
    step += "print(module.known(torch.cuda.HalfTensor()), module.zero())"
    mends(tmp_path, "alcf-tensor-types", 3, step, "isinstance() arg 2 must be a type", "True [0.0]\n")
    assert file.read_text().count("get_accelerator()") == 1  # what makes a tensor stays


TORCH = "class nn:\n    class Module:\n        pass\n"
REAL = "class pytorch:\n    class Linear:\n        def __init__(self, size):\n            self.size = size\n"
REAL += "    LayerNorm = DotProductAttention = Linear\n"


def test_d52_wrappers_import_without_transformer_engine_use_one_that_is_there_and_say_a_broken_one(
    tmp_path: Path,
) -> None:
    file = shape(tmp_path, "megatronapp-transformer-engine")
    stubs = write(tmp_path, "stubs/torch.py", TORCH).parent
    module = write(tmp_path, "layers/wrappers.py", file.read_text()).parent
    assert "No module named 'transformer_engine'" in run("import wrappers", module, stubs).stderr
    assert apply(tmp_path, "megatronapp-transformer-engine")["hits"] == 1
    file.rename(module / "wrappers.py")
    made = run("import wrappers\nprint(wrappers.Attention.stream)\nwrappers.Wrapped()", module, stubs)
    assert made.stdout == "None\n"
    assert "Wrapped needs transformer_engine, which is not installed" in made.stderr
    assert "Absent needs transformer_engine" in run("import wrappers\nwrappers.Norm()", module, stubs).stderr
    engine = write(tmp_path, "real/transformer_engine.py", REAL)
    program = "import wrappers\nprint(wrappers.Wrapped().size, wrappers.Norm().size)"
    assert run(program, module, stubs, engine.parent).stdout == "7 5\n"
    engine.write_text("import flash_attn_of_another_day\n")
    assert "No module named 'flash_attn_of_another_day'" in run(program, module, stubs, engine.parent).stderr


@pytest.mark.parametrize("number", [0, 1])
def test_d52_vision_is_imported_when_it_is_called(tmp_path: Path, number: int) -> None:
    top = shape(tmp_path, "megatron-vision-import", number).parents[1]
    assert apply(tmp_path, "megatron-vision-import")["hits"] == 1
    write(top, "megatron/model/vision/knn_monitor.py", "def feature_bank(model, *, last):\n    return [model, last]\n")
    program = "import sys\nfrom megatron.training import feature_bank, train\n"
    program += "print(train(), 'megatron.model.vision.knn_monitor' in sys.modules, feature_bank(1, last=2))"
    assert run(program, top).stdout == "/ False [1, 2]\n"


def test_d53_the_abi_is_left_to_torch(tmp_path: Path) -> None:
    shape(tmp_path, "megatronapp-abi")
    write(tmp_path, "setuptools.py", "def setup(**given):\n    print(given['extra_compile_args'])\n")
    assert apply(tmp_path, "megatronapp-abi")["hits"] == 1
    done = completed([sys.executable, "setup.py"], cwd=tmp_path, timeout=60)
    assert done.stdout == "['-fPIC', '-I/usr/local/cuda/include']\n"


WANDB = "class run:\n    log = staticmethod(print)\n\n\ndef finish():\n    print('ended')\n"


@pytest.mark.parametrize(
    ("installed", "said"),
    [("", "None\n"), (WANDB, "{'loss': 6.2}\nended\n<class 'wandb.run'>\n"), ("import nothing_of_that\n", "")],
)
def test_alcf_gpt_script_runs_without_wandb_and_with_it_as_before(tmp_path: Path, installed: str, said: str) -> None:
    shape(tmp_path, "alcf-no-wandb")
    if installed:
        write(tmp_path, "wandb.py", installed)
    assert apply(tmp_path, "alcf-no-wandb")["hits"] == 1
    assert run("import pretrain_gpt", tmp_path).stdout == said


# Package, its module and the function there that compiles, with the numbers of their samples.
TREES = {
    "": ("megatron.data", "dataset_utils", "compile_helper", (1, 2)),
    "Megatron/": ("megatron.core.datasets", "utils", "compile_helpers", (0, 3)),
}


AHEAD = "envbuild_kernels/helpers.py"


@pytest.mark.parametrize("top", TREES)
def test_d55_the_index_builder_that_was_built_ahead_is_taken_else_it_is_made_at_start_as_before(
    tmp_path: Path, top: str
) -> None:
    package, utils, name, numbers = TREES[top]
    for number in numbers:
        shape(tmp_path, "megatron-data-helpers", number)
    assert apply(tmp_path, "megatron-data-helpers")["hits"] == 2
    # A make that makes the module in its folder.
    make = executable(tmp_path / "bin/make", '#!/bin/sh\necho "WHERE = \'made at start\'" > "$2/helpers.py"\n')
    program = f"from {package} import {utils}\n{utils}.{name}()\nfrom {package} import helpers\nprint(helpers.WHERE)"

    def made(site: str, path: str, text: str) -> subprocess.CompletedProcess[str]:
        write(tmp_path, f"{site}/{path}", text)
        return run(program, tmp_path / top, tmp_path / site, PATH=f"{make.parent}:{os.environ['PATH']}")

    done = made("without", "envbuild_kernels/scaled_softmax_cuda.py", "")
    assert (done.stdout, done.stderr) == ("made at start\n", "")
    # Nor is a file of another day in the tree taken.
    stale = write(tmp_path / top, f"{package.replace('.', '/')}/helpers.py", "WHERE = 'stale'\n")
    done = made("with", AHEAD, "WHERE = 'ahead'\n")
    assert (done.stdout, done.stderr, stale.read_text()) == ("ahead\n", "", "WHERE = 'stale'\n")
    done = made("broken", AHEAD, "raise ImportError('libc10.so is not there')\n")
    assert done.returncode == 1 and "libc10.so is not there" in done.stderr


FAKE_DEEPSPEED = """\
import torch

started = []


def init_distributed(dist_backend):
    assert torch.distributed.is_initialized()
    started.append(dist_backend)


def configure():
    assert started, "DeepSpeed backend not set"
    print("configured on", started[0])
"""
FAKE_TORCH = """\
class distributed:
    there = False

    @classmethod
    def is_initialized(cls):
        return cls.there

    @classmethod
    def init_process_group(cls, backend):
        cls.there = True
"""
BEGIN = "from megatron.initialize import _initialize_distributed as begin\nbegin()\nprint('begun')"


def test_deepspeed_takes_over_the_process_group_that_megatron_starts(tmp_path: Path) -> None:
    shape(tmp_path, "megatron-deepspeed-start")
    args = "args(deepspeed=%s, checkpoint=%s, distributed_backend='nccl')"
    write(tmp_path, "deepspeed.py", FAKE_DEEPSPEED)
    write(tmp_path, "torch.py", FAKE_TORCH)
    package = (
        "from types import SimpleNamespace as args\nimport os\n\n\ndef get_args():\n    with_it = 'DS' in os.environ\n"
    )
    write(tmp_path, "megatron/__init__.py", package + f"    return {args % ('with_it', 'with_it')}\n")
    shown = "configured on nccl\nbegun\n"
    mends(tmp_path, "megatron-deepspeed-start", 1, BEGIN, "DeepSpeed backend not set", shown, DS="1")
    assert run(BEGIN, tmp_path).stdout == "begun\n"


CALL = "from metaseq.modules.fused_bias_gelu import load_megatron_fused_kernel as load\nload()\nprint('went on')"


def test_a_megatron_that_was_built_with_its_kernels_loads_none(tmp_path: Path) -> None:
    shape(tmp_path, "metaseq-kernel-load")
    kernels = write(tmp_path, "megatron/fused_kernels/__init__.py", "")
    failed = "module 'megatron.fused_kernels' has no attribute 'load'"
    mends(tmp_path, "metaseq-kernel-load", 1, CALL, failed, "went on\n")
    kernels.write_text("def load(args):\n    print('loaded on', args.rank)\n")
    assert run(CALL, tmp_path).stdout == "loaded on 0\nwent on\n"


# ---- metaseq on Python 3.11, omegaconf 2.2 and torch 2.6


HYDRA = "from metaseq.dataclass.initialize import hydra_init\nhydra_init()"


def test_metaseqs_configuration_can_be_made_by_a_python_that_refuses_mutable_defaults(tmp_path: Path) -> None:
    configs = shape(tmp_path, "metaseq-config-defaults")
    shape(tmp_path, "metaseq-config-defaults", 4)
    assert "mutable default" in run(HYDRA, tmp_path).stderr
    assert apply(tmp_path, "metaseq-config-defaults")["hits"] == 11
    shown = run(HYDRA, tmp_path).stdout.splitlines()
    assert shown[:2] == ["common CommonConfig(seed=1, names=[])", "task TaskConfig(size=4)"]
    assert shown[-2:] == ["model ???", "made "]
    # Two configurations share no part.
    parts = "from metaseq.dataclass.configs import Config\nprint(Config().common is Config().common)"
    assert run(parts, tmp_path).stdout == "False\n"
    assert "TaskConfig()" not in configs.read_text()


OMEGACONF = """\
def is_primitive_type_annotation(value):
    return value is int


def make(value):
    return is_primitive_type_annotation(value)
"""


def test_the_test_of_types_is_replaced_by_its_new_name_and_put_back(tmp_path: Path) -> None:
    write(tmp_path, "metaseq/dataclass/utils.py", shape(tmp_path, "omegaconf-primitive").read_text())
    write(tmp_path, "omegaconf/_utils.py", OMEGACONF)
    program = "from metaseq.checkpoint_utils import convert\nimport omegaconf._utils as u\n"
    program += "print(convert(str), u.make(str), u.make(int))"
    mends(tmp_path, "omegaconf-primitive", 6, program, "has no attribute 'is_primitive_type'", "True False True\n")


LOADS = {
    "file_io/__init__": 'import torch\n\n\ndef read(path):\n    return torch.load(path, map_location="cpu")\n',
    "distributed/utils": "import torch\n\n\ndef read(path):\n    return torch.load(path)\n",
    "trainer": 'import torch\n\n\ndef read(path):\n    return torch.load(path)["cfg"], load(path)\n\n\nload = str\n',
}
LOADER = (
    "def load(path, map_location=None, weights_only=True):\n    return {'cfg': (path, map_location, weights_only)}\n"
)


def test_checkpoints_are_read_whole_where_torch_reads_weights_alone(tmp_path: Path) -> None:
    for name, text in LOADS.items():
        write(tmp_path, f"metaseq/{name}.py", text)
    write(tmp_path, "torch.py", LOADER)
    program = "from metaseq import file_io, trainer\nfrom metaseq.distributed import utils\n"
    program += "print(file_io.read(1), utils.read(2), trainer.read(3))"
    assert run(program, tmp_path).stdout.count("True") == 3
    assert apply(tmp_path, "torch-load-pickle")["hits"] == 3
    shown = "{'cfg': (1, 'cpu', False)} {'cfg': (2, None, False)} ((3, None, False), '3')\n"
    assert run(program, tmp_path).stdout == shown
