"""The node program as one zipapp, equal byte for byte wherever and whenever it is made."""

from __future__ import annotations

import functools
import hashlib
import io
import sys
import threading
import zipfile
from pathlib import Path

from envbuild import resources

NAME = "envbuild-node.pyz"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip entry can have
_MAIN = "import sys\nfrom envbuild.node.__main__ import main\n\nsys.exit(main())\n"
_PACKAGE = '"""The part of envbuild that runs on nodes."""\n'


def build_pyz(package: Path) -> bytes:
    """Zipapp of the node package in folder `package`, importable as `envbuild.node`; only its `.py` files.

    Not compressed: the same bytes whatever zlib is there, and made in an instant; what sends it compresses it.
    """
    contents = {"__main__.py": _MAIN.encode(), "envbuild/__init__.py": _PACKAGE.encode()}
    for path in package.rglob("*.py"):
        contents[f"envbuild/node/{path.relative_to(package).as_posix()}"] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, contents[name])
    return buffer.getvalue()


# The package by itself: nothing that lies beside it in site-packages can be imported in place of the standard library,
# and nothing there has to be read, which takes three times as long as the start of Python where much is installed.
_HERE = (
    "import sys, types; envbuild = types.ModuleType('envbuild'); envbuild.__path__ = [sys.argv.pop(1)]; "
    "sys.modules['envbuild'] = envbuild; from envbuild.node.__main__ import main; sys.exit(main())"
)


def call_here(python: str, verb: str) -> list[str]:
    """The command that runs a verb on this machine, from the package itself: there `python` finds its byte code."""
    return [python, "-I", "-S", "-c", _HERE, str(resources.node_package().parent), verb]


_MAKING = threading.Lock()


def node_pyz() -> bytes:
    """The node program of this envbuild; made once a process, and who asks meanwhile waits for it."""
    with _MAKING:
        return _node_pyz()


@functools.cache
def _node_pyz() -> bytes:
    return build_pyz(resources.node_package())


@functools.cache
def node_pyz_digest() -> str:
    """sha256 of `node_pyz()`, hexadecimal."""
    return hashlib.sha256(node_pyz()).hexdigest()


if __name__ == "__main__":
    # The first stage of a Dockerfile in a checkout makes it so.
    Path(sys.argv[1]).write_bytes(node_pyz())
