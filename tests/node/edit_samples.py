"""What each edit of a patch does to files of every shape that its sources had: `data/edits/<edit>.json`.

Written for these tests, in the shape of the sources. `python -m tests.node.edit_samples` writes the outcomes anew, and
refuses where one changed and the edit still has its old version.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from envbuild.node.patch import registry
from envbuild.node.patch.source_text import Source, UnfitError, changed_text

DATA = Path(__file__).parent / "data" / "edits"


def load(edit: str) -> dict[str, Any]:
    known: dict[str, Any] = json.loads((DATA / f"{edit}.json").read_text())
    return known


def outcome(edit: str, path: str, before: str) -> str | None:
    """sha256 of the file after the edit; None where it refuses the file."""
    try:
        source = Source(path, before.encode())
        after = changed_text(source, registry.find(edit, source))
        registry.check(edit, Source(path, source.encoded(after)))
    except UnfitError:
        return None
    return hashlib.sha256(source.encoded(after)).hexdigest()


def renewed(edit: str) -> dict[str, Any]:
    """The samples of an edit with today's outcomes and version."""
    files = [{**each, "after": outcome(edit, each["path"], each["before"])} for each in load(edit)["files"]]
    return {"version": registry.version(edit), "files": files}


def main() -> int:
    for edit in registry.names():
        known, new = load(edit), renewed(edit)
        if known == new:
            continue
        if known["version"] == new["version"]:
            sys.stderr.write(
                f"{edit} does another thing than version {known['version']} did: give it the next version\n"
            )
            return 1
        (DATA / f"{edit}.json").write_text(json.dumps(new, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
