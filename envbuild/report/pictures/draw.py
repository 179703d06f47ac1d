"""What a picture is made of. x and widths are percent of its width, y and heights are pixels: text never scales.

The template writes it, escaped. The SVG libraries were tried: drawsvg 2.4 writes attributes unescaped and takes
0.2 s to import; svgwrite is not maintained any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Row = tuple[str, ...]
_ROWS = 400


@dataclass(frozen=True)
class Bar:
    """A rectangle; `kind` is a class of the style sheet, `says` what it shows to who points at it."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    says: str = ""
    shape: Literal["bar"] = "bar"


@dataclass(frozen=True)
class Dot:
    """A circle of radius `r` pixels."""

    x: float
    y: float
    r: float
    kind: str
    says: str = ""
    shape: Literal["dot"] = "dot"


@dataclass(frozen=True)
class Label:
    """A line of text; `anchor` as in SVG."""

    x: float
    y: float
    text: str
    kind: str = ""
    anchor: Literal["start", "middle", "end"] = "start"
    shape: Literal["label"] = "label"


@dataclass(frozen=True)
class Curve:
    """A line through points, each 0 to 1000 from the left and from the top of a box that is as wide as the picture."""

    y: float
    height: float
    points: str
    kind: str
    shape: Literal["curve"] = "curve"


Shape = Bar | Dot | Label | Curve


@dataclass(frozen=True)
class Table:
    """The numbers behind a picture; columns from `numbers` on are aligned as numbers."""

    headers: Row
    rows: tuple[Row, ...]
    numbers: int = 1
    left_out: int = 0

    @classmethod
    def of(cls, headers: Row, rows: Sequence[Row], numbers: int = 1) -> Table:
        """The first 400 rows, and how many are left out."""
        return cls(headers, tuple(rows[:_ROWS]), numbers, max(0, len(rows) - _ROWS))


@dataclass(frozen=True)
class Picture:
    """`says` is what there is to see, in words, and the alternative text; `keys` are (kind, meaning)."""

    id: str
    title: str
    says: str
    height: float
    shapes: tuple[Shape, ...]
    table: Table
    keys: tuple[tuple[str, str], ...] = ()


def share(value: float, most: float) -> float:
    """Percent of `most`, in hundredths, at least 0 and at most 100."""
    return round(min(100.0, max(0.0, 100.0 * value / most)), 2) if most > 0 else 0.0


def short(name: str, most: int = 36) -> str:
    """A name that fits a narrow screen; the table has all of it."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-most // 2 + 1 :]}"


def axis(most: float, height: float) -> list[Shape]:
    """Ticks at round numbers of seconds from 0 to `most`, with thin lines of `height` pixels."""
    if not 0 < most < math.inf:
        return []
    step = 10.0 ** math.floor(math.log10(most))
    step = next(step * part for part in (0.2, 0.5, 1, 2) if most / (step * part) <= 5)
    out: list[Shape] = []
    for index in range(int(most / step + 1e-9) + 1):
        x = share(index * step, most)
        out.append(Bar(x, 0, 0, height, "grid"))
        anchor: Literal["start", "middle", "end"] = "start" if not index else "end" if x > 92 else "middle"
        out.append(Label(x, height + 14, f"{index * step:,.4g}{' s' if index else ''}", "quiet", anchor))
    return out


def polyline(values: Sequence[float], most: float) -> str:
    """Points for a Curve: one after the other from the left, 0 at the bottom and `most` at the top."""
    wide, high = max(1, len(values) - 1), most or 1.0
    return " ".join(f"{1000 * i / wide:.0f},{1000 * (most - v) / high:.0f}" for i, v in enumerate(values))
