"""Small setup.py files in the shapes that Apex's had over the years, written for these tests.

The number is that of the form in benchmarks/records/patches-tried-apex.md; only what the patches look at is alike.
"""

from __future__ import annotations

_TOP = "import subprocess, sys, os\nimport torch\nfrom setuptools import setup, find_packages\n"
_END = "\nsetup(name='apex', version='0.1', packages=find_packages(exclude=('tests',)), ext_modules=ext_modules)\n"
_SAID = """    said = subprocess.check_output([cuda_dir + "/bin/nvcc", "-V"], universal_newlines=True)
    words = said.split()
    at = words.index("release") + 1
"""
_DIGITS = (
    _SAID
    + """    release = words[at].split(".")
    bare_metal_major = release[0]
    bare_metal_minor = release[1][0]
"""
)
_WANTED = """    wanted = torch.version.cuda.split(".")
"""
_DIFFER = "    if (bare_metal_major != wanted[0]) or (bare_metal_minor != wanted[1]):\n"
_PARSER = (
    "def get_cuda_bare_metal_version(cuda_dir):\n" + _DIGITS + "    return said, bare_metal_major, bare_metal_minor\n\n"
)
_VERSION = (
    "def get_cuda_bare_metal_version(cuda_dir):\n" + _SAID + '    return said, parse(words[at].split(",")[0])\n\n\n'
)


def _flag(call: str, guard: str) -> str:
    indent = " " * (len(guard.rsplit("\n", 1)[-1]) or 4)
    return f"""
ext_modules = []
if "--cpp_ext" in sys.argv:
    sys.argv.remove("--cpp_ext")
    ext_modules.append("cpp")

if "--cuda_ext" in sys.argv:
    sys.argv.remove("--cuda_ext")
{guard}{call}
{indent}ext_modules.append("cuda")
"""


_LONG = "torch.utils.cpp_extension.CUDA_HOME"
_ELSE = f"""    if {_LONG} is None:
        raise RuntimeError("--cuda_ext wants nvcc")
    else:
        """
_CHECK = "check_cuda_torch_binary_vs_bare_metal"
_DEFINE = f"def {_CHECK}(cuda_dir):\n"
_IMPORT_LONG = "import torch.utils.cpp_extension\n"
_IMPORT_SHORT = "from torch.utils.cpp_extension import CUDA_HOME, CUDAExtension\n"
_NONE = """
def raise_if_cuda_home_none(flag):
    if CUDA_HOME is None:
        raise RuntimeError(flag + " wants nvcc")


"""
_THREADS = """def append_nvcc_threads(extra):
    _, bare_metal_major, bare_metal_minor = get_cuda_bare_metal_version(CUDA_HOME)
    if int(bare_metal_major) >= 11 and int(bare_metal_minor) >= 2:
        return extra + ["--threads", "4"]
    return extra


"""
_ASK = "    raise_if_cuda_home_none('--cuda_ext')\n    "
_ARCH = """if not torch.cuda.is_available():
    if os.environ.get("TORCH_CUDA_ARCH_LIST") is None:
        _, bare_metal_major, _ = get_cuda_bare_metal_version(CUDA_HOME)
        if int(bare_metal_major) >= 11:
            os.environ["TORCH_CUDA_ARCH_LIST"] = "8.0"
"""

NO_CHECK = _TOP + _flag("    pass", "") + _END
WARN = (
    _TOP + _IMPORT_LONG + "import warnings\n\n" + _DEFINE + _DIGITS + _WANTED + _DIFFER
    + '        warnings.warn("different CUDA versions")\n' + _flag(f"{_CHECK}({_LONG})", _ELSE) + _END
)  # fmt: skip
RAISE = (
    _TOP + _IMPORT_LONG + "\n" + _DEFINE + _DIGITS + _WANTED + _DIFFER
    + '        raise RuntimeError("different CUDA versions")\n' + _flag(f"{_CHECK}({_LONG})", _ELSE) + _END
)  # fmt: skip
RAISE_LONG = RAISE.replace(
    'RuntimeError("different CUDA versions")',
    'RuntimeError("different CUDA versions: {}. "\n'
    '                           "Sometimes harmless.".format(torch.version.cuda))',
)
MOVED = (
    _TOP + _IMPORT_LONG + "from torch.utils import cpp_extension\n\n" + _PARSER
    + _ARCH.replace("CUDA_HOME", "cpp_extension.CUDA_HOME") + "\n" + _PARSER + _DEFINE
    + "    said, bare_metal_major, bare_metal_minor = get_cuda_bare_metal_version(cuda_dir)\n" + _WANTED + _DIFFER
    + '        raise RuntimeError("different CUDA versions")\n' + _flag(f"{_CHECK}({_LONG})", _ELSE) + _END
)  # fmt: skip
RENAMED = MOVED.replace(_IMPORT_LONG + "from torch.utils import cpp_extension\n", _IMPORT_SHORT).replace(
    "torch.utils.cpp_extension.CUDA_HOME", "CUDA_HOME"
).replace("cpp_extension.CUDA_HOME", "CUDA_HOME")  # fmt: skip
THREADS = (
    _TOP + _IMPORT_SHORT + "\n\n" + _PARSER + "\n" + _DEFINE
    + "    said, bare_metal_major, bare_metal_minor = get_cuda_bare_metal_version(cuda_dir)\n" + _WANTED + _DIFFER
    + '        raise RuntimeError(\n            "different CUDA versions: {}".format(\n'
    + "                torch.version.cuda\n            )\n        )\n"
    + _NONE + _THREADS + _ARCH + _flag(f"{_CHECK}(CUDA_HOME)", _ASK) + _END
)  # fmt: skip
FULL = (
    "from packaging.version import parse, Version\n" + _TOP + _IMPORT_SHORT + "\n\n" + _VERSION + _DEFINE
    + "    said, bare_metal_version = get_cuda_bare_metal_version(cuda_dir)\n"
    + "    if (bare_metal_version != parse(torch.version.cuda)):\n"
    + '        raise RuntimeError("different CUDA versions")\n' + _NONE
    + "_, bare_metal_version = get_cuda_bare_metal_version(CUDA_HOME)\n" + _flag(f"{_CHECK}(CUDA_HOME)", _ASK) + _END
)  # fmt: skip
RUFF = FULL.replace(
    "if (bare_metal_version != parse(torch.version.cuda)):", "if bare_metal_version != parse(torch.version.cuda):"
)

# form -> (text, places of apex-cuda-minor-parse, places of apex-cuda-home-none)
APEX = {
    "1 warns only": (WARN, 1, 0),
    "2 raises": (RAISE, 1, 0),
    "3 raises at length": (RAISE_LONG, 1, 0),
    "4 parser moved": (MOVED, 2, 1),
    "5 call renamed": (RENAMED, 2, 1),
    "6 threads": (THREADS, 1, 1),
    "7 full version": (FULL, 0, 1),
    "8 ruff": (RUFF, 0, 1),
}
