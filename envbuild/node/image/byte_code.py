"""Byte code of what builds import, beside the layer of the packages and not in the image.

Images keep no byte code in the environment, so every build of a source would compile setuptools and torch again. Kept
with the hash of its source, which Python compares at every import: a changed file is compiled, as without it.
"""

import os

from envbuild.node import proc
from envbuild.node.protocol import log

FOLDER = "byte-code"
_DEADLINE = 600.0
_PROGRAM = """
import importlib, importlib.util, py_compile, sys
if sys.version_info < (3, 8):
    sys.exit("before Python 3.8 it can only lie in the environment")
for name in ("setuptools.command.build_ext", "setuptools.command.bdist_wheel", "wheel.bdist_wheel",
             "torch.utils.cpp_extension", "runpy", "shlex"):
    try:
        importlib.import_module(name)
    except Exception:
        pass
files = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
sys.pycache_prefix = sys.argv[1]
for file in sorted(file for file in files if file.endswith(".py")):
    to = importlib.util.cache_from_source(file)
    py_compile.compile(file, cfile=to, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
print(len(files))
"""


def folder(prefix: str) -> str:
    """Where it lies, as `sys.pycache_prefix` takes it."""
    return os.path.join(prefix, "image", FOLDER)


def keep(prefix: str, python: str) -> None:
    """Import with the interpreter `python` what builds import, and keep its byte code; before Python 3.8: nothing."""
    done = proc.run([python, "-I", "-B", "-c", _PROGRAM, folder(prefix)], timeout=_DEADLINE)
    log("byte code for builds: %s" % ("kept" if done.ok else "none (%s)" % done.err.strip()[-200:]))
