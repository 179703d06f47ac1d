"""The shapes of shipped first steps are such as the kernels take; a CPU trial cannot see all of that."""

from __future__ import annotations

import pytest

from envbuild.catalog.loader import load_stack

METASEQ = load_stack("opt-175b").stack
TRAINING = [name for name, profile in METASEQ.profiles.items() if any(item.step for item in profile.smoke)]


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("profile", TRAINING)
def test_metaseq_calls_the_softmax_with_whole_blocks(profile: str, tensor: int) -> None:
    # scaled_upper_triang_masked_softmax.h: rows of 64 are computed by 32 threads of 128, two at a time.
    [step] = [item.step for item in METASEQ.profiles[profile].smoke if item.step]
    words = step.arguments
    batch, heads, length = (
        int(words[words.index(f"--{name}") + 1])
        for name in ("batch-size", "decoder-attention-heads", "tokens-per-sample")
    )
    assert length == 64
    assert batch * heads // tensor % 8 == 0
