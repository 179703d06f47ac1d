"""Do the package tools and packages fit together? Each row of packages.yaml is one rule."""

from __future__ import annotations

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.model.facts import NodeFacts
from envbuild.model.resolution import Decision
from envbuild.resolve.compat import Compat, PackageRule
from envbuild.resolve.decide import NOTHING, Decisions, decision
from envbuild.resolve.request import Request


def meets(version: str, requirement: Requirement) -> bool:
    """Whether a version is in the requirement's range; what is no PEP 440 version is in none."""
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _version(name: str, request: Request) -> str | None:
    if name == "python":
        return request.python
    if name == "torch" and request.torch is not None:
        return request.torch
    return request.packages.get(canonicalize_name(name))


def _holds(requirement: Requirement, request: Request) -> bool:
    version = _version(requirement.name, request)
    return version is not None and meets(version, requirement)


def _applies(rule: PackageRule, request: Request) -> bool:
    if rule.trait is not None and rule.trait in request.traits:
        return True
    return bool(rule.has) and all(_holds(requirement, request) for requirement in rule.has)


def package_rule(rule: PackageRule, request: Request) -> Decision | None:
    """One row applied; None when it says nothing about the request."""
    if not _applies(rule, request):
        return None
    version = _version(rule.breaks.name, request)
    if version is None:
        return None
    compared = (f"{rule.breaks.name} {version}", f"not {rule.breaks.name}{rule.breaks.specifier}")
    if not meets(version, rule.breaks):
        return decision(rule.id, "allow", f"{rule.breaks.name} {version} is fine here", compared, rule.note)
    return decision(rule.id, rule.verdict, rule.says, compared, rule.note, rule.fix)  # type: ignore[arg-type]


def package_rules(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """All rows of packages.yaml; their ids are the rule ids."""
    found = (package_rule(rule, request) for rule in compat.package_rules)
    return tuple(item for item in found if item is not None)


def build_isolation(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`build-isolation`: a setup.py that imports torch is built in the environment, not in an isolated one."""
    if "imports-torch" not in request.traits:
        return NOTHING
    compared = (f"build isolation {'on' if request.isolated_build else 'off'}", "the recipe imports torch")
    note = compat.cuda.check_note
    if not request.isolated_build:
        return (decision("build-isolation", "allow", "it is built beside torch", compared, note),)
    what = "an isolated build has no torch, and the recipe imports it"
    return (decision("build-isolation", "patch", what, compared, note, "--no-build-isolation"),)


def traits_of(packages: dict[str, str], sources: tuple[str, ...], compat: Compat) -> frozenset[str]:
    """The traits that well known packages and sources bring, by name and version."""
    found = {trait for name in sources for trait in compat.source_traits.get(name, ())}
    for requirement, traits in compat.package_traits:
        version = packages.get(canonicalize_name(requirement.name))
        if version is not None and meets(version, requirement):
            found.update(traits)
    return frozenset(found)
