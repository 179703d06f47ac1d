"""Builds with the tools that the stacks use: old and new setuptools, Cython, torch with and without ninja, nvcc."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from envbuild.node.build import proof
from tests.node.build_projects import (
    EXTENSIONS,
    build,
    c_module,
    environment,
    index_environment,
    rebuild,
    shape_project,
    source,
    unpack_run,
)
from tests.node.build_projects import own_folder as own_folder
from tests.node.pythons import find_python
from tests.node.torch_env import torch_environment
from tests.support.files import write_files
from tests.support.programs import completed

pytestmark = pytest.mark.slow

OLD = {
    "3.6": ("setuptools==40.6.2", "wheel==0.37.1"),
    "3.8": ("setuptools==56.0.0", "wheel==0.37.1"),
    "3.9": ("setuptools==65.7.0", "wheel==0.38.4"),
    "3.13": ("setuptools==80.9.0",),
}
PYTHONS = {minor: find_python(minor) for minor in OLD}
IMPORT = "import shape_C, shape.sub.amp_C as a; print(shape_C.value() + a.value())"


@pytest.mark.parametrize("minor", OLD)
def test_every_python_and_setuptools_of_the_stacks(tmp_path: Path, minor: str) -> None:
    interpreter = PYTHONS[minor]
    if interpreter is None:
        pytest.skip(f"no Python {minor} here")
    python = index_environment(tmp_path / "environment", interpreter, *OLD[minor])
    optimized = "#ifndef __OPTIMIZE__\n#error Python's own flags are lost\n#endif\n#define VALUE 7\n"
    project = shape_project(tmp_path / "project", **{"csrc/value.h": optimized})
    asked = source(flags=["cpp_ext", "cuda_ext"], extensions=EXTENSIONS)
    result = build(python, tmp_path, project, asked)
    assert rebuild(python, tmp_path, project, asked, result["wheel"]) == {"equal": True, "different": []}
    assert unpack_run(result["wheel"], python, tmp_path / "unpacked", IMPORT) == "14"


BOTH = "import quick_one as a, quick_two as b; print(a.value() + b.value())"


CYTHON = """
from setuptools import Extension, setup
from Cython.Distutils import build_ext
names = ["one", "two"]
setup(name="shape", version="1.0", packages=[], cmdclass={"build_ext": build_ext},
      ext_modules=[Extension("quick_" + each, ["src/quick_%s.pyx" % each]) for each in names])
"""


@pytest.mark.parametrize("cython", ["cython==0.29.37", "cython>=3,<4"])
def test_cython_extensions(tmp_path: Path, cython: str) -> None:
    if PYTHONS["3.9"] is None:
        pytest.skip("no Python 3.9 here")
    python = index_environment(tmp_path / "environment", PYTHONS["3.9"], *OLD["3.9"], cython)
    text = "def value():\n    return 21\n"
    files = {"setup.py": CYTHON, "src/quick_one.pyx": text, "src/quick_two.pyx": text}
    project = write_files(tmp_path / "project", files)
    asked = source(extensions=["quick_one", "quick_two"])
    result = build(python, tmp_path, project, asked)
    assert unpack_run(result["wheel"], python, tmp_path / "unpacked", BOTH) == "42"


TORCH = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
{own}
names = ["one", "two"]
setup(name="shape", version="1.0", packages=[], cmdclass={{"build_ext": {build_ext}}},
      ext_modules=[CppExtension("quick_" + each, ["src/quick_%s.cpp" % each]) for each in names])
"""
# As Apex has it since 2025: one of its own that only arranges where objects go.
OWN = """
class Own(BuildExtension):
    def build_extension(self, ext):
        return super().build_extension(ext)
"""
VALUE = {"src/value.h": "#define VALUE 21\n"}


def torch_python(tmp_path: Path) -> str:
    """An environment with torch, setuptools and ninja; the slow one stays as it is."""
    torch = torch_environment()
    python = environment(tmp_path / "environment")
    site = next((tmp_path / "environment").glob("lib/python*/site-packages"))
    (site / "torch.pth").write_text(f"{next(torch.glob('lib/python*/site-packages'))}\n")
    return python


@pytest.mark.parametrize(
    ("own", "build_ext"),
    [
        ("", "BuildExtension"),
        ("", "BuildExtension.with_options(use_ninja=False)"),
        (OWN, "Own.with_options(no_python_abi_suffix=True)"),
    ],
    ids=["ninja", "no ninja", "own class"],
)
def test_torch_extensions(tmp_path: Path, own: str, build_ext: str) -> None:
    if "False" not in build_ext and shutil.which("ninja") is None:
        pytest.skip("no ninja here")
    python = torch_python(tmp_path)
    files = {f"src/quick_{each}.cpp": c_module(f"quick_{each}") for each in ("one", "two")} | VALUE
    project = write_files(tmp_path / "project", {"setup.py": TORCH.format(own=own, build_ext=build_ext), **files})
    asked = source(extensions=["quick_one", "quick_two"])
    result = build(python, tmp_path, project, asked)
    assert unpack_run(result["wheel"], python, tmp_path / "unpacked", BOTH) == "42"


CUDA = """
import os, subprocess
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class Cuda(build_ext):
    def build_extension(self, ext):
        cuda = [each for each in ext.sources if each.endswith(".cu")]
        os.makedirs(self.build_temp, exist_ok=True)
        for each in cuda:
            ext.sources.remove(each)
            target = os.path.join(os.path.abspath(self.build_temp), "kernel.o")
            number = os.environ["TORCH_CUDA_ARCH_LIST"].replace(".", "")
            code = "-gencode=arch=compute_%s,code=sm_%s" % (number, number)
            nvcc = os.path.join(os.environ["CUDA_HOME"], "bin", "nvcc")
            words = [nvcc, "-c", os.path.abspath(each), "-o", target, "-lineinfo"]
            subprocess.check_call(words + ["-Xcompiler", "-fPIC", code])
            ext.extra_objects.append(target)
        super().build_extension(ext)

setup(name="shape", version="1.0", packages=[], cmdclass={"build_ext": Cuda},
      ext_modules=[Extension("quick_cuda", ["src/quick.cpp", "src/kernel.cu"])])
"""
KERNEL = """
static __device__ float level = 2.0f;
__global__ void scale(float *x) { x[threadIdx.x] *= level; }
const char *place() { return __FILE__; }
"""


def test_cuda_code_without_a_gpu_repeats(tmp_path: Path) -> None:
    """nvcc puts its process id into names unless `-objtemp` is there, and the folder into objects."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc here")
    home = str(Path(nvcc).resolve().parent.parent)
    said = completed([nvcc, "--help"]).stdout
    python = environment(tmp_path / "environment")
    files = {"setup.py": CUDA, "src/kernel.cu": KERNEL, "src/quick.cpp": c_module("quick_cuda"), **VALUE}
    project = write_files(tmp_path / "project", files)
    more = {"arch_list": ["9.0"], "cuda_home": home}
    asked = source(extensions=["quick_cuda"])
    result = build(python, tmp_path, project, asked, **more)
    assert result["arch"]["wanted"] == ["9.0"]
    if "-objtemp" in said:
        assert rebuild(python, tmp_path, project, asked, result["wheel"], **more) == {"equal": True, "different": []}
    with zipfile.ZipFile(result["wheel"]) as archive:
        data = archive.read(proof.modules(result["wheel"])["quick_cuda"])
    assert b"sm_90" in data
    assert b"/envbuild/src/shape" in data
    # With -lineinfo device code names the build folder, which no option changes: so builds have one path everywhere.
    assert [path for path in (project, Path(python).parent) if str(path).encode() in data] == []
