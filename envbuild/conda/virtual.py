"""Virtual packages: parts of a machine that conda does not install. They come from the target's facts.

A value is a version, or `version=build`: `{"__glibc": "2.28", "__archspec": "1=x86_64"}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from envbuild.model.facts import CpuFacts, NodeFacts
from envbuild.model.stack import CondaSpec, LockPlatform

Virtual = dict[str, str]
# Where no facts of nodes are given: the oldest Linux that conda-forge builds for.
BASELINE: Virtual = {"__unix": "0", "__linux": "3.10", "__glibc": "2.17", "__archspec": "1=x86_64"}
_NAME = re.compile(r"__[a-z0-9_]+")
_KERNEL = re.compile(r"[0-9]+(\.[0-9]+){0,2}")


def of_facts(facts: NodeFacts) -> Virtual:
    """A node's virtual packages. Without a GPU driver no `__cuda`; `__archspec` is the family if the CPU is unknown."""
    kernel = _KERNEL.match(facts.os.kernel)
    packages = {
        "__unix": "0",
        "__linux": kernel.group() if kernel else "0",
        "__glibc": facts.libc.version if facts.libc.kind == "glibc" else "",
        "__archspec": f"1={microarchitecture(facts.os.arch, facts.cpu)}" if facts.os.arch else "",
        "__cuda": facts.driver.cuda_ceiling or "",
    }
    return {name: value for name, value in packages.items() if value}


def microarchitecture(family: str, cpu: CpuFacts) -> str:
    """The name of a processor in archspec and conda (`zen3`); only its `family` if the processor is unknown."""
    if not cpu.features:
        return family
    from archspec.cpu import TARGETS
    from archspec.cpu.schema import TARGETS_JSON

    vendor = TARGETS_JSON["conversions"]["arm_vendors"].get(cpu.vendor, cpu.vendor)
    features = {*cpu.features.split(), *({"sse3"} if " ssse3 " in f" {cpu.features} " else ())}
    # Nothing in /proc/cpuinfo tells the generic versions of Arm's architecture apart, and they list no features.
    targets = [
        target
        for target in TARGETS.values()
        if target.family.name == family and (target.features or target.name == family)
    ]
    fitting = [target for target in targets if target.vendor in ("generic", vendor) and target.features <= features]
    # As archspec does it for the machine it runs on: the best of the generic ones, and of the named ones above it.
    fitting.sort(key=lambda target: (len(target.ancestors), len(target.features)))
    best = next((target for target in reversed(fitting) if target.vendor == "generic"), None)
    named = [target for target in fitting if cpu.part and target.cpu_part == cpu.part] or fitting
    above = [target for target in named if best is not None and target > best]
    return above[-1].name if above else best.name if best else family


def platform_of(virtual: Mapping[str, str]) -> LockPlatform:
    """The platform of a lock for nodes that have these virtual packages."""
    name = virtual.get("__archspec", "1=x86_64").partition("=")[2]
    return "linux_aarch64" if "aarch64" in _with_ancestors(name) else "linux_x86_64"


def is_known(spec: str) -> bool:
    """Whether archspec knows the microarchitecture that a spec of `__archspec` names."""
    from archspec.cpu import TARGETS

    return re.split(r"[\s=]+", spec.strip())[-1] in TARGETS


def _with_ancestors(name: str) -> tuple[str, ...]:
    """A microarchitecture and those whose code it runs."""
    if name in ("x86_64", "aarch64"):  # loading archspec takes longer than all else here
        return (name,)
    from archspec.cpu import TARGETS

    return (name, *(ancestor.name for ancestor in TARGETS[name].ancestors)) if name in TARGETS else (name,)


def solutions(spec: CondaSpec, flavour: str | None, given: Sequence[Virtual] = ()) -> tuple[Virtual, ...]:
    """The sets that a profile is solved for with one torch flavour, the preferred first.

    `given` are those of nodes and taken whole; what the profile says stands on the baseline and the flavour's CUDA.
    """
    whole = [dict(packages) for packages in given] or [
        BASELINE | _cuda(flavour) | dict(packages) for packages in spec.virtual or ({},)
    ]
    kept = [{k: v for k, v in packages.items() if not (k == "__cuda" and flavour == "cpu")} for packages in whole]
    return tuple(packages for place, packages in enumerate(kept) if packages not in kept[:place])


def _cuda(flavour: str | None) -> Virtual:
    """`cu113` -> 11.3"""
    digits = (flavour or "").removeprefix("cu")
    return {"__cuda": f"{digits[:-1]}.{digits[-1]}"} if digits.isdigit() else {}


def met(spec: str, virtual: Mapping[str, str]) -> bool:
    """Whether a match spec of a virtual package (`__glibc >=2.28`) holds for these.

    Code for an older microarchitecture runs on a newer one, which conda's own comparison by name does not say.
    """
    name = name_of(spec)
    value = virtual.get(name)
    if value is None:
        return False
    version, _, build = value.partition("=")
    builds = _with_ancestors(build) if name == "__archspec" else (build,)
    return any(_matches(spec, name, version, build) for build in builds)


def name_of(spec: str) -> str:
    """`__glibc` of `__glibc >=2.28`."""
    match = _NAME.match(spec)
    return match.group() if match else spec


@lru_cache(maxsize=4096)
def _matches(spec: str, name: str, version: str, build: str) -> bool:
    from rattler import BuildString, MatchSpec, PackageRecord

    matches: bool = MatchSpec(spec).matches(PackageRecord(name, version, BuildString(build or "0"), 0, "noarch"))
    return matches
