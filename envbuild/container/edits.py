"""How our edits of a source are applied in a Dockerfile: the patch program in the context, and its input. Pure.

No line of a source is in the context: an edit is a pattern of ours, and the tree after it is compared.
"""

from __future__ import annotations

import json

from envbuild import resources
from envbuild.catalog.patches import patches_of_variant
from envbuild.model.lock import LockedSource, Variant
from envbuild.plan.source_builds import patch_specs

FOLDER = "patches"
_PROGRAM = "patch.py"


def edit_command(source: LockedSource) -> str:
    """The command, in the folder of the source, that makes its edits or fails."""
    return f"python3 /{FOLDER}/{_PROGRAM} /{FOLDER}/{source.name}.json ."


def edit_files(variant: Variant) -> dict[str, str]:
    """Name in the context -> text of what `edit_command` needs; empty where no source is edited."""
    specs = patch_specs(variant, patches_of_variant(variant))
    found = {
        f"{FOLDER}/{name}.json": json.dumps(patches, indent=1, sort_keys=True) + "\n" for name, patches in specs.items()
    }
    program = resources.node_package() / "build" / _PROGRAM
    return {f"{FOLDER}/{_PROGRAM}": program.read_text(encoding="utf-8"), **found} if found else {}
