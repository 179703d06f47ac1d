"""The edits that patches name: each finds its places in one file and says afterwards whether the outcome is right."""

import hashlib
import pkgutil

from envbuild.node import patch_alpa, patch_apex, patch_app, patch_lines, patch_megatron, patch_python, patch_training

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from envbuild.node.patch_text import Change, Source

    Pair = tuple[Callable[[Source], list[Change]], Callable[[Source], None]]

_MODULES = (patch_alpa, patch_apex, patch_app, patch_lines, patch_megatron, patch_python, patch_training)
# Every module has a table EDITS of name -> (find, check).
_HOME = {name: module for module in _MODULES for name in module.EDITS}
_TABLE = {name: pair for module in _MODULES for name, pair in module.EDITS.items()}  # type: dict[str, Pair]


def names() -> "list[str]":
    """Every edit that a patch can name."""
    return sorted(_TABLE)


def find(edit: "str", source: "Source") -> "list[Change]":
    """The changes that an edit makes to a file; empty where it has none. Raises UnfitError (a precondition failed)."""
    return _TABLE[edit][0](source)


def check(edit: "str", source: "Source") -> "None":
    """The postcondition of an edit, on the file after it. Raises UnfitError."""
    _TABLE[edit][1](source)


def program_digest(edit: "str") -> "str":
    """sha256 over the program text of an edit and of what places its changes, in a checkout and in the zipapp."""
    out = hashlib.sha256()
    for name in (_HOME[edit].__name__, "envbuild.node.patch_lines", "envbuild.node.patch_text"):
        package, _, module = name.rpartition(".")
        out.update(pkgutil.get_data(package, module + ".py") or b"")
    return out.hexdigest()
