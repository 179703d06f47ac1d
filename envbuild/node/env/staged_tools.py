"""An interpreter that was staged in a folder which all nodes see, copied to the place on this node where it belongs."""

from __future__ import annotations

import os
import shutil
import tempfile

from envbuild.node import paths
from envbuild.node.protocol import log


def bring(prefix: str, interpreter: object, staged: str | None) -> None:
    """Copy `<staged>/<tool>` to `<prefix>/tools/<tool>` where `interpreter` lies in that tool and it is not there.

    Whole or not at all: it appears by one rename. Raises OSError.
    """
    tools = os.path.join(prefix, "tools")
    if not staged or not isinstance(interpreter, str) or not interpreter.startswith(tools + "/"):
        return
    name = os.path.relpath(interpreter, tools).split("/")[0]
    place, source = os.path.join(tools, name), os.path.join(staged, paths.checked_name(name, "tool"))
    if os.path.isdir(place) or not os.path.isdir(source):
        return
    os.makedirs(tools, exist_ok=True)
    log(f"copying {source} to {place}")
    half = tempfile.mkdtemp(prefix=f".{name}.", dir=tools)
    try:
        shutil.copytree(source, os.path.join(half, name), symlinks=True)
        os.rename(os.path.join(half, name), place)
    finally:
        paths.remove_tree(half)
