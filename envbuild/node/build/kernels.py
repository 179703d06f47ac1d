"""Kernels that a source would compile when it is first used, as a small project of their own.

The project holds copies of the source's C, C++ and CUDA files (patched already) and a `setup.py` of ours, so that the
same driver builds it as any other source. Its wheel is `<source>-kernels`; the modules lie in the package
`envbuild_kernels` (a namespace: several sources may add to it), never at the top level, because Apex brings modules of
the same names as Megatron's. The patch `megatron-fused-import` makes the source take them from there.
Architectures come from TORCH_CUDA_ARCH_LIST alone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator

from envbuild.node import paths
from envbuild.node.protocol import Json, NodeError

PACKAGE = "envbuild_kernels"
_COMPILED = (".c", ".cc", ".cpp", ".cxx", ".cu")
_INCLUDED = (".h", ".hh", ".hpp", ".hxx", ".cuh", ".inc", ".inl", ".ipp", ".tpp", ".tcc", ".def")
_SETUP = '''\
"""Written by envbuild: kernels of {source} at commit {commit}, built ahead of time."""

import json
import os

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = json.loads(r"""
{modules}
""")


def extension(module):
    cuda = any(name.endswith(".cu") for name in module["sources"])
    made = (CUDAExtension if cuda else CppExtension)(
        name="{package}." + module["name"],
        sources=module["sources"],
        include_dirs=[os.path.join(HERE, folder) for folder in module["include_dirs"]],
        extra_compile_args={{"cxx": module["cxx_flags"], "nvcc": module["nvcc_flags"]}},
    )
    if not module["torch"]:
        # torch's libraries export parts of the C++ library that they were built with.
        made.libraries = []
    return made


setup(
    name="{name}",
    version="{version}",
    packages=[],
    py_modules=[],
    ext_modules=[extension(module) for module in MODULES],
    cmdclass={{"build_ext": BuildExtension}},
    zip_safe=False,
)
'''


def extensions(build: Json) -> list[str]:
    """Import names of the modules that the wheel of a `kind: kernels` build holds."""
    return [f"{PACKAGE}.{module['name']}" for module in build.get("modules") or []]


def project(folder: str, source: Json, build: Json, out: str) -> str:
    """Write the project that builds `build["modules"]` of the patched tree at `folder` into the new folder `out`.

    Returns `out`; the tree itself is left alone. Raises NodeError `kernel-sources-missing` (exit 4) and
    `request-invalid`.
    """
    modules = [_module(folder, source, module) for module in build.get("modules") or []]
    if not modules:
        raise NodeError("request-invalid", f"source {source['name']}: kind kernels without modules")
    os.makedirs(out, 0o700)
    everything = {include for module in modules for include in module["include_dirs"]}
    for name in _wanted(folder, everything):
        place = os.path.join(out, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        shutil.copyfile(os.path.join(folder, name), place)
    for name in everything:  # also those without a file
        os.makedirs(os.path.join(out, name), exist_ok=True)
    text = _SETUP.format(
        source=source["name"],
        commit=source["commit"],
        modules=json.dumps(modules, indent=2, sort_keys=True),
        package=PACKAGE,
        name=f"{source['name']}-kernels",
        version="0+g" + source["commit"][:12],
    )
    paths.write_atomic(os.path.join(out, "setup.py"), text.encode("utf-8"))
    return out


def _module(folder: str, source: Json, module: Json) -> Json:
    """A module with every field, once its name is one and its files are in the tree."""
    name = str(module["name"])
    if not name.isidentifier():
        raise NodeError("request-invalid", f"source {source['name']}: a kernel module cannot be named {name[:80]!r}")
    made: Json = {"name": name, "torch": module.get("torch") is not False}
    for key in ("sources", "include_dirs", "cxx_flags", "nvcc_flags"):
        made[key] = [str(item) for item in module.get(key) or []]
    for path in made["sources"] + made["include_dirs"]:
        leads_out = not path or path.startswith("/") or ".." in path.split("/")
        if leads_out or any(mark in path for mark in '"\\'):
            raise NodeError("request-invalid", f"source {source['name']}: not a path inside it: {path[:100]!r}")
    missing = [path for path in made["sources"] if not os.path.isfile(os.path.join(folder, path))]
    missing += [path for path in made["include_dirs"] if not os.path.isdir(os.path.join(folder, path))]
    if missing or not made["sources"]:
        raise NodeError(
            "kernel-sources-missing",
            f"source {source['name']} has no files for its kernel {name}",
            why=f"not in the tree: {', '.join(missing) or '(no sources are named)'}",
            hint="correct `build.modules` of the stack: it names files of another commit",
        )
    return made


def _wanted(folder: str, everything: set[str]) -> Iterator[str]:
    """Files to copy, relative: what a compiler reads, and all of the include folders; no links out of the tree."""
    top = os.path.realpath(folder) + os.sep
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(folder for folder in folders if folder != ".git")
        here = os.path.relpath(at, folder)
        inside = any(here == path or here.startswith(path + "/") for path in everything)
        for name in sorted(names):
            path = os.path.join(at, name)
            if not (inside or name.lower().endswith(_COMPILED + _INCLUDED)):
                continue
            if os.path.isfile(path) and os.path.realpath(path).startswith(top):
                yield os.path.normpath(os.path.join(here, name))
