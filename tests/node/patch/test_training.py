"""The patches without which a training script does not start or dies in its first step; what comes out really runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node.patch_support import apply, refused, samples, write
from tests.support.programs import completed


def run(program: str, *paths: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program with `paths` on its module path."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **environment}
    return completed([sys.executable, "-c", program], env=env, timeout=60)


# Of the query, five dimensions: steps, batch, groups, heads of a group (the last two are key and value), width.
TRANSFORMER = "megatron/model/transformer.py"
SPLIT = """\
import math


class Tensor:
    def __init__(self, *shape):
        self.shape = shape

    def __getitem__(self, index):
        return Tensor(*self.shape[:3], self.shape[3] - 2, self.shape[4])

    def reshape(self, shape):
        known = math.prod(size for size in shape if size != -1)
        if math.prod(self.shape) % known:
            raise RuntimeError("shape %s is invalid" % (shape,))
        return Tensor(*[math.prod(self.shape) // known if size == -1 else size for size in shape])


class Attention:
    width = 8

    def split_tensor(self, mixed):
        query = mixed[:, :, :, :-2, :].reshape(mixed.shape[:-1] + (-1, self.width))
        return query, mixed.shape[:-1]

    def other(self, mixed):
        return mixed[:, :].reshape(mixed.shape[:-1] + (-1, self.width))
"""
COMMA = "# envbuild patch alcf-transformer-comma: 1 hit\n"
STEP = "from megatron.model.transformer import Attention, Tensor\n"
STEP += "print(Attention().split_tensor(Tensor(64, 2, 8, 3, 8))[0].shape)"


def test_d51_the_query_of_the_pinned_attention_gets_four_dimensions(tmp_path: Path) -> None:
    file = write(tmp_path, TRANSFORMER, SPLIT + COMMA)
    assert "shape (64, 2, 8, 3, -1, 8) is invalid" in run(STEP, tmp_path).stderr
    assert apply(tmp_path, "alcf-split-tensor")["hits"] == 1
    assert run(STEP, tmp_path).stdout == "(64, 2, 8, 8)\n"
    # The slice of the other function and the one that is not reshaped stay.
    assert file.read_text().count("mixed.shape[:-1]") == 2


MODULE = "megatron/model/module.py"
TYPES = """\
import functools

import torch
from deepspeed.accelerator import get_accelerator

_FLOAT_TYPES = (torch.FloatTensor, get_accelerator().FloatTensor)
_HALF_TYPES = (torch.HalfTensor, get_accelerator().HalfTensor)
_BF16_TYPES = (torch.BFloat16Tensor, get_accelerator().BFloat16Tensor)


def known(value):
    return isinstance(value, (_FLOAT_TYPES, _HALF_TYPES, _BF16_TYPES))


def zero():
    return get_accelerator().FloatTensor([0.0])
"""
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
    file = write(tmp_path, MODULE, TYPES)
    write(tmp_path, "deepspeed/accelerator.py", ACCELERATOR)
    write(tmp_path, "torch.py", TENSORS)
    step = "import torch\nfrom megatron.model import module\n"
    step += "print(module.known(torch.cuda.HalfTensor()), module.zero())"
    assert "isinstance() arg 2 must be a type" in run(step, tmp_path).stderr
    assert apply(tmp_path, "alcf-tensor-types")["hits"] == 3
    assert run(step, tmp_path).stdout == "True [0.0]\n"
    assert file.read_text().count("get_accelerator()") == 1  # what makes a tensor stays


ENGINE = "Megatron/megatron/core/transformer/custom_layers/transformer_engine.py"
LAYERS = """\
import os

import torch
import transformer_engine as te
from os import path


class Norm:
    def __new__(cls):
        return te.pytorch.LayerNorm(5)


class Wrapped(te.pytorch.Linear):
    def __init__(self):
        super().__init__(7)


class Attention(te.pytorch.DotProductAttention):
    stream = None
"""
TORCH = "class nn:\n    class Module:\n        pass\n"
REAL = "class pytorch:\n    class Linear:\n        def __init__(self, size):\n            self.size = size\n"
REAL += "    LayerNorm = DotProductAttention = Linear\n"


def test_d52_wrappers_of_transformer_engine_import_without_it_and_cannot_be_made(tmp_path: Path) -> None:
    file = write(tmp_path, ENGINE, LAYERS)
    stubs = write(tmp_path, "stubs/torch.py", TORCH).parent
    module = write(tmp_path, "layers/wrappers.py", LAYERS).parent
    assert "No module named 'transformer_engine'" in run("import wrappers", module, stubs).stderr
    assert apply(tmp_path, "megatronapp-transformer-engine")["hits"] == 1
    file.rename(module / "wrappers.py")
    made = run("import wrappers\nprint(wrappers.Attention.stream)\nwrappers.Wrapped()", module, stubs)
    assert made.stdout == "None\n"
    assert "Wrapped needs transformer_engine, which is not installed" in made.stderr
    assert "Absent needs transformer_engine" in run("import wrappers\nwrappers.Norm()", module, stubs).stderr


def test_d52_transformer_engine_is_used_where_it_is_there_and_a_broken_one_is_said(tmp_path: Path) -> None:
    write(tmp_path, ENGINE, LAYERS)
    apply(tmp_path, "megatronapp-transformer-engine")
    module = write(tmp_path, "layers/wrappers.py", (tmp_path / ENGINE).read_text()).parent
    stubs = write(tmp_path, "stubs/torch.py", TORCH).parent
    engine = write(tmp_path, "real/transformer_engine.py", REAL)
    program = "import wrappers\nprint(wrappers.Wrapped().size, wrappers.Norm().size)"
    assert run(program, module, stubs, engine.parent).stdout == "7 5\n"
    engine.write_text("import flash_attn_of_another_day\n")
    assert "No module named 'flash_attn_of_another_day'" in run(program, module, stubs, engine.parent).stderr


VISION = """\
import os

from megatron.model.vision.knn_monitor import feature_bank


def train():
    return os.sep
"""


@pytest.mark.parametrize("where", ["megatron/training.py", "Megatron/megatron/training.py"])
def test_d52_vision_is_imported_when_it_is_called(tmp_path: Path, where: str) -> None:
    write(tmp_path, where, VISION)
    assert apply(tmp_path, "megatron-vision-import")["hits"] == 1
    top = tmp_path / where.removesuffix("megatron/training.py")
    write(top, "megatron/model/vision/knn_monitor.py", "def feature_bank(model, *, last):\n    return [model, last]\n")
    program = "import sys\nfrom megatron.training import feature_bank, train\n"
    program += "print(train(), 'megatron.model.vision.knn_monitor' in sys.modules, feature_bank(1, last=2))"
    assert run(program, top).stdout == "/ False [1, 2]\n"


SETUP = """\
import json
from setuptools import setup

setup(
    extra_compile_args=[
        "-fPIC",
        "-D_GLIBCXX_USE_CXX11_ABI=0",
        # the headers of CUDA
        "-I/usr/local/cuda/include"
    ],
    extra_link_args=["-lcudart"],
)
"""


def test_d53_the_abi_is_left_to_torch(tmp_path: Path) -> None:
    write(tmp_path, "setup.py", SETUP)
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
    write(tmp_path, "pretrain_gpt.py", samples("alcf-no-wandb")[0]["before"])
    if installed:
        write(tmp_path, "wandb.py", installed)
    assert apply(tmp_path, "alcf-no-wandb")["hits"] == 1
    assert run("import pretrain_gpt", tmp_path).stdout == said


COMPILE = '''\
import os


def {name}():
    """Compile."""
    import subprocess

    if subprocess.run(["make", "-C", os.path.dirname(__file__)]).returncode != 0:
        raise SystemExit("make failed")


def after():
    return 1
'''
TREES = {
    "": ("megatron.data", "dataset_utils", "compile_helper", "from . import dataset_utils\n"),
    "Megatron/": ("megatron.core.datasets", "utils", "compile_helpers", ""),
}


def tree(tmp_path: Path, top: str) -> tuple[Path, str]:
    """A tree in the shape of Megatron's, patched, and a program that compiles its helpers and imports them."""
    package, utils, name, first = TREES[top]
    folder = f"{top}{package.replace('.', '/')}"
    write(tmp_path, f"{folder}/__init__.py", first)
    write(tmp_path, f"{folder}/{utils}.py", COMPILE.format(name=name))
    assert apply(tmp_path, "megatron-data-helpers")["hits"] == 2
    # A make that makes the module in its folder.
    make = write(tmp_path, "bin/make", '#!/bin/sh\necho "WHERE = \'made at start\'" > "$2/helpers.py"\n')
    make.chmod(0o755)
    program = f"from {package} import {utils}\n{utils}.{name}()\nfrom {package} import helpers\nprint(helpers.WHERE)"
    return tmp_path / top, program


@pytest.mark.parametrize("top", TREES)
def test_d55_the_index_builder_that_was_built_ahead_is_taken_and_nothing_is_compiled(tmp_path: Path, top: str) -> None:
    path, program = tree(tmp_path, top)
    site = write(tmp_path, "site/envbuild_kernels/helpers.py", "WHERE = 'ahead'\n").parent.parent
    # Nor is a file of another day in the tree.
    stale = write(path, f"{TREES[top][0].replace('.', '/')}/helpers.py", "WHERE = 'stale'\n")
    done = run(program, path, site, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert (done.stdout, done.stderr) == ("ahead\n", "")
    assert stale.read_text() == "WHERE = 'stale'\n"


@pytest.mark.parametrize("top", TREES)
def test_d55_where_none_was_built_ahead_it_is_made_at_start_as_before(tmp_path: Path, top: str) -> None:
    path, program = tree(tmp_path, top)
    site = write(tmp_path, "site/envbuild_kernels/scaled_softmax_cuda.py", "").parent.parent
    done = run(program, path, site, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert (done.stdout, done.stderr) == ("made at start\n", "")


def test_d55_an_index_builder_that_was_built_ahead_and_is_broken_is_said(tmp_path: Path) -> None:
    path, program = tree(tmp_path, "")
    site = write(tmp_path, "site/envbuild_kernels/helpers.py", "raise ImportError('libc10.so is not there')\n").parent
    done = run(program, path, site.parent)
    assert done.returncode == 1
    assert "libc10.so is not there" in done.stderr


INITIALIZE = "megatron/initialize.py"
START = """\
import deepspeed
import torch

from megatron import get_args


def _initialize_distributed():
    args = get_args()

    if torch.distributed.is_initialized():
        args.rank = torch.distributed.get_rank()
    else:
        torch.distributed.init_process_group(backend=args.distributed_backend)

    # Then the groups of model parallelism.
    if args.deepspeed and args.checkpoint:
        deepspeed.configure()
"""
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
    write(tmp_path, INITIALIZE, START)
    args = "args(deepspeed=%s, checkpoint=%s, distributed_backend='nccl')"
    write(tmp_path, "deepspeed.py", FAKE_DEEPSPEED)
    write(tmp_path, "torch.py", FAKE_TORCH)
    package = (
        "from types import SimpleNamespace as args\nimport os\n\n\ndef get_args():\n    with_it = 'DS' in os.environ\n"
    )
    write(tmp_path, "megatron/__init__.py", package + f"    return {args % ('with_it', 'with_it')}\n")
    assert "DeepSpeed backend not set" in run(BEGIN, tmp_path, DS="1").stderr
    assert apply(tmp_path, "megatron-deepspeed-start")["hits"] == 1
    assert run(BEGIN, tmp_path, DS="1").stdout == "configured on nccl\nbegun\n"
    assert run(BEGIN, tmp_path).stdout == "begun\n"


GELU = "metaseq/modules/fused_bias_gelu.py"
LOAD = """\
def load_megatron_fused_kernel():
    \"\"\"Compile and load.\"\"\"
    if getattr(load_megatron_fused_kernel, "has_run", False):
        return
    load_megatron_fused_kernel.has_run = True

    from megatron import fused_kernels
    from argparse import Namespace

    fused_kernels.load(Namespace(rank=0))
"""
CALL = "from metaseq.modules.fused_bias_gelu import load_megatron_fused_kernel as load\nload()\nprint('went on')"


def test_a_megatron_that_was_built_with_its_kernels_loads_none(tmp_path: Path) -> None:
    write(tmp_path, GELU, LOAD)
    kernels = write(tmp_path, "megatron/fused_kernels/__init__.py", "")
    assert "module 'megatron.fused_kernels' has no attribute 'load'" in run(CALL, tmp_path).stderr
    assert apply(tmp_path, "metaseq-kernel-load")["hits"] == 1
    assert run(CALL, tmp_path).stdout == "went on\n"
    kernels.write_text("def load(args):\n    print('loaded on', args.rank)\n")
    assert run(CALL, tmp_path).stdout == "loaded on 0\nwent on\n"


# ---- metaseq on Python 3.11, omegaconf 2.2 and torch 2.6


CONFIGS = """\
from dataclasses import dataclass, field


@dataclass
class CommonConfig:
    seed: int = 1
    names: list = field(default_factory=list)


@dataclass
class TaskConfig:
    size: int = 4


@dataclass
class Config:
    common: CommonConfig = CommonConfig()
    task: TaskConfig = TaskConfig()
{rows}    model: object = "???"
    made: object = str()
""".format(rows="".join(f"    more{number}: TaskConfig = TaskConfig()\n" for number in range(8)))
INITIALIZE_HYDRA = """\
from metaseq.dataclass.configs import Config


def hydra_init():
    for k in Config.__dataclass_fields__:
        print(k, Config.__dataclass_fields__[k].default)
"""
HYDRA = "from metaseq.dataclass.initialize import hydra_init\nhydra_init()"


def test_metaseqs_configuration_can_be_made_by_a_python_that_refuses_mutable_defaults(tmp_path: Path) -> None:
    write(tmp_path, "metaseq/dataclass/configs.py", CONFIGS)
    write(tmp_path, "metaseq/dataclass/initialize.py", INITIALIZE_HYDRA)
    assert "mutable default" in run(HYDRA, tmp_path).stderr
    assert apply(tmp_path, "metaseq-config-defaults")["hits"] == 11
    shown = run(HYDRA, tmp_path).stdout.splitlines()
    assert shown[:2] == ["common CommonConfig(seed=1, names=[])", "task TaskConfig(size=4)"]
    assert shown[-2:] == ["model ???", "made "]
    # Two configurations share no part.
    parts = "from metaseq.dataclass.configs import Config\nprint(Config().common is Config().common)"
    assert run(parts, tmp_path).stdout == "False\n"
    assert "TaskConfig()" not in (tmp_path / "metaseq/dataclass/configs.py").read_text()


PRIMITIVE = """\
def convert(value):
    from omegaconf import _utils

    old = _utils.is_primitive_type
    _utils.is_primitive_type = lambda _: True
    made = _utils.make(value)
    _utils.is_primitive_type = old
    return made
"""
OMEGACONF = """\
def is_primitive_type_annotation(value):
    return value is int


def make(value):
    return is_primitive_type_annotation(value)
"""


def test_the_test_of_types_is_replaced_by_its_new_name_and_put_back(tmp_path: Path) -> None:
    for name in ("dataclass/utils", "checkpoint_utils"):
        write(tmp_path, f"metaseq/{name}.py", PRIMITIVE)
    write(tmp_path, "omegaconf/_utils.py", OMEGACONF)
    program = "from metaseq.checkpoint_utils import convert\nimport omegaconf._utils as u\n"
    program += "print(convert(str), u.make(str), u.make(int))"
    assert "has no attribute 'is_primitive_type'" in run(program, tmp_path).stderr
    assert apply(tmp_path, "omegaconf-primitive")["hits"] == 6
    assert run(program, tmp_path).stdout == "True False True\n"


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


def test_d51_an_attention_without_the_patch_before_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "alcf-split-tensor", {TRANSFORMER: SPLIT}, "patch-precondition")
