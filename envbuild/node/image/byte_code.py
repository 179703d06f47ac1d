"""Byte code of what builds import, beside the layer of the packages and not in the image.

Images keep no byte code in the environment, so every build of a source would compile setuptools and torch again. Kept
with the hash of its source, which Python compares at every import: a changed file is compiled, as without it.
"""

import os

from envbuild.node.packages import byte_code
from envbuild.node.protocol import log

FOLDER = "byte-code"
_DEADLINE = 600.0
_LISTING = """
import importlib, json
for name in ("setuptools.command.build_ext", "setuptools.command.bdist_wheel", "wheel.bdist_wheel",
             "torch.utils.cpp_extension", "runpy", "shlex"):
    try:
        importlib.import_module(name)
    except Exception:
        pass
files = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
print()
print(json.dumps(sorted(file for file in files if file.endswith(".py"))))
"""


def folder(prefix: str) -> str:
    """Where it lies, as `sys.pycache_prefix` takes it."""
    return os.path.join(prefix, "image", FOLDER)


def keep(prefix: str, python: str) -> None:
    """Import with the interpreter `python` what builds import, and keep its byte code; before Python 3.8: nothing."""
    why = byte_code.make([python, "-I", "-B"], folder(prefix), [_LISTING], _DEADLINE)
    log("byte code for builds: %s" % ("none (%s)" % why if why else "kept"))
