"""What a conda variant asks of a node: its packages recorded, and what they expect of the system underneath."""

from __future__ import annotations

import re

from envbuild.conda.virtual import is_known, met, name_of, of_facts
from envbuild.model.conda import LockedConda
from envbuild.model.facts import CompilerFacts, NodeFacts
from envbuild.model.lock import Lock, Variant
from envbuild.resolve.artifacts import Numbers, numbers
from envbuild.resolve.compat import Note
from envbuild.resolve.request import NOTHING, Decisions, decision

CHANNEL = Note("what the packages' channel says, as the lock has it", "compared with the facts of the node")
_BOUND = re.compile(r">=?\s*([0-9][0-9.]*)")
# What activates a compiler, so that builds take it.
_COMPILER = re.compile(r"g(cc|xx)_linux-[a-z0-9]+")
_PROCESSOR = "__archspec"


def with_own_compilers(variant: Variant, facts: NodeFacts) -> NodeFacts:
    """The node as builds of a variant see it: compilers among its conda packages come before those of the node."""
    packages = variant.archives
    compilers = [(match[1], package) for package in packages if (match := _COMPILER.fullmatch(package.name))]
    own = [
        CompilerFacts(path=f"{p.name}/{'gcc' if kind == 'cc' else 'g++'}", version=p.version) for kind, p in compilers
    ]
    return facts.model_copy(update={"compilers": (*own, *facts.compilers)}) if own else facts


def unrecorded_rule(variant: Variant, lock: Lock) -> Decisions:
    """`conda-unrecorded`: the lock holds no conda packages yet, so nothing can be installed."""
    if variant.conda is None or variant.conda.unrecorded is None:
        return NOTHING
    what = f"the lock has no conda packages of this variant yet: {variant.conda.unrecorded}"
    compared = ("conda packages with sha256", "unrecorded")
    instead = f"`envbuild lock create {lock.stack} --profile {lock.profile}`, where the channels can be reached"
    return (decision("conda-unrecorded", "refuse", what, compared, CHANNEL, instead),)


def virtual_rule(variant: Variant, facts: NodeFacts, *, inside: bool) -> Decisions:
    """`conda-virtual`: one decision for each virtual package that a package asks for; `inside`: of an image.

    The C library inside is the image's, and whether there is a driver is a matter of the nodes that run it.
    """
    if variant.conda is None:
        return NOTHING
    provided = of_facts(facts)
    asked = _asked(variant.conda)
    names = [name for name in asked if not (inside and name not in provided)]
    return tuple(item for name in names for item in _one(name, asked[name], provided, read=bool(facts.cpu.features)))


def _asked(conda: LockedConda) -> dict[str, list[tuple[str, str]]]:
    """By virtual package: each spec with the package that has it, the strictest first."""
    by_name: dict[str, list[tuple[str, str]]] = {}
    for package in conda.packages:
        for spec in package.requires:
            by_name.setdefault(name_of(spec), []).append((spec, f"{package.name} {package.version}"))
    return {name: sorted(specs, key=_least, reverse=True) for name, specs in sorted(by_name.items())}


def _least(spec: tuple[str, str]) -> tuple[Numbers, int]:
    """The version that a spec asks for at least; of equal ones the longer spec says more."""
    bound = _BOUND.search(spec[0])
    return (numbers(bound.group(1)) if bound else (), len(spec[0]))


def _one(name: str, specs: list[tuple[str, str]], provided: dict[str, str], *, read: bool) -> Decisions:
    """`read`: whether the facts say what the processor has; where they do not, a newer one is only warned of."""
    has = f"{name} {provided[name]}" if name in provided else f"no {name}"
    lacking = [spec for spec in specs if not met(spec[0], provided)]
    spec, package = (lacking or specs)[0]
    compared = (has, spec)
    if not lacking:
        return (decision("conda-virtual", "allow", f"the node has what {package} needs", compared, CHANNEL),)
    if name == _PROCESSOR and name in provided and not (read and is_known(spec)):
        why = "archspec does not know it" if read else "the facts do not say how new the processor is"
        return (decision("conda-virtual", "warn", f"{package} needs {spec}, and {why}", compared, CHANNEL),)
    what = f"{package} needs {spec}, and the node has {has}"
    instead = "a lock that is solved for such nodes: `envbuild lock create --facts`, or `virtual:` in the profile"
    return (decision("conda-virtual", "refuse", what, compared, CHANNEL, instead),)
