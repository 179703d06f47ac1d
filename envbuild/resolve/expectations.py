"""What a node has against what its target says it has; differences are warnings."""

from __future__ import annotations

import re
from functools import cache

from envbuild.model.facts import NodeFacts
from envbuild.model.target import Target
from envbuild.resolve.request import physical_gpus
from envbuild.resolve.versions import numbers


def unexpected(facts: NodeFacts, target: Target) -> tuple[str, ...]:
    """In what the node differs from the hardware that the target says it has."""
    expects, out = target.expects, []
    if expects.gpu is not None:
        others = sorted({gpu.name for gpu in facts.gpus if not _is_model(expects.gpu, gpu.name)})
        if others or not facts.gpus:
            out.append(f"the target expects {expects.gpu} and the node has {', '.join(others) or 'no GPU'}")
    there = physical_gpus(facts)
    if expects.gpus_per_node is not None and there != expects.gpus_per_node:
        out.append(f"the target expects {expects.gpus_per_node} GPUs and the node has {there}")
    if expects.driver is not None and not _driver_fits(expects.driver, facts.driver.version):
        out.append(f"the target expects driver {expects.driver} and the node has {facts.driver.version or 'none'}")
    return tuple(out)


@cache
def _is_model(expected: str, name: str) -> bool:
    """`H200-SXM-141GB` is `NVIDIA H200`: words that the printed name does not have at all cannot contradict it."""
    wanted, printed = (re.split(r"[\s-]+", text.lower()) for text in (expected, name))
    memory = [word for word in printed if re.fullmatch(r"[0-9]+gb", word)]
    model = [word for word in wanted if not re.fullmatch(r"[0-9]+gb|sxm[0-9]?|pcie|rtx|geforce|nvidia", word)]
    if not all(word in printed for word in model):
        return False
    return not memory or not any(re.fullmatch(r"[0-9]+gb", w) for w in wanted) or any(w in wanted for w in memory)


def _driver_fits(expected: str, version: str | None) -> bool:
    there = numbers(version)
    for part in expected.split(","):
        found = re.fullmatch(r"\s*(>=|<=|==|>|<|)\s*([0-9.]+)\s*", part)
        if found is None or not there:
            return False
        wanted = numbers(found.group(2))
        fits = {
            ">=": there >= wanted,
            "<=": there[: len(wanted)] <= wanted,
            ">": there[: len(wanted)] > wanted,
            "<": there < wanted,
        }.get(found.group(1), there[: len(wanted)] == wanted)
        if not fits:
            return False
    return True
