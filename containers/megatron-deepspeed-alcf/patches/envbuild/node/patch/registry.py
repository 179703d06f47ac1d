"""The edits that patches name: each finds its places in one file and says afterwards whether the outcome is right."""

from collections.abc import Callable

from envbuild.node.patch import alpa, apex, line_edits, megatron, megatronapp, removed_names, training

TYPE_CHECKING = False
if TYPE_CHECKING:
    from envbuild.node.patch.source_text import Change, Source

    Edit = tuple[Callable[[Source], list[Change]], Callable[[Source], None], int]

_MODULES = (alpa, apex, megatronapp, line_edits, megatron, removed_names, training)
# Every module has a table EDITS of name -> (find, check, version). Locks and build keys hold the version: an edit that
# does another thing to any file gets the next one (tests/node/patch/test_versions.py notices), a comment does not.
_TABLE: "dict[str, Edit]" = {name: edit for module in _MODULES for name, edit in module.EDITS.items()}


def names() -> "list[str]":
    """Every edit that a patch can name."""
    return sorted(_TABLE)


def find(edit: str, source: "Source") -> "list[Change]":
    """The changes that an edit makes to a file; empty where it has none. Raises UnfitError (a precondition failed)."""
    return _TABLE[edit][0](source)


def check(edit: str, source: "Source") -> None:
    """The postcondition of an edit, on the file after it. Raises UnfitError."""
    _TABLE[edit][1](source)


def version(edit: str) -> int:
    """The number of what an edit does, from 1."""
    return _TABLE[edit][2]
