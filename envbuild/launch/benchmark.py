"""What the log of a run of a stack's own command tells. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from envbuild.model.reference import Bench
from envbuild.node.smoke.training_log import cut_short, losses, not_finite, read, runs
from envbuild.report.claimed import Gpus, share_of_peak
from envbuild.text import number

# Percent of a GPU's dense peak: what a run can have, with room for how catalogs round.
_MOST = 105
UNKNOWN = Gpus(None, 0)


class Samples(NamedTuple):
    """The figures of a run's log without those of its warm-up, how many were left out, and why they are no result.

    `losses`: of its steps, in their order, where it tells them.
    """

    values: list[float]
    warm_up: int
    wrong: str
    losses: list[float]


def samples(bench: Bench, text: str, gpus: Gpus = UNKNOWN) -> Samples:
    """What a log tells of a run on these GPUs. A training that began anew has warmed up anew."""
    records = read(bench.log, text)
    telling = [record for record in records if bench.metric in record.values]
    parts = [[record.values[bench.metric] for record in part] for part in runs(telling)]
    values = [value for part in parts for value in part[bench.warmup :]]
    bad = next((value for value in values if not 0 < value < math.inf), None)
    peak = gpus.peak if gpus.firm else None
    high = next((value for value in values if (share_of_peak(bench.unit, value, peak) or 0.0) > _MOST), None)
    course = losses(bench.log, [text])
    few = f"its log has {len(values)} of at least {bench.least} lines with `{bench.metric}` after its warm-up"
    above = f"{bench.unit} is more than the peak of {gpus.name}, {number(gpus.peak or 0.0)}"
    wrong = (
        (few if len(values) < bench.least else None)
        or (f"its log has {bad:g} for `{bench.metric}`" if bad is not None else None)
        or (f"{number(high)} {above}" if high is not None else None)
        or not_finite(course)
        or cut_short(records)
    )
    return Samples(values, len(telling) - len(values), wrong or "", [loss for _, loss in course])


def course_in_words(losses: Sequence[float]) -> str:
    """What became of the loss: a figure of speed says nothing of that."""
    if len(losses) < 2:
        return ""
    went = "rose" if losses[-1] > losses[0] else "went"
    return f"the loss {went} from {losses[0]:.4g} to {losses[-1]:.4g} in {len(losses)} steps"
