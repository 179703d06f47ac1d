"""What a Merkle root stands for, in words: what it covers, what it leaves out, and what no rebuild gives again."""

from __future__ import annotations

from envbuild.model.evidence import NodeEvidence
from envbuild.report.sources import mapping, texts

# Seen: builds of one commit with 16 and with 11 jobs on one machine gave equal files but for these.
NOT_REPRODUCIBLE = {
    "amp_C": "some 60 bytes of its device code differ from build to build, and the build id that follows"
}


def rows(node: NodeEvidence, python: str) -> tuple[tuple[str, str], ...]:
    """(name, value) for the report; empty without a root. `python`: the full version of the interpreter, or nothing."""
    if not node.root:
        return ()
    covers = "path, content and executable bit of every file, and the interpreter's full version"
    covers += f" ({python}): another one is another root" if python else ": another one is another root"
    return (("Root covers", covers), ("Root leaves out", _left_out(node)), *_not_reproducible(node))


def _left_out(node: NodeEvidence) -> str:
    generated = [
        f"src/{source.get('name')}/{pattern}"
        for source in node.sources
        if source.get("install") in ("editable", "path")
        for pattern in texts(source.get("generated"))
    ]
    return ", ".join(("byte code", "notes of the installer", "where it lies", "times", *generated))


def _not_reproducible(node: NodeEvidence) -> tuple[tuple[str, str], ...]:
    """The files that are compiled here and known not to come out the same twice, by name."""
    known = [
        f"{extension} of {source.get('name')}: {NOT_REPRODUCIBLE[extension]}"
        for source in node.sources
        for extension in texts(mapping(source.get("build")).get("extensions"))
        if extension in NOT_REPRODUCIBLE
    ]
    return (("Not reproducible", "; ".join(known)),) if known else ()
