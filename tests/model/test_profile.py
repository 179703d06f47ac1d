"""Builds and smoke tests of a profile: what the model takes, and that new fields leave old digests alone."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from envbuild.lock.files import parse_lock
from envbuild.lock.record import render_lock
from envbuild.model.lock import LockedSource, Variant
from envbuild.model.stack import Profile, Source
from tests.lock.build import lock, variant

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


STEP = {"source": "megatron", "script": "pretrain_gpt.py", "log": "megatron", "steps": 6}
TREE = {"name": "megatron", "git": "https://example.org/m", "commit": "a" * 40, "install": "path"}


def profile_with(step: dict[str, Any], tree: dict[str, Any] = TREE) -> Profile:
    smoke = [{"name": "step", "step": step}]
    return Profile.from_plain({"python": ["3.11"], "torch": TORCH, "sources": [tree], "smoke": smoke})


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"packages": ["numpy"], "smoke": [{"name": "machine"}]}, "need torch"),
        ({"torch": TORCH, "smoke": [{"name": "step"}]}, "`step` belongs to the item step, and only there"),
        ({"torch": TORCH, "smoke": [{"name": "sound", "step": STEP}]}, "`step` belongs to the item step, and only"),
    ],
)
def test_an_item_without_what_it_needs_and_a_script_elsewhere_are_refused(said: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Profile.from_plain({"python": ["3.11"], **said})


@pytest.mark.parametrize(
    ("step", "tree", "says"),
    [
        ({**STEP, "source": "other"}, TREE, "is in 'other', which is no source with a tree"),
        (STEP, {**TREE, "install": "wheel"}, "is in 'megatron', which is no source with a tree"),
        ({**STEP, "arguments": ["{gpus}"]}, TREE, "{gpus} is not a word that is filled in"),
        ({**STEP, "files": {"c.json": {"a": [{"b": "x{port}"}]}}}, TREE, "{port} is not a word that is filled in"),
        ({**STEP, "arguments": ["x{adam_b2}"]}, TREE, "{adam_b2} is not a word that is filled in"),
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
    good = profile_with({**STEP, "arguments": ["{work}/x"], "files": {"c.json": {"a": {"b": "{batch}"}}}})
    assert good.smoke_items[0].step is not None and good.smoke_items[0].step.launcher == "torchrun"


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


PLAIN = {"name": "a", "git": "https://example.org/a.git", "commit": "0" * 40, "tree": "1" * 40}


MODULE = {"name": "fused_cuda", "sources": ["k/a.cpp", "k/a.cu"], "include_dirs": ["k"], "nvcc_flags": ["-O3"]}


def source(**more: Any) -> LockedSource:
    return LockedSource.from_plain({**PLAIN, **more})


def test_every_field_of_a_build_survives_a_lock_file() -> None:
    wheel = {
        "flags": ["cuda_ext"],
        "extensions": ["amp_C"],
        "environment": {"FORCE": "1"},
        "memory_per_job": 4,
        "requires": ["six"],
    }
    one = source(build=wheel)
    two = source(name="b", install="path", build={"kind": "kernels", "modules": [MODULE, {**MODULE, "name": "other"}]})
    made = lock(variant(sources=(one, two)))
    assert parse_lock(render_lock(made), "again") == made
    # What nobody says of a build is no part of the digest.
    (plain,) = variant(sources=(source(build={"flags": ["cuda_ext"]}),)).contents()["sources"]
    assert plain["build"] == {"kind": "wheel", "flags": ["cuda_ext"]}


@pytest.mark.parametrize(
    ("build", "says"),
    [
        ({"kind": "kernels"}, "modules"),
        ({"kind": "wheel", "modules": [MODULE]}, "modules"),
        ({"kind": "kernels", "modules": [MODULE], "flags": ["x"]}, "no flags"),
        ({"kind": "kernels", "modules": [MODULE, MODULE]}, "same name"),
        ({"kind": "kernels", "modules": [{**MODULE, "sources": ["../a.cu"]}]}, "relative path"),
        ({"extensions": []}, "extensions"),
        ({"extensions": ["-amp"]}, "extensions"),
        ({"memory_per_job": 0}, "memory_per_job"),
    ],
)
def test_a_build_that_cannot_be_meant_is_refused(build: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Source.from_plain({**PLAIN, "install": "path", "build": build})


def test_the_gpus_that_code_is_compiled_for_are_part_of_the_digest_once_they_are_bound() -> None:
    made = lock(variant(sources=(source(build={"flags": ["cuda_ext"]}),)))
    (plain,) = made.variants
    assert "arch_list" not in plain.contents()
    one, two = (plain.with_arch_list(made.stack, made.profile, archs) for archs in (("9.0",), ("8.0", "9.0+PTX")))
    assert len({plain.digest, one.digest, two.digest}) == 3
    assert one.with_arch_list(made.stack, made.profile, None) == plain
    assert plain.with_arch_list(made.stack, made.profile, None) is plain
    assert Variant.from_plain(two.to_json_dict()) == two
    with pytest.raises(ValidationError, match="arch_list"):
        Variant.from_plain({**two.to_json_dict(), "arch_list": ["sm_90"]})


def test_kernels_need_a_tree_to_stand_beside() -> None:
    build = {"kind": "kernels", "modules": [MODULE]}
    assert Source.from_plain({**PLAIN, "install": "path", "build": build}).build is not None
    with pytest.raises(ValidationError, match="kernels stand beside a tree"):
        Source.from_plain({**PLAIN, "build": build})
