"""All rules in the order they are asked: wheel, GPU, driver, extensions, package tools, node.

After an install the node program's smoke test asks torch itself (`PROBES`); no rule replaces that.
"""

from __future__ import annotations

from envbuild.model.facts import NodeFacts
from envbuild.resolve import arch
from envbuild.resolve.compat import Compat
from envbuild.resolve.decision import Check, Decisions
from envbuild.resolve.request import Request
from envbuild.resolve.rules import build, driver, gpu, node, packages, wheel

PROBES = (
    "torch.version.cuda",
    "torch.cuda.get_arch_list()",
    "torch.cuda.nccl.version()",
    "one matrix product",
    "one collective",
)

# Rule id, number in the notes the rules were written from (0 where it has none), check.
RULES: tuple[tuple[str, int, Check], ...] = (
    ("torch-release-known", 1, wheel.torch_release_known),
    ("torch-lts-index", 1, wheel.torch_lts_index),
    ("torch-python", 2, wheel.torch_python),
    ("torch-flavour-exists", 3, wheel.torch_flavour_exists),
    ("torch-default-flavour", 3, wheel.torch_default_flavour),
    ("torch-locator", 4, wheel.torch_locator),
    ("torch-aarch64", 4, wheel.torch_aarch64),
    ("glibc-floor", 5, wheel.glibc_floor),
    ("gpu-arch", 6, gpu.gpu_arch),
    ("bf16-tensor-cores", 8, gpu.bf16_tensor_cores),
    ("driver-floor", 9, driver.driver_floor),
    ("driver-minor-compat", 11, driver.driver_minor_compat),
    ("driver-cuda-compat", 12, driver.driver_cuda_compat),
    ("driver-knows-gpu", 13, driver.driver_knows_gpu),
    ("cuda-ceiling", 28, driver.cuda_ceiling),
    ("image-gpu", 7, gpu.image_gpu),
    ("image-driver", 12, gpu.image_driver),
    ("nvcc-absent", 14, build.nvcc_absent),
    ("nvcc-major", 15, build.nvcc_major),
    ("nvcc-minor", 16, build.nvcc_minor),
    ("apex-cuda-check", 16, build.apex_cuda_check),
    ("apex-flags", 22, build.apex_flags),
    ("own-cuda-list", 16, build.own_cuda_list),
    ("setuptools-minor", 16, build.setuptools_minor),
    ("nvcc-knows-gpu", 17, build.nvcc_knows_gpu),
    ("gcc-range", 18, build.gcc_range),
    ("cxx11-abi", 19, build.cxx11_abi),
    ("arch-list-from-target", 20, arch.arch_list_from_target),
    ("build-isolation", 22, packages.build_isolation),
    ("package-homonym", 0, packages.package_homonym),
    ("visible-gpus", 0, node.visible_gpus_rule),
    ("mig-no-nccl", 0, node.mig_no_nccl),
    ("zero-needs-no-pipeline", 0, node.zero_needs_no_pipeline),
    ("peak-is-dense", 30, gpu.peak_is_dense),
)


def rule_ids(compat: Compat) -> tuple[str, ...]:
    """Every rule id: those of the functions and those of the rows in packages.yaml."""
    return (*(rule for rule, _number, _check in RULES), *(row.id for row in compat.package_rules))


def evaluate(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """Apply every rule that has something to say about the request, in order. Pure."""
    found = [item for _rule, _number, check in RULES for item in check(facts, request, compat)]
    found.extend(packages.package_rules(facts, request, compat))
    return tuple(found)
