"""What a conda variant asks of a node: its packages recorded, and what they expect of the system underneath."""

from __future__ import annotations

import re

from envbuild.conda.virtual import is_known, met, name_of, of_facts
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock
from envbuild.model.stack import LockedConda
from envbuild.resolve.artifacts import Numbers, numbers
from envbuild.resolve.compat import Note
from envbuild.resolve.request import NOTHING, Decisions, Ruling

CHANNEL = Note("what the packages' channel says, as the lock has it", "compared with the facts of the node")
_BOUND = re.compile(r">=?\s*([0-9][0-9.]*)")
_PROCESSOR = "__archspec"


def conda_rules(conda: LockedConda, lock: Lock, facts: NodeFacts, *, inside: bool) -> Decisions:
    """`conda-unrecorded`: nothing can be installed yet; `conda-virtual`: each virtual package that a package asks for.

    `inside` an image the C library is the image's, and whether there is a driver is a matter of the nodes that run it.
    """
    missing = NOTHING
    if conda.unrecorded is not None:
        what = f"the lock has no conda packages of this variant yet: {conda.unrecorded}"
        compared = ("conda packages with sha256", "unrecorded")
        instead = f"`envbuild lock create {lock.stack} --profile {lock.profile}`, where the channels can be reached"
        missing = Ruling("conda-unrecorded", compared, CHANNEL)("refuse", what, instead)
    provided, read = of_facts(facts), bool(facts.cpu.features)
    asked = {name: specs for name, specs in _asked(conda).items() if name in provided or not inside}
    return missing + tuple(item for name, specs in asked.items() for item in _one(name, specs, provided, read=read))


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
    says = Ruling("conda-virtual", (has, spec), CHANNEL)
    if not lacking:
        return says("allow", f"the node has what {package} needs")
    if name == _PROCESSOR and name in provided and not (read and is_known(spec)):
        why = "archspec does not know it" if read else "the facts do not say how new the processor is"
        return says("warn", f"{package} needs {spec}, and {why}")
    instead = "a lock that is solved for such nodes: `envbuild lock create --facts`, or `virtual:` in the profile"
    return says("refuse", f"{package} needs {spec}, and the node has {has}", instead)
