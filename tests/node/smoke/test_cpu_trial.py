"""Training scripts in the shapes of the five stacks behind the stand-ins of a CPU trial: they want CUDA, and train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuild.model.evidence import Check
from envbuild.node.smoke import smoke
from tests.node.torch_env import torch_environment

pytestmark = [pytest.mark.torch, pytest.mark.slow]

HEAD = """\
import json
import os
import sys

import torch
import torch.distributed as dist

assert torch.cuda.is_available(), "this script needs CUDA"
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank % torch.cuda.device_count())
dist.init_process_group(backend="nccl", world_size=world, rank=rank)
torch.manual_seed(1)
torch.cuda.manual_seed(7)
here = torch.cuda.current_device()
"""
# Megatron's way: fused kernels, a half-precision model with a float32 copy, Apex' multi-tensor functions, loss scaling.
MEGATRON = """\
import amp_C
from envbuild_kernels import scaled_upper_triang_masked_softmax_cuda as softmax
import fused_mix_prec_layer_norm_cuda as norm


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = torch.tensor([scale])[0]
        result = softmax.forward(x, ctx.scale)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        return softmax.backward(gradient, ctx.saved_tensors[0], ctx.scale), None


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        y, mean, inverse = norm.forward_affine(x, torch.Size((16,)), weight, bias, 1e-5)
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, weight, bias, mean, inverse = ctx.saved_tensors
        with torch._C._AutoDispatchBelowAutograd():  # there an Apex that makes its kernels operators of torch calls it
            return norm.backward_affine(gradient, mean, inverse, x, torch.Size((16,)), weight, bias, 1e-5)


class SmallNorm(Norm):
    @staticmethod
    def forward(ctx, x, weight, bias):
        y, mean, inverse = norm.forward_affine(x, torch.Size((16,)), weight, bias, 1e-5)
        ctx.save_for_backward(y, weight, bias, None, inverse)
        return y


given = [torch.randn(3, 5, 16), torch.rand(16) + 0.1, torch.rand(16)]
for kind in (Norm, SmallNorm):
    leaves, others = ([each.clone().requires_grad_() for each in given] for _ in range(2))
    (kind.apply(*leaves) ** 2).sum().backward()
    (torch.nn.functional.layer_norm(others[0], (16,), others[1], others[2], 1e-5) ** 2).sum().backward()
    assert all(torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-4) for a, b in zip(leaves, others)), kind


@torch.jit.script
def fused(x, bias):
    return torch.tanh(x + bias)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(16, device=here))
        self.bias = torch.nn.Parameter(torch.zeros(16, device="cuda"))
        self.head = torch.nn.Linear(16, 16)

    def forward(self, x):
        scores = Softmax.apply(torch.matmul(x, x.transpose(1, 2)), 0.5)
        return self.head(fused(Norm.apply(torch.matmul(scores, x), self.weight, self.bias), self.bias))


model = Model().cuda(here).half()
assert all(each.is_cuda and each.type() == "torch.cuda.HalfTensor" for each in model.parameters())
masters = [each.detach().clone().float() for each in model.parameters()]
assert masters[0].type() == "torch.cuda.FloatTensor"
moments = [[torch.zeros_like(each) for each in masters] for _ in range(2)]
flag = torch.cuda.IntTensor([0])
x = torch.randn(32, 8, 16, device=here).half()
try:
    softmax.forward(torch.randn(4, 64, 64, device=here).half(), torch.tensor([1.0])[0])
except RuntimeError as error:
    assert "attn_batches" in str(error)  # the kernel computes eight such squares at once, and asserts it
else:
    raise AssertionError("a shape that the kernel refuses")
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for step in range(1, 9):
    begin.record()
    loss = ((model(x) - x.roll(1, 2)) ** 2).float().mean()
    (loss * 128).backward()
    grads = []
    for each in model.parameters():
        dist.all_reduce(each.grad)
        grads.append(each.grad.float() / 128 / world)
    length, _ = amp_C.multi_tensor_l2norm(65536, flag, [grads], False)
    assert torch.isfinite(length).all() and flag.item() == 0
    amp_C.multi_tensor_scale(65536, flag, [grads, grads], min(1.0, 1.0 / float(length)))
    amp_C.multi_tensor_adam(65536, flag, [grads, masters, *moments], 0.02, 0.9, 0.95, 1e-8, step, 1, 1, 0.01)
    amp_C.multi_tensor_scale(65536, flag, [masters, [each.data for each in model.parameters()]], 1.0)
    model.zero_grad()
    end.record()
    torch.cuda.synchronize()
    if rank == world - 1:
        ms = begin.elapsed_time(end)
        print(f" iteration {step:8d}/{8:8d} | elapsed time per iteration (ms): {ms:.1f} | lm loss: {loss.item():.6E} |")
"""
# DeepSpeed's way: a flat buffer, reduce-scatter of gradients, gather of parameters, streams.
DEEPSPEED = """\
config = json.load(open("ds_config.json"))
assert config["train_batch_size"] == 4 and sys.argv[1] == "--deepspeed_config=" + os.getcwd() + "/ds_config.json"
model = torch.nn.Linear(16, 16).to(torch.device("cuda", rank))
shape = [each.shape for each in model.parameters()]
flat = torch.cat([each.detach().reshape(-1) for each in model.parameters()]).pin_memory()
flat = torch.nn.functional.pad(flat, (0, -flat.numel() % world))
x = torch.randn(8, 16, device=f"cuda:{rank}")
stream = torch.cuda.Stream()
for step in range(1, 9):
    weight, bias = flat[:256].view(16, 16).requires_grad_(), flat[256:272].requires_grad_()
    loss = ((torch.nn.functional.linear(x, weight, bias) - x.flip(1)) ** 2).mean()
    gradient = torch.cat([each.reshape(-1) for each in torch.autograd.grad(loss, (weight, bias))])
    gradient = torch.nn.functional.pad(gradient, (0, -gradient.numel() % world))
    own = torch.empty(flat.numel() // world, device=here)
    with torch.cuda.stream(stream):
        dist.reduce_scatter_tensor(output=own, input=gradient, op=dist.ReduceOp.AVG)
    torch.cuda.current_stream().wait_stream(stream)
    mine = flat.detach().view(world, -1)[rank] - own
    whole = torch.empty_like(flat.detach())
    dist.all_gather_into_tensor(output_tensor=whole, input_tensor=mine)  # as DeepSpeed says it
    flat = whole
    dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
    if rank == 0:
        print(f"steps: {step} loss: {loss.item():0.4f} iter time (s): 0.1 samples/sec: 40.0", flush=True)
"""
METASEQ = """\
model = torch.nn.Linear(16, 16).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
x = torch.randn(8, 16).to("cuda", non_blocking=True)
for update in range(1, 9):
    loss = ((model(x) - x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    [dist.all_reduce(each.grad) for each in model.parameters()]
    optimizer.step()
    if rank == 0:
        row = {"update": f"{update / 50:g}", "loss": f"{loss.item():g}", "num_updates": str(update)}
        print("2026-11-22 17:00:00 | INFO | train_inner | " + json.dumps(row), flush=True)
"""
WITHOUT_A_STAND_IN = "import amp_C\namp_C.multi_tensor_lamb(1, None, [])\n"


def trial(
    tmp_path: Path, text: str, log: str = "megatron", programs: dict[str, str] | None = None, **more: Any
) -> Check:
    environment = torch_environment()
    tree = tmp_path / "tree"
    tree.mkdir(exist_ok=True)
    (tree / "train.py").write_text(HEAD + text)
    step = {"source": str(tree), "script": "train.py", "log": log, "steps": 8, **more}
    spec = smoke.Spec(str(environment), {}, False, trial=True)
    item = {"name": "step", "deadline": 500, "step": step}
    (raw,) = smoke.smoke_items(spec, [item], str(tmp_path / "scratch"), programs)
    return Check.from_plain(raw)


def test_a_script_of_megatrons_shape_trains(tmp_path: Path) -> None:
    check = trial(tmp_path, MEGATRON)
    assert check.status == "passed", check.says
    assert check.details["ranks"] == 2


def test_a_script_of_deepspeeds_shape_trains(tmp_path: Path) -> None:
    files = {"ds_config.json": {"train_batch_size": "{batch}"}}
    arguments = ["--deepspeed_config={work}/ds_config.json"]
    check = trial(tmp_path, DEEPSPEED, "deepspeed", files=files, arguments=arguments)
    assert check.status == "passed", check.says


def test_a_script_of_metaseqs_shape_trains(tmp_path: Path) -> None:
    check = trial(tmp_path, METASEQ, "metaseq")
    assert check.status == "passed", check.says


def test_a_kernel_that_has_no_stand_in_is_named(tmp_path: Path) -> None:
    check = trial(tmp_path, WITHOUT_A_STAND_IN)
    assert "CPU trial: amp_C.multi_tensor_lamb has no answer in plain torch (train.py:16)" in check.says


def test_a_model_that_does_not_learn_fails(tmp_path: Path) -> None:
    check = trial(tmp_path, METASEQ.replace("    optimizer.step()\n", ""), "metaseq")
    assert check.says.startswith("the loss did not fall")


OLD = """\
from megatron.fused_kernels import scaled_masked_softmax_cuda

model = torch.nn.Linear(16, 16).half().cuda()
x = torch.randn(8, 16, device="cuda").half()
assert model.weight.dtype == x.dtype == torch.float16 == torch.half and isinstance(x, torch.cuda.HalfTensor)
assert scaled_masked_softmax_cuda.get_batch_per_block(8, 8, 2, 2) > 0
assert torch.cuda.Stream() == torch.cuda.current_stream()
torch._C._jit_set_nvfuser_enabled(True)
for step in range(1, 9):
    model.zero_grad()
    loss = ((model(x) - x) ** 2).mean()
    loss.backward()
    found, grads = torch.zeros(1, device="cuda"), [each.grad for each in model.parameters()]
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.full((1,), 0.5, device="cuda"))
    assert found.item() == 0
    for each in model.parameters():
        each.data.sub_(each.grad)
    print(f" iteration {step:8d}/{8:8d} | lm loss: {loss.item():.6E} |", flush=True)
torch._amp_foreach_non_finite_check_and_unscale_([x * float("inf")], found, torch.ones(1))
assert found.item() == 1
dist.barrier()  # no rank leaves before the other has come
"""


# As torch 2.1 says it without a GPU.
REFUSED = """\


def torch_version(torch: Any) -> List[int]:
    return [2, 1]


def _refuse(*_: Any) -> None:
    raise RuntimeError("Running CUDA fuser is only supported on CUDA builds.")


import torch

torch._C._jit_set_nvfuser_enabled = _refuse
"""


def test_where_the_cpu_has_no_half_precision_single_stands_in_and_it_is_said(tmp_path: Path) -> None:
    """As with torch 2.1: here a newer one is taken for it."""
    common = Path(smoke.__file__).parent / "programs" / "common.py"
    old = common.read_text() + REFUSED
    (tmp_path / "tree" / "megatron" / "fused_kernels").mkdir(parents=True)
    check = trial(tmp_path, OLD, programs={"common": old})
    assert check.status == "passed", check.says
    assert check.says.startswith("CPU trial: kernels, NCCL and copies not run; half precision ran as single: torch ")
