"""Kernels built ahead of time: what the project holds, what is refused, and a real wheel that imports."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from envbuild.node.build import kernels
from tests.node import torch_env
from tests.support.fails import fails
from tests.support.files import write_file, write_files
from tests.support.programs import completed

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SOURCE = {"name": "megatron-like", "commit": COMMIT}
# One module in two C++ files that share a header beside them and one in another folder.
# All of torch's headers would take minutes: these are two of its folders.
TREE = {
    "kernels/add.cpp": "#include <c10/core/Device.h>\n#include <pybind11/pybind11.h>\n"
    '#include "add.h"\n#include "common.hpp"\n'
    'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("add", &add); m.def("level", [] { return LEVEL; }); }\n',
    "kernels/more.cpp": '#include "add.h"\nint add(int a, int b) { return a + b + OFFSET; }\n',
    "kernels/add.h": "#pragma once\nint add(int a, int b);\n",
    "shared/common.hpp": "#pragma once\n#define LEVEL 7\n",
    "shared/table.txt": "one two\n",
    "kernels/__init__.py": "raise SystemExit\n",
    "README.md": "not compiled\n",
}
MODULE: dict[str, Any] = {
    "name": "fused_add_cuda",
    "sources": ["kernels/add.cpp", "kernels/more.cpp"],
    "include_dirs": ["shared"],
    "cxx_flags": ["-O0", "-DOFFSET=1"],
    "nvcc_flags": ["-O3"],
}


def build_of(*modules: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "kernels", "modules": list(modules)}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_files(tmp_path / "tree", TREE)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_project_holds_what_a_compiler_reads_no_link_out_and_the_tree_stays(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.h").write_text("#define SECRET\n")
    (tree / "shared" / "secret.h").symlink_to(tmp_path / "secret.h")
    (tree / "shared" / "again.h").symlink_to("common.hpp")
    before = files(tree)
    out = kernels.project(str(tree), SOURCE, build_of(MODULE), str(tmp_path / "out"))
    compiled = {"kernels/add.cpp", "kernels/more.cpp", "kernels/add.h"}
    shared = {"shared/common.hpp", "shared/again.h", "shared/table.txt"}
    assert files(Path(out)) == {"setup.py", *compiled, *shared}
    assert files(tree) == before


# What the written setup.py gives to setup(), with stand-ins for setuptools and torch.
STAND_INS = {
    "torch/__init__.py": "",
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": """
class BuildExtension: pass
class Extension:
    def __init__(self, kind, given): self.given = [kind, given]
def CppExtension(**given): return Extension("cpp", given)
def CUDAExtension(**given): return Extension("cuda", given)
""",
    "setuptools.py": """
import json
def setup(cmdclass, ext_modules, **given):
    libraries = [vars(each).get("libraries") for each in ext_modules]
    print(json.dumps([given, [each.given for each in ext_modules], libraries]))
""",
}


def test_a_cuda_file_among_the_sources_makes_a_cuda_extension_without_architectures(tree: Path, tmp_path: Path) -> None:
    (tree / "kernels" / "mul_kernel.cu").write_text("__global__ void mul() {}\n")
    flags = ["-O3", '-DTEXT="a b"']
    cuda = {"name": "mul_cuda", "sources": ["kernels/mul_kernel.cu"], "nvcc_flags": flags, "torch": False}
    out = kernels.project(str(tree), SOURCE, build_of(MODULE, cuda), f"{tree}-kernels")
    env = {**os.environ, "PYTHONPATH": str(write_files(tmp_path / "stand-ins", STAND_INS))}
    done = completed([sys.executable, "setup.py"], cwd=out, env=env)
    given, (one, two), libraries = json.loads(done.stdout)
    assert given["name"] == "megatron-like-kernels" and given["version"] == "0+g0123456789ab"
    assert given["packages"] == given["py_modules"] == []
    assert one == ["cpp", {
        "name": "envbuild_kernels.fused_add_cuda",
        "sources": MODULE["sources"],
        "include_dirs": [os.path.join(out, "shared")],
        "extra_compile_args": {"cxx": ["-O0", "-DOFFSET=1"], "nvcc": ["-O3"]},
    }]  # fmt: skip
    assert (two[0], two[1]["name"]) == ("cuda", "envbuild_kernels.mul_cuda")
    assert two[1]["extra_compile_args"] == {"cxx": [], "nvcc": flags}
    assert libraries == [None, []], "without torch it is linked to none of its libraries"
    assert kernels.extensions(build_of(MODULE)) == ["envbuild_kernels.fused_add_cuda"]
    assert kernels.extensions({"kind": "wheel"}) == []


def test_files_of_another_commit_are_named(tree: Path) -> None:
    module = dict(MODULE, sources=["kernels/add.cpp", "kernels/gone.cu"], include_dirs=["nowhere"])
    with fails("kernel-sources-missing", 4) as caught:
        kernels.project(str(tree), SOURCE, build_of(module), f"{tree}-kernels")
    assert "kernels/gone.cu, nowhere" in caught.value.why
    assert not os.path.exists(str(tree) + "-kernels")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "a.b"},
        {"name": 'x"; import os #'},
        {"sources": ["../add.cpp"]},
        {"sources": ["/etc/passwd"]},
        {"include_dirs": ["shared/../../x"]},
        None,
    ],
)
def test_names_and_paths_that_could_lead_elsewhere_and_no_module_are_refused(
    tree: Path, change: dict[str, Any] | None
) -> None:
    modules = [] if change is None else [{**MODULE, **change}]
    with fails("request-invalid", 2):
        kernels.project(str(tree), SOURCE, build_of(*modules), f"{tree}-kernels")


PRINTS = """\
#include <iostream>
#include <pybind11/pybind11.h>
int half(int n) { std::cout << "half of " << n << std::endl << std::flush; return n / 2; }
PYBIND11_MODULE(helpers, m) { m.def("half", &half); }
"""


@pytest.mark.slow
@pytest.mark.timeout(900)  # the headers of torch and pybind11 take minutes on a busy machine
def test_d55_the_real_torch_builds_kernels_that_import_and_one_without_it_is_not_linked_to_it(
    tree: Path, tmp_path: Path
) -> None:
    write_file(tree / "data" / "helpers.cpp", PRINTS)
    helpers = {"name": "helpers", "sources": ["data/helpers.cpp"], "cxx_flags": ["-O0"], "torch": False}
    project = kernels.project(str(tree), SOURCE, build_of(MODULE, helpers), str(tmp_path / "out"))
    python = str(Path(torch_env.torch_environment()) / "bin" / "python")
    if completed([python, "-c", "import setuptools, wheel"]).returncode:
        pytest.skip("the torch environment has no setuptools or no wheel")
    words = [python, "setup.py", "-q", "bdist_wheel"]
    done = completed(words, cwd=project, env={**os.environ, "MAX_JOBS": "2"})
    assert done.returncode == 0, done.stderr[-3000:]
    (wheel,) = (Path(project) / "dist").glob("megatron_like_kernels-0+g0123456789ab-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (alone,) = site.glob("envbuild_kernels/helpers.*.so")
    needed = completed(["ldd", alone], check=True).stdout
    assert "libstdc++" in needed and "torch" not in needed and "libc10" not in needed
    program = "import torch\nfrom envbuild_kernels import fused_add_cuda as k, helpers\n"
    program += "print(k.add(1, 2), k.level(), k.__name__, helpers.half(14))"
    shown = completed([python, "-c", program], env={**os.environ, "PYTHONPATH": str(site)}).stdout.split()
    assert shown == ["half", "of", "14", "4", "7", "envbuild_kernels.fused_add_cuda", "7"]
