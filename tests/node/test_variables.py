"""What a build sees, and what a stack may set."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from envbuild.catalog.loader import list_stacks, load_stack
from envbuild.node import variables

MAY_SET = """NCCL_DEBUG CUDA_HOME UCX_TLS OMPI_MCA_btl TORCH_CUDA_ARCH_LIST http_proxy CC GREETING PYTHONHASHSEED
    CUDA_PATH NCCL_TOPO_FILE HF_TOKEN PATHS ENVIRONMENT"""
CHOOSES_CODE = """LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT PATH PYTHONPATH PYTHONSTARTUP PYTHONWARNINGS BASH_ENV ENV IFS HOME
    GIT_SSH_COMMAND PIP_INDEX_URL UV_INDEX PERL5LIB GCONV_PATH GLIBC_TUNABLES NODE_OPTIONS XDG_CONFIG_HOME
    ENVBUILD_PREFIX PROMPT_COMMAND DYLD_INSERT_LIBRARIES path"""
OF_STACKS = """NCCL_DEBUG NCCL_NET NCCL_TOPO_FILE CUDA_DEVICE_MAX_CONNECTIONS CUDA_MODULE_LOADING OMP_NUM_THREADS
    FI_PROVIDER UCX_TLS PYTORCH_CUDA_ALLOC_CONF TORCH_CUDA_ARCH_LIST MASTER_ADDR HF_HUB_OFFLINE TOKENIZERS_PARALLELISM
    GLOO_SOCKET_IFNAME CUBLAS_WORKSPACE_CONFIG PYTHONHASHSEED WANDB_MODE"""
FOR_THE_USER_TO_ALLOW = """LESSOPEN HTTPS_PROXY SSL_CERT_FILE OPENSSL_CONF CUDA_INJECTION64_PATH NCCL_NET_PLUGIN
    NCCL_TUNER_PLUGIN NCCL_PROFILER_PLUGIN NCCL_CONF_FILE NCCL_DEBUG_FILE MAKEFLAGS CFLAGS MANPAGER
    OMPI_MCA_plm_rsh_agent NETRC OMP_TOOL_LIBRARIES TRITON_PTXAS_PATH TRITON_CACHE_DIR FI_PROVIDER_PATH
    TORCH_EXTENSIONS_DIR CUDA_HOME HF_HOME HF_ENDPOINT UCX_MODULE_DIR WANDB_BASE_URL XLA_FLAGS HF_TOKEN PYTORCH_NVCC
    UCX_STATS_DEST nccl_debug GREETING"""


def _site(name: str) -> bool:
    return variables.may_set(name, site=True)


@pytest.mark.parametrize(
    ("allows", "may", "names"),
    [
        (variables.may_set, True, MAY_SET.split()),
        (variables.may_set, True, OF_STACKS.split()),
        (variables.may_set, False, CHOOSES_CODE.split()),
        (_site, True, ["LD_LIBRARY_PATH"]),  # a target alone says where libraries of the site lie
        (_site, False, ["LD_PRELOAD"]),
        # D69: a stack sets what stacks of this field set, and no program, place, host or secret.
        (variables.is_of_stacks, True, OF_STACKS.split()),
        (variables.is_of_stacks, False, [*FOR_THE_USER_TO_ALLOW.split(), "NCCL_DEBUG\n", ""]),
    ],
)
def test_d23_variables_that_choose_code_may_not_be_set(
    allows: Callable[[str], bool], may: bool, names: list[str]
) -> None:
    assert [name for name in names if allows(name) is not may] == []


def test_d69_shipped_stacks_need_no_allowance() -> None:
    for stack in list_stacks():
        for profile in load_stack(stack).stack.profiles.values():
            assert [name for name in profile.environment if not variables.is_of_stacks(name)] == []


OF_TOOLS = ("PATH", "HOME", "CC", "CFLAGS", "CUDA_HOME", "CMAKE_ARGS", "OMPI_DIR", "LC_ALL", "no_proxy")
NOT_FOR_BUILDS = {
    "HF_TOKEN": "x",
    "SITE_NOTE": "x",
    "SSH_AUTH_SOCK": "/tmp/s",
    "SLURM_JOB_ID": "1",
    "https_proxy": "http://user:secret@host:1",
    "CCACHE_REMOTE_STORAGE": "redis://user:secret@host",
    "CMAKE_API_TOKEN": "x",
    "UV_INDEX_HOUSE_PASSWORD": "x",
}


def test_d22_a_build_sees_the_variables_of_tools_and_no_secret() -> None:
    assert [name for name in OF_TOOLS if not variables.for_build(name, "/some/value")] == []
    assert [name for name, value in NOT_FOR_BUILDS.items() if variables.for_build(name, value)] == []


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        (None, None),
        ("", []),
        ("2, 3", ["2", "3"]),
        ("0,-1,1", ["0"]),
        ("NoDevFiles", []),
        ("GPU-1f,MIG-5c,,1", ["GPU-1f", "MIG-5c"]),
        ("MIG-GPU-1f/1/0", ["MIG-GPU-1f/1/0"]),
    ],
)
def test_gpus_are_visible_up_to_the_first_entry_that_names_none(value: str | None, devices: list[str] | None) -> None:
    assert variables.visible_devices(value) == devices
