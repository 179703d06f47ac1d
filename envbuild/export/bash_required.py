"""The printed script asks of its packages what `install` asks: whether the stack, or what it lists, requires each."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Collection

from envbuild.model.lock import Variant
from envbuild.node import read_text
from envbuild.node.packages import installed

_FUNCTION = """\
# required BASE NAME...: every package is one of these, or is named by the metadata of one that is, or of the BASE.
required() {
  "$python" -I - "$environment" "$@" <<'EOF' || fail 'the lock has a package that nothing asks for' 5
import os
import re
import sys


@PARTS@

base = set()
if sys.argv[2] != "none":
    from importlib import metadata

    base = {required_name(each) for told in metadata.distributions() for each in told.requires or []}
edges = requires(sys.argv[1])
odd = unwanted(edges, edges, sys.argv[3:], base)
if odd:
    sys.exit("neither the stack nor the metadata of an installed package names: " + ", ".join(odd))
EOF
}
"""
_PARTS = (
    *(read_text.names, installed.normal_name, installed.required_name, installed.site_packages, installed.dist_infos),
    *(installed.headers, installed._metadata, installed.requires, installed.unwanted),
)


def function() -> str:
    """The bash function `required`: the node program's own, run by the interpreter below the environment."""
    return _FUNCTION.replace("@PARTS@", "\n\n".join(inspect.getsource(part) for part in _PARTS))


def call(variant: Variant, asked: Collection[str] | None) -> list[str]:
    """The line that calls it before anything of the packages can run; none where nobody says what is asked for."""
    if asked is None:
        return []
    return ["", f"  required {shlex.join([variant.base.kind, *asked])}"]
