"""The line of a failed build's output that says why, and what would help.

Build tools end in many lines of traceback; the compiler's own word stands far above them.
"""

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Headers and libraries of the system that sources of the catalog need, by Debian's name of the package.
_PACKAGES = {
    "rdma/rdma_cma.h": "librdmacm-dev",
    "-lrdmacm": "librdmacm-dev",
    "infiniband/verbs.h": "libibverbs-dev",
    "-libverbs": "libibverbs-dev",
    "mpi.h": "libopenmpi-dev, or the site's MPI (a module)",
    "-lmpi": "libopenmpi-dev, or the site's MPI (a module)",
    "Python.h": "python3-dev",
    "libaio.h": "libaio-dev",
    "-laio": "libaio-dev",
}
# Part of a CUDA toolkit; without them it is only a compiler.
_CUDA = re.compile(r"\A(?:-l)?(?:cuda|cublas|cusparse|cusolver|curand|cufft|cudart|nvrtc|thrust/|cub/|nvtx|nvToolsExt)")
_HEADER = re.compile(r"(?m)^.*?(?:fatal )?error: ([\w./+-]+): No such file or directory.*$")
_LIBRARY = re.compile(r"(?m)^.*?cannot find (-l[\w.+-]+).*$")
_COMMAND = re.compile(r"(?m)^.*?(?:command '?([\w.+/-]+)'? failed: No such file or directory|([\w.+-]+): not found).*$")
_MODULE = re.compile(r"(?m)^(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'.*$")
_ERRORS = (
    re.compile(r"(?m)^nvcc fatal\s*:.*$"),
    re.compile(r"(?m)^.*undefined reference to .*$"),
    re.compile(r"(?m)^[^\s:][^:\n]*[:(]\d+(?:[:,]\d+)?\)?: (?:fatal )?error:? .*$"),
    re.compile(r"(?m)^error: .*$"),
)


def cause(text: "str") -> "tuple[str, str]":
    """(the line that says why, what would help) of a failed build's output; "" for what is not known."""
    for pattern, find in ((_HEADER, _thing), (_LIBRARY, _thing), (_COMMAND, _program), (_MODULE, _module)):
        found = pattern.search(text)
        if found is not None:
            return found.group(0).strip(), find(next(each for each in found.groups() if each))
    for error in _ERRORS:
        found = error.search(text)
        if found is not None:
            return found.group(0).strip(), ""
    return "", ""


def told(text: "str", last: "Sequence[str]") -> "str":
    """`last` (the last lines of the output) with the line that says why before them."""
    line, _ = cause(text)
    return "\n".join(([line, "…"] if line and line not in last[:1] else []) + list(last))


def _thing(name: "str") -> "str":
    if name in _PACKAGES:
        return "install %s on the node" % _PACKAGES[name]
    if _CUDA.match(name):
        return "the CUDA toolkit is not whole: it has no %s" % name
    return ""


def _program(name: "str") -> "str":
    return "no program %s on the node" % name.rsplit("/", 1)[-1]


def _module(name: "str") -> "str":
    return "the build imports %s: it must be a package of the lock" % name.split(".")[0]
