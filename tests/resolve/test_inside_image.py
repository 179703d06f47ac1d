"""Variants on images, and targets whose engine is not `venv`: decisions, never a crash."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.model.lock import Lock
from envbuild.model.plan import Resolution
from envbuild.resolve.request import OUTSIDE
from tests.resolve.builders import (
    compat,
    make_lock,
    node_facts,
    package,
    resolve,
    target,
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


def test_a_container_takes_an_image_that_runs_on_the_gpus_and_asks_for_no_python() -> None:
    got = decided("a100-azure", image_lock(), **CONTAINER)
    assert (got.variant_id, got.interpreter) == ("image", None)
    found = verdicts(got)
    assert (found["engine-fits"], found["python-not-there"], found["image-gpu"]) == ("allow", "allow", "allow")
    old = decided("h100", image_lock(), **CONTAINER)
    [refusal] = [d for d in old.decisions if d.verdict == "refuse"]
    assert old.refused and refusal.rule == "image-gpu" and "22.10" in (refusal.instead or "")
    unknown = decided("h100", image_lock("registry.example.org/own/image:1"), **CONTAINER)
    assert unknown.variant_id == "image" and "image-gpu" not in verdicts(unknown)
    newer = resolve(node_facts("h100", gpus="1 x NVIDIA Z9 @ 99.9"), image_lock(), target(**CONTAINER), compat())
    assert newer.variant_id == "image" and "image-gpu" not in verdicts(newer), "no CUDA is known to be the first"


def test_a_virtual_environment_stands_on_an_image_only_where_nodes_run_inside_it() -> None:
    other = make_lock({"id": "v", "python": "3.10"})
    for got, instead in ((decided("a100-azure", image_lock()), "engine: container"),
                         (decided("a100-azure", other, engine="conda"), "`--engine venv`")):  # fmt: skip
        assert got.refused and [d.rule for d in got.decisions] == ["engine-fits"]
        assert instead in (got.decisions[0].instead or "")
    facts = node_facts("a100-azure")
    python = facts.pythons[0].model_copy(update={"packages": {"torch": "1.11.0a0+17540c5"}})
    inside = facts.model_copy(update={"pythons": (python,)})
    got = resolve(inside, image_lock(), target(base="image"), compat())
    assert (got.variant_id, got.interpreter) == ("image", python.path)


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
