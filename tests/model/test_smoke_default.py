"""What is tested where a stack does not say it: torch has to compute, not only to be imported."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from envbuild.model.stack import Profile

TORCH = {"version": "2.13.0", "flavours": ["cpu"]}


@pytest.mark.parametrize(
    ("said", "items"),
    [
        ({}, ["sound"]),
        ({"packages": ["torchvision==0.1", "torch-scatter"]}, ["sound"]),
        ({"torch": TORCH}, ["sound", "machine", "training"]),
        ({"packages": ["torch==2.13.0"]}, ["sound", "machine", "training"]),
        ({"torch": TORCH, "smoke": [{"name": "sound"}]}, ["sound"]),
        ({"packages": ["torch"], "smoke": [{"name": "training"}]}, ["training"]),
    ],
)
def test_a_stack_with_torch_is_tested_by_computing(said: dict[str, Any], items: list[str]) -> None:
    profile = Profile.from_plain({"python": ["3.11"], **said})
    assert [item.name for item in profile.smoke_items] == items


def test_what_needs_torch_is_refused_without_it() -> None:
    with pytest.raises(ValidationError, match="need torch"):
        Profile.from_plain({"python": ["3.11"], "packages": ["numpy"], "smoke": [{"name": "machine"}]})
