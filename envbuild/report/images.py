"""The image that nodes run, in one line: equal ids are the equality of a fleet that runs images."""

from __future__ import annotations

from envbuild.model.evidence import Evidence
from envbuild.text import few, grouped


def rows(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    """`Image` and what most nodes run, `Other images`; nothing where they run environments of their own."""
    found = [(node.node, node.image) for node in evidence.nodes if node.image is not None]
    if not found:
        return ()
    largest = max(grouped(found, lambda each: each[1].id).values(), key=len)
    image = largest[0][1]
    through = sorted({each.runtime for _, each in largest})
    said = f"{image.id[:12]} through {' and '.join(through)} on {len(largest)} of {len(evidence.nodes)} nodes"
    others = [f"{node} has {each.id[:12]}" for node, each in found if each.id != image.id]
    return (("Image", said), *((("Other images", few(others)),) if others else ()))
