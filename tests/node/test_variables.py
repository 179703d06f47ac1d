"""What a build sees, and what a stack may set."""

from __future__ import annotations

import pytest

from envbuild.node import variables


@pytest.mark.parametrize(
    "name",
    ["NCCL_DEBUG", "CUDA_HOME", "UCX_TLS", "OMPI_MCA_btl", "TORCH_CUDA_ARCH_LIST", "http_proxy", "CC", "GREETING",
     "PYTHONHASHSEED", "CUDA_PATH", "NCCL_TOPO_FILE", "HF_TOKEN", "PATHS", "ENVIRONMENT"],
)  # fmt: skip
def test_variables_of_programs_may_be_set(name: str) -> None:
    assert variables.may_set(name)


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PATH", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONWARNINGS", "BASH_ENV",
     "ENV", "IFS", "HOME", "GIT_SSH_COMMAND", "PIP_INDEX_URL", "UV_INDEX", "PERL5LIB", "GCONV_PATH", "GLIBC_TUNABLES",
     "NODE_OPTIONS", "XDG_CONFIG_HOME", "ENVBUILD_PREFIX", "PROMPT_COMMAND", "DYLD_INSERT_LIBRARIES", "path"],
)  # fmt: skip
def test_d23_variables_that_choose_code_may_not_be_set(name: str) -> None:
    assert not variables.may_set(name)


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "CC", "CFLAGS", "CUDA_HOME", "CMAKE_ARGS", "OMPI_DIR", "LC_ALL", "no_proxy"]
)
def test_d22_a_build_sees_the_variables_of_tools(name: str) -> None:
    assert variables.for_build(name, "/some/value")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "x"),
        ("SITE_NOTE", "x"),
        ("SSH_AUTH_SOCK", "/tmp/s"),
        ("SLURM_JOB_ID", "1"),
        ("https_proxy", "http://user:secret@host:1"),
        ("CCACHE_REMOTE_STORAGE", "redis://user:secret@host"),
        ("CMAKE_API_TOKEN", "x"),
        ("UV_INDEX_HOUSE_PASSWORD", "x"),
    ],
)
def test_d22_a_build_sees_nothing_else_and_no_secret(name: str, value: str) -> None:
    assert not variables.for_build(name, value)


def test_d23_a_target_alone_says_where_libraries_of_the_site_lie() -> None:
    assert variables.may_set("LD_LIBRARY_PATH", site=True)
    assert not variables.may_set("LD_PRELOAD", site=True)


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
