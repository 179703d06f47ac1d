"""A measured figure beside the claim of a document: when both may be compared, and what follows."""

from __future__ import annotations

from typing import Literal

from envbuild.model.evidence import Comparison

# From this share of the claim on a figure counts as reproduced.
SAME = 0.97


def verdict_of(
    told: Comparison, model: str | None, *, lower_is_better: bool
) -> Literal["reproduced", "below", "not-comparable", "no-claim"]:
    """What `told` has to say of itself; `model`: that of the GPU, as claims name it, None where it is not known."""
    if told.claim is None:
        return "no-claim"
    if told.claim_gpu is None or (told.claim_gpu, told.claim_gpus) != (model, told.gpus):
        return "not-comparable"
    ratio = told.claim / told.measured if lower_is_better else told.measured / told.claim
    return "reproduced" if ratio >= SAME else "below"


def percent_of(told: Comparison) -> float | None:
    """Measured of claimed."""
    return None if told.claim is None else round(100 * told.measured / told.claim, 1)
