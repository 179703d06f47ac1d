"""Virtual packages: what a machine has that conda does not install. They come from the target's facts, never from here.

A value is a version, or `version=build`: `{"__glibc": "2.28", "__archspec": "1=x86_64"}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from envbuild.model.conda import CondaSpec
from envbuild.model.facts import NodeFacts

Virtual = dict[str, str]
# Where no facts of nodes are given: the oldest Linux that conda-forge builds for.
BASELINE: Virtual = {"__unix": "0", "__linux": "3.10", "__glibc": "2.17", "__archspec": "1=x86_64"}
_NAME = re.compile(r"__[a-z0-9_]+")
_KERNEL = re.compile(r"[0-9]+(\.[0-9]+){0,2}")


def of_facts(facts: NodeFacts) -> Virtual:
    """What a node has. No GPU driver: no `__cuda`; `__archspec` is the family alone, a probe reads no finer one."""
    kernel = _KERNEL.match(facts.os.kernel)
    found = {
        "__unix": "0",
        "__linux": kernel.group() if kernel else "0",
        "__glibc": facts.libc.version if facts.libc.kind == "glibc" else "",
        "__archspec": f"1={facts.os.arch}" if facts.os.arch else "",
        "__cuda": facts.driver.cuda_ceiling or "",
    }
    return {name: value for name, value in found.items() if value}


def solutions(spec: CondaSpec, flavour: str | None, given: Sequence[Virtual] = ()) -> tuple[Virtual, ...]:
    """The sets that a profile is solved for with one torch flavour, the preferred first.

    `given` are those of nodes and taken whole; what the profile says stands on the baseline and the flavour's CUDA.
    """
    whole = [dict(each) for each in given] or [BASELINE | _cuda(flavour) | dict(each) for each in spec.virtual or ({},)]
    kept = [{k: v for k, v in each.items() if not (k == "__cuda" and flavour == "cpu")} for each in whole]
    return tuple(each for place, each in enumerate(kept) if each not in kept[:place])


def _cuda(flavour: str | None) -> Virtual:
    """`cu113` -> 11.3"""
    digits = (flavour or "").removeprefix("cu")
    return {"__cuda": f"{digits[:-1]}.{digits[-1]}"} if digits.isdigit() else {}


def met(spec: str, virtual: Mapping[str, str]) -> bool:
    """Whether a match spec of a virtual package (`__glibc >=2.28`) holds for these."""
    name = name_of(spec)
    value = virtual.get(name)
    return value is not None and _matches(spec, name, value)


def name_of(spec: str) -> str:
    """`__glibc` of `__glibc >=2.28`."""
    found = _NAME.match(spec)
    return found.group() if found else spec


@lru_cache(maxsize=4096)
def _matches(spec: str, name: str, value: str) -> bool:
    from rattler import BuildString, MatchSpec, PackageRecord

    version, _, build = value.partition("=")
    found: bool = MatchSpec(spec).matches(PackageRecord(name, version, BuildString(build or "0"), 0, "noarch"))
    return found
