"""Kernels built ahead of time: what the project holds, what is refused, and a real wheel that imports."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from envbuild.node.build import kernels
from envbuild.node.protocol import NodeError
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


def test_the_project_holds_what_a_compiler_reads_and_the_tree_stays_as_it_is(tree: Path, tmp_path: Path) -> None:
    before = files(tree)
    out = kernels.project(str(tree), SOURCE, build_of(MODULE), str(tmp_path / "out"))
    wanted = {
        "setup.py",
        "kernels/add.cpp",
        "kernels/more.cpp",
        "kernels/add.h",
        "shared/common.hpp",
        "shared/table.txt",
    }
    assert files(Path(out)) == wanted
    assert files(tree) == before


def test_links_out_of_the_tree_are_not_followed(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.h").write_text("#define SECRET\n")
    (tree / "shared" / "secret.h").symlink_to(tmp_path / "secret.h")
    (tree / "shared" / "again.h").symlink_to("common.hpp")
    out = kernels.project(str(tree), SOURCE, build_of(MODULE), f"{tree}-kernels")
    assert "shared/secret.h" not in files(Path(out))
    assert "shared/again.h" in files(Path(out))


def run_setup(folder: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the written setup.py gives to setup(), with stand-ins for setuptools and torch."""
    seen: dict[str, Any] = {}
    stand_ins = Path(folder).parent / "stand-ins"
    (stand_ins / "torch" / "utils").mkdir(parents=True)
    for name in ("torch/__init__.py", "torch/utils/__init__.py"):
        (stand_ins / name).write_text("")
    (stand_ins / "torch/utils/cpp_extension.py").write_text(
        "class BuildExtension: pass\n"
        "def CppExtension(**given): return ['cpp', given]\n"
        "def CUDAExtension(**given): return ['cuda', given]\n"
    )
    (stand_ins / "setuptools.py").write_text("import json\ndef setup(**given): raise SystemExit(given)\n")
    monkeypatch.syspath_prepend(str(stand_ins))
    for name in [each for each in sys.modules if each.split(".")[0] in ("torch", "setuptools")]:
        monkeypatch.delitem(sys.modules, name)
    try:
        runpy.run_path(os.path.join(folder, "setup.py"))
    except SystemExit as stop:
        assert isinstance(stop.code, dict)
        seen = stop.code
    for name in [each for each in sys.modules if each.split(".")[0] in ("torch", "setuptools")]:
        monkeypatch.delitem(sys.modules, name)
    return seen


def test_a_cuda_file_among_the_sources_makes_a_cuda_extension_without_architectures(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "kernels" / "mul_kernel.cu").write_text("__global__ void mul() {}\n")
    cuda = {"name": "mul_cuda", "sources": ["kernels/mul_kernel.cu"], "nvcc_flags": ["-O3", '-DTEXT="a b"']}
    out = kernels.project(str(tree), SOURCE, build_of(MODULE, cuda), f"{tree}-kernels")
    given = run_setup(out, monkeypatch)
    assert given["name"] == "megatron-like-kernels" and given["version"] == "0+g0123456789ab"
    assert given["packages"] == given["py_modules"] == []
    (kind, first), (other, second) = given["ext_modules"]
    assert (kind, first["name"]) == ("cpp", "envbuild_kernels.fused_add_cuda")
    assert first["include_dirs"] == [os.path.join(out, "shared")]
    assert first["extra_compile_args"] == {"cxx": ["-O0", "-DOFFSET=1"], "nvcc": ["-O3"]}
    assert (other, second["name"]) == ("cuda", "envbuild_kernels.mul_cuda")
    assert second["extra_compile_args"] == {"cxx": [], "nvcc": ["-O3", '-DTEXT="a b"']}
    assert "gencode" not in json.dumps(given["ext_modules"])


def test_the_import_names_are_known_before_the_build() -> None:
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
    ],
)
def test_names_and_paths_that_could_lead_elsewhere_are_refused(tree: Path, change: dict[str, Any]) -> None:
    with fails("request-invalid", 2):
        kernels.project(str(tree), SOURCE, build_of(dict(MODULE, **change)), f"{tree}-kernels")


def test_no_modules_are_refused(tree: Path) -> None:
    with pytest.raises(NodeError, match="without modules"):
        kernels.project(str(tree), SOURCE, build_of(), f"{tree}-kernels")


def wheel_of(project: str, site: Path, **environment: str) -> Path:
    """The project's one extension, built in the environment with torch and unpacked into `site`."""
    python = str(Path(torch_env.torch_environment()) / "bin" / "python")
    known = subprocess.run([python, "-c", "import setuptools, wheel"], capture_output=True, check=False)
    if known.returncode:
        pytest.skip("the torch environment has no setuptools or no wheel")
    env = dict(os.environ, MAX_JOBS="2", **environment)
    words = [python, "setup.py", "-q", "bdist_wheel"]
    done = completed(words, cwd=project, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    (wheel,) = (Path(project) / "dist").glob("megatron_like_kernels-0+g0123456789ab-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (made,) = [site / name for name in files(site) if name.endswith(".so")]
    return made


def seen_in_torch(program: str, site: Path) -> str:
    python = str(Path(torch_env.torch_environment()) / "bin" / "python")
    env = dict(os.environ, PYTHONPATH=str(site))
    words = [python, "-c", "import torch\n" + program]
    return completed(words, env=env).stdout


@pytest.mark.slow
def test_the_real_torch_builds_a_wheel_whose_kernel_imports(tree: Path, tmp_path: Path) -> None:
    out = kernels.project(str(tree), SOURCE, build_of(MODULE), str(tmp_path / "out"))
    made = wheel_of(out, tmp_path / "site")
    assert str(made.relative_to(tmp_path / "site")).startswith("envbuild_kernels/fused_add_cuda.")
    said = seen_in_torch("import envbuild_kernels.fused_add_cuda as k\nprint(k.add(1, 2), k.level(), k.__name__)",
                         tmp_path / "site")  # fmt: skip
    assert said.split() == ["4", "7", "envbuild_kernels.fused_add_cuda"]


PRINTS = """\
#include <iostream>
#include <pybind11/pybind11.h>
int half(int n) { std::cout << "half of " << n << std::endl << std::flush; return n / 2; }
PYBIND11_MODULE(helpers, m) { m.def("half", &half); }
"""


@pytest.mark.slow
def test_d55_a_module_without_torch_is_not_linked_to_it_and_prints_numbers_beside_it(
    tree: Path, tmp_path: Path
) -> None:
    write_file(tree / "data" / "helpers.cpp", PRINTS)
    module = {"name": "helpers", "sources": ["data/helpers.cpp"], "cxx_flags": ["-O0"], "torch": False}
    made = wheel_of(kernels.project(str(tree), SOURCE, build_of(module), f"{tree}-kernels"), tmp_path / "site")
    needed = completed(["ldd", made], check=True).stdout
    assert "libstdc++" in needed and "torch" not in needed and "libc10" not in needed
    said = seen_in_torch("from envbuild_kernels import helpers\nprint(helpers.half(14))", tmp_path / "site")
    assert said.split() == ["half", "of", "14", "7"]
