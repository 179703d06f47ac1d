"""How our edits of a source are applied in a Dockerfile: a program of ours in the context, and what it is told. Pure.

No line of a source is in the context: an edit finds its place itself, and the tree after it is compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from envbuild import resources
from envbuild.catalog.patches import load_patch
from envbuild.model.lock import LockedSource

FOLDER = "patches"
_PROGRAM = """\
import json
import sys

from envbuild.node.patch.apply import apply

with open(sys.argv[1]) as file:
    for patch in json.load(file):
        apply(".", patch)
"""
# What the patch program takes of the rest of the node program, in a few lines.
_PROTOCOL = """\
Json = dict


class NodeError(Exception):
    def __init__(self, code, what, why="", *_, **__):
        super().__init__("%s: %s%s" % (code, what, " (%s)" % why if why else ""))


def log(text):
    print(text)


def plural(count, noun):
    return "%d %s%s" % (count, noun, "" if count == 1 else "s")
"""


def edit_command(source: LockedSource) -> str:
    """The command, in the folder of the source, that makes its edits or fails."""
    return f"python3 -B /{FOLDER}/edit.py /{FOLDER}/{source.name}.json"


def edit_files(sources: Iterable[LockedSource]) -> dict[str, str]:
    """Name in the context -> text of what `edit_command` needs; empty where no source is edited."""
    edited = [source for source in sources if source.patches]
    if not edited:
        return {}
    modules = sorted((resources.node_package() / "patch").glob("*.py"))
    found = {f"{FOLDER}/envbuild/node/patch/{path.name}": path.read_text(encoding="utf-8") for path in modules}
    found |= {f"{FOLDER}/envbuild/node/protocol.py": _PROTOCOL, f"{FOLDER}/edit.py": _PROGRAM}
    for source in edited:
        patches = [load_patch(name).spec(source.commit) for name in source.patches]
        found[f"{FOLDER}/{source.name}.json"] = json.dumps(patches, indent=1, sort_keys=True) + "\n"
    return found
