"""All rules in the order they are asked: wheel, GPU, driver, extensions, package tools, node."""

from __future__ import annotations

from envbuild.model.facts import NodeFacts
from envbuild.resolve import arch
from envbuild.resolve.compat import Compat
from envbuild.resolve.decision import Check, Decisions
from envbuild.resolve.request import Request
from envbuild.resolve.rules import driver, gcc, gpu, node, nvcc, packages, wheel

RULES: dict[str, Check] = {
    "torch-release-known": wheel.torch_release_known,
    "torch-lts-index": wheel.torch_lts_index,
    "torch-python": wheel.torch_python,
    "torch-flavour-exists": wheel.torch_flavour_exists,
    "torch-default-flavour": wheel.torch_default_flavour,
    "torch-locator": wheel.torch_locator,
    "torch-aarch64": wheel.torch_aarch64,
    "glibc-floor": wheel.glibc_floor,
    "gpu-arch": gpu.gpu_arch,
    "bf16-tensor-cores": gpu.bf16_tensor_cores,
    "driver-floor": driver.driver_floor,
    "driver-minor-compat": driver.driver_minor_compat,
    "driver-cuda-compat": driver.driver_cuda_compat,
    "driver-knows-gpu": driver.driver_knows_gpu,
    "cuda-ceiling": driver.cuda_ceiling,
    "image-gpu": gpu.image_gpu,
    "image-driver": gpu.image_driver,
    "nvcc-absent": nvcc.nvcc_absent,
    "nvcc-major": nvcc.nvcc_major,
    "nvcc-minor": nvcc.nvcc_minor,
    "apex-cuda-check": nvcc.apex_cuda_check,
    "apex-flags": packages.apex_flags,
    "own-cuda-list": nvcc.own_cuda_list,
    "setuptools-minor": nvcc.setuptools_minor,
    "nvcc-knows-gpu": nvcc.nvcc_knows_gpu,
    "gcc-range": gcc.gcc_range,
    "cxx11-abi": gcc.cxx11_abi,
    "arch-list-from-target": arch.arch_list_from_target,
    "build-isolation": packages.build_isolation,
    "package-homonym": packages.package_homonym,
    "visible-gpus": node.visible_gpus_rule,
    "mig-no-nccl": node.mig_no_nccl,
    "zero-needs-no-pipeline": node.zero_needs_no_pipeline,
    "peak-is-dense": gpu.peak_is_dense,
}


def evaluate(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """Apply every rule that has something to say about the request, in order. Pure."""
    found = [item for check in RULES.values() for item in check(facts, request, compat)]
    found.extend(packages.package_rules(facts, request, compat))
    return tuple(found)
