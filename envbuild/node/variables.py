"""Which variables of the caller's environment a build sees, which decide what it makes, and which may be set.

And which GPUs a process sees by one of them.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping

from envbuild.node import redact

# What a compiler, linker or setup.py reads from the environment of the node, besides the variables of the stack.
_READ = frozenset(
    "CC CXX LDSHARED CFLAGS CXXFLAGS CPPFLAGS LDFLAGS CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH LIBRARY_PATH"
    " COMPILER_PATH GCC_EXEC_PREFIX LD_RUN_PATH AR ARFLAGS CUDAHOSTCXX CUDAARCHS CUDACXX PYTORCH_NVCC"
    " TORCH_CUDA_ARCH_LIST TORCH_NVCC_FLAGS TORCH_CXX_FLAGS FORCE_CUDA BUILD_CUDA_EXTENSIONS MPICC MPICFG".split()
)
# Families of variables that choose what a setup.py compiles: a wheel with other parts must not have the same key.
_READ_FAMILIES = tuple(
    "APEX_ CMAKE_ DS_BUILD_ DS_SKIP_ FLASH_ATTENTION_ FLASH_ATTN_ MPI4PY_ NVCC_ PKG_CONFIG SETUPTOOLS_".split()
)
# Of these families, how many jobs there are: that changes no bit.
_READ_NOT = frozenset(("APEX_PARALLEL_BUILD", "CMAKE_BUILD_PARALLEL_LEVEL", "NVCC_THREADS"))
# What a build needs beside them: who and where it is, its tools and where their parts lie, how many jobs. Texts, which
# `re` compiles and keeps: nobody else needs them, and everybody would wait for them.
_NEEDED = (
    r"(HOME|PATH|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TERM|TMPDIR|TMP|TEMP|XDG_\w+|SOURCE_DATE_EPOCH"
    r"|CPP|LD|AS|NM|RANLIB|STRIP|OBJCOPY|FC|F77|F90|FFLAGS|FCFLAGS|MAX_JOBS|MAKEFLAGS|LD_LIBRARY_PATH|MANPATH|INCLUDE"
    r"|(CCACHE|CUDA|CUDNN|CUTLASS|NCCL|NVHPC|TORCH|PYTORCH|NINJA|OMP|MKL|OPENBLAS|GCC|LMOD|MODULES?|CRAY|CRAYPE|PE"
    r"|OMPI|OPAL|PMIX|MPICH|I_MPI|HPCX|ROCM|HIP)_\w+|MPI(CXX|_HOME|HOME)|CRAY\w+|MODULE(PATH|SHOME)"
    r"|LOADEDMODULES|_LMFILES_|(LM|NVHPC|INTEL)_LICENSE_FILE|(https?|all|no)_proxy|(HTTPS?|ALL|NO)_PROXY)\Z"
)
# What a user's environment may say to uv; everything else (constraints, overrides, other Pythons, hash checking off)
# would make an environment that is not the lock's, or a lock that is not the stack's.
_OF_UV = (
    r"UV_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|INDEX_\w+_(USERNAME|PASSWORD)|KEYRING_PROVIDER"
    r"|INSECURE_HOST|SYSTEM_CERTS|NATIVE_TLS|HTTP_TIMEOUT|REQUEST_TIMEOUT|HTTP_RETRIES|CONFIG_FILE|CONCURRENT_\w+"
    r"|LOCK_TIMEOUT)\Z"
)


# Where tools look for caches, settings, logins and toolchains in HOME, by the variable that names another place.
_OF_HOME = {
    "XDG_CACHE_HOME": ".cache", "XDG_CONFIG_HOME": ".config", "XDG_DATA_HOME": ".local/share", "NETRC": ".netrc",
    "CARGO_HOME": ".cargo", "RUSTUP_HOME": ".rustup",
}  # fmt: skip


def own_home(folder: str, environ: Mapping[str, str]) -> dict[str, str]:
    """HOME for setup code, which may write start-up files, and variables that keep the user's caches and toolchains."""
    home = environ.get("HOME") or os.path.expanduser("~")
    return dict({name: environ.get(name) or os.path.join(home, place) for name, place in _OF_HOME.items()}, HOME=folder)


def decides_bits(name: str) -> bool:
    """Whether a tool reads the variable `name` and makes other files by it; it is part of the build key."""
    return name in _READ or (name.startswith(_READ_FAMILIES) and name not in _READ_NOT)


def for_build(name: str, value: str) -> bool:
    """Whether a build may see this variable of the caller's environment: one of tools, and without a secret."""
    if redact.looks_secret(name) or redact.has_credentials(value):
        return False
    return decides_bits(name) or name in _READ_NOT or re.match(_NEEDED, name) is not None


def for_uv(name: str) -> bool:
    """Whether uv may see this variable: of its own, one that says where files come from and not which."""
    return not name.startswith("UV_") or re.match(_OF_UV, name) is not None


def for_fetch(_name: str, _value: str) -> bool:
    """The same for a program that fetches and runs nothing of it: helpers for logins may need any."""
    return True


# What a lock, stack or target may not set: names by which loaders, shells, interpreters and the tools of a build choose
# what they load and run, or where they look for it.
_CHOOSES_CODE = re.compile(
    r"(PATH|[A-Z]+PATH|HOME|SHELL|ENV|IFS|USER|LOGNAME|PWD|OLDPWD|TMPDIR|TMP|TEMP|EDITOR|VISUAL|PAGER|BROWSER|SHELLOPTS"
    r"|BASHOPTS|PS[0-4]|GLOBIGNORE|PROMPT_COMMAND|(LD|DYLD|GLIBC|GCONV|GCC|COMPILER|BASH|GIT|SSH|PIP|UV|CONDA|VIRTUAL|NODE"
    r"|JAVA|JDK|LUA|ENVBUILD|ANSIBLE|XDG|SUDO)_\w+|(PYTHON|PERL|RUBY|__PYVENV)\w*)\Z"
)
_HARMLESS = re.compile(r"PYTHON(HASHSEED|NOUSERSITE|UNBUFFERED|FAULTHANDLER|DONTWRITEBYTECODE|UTF8|MALLOC)\Z")


def may_set(name: str, site: bool = False) -> bool:
    """Whether a lock, stack or target may set the variable `name` (`NCCL_DEBUG`, not `LD_PRELOAD`).

    `site`: a target sets it, which says where the compat package of a driver lies (LD_LIBRARY_PATH).
    """
    if site and name == "LD_LIBRARY_PATH":
        return True
    return _HARMLESS.match(name) is not None or _CHOOSES_CODE.match(name.upper()) is None


# The variables that stacks of this field set, which activate.sh exports into the user's shell. None that names a file,
# folder, program or host: those load code (NCCL_NET_PLUGIN, OMP_TOOL_LIBRARIES), take the place of a cache of code
# (TRITON_CACHE_DIR), are written (NCCL_DEBUG_FILE) or are sent logins (HF_ENDPOINT).
_OF_STACKS = re.compile(
    r"((CUBLAS|CUDA|CUDNN|DS|FI|FLASH_ATTENTION|GLOO|GOMP|HF|KMP|MASTER|MKL|NCCL|NUMEXPR|NVTE|OMP|OPENBLAS|PYTORCH"
    r"|TOKENIZERS|TORCH|TRANSFORMERS|TRITON|UCX|WANDB|XLA_PYTHON_CLIENT)_\w+"
    r"|OMPI_MCA_(btl|coll|pml)(_\w+)?|PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION|NVIDIA_TF32_OVERRIDE|TF_CPP_MIN_LOG_LEVEL)\Z"
)
_NAMES_A_PLACE = re.compile(
    r"\w*_(AGENT|CACHE|CMD|COMMAND|COMPILER|CONF_FILE|DEST|DIRS?|DIRECTORY|DUMP|ENDPOINT|EXEC\w*|FILE|HOME|HOST|INJECTION\w*"
    r"|LIBS?|LIBRARY|LIBRARIES|LINKER|LOGDEST|NVCC|OUT|OUTPUT|PATHS?|PLUGINS?|PRELOAD|PROXY|TOOL|TRACE|URL)(_\w+)?\Z"
)
_READ_AS_DATA = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")


def is_of_stacks(name: str) -> bool:
    """Whether a stack may set the variable `name` for whoever uses its environment without being trusted with it."""
    if _HARMLESS.match(name) or name in _READ_AS_DATA:
        return True
    if _NAMES_A_PLACE.match(name.upper()) or redact.looks_secret(name):
        return False
    return _OF_STACKS.match(name) is not None


VISIBLE = "CUDA_VISIBLE_DEVICES"
# What chooses the GPUs of a process: the second says what numbers in the first mean.
CHOOSING = (VISIBLE, "CUDA_DEVICE_ORDER")


def same_gpus(environ: Mapping[str, str]) -> list[str]:
    """The words before a command that give it the GPUs of `environ` in a container, which takes no variable with it."""
    chosen = [f"{name}={environ[name]}" for name in CHOOSING if name in environ]
    return ["env"] + chosen if chosen else []


_DEVICE = re.compile(r"(\d+|(GPU|MIG)-\S+)\Z")


def visible_devices(value: object) -> list[str] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES names: as CUDA reads it, up to the first entry that is none. None: all."""
    if value is None:
        return None
    entries = (entry.strip() for entry in str(value).split(","))
    return list(itertools.takewhile(_DEVICE.match, entries))
