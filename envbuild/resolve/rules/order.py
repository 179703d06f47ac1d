"""All rules in the order they are asked: wheel, GPU, driver, extensions, package tools, node.

After an install the node program's smoke test asks torch itself (`PROBES`); no rule replaces that.
"""

from __future__ import annotations

from envbuild.model.facts import NodeFacts
from envbuild.resolve import arch, rules_build, rules_driver, rules_gpu, rules_node, rules_packages, rules_wheel
from envbuild.resolve.compat import Compat
from envbuild.resolve.decide import Check, Decisions
from envbuild.resolve.request import Request

PROBES = (
    "torch.version.cuda",
    "torch.cuda.get_arch_list()",
    "torch.cuda.nccl.version()",
    "one matrix product",
    "one collective",
)

# Rule id, number in the notes the rules were written from (0 where it has none), check.
RULES: tuple[tuple[str, int, Check], ...] = (
    ("torch-release-known", 1, rules_wheel.torch_release_known),
    ("torch-lts-index", 1, rules_wheel.torch_lts_index),
    ("torch-python", 2, rules_wheel.torch_python),
    ("torch-flavour-exists", 3, rules_wheel.torch_flavour_exists),
    ("torch-default-flavour", 3, rules_wheel.torch_default_flavour),
    ("torch-locator", 4, rules_wheel.torch_locator),
    ("torch-aarch64", 4, rules_wheel.torch_aarch64),
    ("glibc-floor", 5, rules_wheel.glibc_floor),
    ("gpu-arch", 6, rules_gpu.gpu_arch),
    ("bf16-tensor-cores", 8, rules_gpu.bf16_tensor_cores),
    ("driver-floor", 9, rules_driver.driver_floor),
    ("driver-minor-compat", 11, rules_driver.driver_minor_compat),
    ("driver-cuda-compat", 12, rules_driver.driver_cuda_compat),
    ("driver-knows-gpu", 13, rules_driver.driver_knows_gpu),
    ("cuda-ceiling", 28, rules_driver.cuda_ceiling),
    ("image-gpu", 7, rules_gpu.image_gpu),
    ("image-driver", 12, rules_gpu.image_driver),
    ("nvcc-absent", 14, rules_build.nvcc_absent),
    ("nvcc-major", 15, rules_build.nvcc_major),
    ("nvcc-minor", 16, rules_build.nvcc_minor),
    ("apex-cuda-check", 16, rules_build.apex_cuda_check),
    ("apex-flags", 22, rules_build.apex_flags),
    ("own-cuda-list", 16, rules_build.own_cuda_list),
    ("setuptools-minor", 16, rules_build.setuptools_minor),
    ("nvcc-knows-gpu", 17, rules_build.nvcc_knows_gpu),
    ("gcc-range", 18, rules_build.gcc_range),
    ("cxx11-abi", 19, rules_build.cxx11_abi),
    ("arch-list-from-target", 20, arch.arch_list_from_target),
    ("build-isolation", 22, rules_packages.build_isolation),
    ("package-homonym", 0, rules_packages.package_homonym),
    ("visible-gpus", 0, rules_node.visible_gpus_rule),
    ("mig-no-nccl", 0, rules_node.mig_no_nccl),
    ("zero-needs-no-pipeline", 0, rules_node.zero_needs_no_pipeline),
    ("peak-is-dense", 30, rules_gpu.peak_is_dense),
)


def rule_ids(compat: Compat) -> tuple[str, ...]:
    """Every rule id: those of the functions and those of the rows in packages.yaml."""
    return (*(rule for rule, _number, _check in RULES), *(row.id for row in compat.package_rules))


def evaluate(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """Apply every rule that has something to say about the request, in order. Pure."""
    found = [item for _rule, _number, check in RULES for item in check(facts, request, compat)]
    found.extend(rules_packages.package_rules(facts, request, compat))
    return tuple(found)
