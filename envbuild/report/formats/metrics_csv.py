"""Every measured figure as CSV, for spreadsheets, in which no text of a node is a formula."""

from __future__ import annotations

import csv
import io

from envbuild.model.evidence import Evidence
from envbuild.report.render import harmless
from envbuild.report.view import below_floor

HEADERS = ("run", "stack", "profile", "target", "node", "check", "metric", "unit", "n", "median", "least", "greatest",
           "floor", "below_floor")  # fmt: skip
# What begins a formula in spreadsheets, its full-width forms included.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def render_csv(evidence: Evidence) -> str:
    """One line for each figure of each node; numbers in full, without a thousands separator."""
    safe, out = harmless(evidence), io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADERS)
    for node in safe.nodes:
        for check in node.checks:
            for m in check.metrics:
                texts = (safe.run, safe.stack, safe.profile, safe.target, node.node, check.name, m.name, m.unit)
                floor = ("", "") if m.floor is None else (repr(m.floor), str(below_floor(m)).lower())
                writer.writerow([*map(_cell, texts), m.n, repr(m.median), repr(m.least), repr(m.greatest), *floor])
    return out.getvalue()


def _cell(text: str) -> str:
    """Text that a spreadsheet takes for text, on one line."""
    flat = text.replace("\n", " ")
    return f"'{flat}" if flat.lstrip().startswith(_FORMULA) else flat
