"""One iteration as an SVG: a row a rank, time from left to right, forward and backward by microbatch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envbuild.trace.pipeline import Iteration, Pipeline
from envbuild.trace.records import BACKWARD, Span

_WIDTH, _ROW, _LEFT, _TOP = 1600, 20, 130, 34
_LABEL = 26  # a pass this wide has its name written in it


def svg(spans: Sequence[Span], iteration: Iteration, pipeline: Pipeline) -> Iterator[str]:
    """The parts of the picture; `spans` are those of the iteration, by rank."""
    ranks = sorted({span.rank for span in spans})
    row = {rank: number for number, rank in enumerate(ranks)}
    begin = min(span.start for span in spans)
    scale = (_WIDTH - _LEFT - 10) / (iteration.seconds or 1.0)
    height = _TOP + _ROW * len(ranks) + 24
    title = (
        f"iteration {iteration.number}: {iteration.seconds * 1000:.1f} ms, bubble {iteration.bubble:.1%} of all ranks"
    )
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11">\n<title>{title}</title>\n<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="10" y="20" font-size="14">{title}; forward blue, backward green</text>\n'
    )
    for rank in ranks:
        y = _TOP + _ROW * row[rank]
        yield f'<text x="10" y="{y + 14}">rank {rank}, stage {pipeline.stage(rank)}</text>\n'
        yield f'<rect x="{_LEFT}" y="{y + 1}" width="{_WIDTH - _LEFT - 10}" height="{_ROW - 2}" fill="#eeeeee"/>\n'
    for span in spans:
        x, width = _LEFT + (span.start - begin) * scale, (span.end - span.start) * scale
        y = _TOP + _ROW * row[span.rank]
        name = pipeline.name(span.direction, span.index)
        yield (
            f'<g><title>{name}: {(span.end - span.start) * 1000:.2f} ms</title><rect x="{x:.2f}" y="{y + 1}" '
            f'width="{max(width, 0.2):.2f}" height="{_ROW - 2}" fill="#{colour(span, pipeline)}"/>'
        )
        if width >= _LABEL:
            yield f'<text x="{x + 2:.2f}" y="{y + 14}" fill="#ffffff" font-size="9">{name.split()[1]}</text>'
        yield "</g>\n"
    end = f"{iteration.seconds * 1000:.1f} ms"
    yield f'<text x="{_LEFT}" y="{height - 8}">0 ms</text>\n'
    yield f'<text x="{_WIDTH - 10}" y="{height - 8}" text-anchor="end">{end}</text>\n</svg>\n'


def colour(span: Span, pipeline: Pipeline) -> str:
    """Blue or green, darker with the chunk, as the document's sheet has them; RRGGBB."""
    shade = max(0, 255 - 40 * pipeline.cell(span.direction, span.index)[0])
    return f"00{shade:02X}00" if span.direction == BACKWARD else f"0080{shade:02X}"
