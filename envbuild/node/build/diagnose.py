"""What a failed build says: the line that says why first, and what would help where that is known.

Build tools end in many lines of traceback, the compiler's own word stands far above them, and uv adds its own advice.
"""

from __future__ import annotations

import re

from envbuild.node import protocol
from envbuild.node.protocol import NodeError
from envbuild.node.redact import redact_text

# Headers, libraries, programs and pkg-config's names of the system, by Debian's name of the package.
_PACKAGES = {
    name: package
    for package, names in {
        "librdmacm-dev": "rdma/rdma_cma.h -lrdmacm",
        "libibverbs-dev": "infiniband/verbs.h -libverbs",
        "libopenmpi-dev, or the site's MPI (a module)": "mpi.h -lmpi mpicc",
        "python3-dev": "Python.h",
        "libaio-dev": "libaio.h -laio",
        "liburing-dev": "liburing.h -luring",
        "portaudio19-dev": "portaudio.h",
        "libavformat-dev, libavdevice-dev and libavfilter-dev": "libavformat",
        "libavformat-dev": "libavformat/avformat.h",
        "libcairo2-dev": "cairo cairo.h",
        "libdbus-1-dev": "dbus-1",
        "libgirepository1.0-dev": "girepository-1.0 gobject-introspection-1.0",
        "libgraphviz-dev": "graphviz/cgraph.h",
        "libhdf5-dev": "hdf5.h",
        "libldap2-dev": "lber.h ldap.h",
        "libsasl2-dev": "sasl/sasl.h",
        "libpq-dev": "libpq-fe.h pg_config",
        "default-libmysqlclient-dev": "mysql.h mysql_config",
        "libsnappy-dev": "snappy-c.h",
        "libsndfile1-dev": "sndfile.h",
        "unixodbc-dev": "sql.h",
        "libgeos-dev": "geos_c.h geos-config",
        "libgdal-dev": "gdal-config",
        "libcups2-dev": "cups/cups.h",
        "libbluetooth-dev": "bluetooth/bluetooth.h",
        "libxmlsec1-dev": "xmlsec1",
        "libxml2-dev": "libxml/xmlversion.h",
        "libxslt1-dev": "libxslt/xsltconfig.h",
        "libffi-dev": "ffi.h",
        "libssl-dev": "openssl/ssl.h",
        "zlib1g-dev": "zlib.h",
        "libjpeg-dev": "jpeglib.h",
        "libnuma-dev": "numa.h",
        "libgl1-mesa-dev": "GL/gl.h",
        "libgmp-dev": "gmp.h",
        "cmake": "cmake",
        "swig": "swig",
        "pkg-config": "pkg-config",
    }.items()
    for name in names.split()
}
# Part of a CUDA toolkit; without them it is only a compiler.
_CUDA = re.compile(r"\A(?:-l)?(?:cuda|cublas|cusparse|cusolver|curand|cufft|cudart|nvrtc|thrust/|cub/|nvtx|nvToolsExt)")
_HEADER = re.compile(r"(?m)^.*?(?:fatal )?error: ([\w./+-]+): No such file or directory.*$")
_LIBRARY = re.compile(r"(?m)^.*?cannot find (-l[\w.+-]+).*$")
_COMMAND = re.compile(
    r"(?m)^.*?(?:command '?([\w.+/-]+)'? failed: No such file or directory"
    r"|\bsh: (?:line )?(?:\d+: )?([\w.+-]+): (?:command )?not found).*$"
)
# What setup code and pkg-config say of a library, of pkg-config's name for one, and of a program.
_STATIC = re.compile(r"(?m)^.*?\blib([\w+-]+)\.(?:a|so)\b (?:is |was )?not found.*$")
_NAMED = re.compile(r"(?m)^.*?\bPackage '?([\w.+-]+?)'?(?:, required by '[^']*',)? (?:was )?not found.*$")
_CONFIG = re.compile(
    r"(?m)^.*?\b(\w+[-_]config|cmake|CMake|swig|mpicc) (?:executable )?(?:not found|must be installed).*$"
)
# uv indents what a backend printed. The last exception is the one that ended it; others may have been caught.
_EXCEPTION = re.compile(r"(?m)^\s*((?:[\w.]+\.)?\w*(?:Error|Exception|SystemExit)\b(?::.*)?)$")
_MODULE = re.compile(r"(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'")
_LAST = 30
# Where nothing better is known.
_HINT = "once that is mended, the same command goes on: wheels that were built are kept"
# Blank, or uv's own: where the output of a backend begins, and what may be wrong in general.
_NOISE = re.compile(r"\s*(?:\[std(?:err|out)\]|hint: .*|Using Python .* environment at: .*)?\s*\Z")
_ERRORS = (
    re.compile(r"(?m)^nvcc fatal\s*:.*$"),
    re.compile(r"(?m)^.*undefined reference to .*$"),
    re.compile(r"(?m)^[^\s:][^:\n]*[:(]\d+(?:[:,]\d+)?\)?: (?:fatal )?error:? .*$"),
)


def cause(text: str) -> tuple[str, str]:
    """(the line that says why, what would help) of a failed build's output; "" for what is not known."""
    finds = ((_HEADER, "%s"), (_LIBRARY, "%s"), (_STATIC, "-l%s"), (_NAMED, "%s"), (_CONFIG, ""), (_COMMAND, ""))
    for pattern, thing in finds:
        match = pattern.search(text)
        if match is not None:
            name = next(group for group in match.groups() if group)
            return match.group(0).strip(), _thing(thing % name) if thing else _program(name)
    for error in _ERRORS:
        match = error.search(text)
        if match is not None:
            return match.group(0).strip(), ""
    exceptions = _EXCEPTION.findall(text)
    if exceptions:
        module = _MODULE.match(exceptions[-1])
        return exceptions[-1].strip(), _module(module.group(1)) if module else ""
    last = _last(text)
    return last[-1].strip() if last else "", ""


def _last(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if not _NOISE.match(line)][-_LAST:]


def explanation(text: str) -> str:
    """The line that says why, and the last lines of the output after it; redacted."""
    text = redact_text(text)
    line, _ = cause(text)
    last = _last(text)
    return "\n".join(([line, "…"] if line and line != last[0].strip() else []) + last)


def failure(what: str, why: str, hint: str = "") -> NodeError:
    """The error for `what` could not be built; `details.log` is the path of the log with its whole output."""
    log = protocol.log.path
    return NodeError(
        "build-failed",
        f"{what} could not be built",
        why=why,
        hint=hint or _HINT,
        details={"log": log} if log else None,
    )


def missing(what: str, why: str, names: list[str] | None = None) -> NodeError:
    """The error for a build that made not all that its stack names; `names` of extensions."""
    return NodeError(
        "extensions-missing",
        f"{what} lacks requested extensions",
        why=why,
        hint="compare the flags and extensions in the stack with this commit: upstream adds and removes them",
        details={"extensions": names} if names else None,
    )


def of_output(what: str, text: str, begin: str = "") -> NodeError:
    """The same for a build that printed `text`; `begin` stands before the reason."""
    return failure(what, begin + explanation(text), cause(text)[1])


def write_down(what: str, text: str) -> None:
    """The whole output of the build of `what`, into the log file of the run only."""
    protocol.log.keep(f"output of the build of {what}:\n{redact_text(text)}")


def _thing(name: str) -> str:
    if name in _PACKAGES:
        return f"install {_PACKAGES[name]} on the node"
    if _CUDA.match(name):
        return f"the CUDA toolkit is not whole: it has no {name}"
    return ""


def _program(name: str) -> str:
    program = name.rsplit("/", 1)[-1]
    package = _PACKAGES.get(program.lower())
    return f"no program {program} on the node" + (f": install {package}" if package else "")


def _module(name: str) -> str:
    hint = "the build sees no %s; add it to the stack's `packages`, and for a source to its `build.requires`"
    return hint % name.split(".")[0]
