"""Draws the pictures of `docs/pictures/`: boxes in rows, each row flowing to the right, with a note under each box."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

WIDTH, HEIGHT, GAP, NOTE = 150, 44, 34, 15
STYLE = """text { font: 13px system-ui, sans-serif; fill: #1f2933 } .note { font-size: 11px; fill: #52606d }
rect { fill: #eef2ff; stroke: #4353a5; rx: 6 } .good rect { fill: #e3f9e5; stroke: #2f8132 }
.bad rect { fill: #ffe3e3; stroke: #ab091e } path { stroke: #52606d; fill: none; marker-end: url(#to) }
svg { background: #fff } marker { fill: #52606d }
@media (prefers-color-scheme: dark) { svg { background: #1e2129 } text { fill: #e4e7eb } .note { fill: #a6b1bd }
path { stroke: #a6b1bd } marker { fill: #a6b1bd } rect { fill: #2b3157; stroke: #8b9be8 }
.good rect { fill: #17391c; stroke: #5fb363 } .bad rect { fill: #4a1d20; stroke: #e66a6a } }"""
ARROW = (
    '<marker id="to" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="7" markerHeight="7" orient="auto">'
    '<polygon points="0,0 6,3 0,6"/></marker>'
)
# What a picture shows, in words, then its rows. A box is `name (note)`; `+` before it is good, `!` bad.
PICTURES = {
    "from-facts-to-report": """Facts, decision, lock, plan, execution, evidence and report follow each other
        facts (what each node has) > resolution (a reason per decision) > lock variant (every file by hash)
        plan (steps, bytes, seconds) > execution (Ansible, ssh, jobs) > evidence (what was measured)
        +report (page, JSON, JUnit, SBOM) > +report verify (computed again, elsewhere)""",
    "decisions": """Each rule allows, warns or refuses a variant; the first that nothing refuses is taken
        variant cu113 (nvcc 11.4: warn) > driver 470 (allow: 11.4 is not below 11.3) > +taken (with one warning)
        !variant cu121 (driver 470: refuse) > next variant (the refusal is kept)""",
    "environments-and-roots": """Built beside the one in use, tested, hashed, stamped; only then the link is switched
        install (envs/NAME-DIGEST) > smoke (does it work?) > hash (Merkle root of all files)
        stamp (last file written) > +current (one rename) > the old one (stays until pruned)""",
    "what-a-check-says": """Three words for how sure a statement is, the surest first
        +measured (read just now) > stamped (as built) > !not checked (not read)""",
    "when-something-breaks": """A failure leaves the environment in use where it is; a rerun takes up what is finished
        !step fails (coded error, exit code) > +in use: unchanged (link and files) > rerun (keeps finished steps)
        !kill -9 (no stamp, or a whole one) > next run (ends what was left) > +converges (the same root)""",
}
BOX = re.compile(r"([+!]?)(.+?) \((.+)\)")
KINDS = {"": "", "+": "good", "!": "bad"}


def box(left: int, top: int, words: str) -> str:
    """One box with its note, as SVG."""
    ((kind, name, note),) = BOX.findall(words)
    at = f'x="{left + WIDTH // 2}" text-anchor="middle"'
    return (
        f'<g class="{KINDS[kind]}"><rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}"/>'
        f'<text {at} y="{top + 27}">{escape(name)}</text>'
        f'<text {at} y="{top + HEIGHT + NOTE}" class="note">{escape(note)}</text></g>'
    )


def drawn(text: str) -> str:
    """One picture as SVG, with its words as alternative text."""
    words, *lines = text.strip().splitlines()
    rows = [line.strip().split(" > ") for line in lines]
    parts = []
    for y, row in enumerate(rows):
        top = 10 + y * (HEIGHT + NOTE + GAP)
        for x, label in enumerate(row):
            left = 10 + x * (WIDTH + GAP)
            parts.append(box(left, top, label))
            if x:
                parts.append(f'<path d="M{left - GAP + 3} {top + HEIGHT // 2}H{left - 6}"/>')
    width = 20 + max(map(len, rows)) * (WIDTH + GAP) - GAP
    height = 20 + len(rows) * (HEIGHT + NOTE + GAP) - GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    inside = [f"<title>{escape(words)}</title>", f"<style>{STYLE}</style>", f"<defs>{ARROW}</defs>", *parts]
    return "\n".join([head, *inside, "</svg>", ""])


if __name__ == "__main__":
    for name, text in PICTURES.items():
        path = Path(__file__).parent / "pictures" / f"{name}.svg"
        path.write_text(drawn(text), encoding="utf-8")
