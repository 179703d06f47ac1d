"""The node program as one zipapp, equal byte for byte wherever and whenever it is made."""

from __future__ import annotations

import functools
import hashlib
import threading

from envbuild import resources
from envbuild.node.program_files import zipped

NAME = "envbuild-node.pyz"


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
_zipped = functools.cache(zipped)


def node_pyz() -> bytes:
    """The node program of this envbuild; made once a process, and who asks meanwhile waits for it."""
    with _MAKING:
        return _zipped()


@functools.cache
def node_pyz_digest() -> str:
    """sha256 of `node_pyz()`, hexadecimal."""
    return hashlib.sha256(node_pyz()).hexdigest()
