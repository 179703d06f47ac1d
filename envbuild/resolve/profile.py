"""What is wrong with a profile on any node: torch builds that do not exist, names that mean another package. Pure."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.facts import DiskFacts, LibcFacts, NodeFacts, OsFacts
from envbuild.model.finding import package_name
from envbuild.model.lock import Lock
from envbuild.model.stack import Profile
from envbuild.resolve.compat import Compat
from envbuild.resolve.request import Decisions, Request
from envbuild.resolve.rules import packages as rules_packages
from envbuild.resolve.rules import wheel

# These rules compare with the catalog alone.
_NOBODY = NodeFacts(
    protocol=1, node="", hostname="", user="", probed_at="", os=OsFacts(), libc=LibcFacts(), prefix=DiskFacts(path="/")
)
_TORCH = (wheel.torch_release_known, wheel.torch_flavour_exists)


def refusals(profile: Profile, compat: Compat) -> Decisions:
    """The refusals of the rules that no node can change."""
    names = {package_name(text) for text in (*profile.packages, *profile.constraints)}
    found = [*rules_packages.package_homonym(_NOBODY, Request(from_pypi=frozenset(names)), compat)]
    if profile.torch is not None:
        for flavour in profile.torch.flavours:
            request = Request(torch=profile.torch.version, flavour=flavour)
            found += [item for check in _TORCH for item in check(_NOBODY, request, compat)]
    return tuple(item for item in found if item.verdict == "refuse")


def refuse(profile: Profile, compat: Compat) -> None:
    """Raise the first of `refusals` (exit 7), its rule as the code and what would work as the hint."""
    _raise_first(refusals(profile, compat))


def refuse_locked(lock: Lock, compat: Compat) -> None:
    """Raise `package-homonym` (exit 7) where a known homonym has come in, by whatever package."""
    names = {str(canonicalize_name(p.name)) for v in lock.variants for p in v.packages if p.index == "pypi"}
    asked = Request(from_pypi=frozenset(names))
    found = rules_packages.package_homonym(_NOBODY, asked, compat)
    _raise_first(tuple(item for item in found if item.verdict == "refuse"))


def scan_findings(lock: Lock, compat: Compat) -> tuple[str, ...]:
    """What the trees of a lock's sources do that its packages do not take, each in a sentence."""
    out: dict[str, None] = {}
    for variant in lock.variants:
        stops, uses = rules_packages.scanned(variant.sources, compat)
        packages = {str(canonicalize_name(p.name)): p.version for p in variant.packages}
        torch = packages.get("torch", "").partition("+")[0] or None
        request = Request(torch=torch, python=variant.python, packages=packages, traits=stops, uses=uses)
        for rule in compat.package_rules:
            found = rules_packages.package_rule(rule, request) if rule.trait else None
            if found is not None and found.verdict != "allow":
                out[f"{found.rule}: {found.what} ({found.compared[0] if found.compared else ''})"] = None
    return tuple(out)


def _raise_first(found: Decisions) -> None:
    for item in found:
        here, there = item.compared or ("", "")
        raise EnvbuildError(
            item.rule,
            item.what,
            why=f"{here}; {there} ({item.source})",
            hint=item.alternatives,
            exit_code=ExitCode.REFUSED,
        )
