"""Variants on images, and targets whose engine is not `venv`: decisions, never a crash."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.model.lock import Lock
from envbuild.model.plan import Resolution
from envbuild.resolve.request import OUTSIDE
from tests.resolve.builders import (
    compat,
    make_lock,
    node_facts,
    node_rows,
    package,
    resolve,
    target,
    torch_package,
    torch_row,
)

NGC = "nvcr.io/nvidia/pytorch:22.02-py3"
DEEPSPEED = package("deepspeed", "0.6.3", file="deepspeed-0.6.3.tar.gz")
CONTAINER = {"engine": "container", "placement": "image"}


def image_lock(image: str = NGC) -> Lock:
    base = {"kind": "image", "image": image, "provides": ["torch>=1.11.0a0,<1.12"]}
    return make_lock({"id": "image", "python": "3.8", "base": base, "packages": [DEEPSPEED]})


def decided(node: str, lock: Lock, **fields: Any) -> Resolution:
    return resolve(node_facts(node), lock, target(**fields), compat())


def verdicts(resolution: Resolution) -> dict[str, str]:
    return {d.rule: d.verdict for d in resolution.decisions}


def test_a_container_takes_the_image_and_asks_the_node_for_no_python() -> None:
    got = decided("a100-azure", image_lock(), **CONTAINER)
    assert (got.variant_id, got.interpreter) == ("image", None)
    found = verdicts(got)
    assert (found["engine-fits"], found["python-not-there"], found["image-gpu"]) == ("allow", "allow", "allow")


def test_an_old_image_does_not_run_on_new_gpus() -> None:
    got = decided("h100", image_lock(), **CONTAINER)
    assert got.refused
    [refusal] = [d for d in got.decisions if d.verdict == "refuse"]
    assert refusal.rule == "image-gpu"
    assert "22.10" in (refusal.instead or "")


def test_a_virtual_environment_cannot_stand_on_an_image() -> None:
    got = decided("a100-azure", image_lock())
    assert got.refused
    assert [d.rule for d in got.decisions] == ["engine-fits"]
    assert "engine: container" in (got.decisions[0].instead or "")


def test_nodes_that_run_inside_the_image_have_it_as_their_base() -> None:
    facts = node_facts("a100-azure")
    python = facts.pythons[0].model_copy(update={"packages": {"torch": "1.11.0a0+17540c5"}})
    inside = facts.model_copy(update={"pythons": (python,)})
    got = resolve(inside, image_lock(), target(base="image"), compat())
    assert (got.variant_id, got.interpreter) == ("image", python.path)


def test_an_image_that_nobody_knows_is_taken_without_a_word_about_its_gpus() -> None:
    got = decided("h100", image_lock("registry.example.org/own/image:1"), **CONTAINER)
    assert got.variant_id == "image"
    assert "image-gpu" not in verdicts(got)


def test_the_system_of_the_node_does_not_matter_inside_an_image() -> None:
    lock = make_lock(torch_row("2.7.0+cu128", "3.11"))
    assert decided("v100-aws", lock).refused
    got = resolve(node_facts("v100-aws", driver="570.86.15"), lock, target(**CONTAINER), compat())
    assert not OUTSIDE & {d.rule for d in got.decisions}
    assert not {"python-not-there", "no-fitting-file"} & {d.rule for d in got.decisions if d.verdict == "refuse"}


@pytest.mark.parametrize("kind", ["system", "module"])
def test_a_base_of_the_node_is_not_in_an_image(kind: str) -> None:
    base = {"kind": kind, "provides": ["numpy"]} | ({"module": "conda/1"} if kind == "module" else {})
    lock = make_lock({"id": "on-base", "python": "3.10", "base": base, "packages": [DEEPSPEED]})
    assert [d.rule for d in decided("a100-polaris", lock, **CONTAINER).decisions] == ["engine-fits"]


def test_an_engine_that_no_variant_is_made_by_is_refused_with_what_works() -> None:
    got = decided("a100-azure", make_lock({"id": "v", "python": "3.10"}), engine="conda")
    assert [(d.rule, d.verdict) for d in got.decisions] == [("engine-fits", "refuse")]
    assert got.decisions[0].instead == "`--engine venv`"


@given(
    st.sampled_from(sorted(node_rows())),
    st.sampled_from(["venv", "conda", "container"]),
    st.sampled_from([None, "none", "system", "module", "image"]),
    st.sampled_from(["none", "system", "module", "image"]),
    st.sampled_from(["nvcr.io/nvidia/pytorch:22.02-py3", "nvcr.io/nvidia/pytorch:99.01-py3", "x", "a:b@sha256:00"]),
    st.sampled_from([None, "1.8.2", "1.11.0a0+17540c5", "2.13.0", "9.9.9", "nonsense"]),
    st.sampled_from([None, "cpu", "cu113", "cu130", "cu99"]),
)
def test_every_base_engine_and_torch_ends_in_a_decision(
    node: str, engine: str, asked: str | None, base: str, image: str, torch: str | None, flavour: str | None
) -> None:
    stands: dict[str, Any] = {"kind": base}
    stands |= {"image": image} if base == "image" else {"module": "m/1"} if base == "module" else {}
    packages = [torch_package(torch, "3.10", index="nobody-knows")] if torch and torch[0].isdigit() else []
    row = {"id": "v", "python": "3.10", "torch": torch, "flavour": flavour, "base": stands, "packages": packages}
    got = decided(node, make_lock(row), engine=engine, base=asked)
    assert got.decisions or got.variant_id == "v"
    assert got.refused == any(d.verdict == "refuse" for d in got.decisions)
