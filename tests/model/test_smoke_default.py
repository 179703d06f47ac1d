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


STEP = {"source": "megatron", "script": "pretrain_gpt.py", "log": "megatron", "steps": 6}
TREE = {"name": "megatron", "git": "https://example.org/m", "commit": "a" * 40, "install": "path"}


def profile_with(step: dict[str, Any], tree: dict[str, Any] = TREE) -> Profile:
    smoke = [{"name": "step", "step": step}]
    return Profile.from_plain({"python": ["3.11"], "torch": TORCH, "sources": [tree], "smoke": smoke})


def test_the_item_step_says_what_it_runs() -> None:
    item = profile_with({**STEP, "arguments": ["{work}/x"], "files": {"c.json": {"a": {"b": "{batch}"}}}}).smoke_items[
        0
    ]
    assert item.step is not None and (item.step.script, item.step.launcher) == ("pretrain_gpt.py", "torchrun")


@pytest.mark.parametrize("item", [{"name": "step"}, {"name": "sound", "step": STEP}])
def test_a_step_without_its_script_and_a_script_elsewhere_are_refused(item: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="`step` belongs to the item step, and only there"):
        Profile.from_plain({"python": ["3.11"], "torch": TORCH, "smoke": [item]})


@pytest.mark.parametrize(
    ("step", "tree", "says"),
    [
        ({**STEP, "source": "other"}, TREE, "is in 'other', which is no source with a tree"),
        (STEP, {**TREE, "install": "wheel"}, "is in 'megatron', which is no source with a tree"),
        ({**STEP, "arguments": ["{gpus}"]}, TREE, "{gpus} is not a word that is filled in"),
        ({**STEP, "files": {"c.json": {"a": [{"b": "x{port}"}]}}}, TREE, "{port} is not a word that is filled in"),
        ({**STEP, "script": "../x.py"}, TREE, "script"),
        ({**STEP, "log": "unknown"}, TREE, "log"),
    ],
)
def test_a_step_that_cannot_run_is_refused_when_it_is_read(
    step: dict[str, Any], tree: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        profile_with(step, tree)
    assert says in str(caught.value)


def test_a_step_is_no_part_of_what_an_environment_is() -> None:
    """A lock from before the item, and one with it, have one digest."""
    from envbuild.catalog.loader import load_stack
    from envbuild.lock.files import read_lock
    from envbuild.resources import lockfiles

    lock = read_lock(lockfiles() / "megatron-alpa.ported.lock.toml")
    assert load_stack("megatron-alpa").stack.profiles["ported"].smoke
    variant = lock.variants[0]
    other = variant.model_copy(update={"smoke": ()})
    assert other.compute_digest(lock.stack, lock.profile) == variant.digest
