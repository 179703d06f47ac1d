"""What a Merkle root stands for, in words: what it covers and what it leaves out."""

from __future__ import annotations

from envbuild.model.evidence import NodeEvidence
from envbuild.report.sources import texts
from envbuild.text import plural


def rows(node: NodeEvidence, python: str) -> tuple[tuple[str, str], ...]:
    """(name, value) for the report; empty without a root. `python`: the full version of the interpreter, or nothing."""
    if not node.root:
        return ()
    covers = "path, content and executable bit of every file, and the interpreter's full version"
    covers += f" ({python}): another one is another root" if python else ": another one is another root"
    return (("Root covers", covers), ("Root leaves out", _left_out(node)))


def _left_out(node: NodeEvidence) -> str:
    generated = [
        f"src/{source.get('name')}/{pattern}"
        for source in node.sources
        if source.get("install") in ("editable", "path")
        for pattern in texts(source.get("generated"))
    ]
    # Two compilers give two files: each environment's own stamp has them.
    compiled = sum(len(texts(source.get("compiled"))) for source in node.sources)
    stamped = f" ({plural(compiled, 'compiled module')} among them compared with this stamp alone)" if compiled else ""
    return ", ".join(("byte code", "notes of the installer", "where it lies", "times", *generated)) + stamped
