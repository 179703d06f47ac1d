"""What is wrong with a profile on any node: torch builds that do not exist, names that mean another package. Pure."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.facts import DiskFacts, LibcFacts, NodeFacts, OsFacts
from envbuild.model.finding import package_name, requirement
from envbuild.model.lock import Lock, Variant
from envbuild.model.plan import Decision
from envbuild.model.stack import Profile, Training
from envbuild.model.target import Target
from envbuild.resolve.compat import Compat
from envbuild.resolve.request import Check, Decisions, Request
from envbuild.resolve.rules import compilers, node, wheel
from envbuild.resolve.rules import packages as rules_packages
from envbuild.resolve.variant_checks import request_for

# These rules compare with the catalog alone.
_NOBODY = NodeFacts(
    protocol=1, node="", hostname="", user="", probed_at="", os=OsFacts(), libc=LibcFacts(), prefix=DiskFacts(path="/")
)
_ANYWHERE = Target.from_plain({"name": "anywhere", "prefix": "/anywhere"})
WITHOUT_NODE: tuple[Check, ...] = (
    wheel.torch_release_known, wheel.torch_lts_index, wheel.torch_python, wheel.torch_flavour_exists,
    wheel.torch_default_flavour, wheel.torch_locator, wheel.torch_aarch64, compilers.cxx11_abi,
    node.zero_needs_no_pipeline,
    rules_packages.package_homonym, rules_packages.two_owners, rules_packages.build_isolation,
    rules_packages.apex_flags, rules_packages.package_rules, rules_packages.system_packages,
)  # fmt: skip
_TORCH = (wheel.torch_release_known, wheel.torch_flavour_exists)


def refusals(profile: Profile, compat: Compat) -> Decisions:
    """The refusals of the rules that no node can change."""
    names = {package_name(text) for text in (*profile.packages, *profile.constraints)}
    rulings = [*rules_packages.package_homonym(_NOBODY, Request(from_pypi=frozenset(names)), compat)]
    if profile.torch is not None:
        for flavour in profile.torch.flavours:
            request = Request(torch=profile.torch.version, flavour=flavour)
            rulings += [item for check in _TORCH for item in check(_NOBODY, request, compat)]
        by_conda = profile.conda is not None and any(
            str(canonicalize_name(name)) == "torch" for name in profile.conda.provides
        )
        if any(base.kind == "none" for base in profile.bases) and not by_conda:
            asked = (Request(torch=profile.torch.version, python=python) for python in profile.python)
            rulings += [item for request in asked for item in wheel.torch_python(_NOBODY, request, compat)]
    return tuple(item for item in rulings if item.verdict == "refuse")


def refuse(profile: Profile, compat: Compat) -> None:
    """Raise the first of `refusals` (exit 7), with the rule as code and the alternative as hint."""
    _raise_first(refusals(profile, compat))


def unlocked(profile: Profile, compat: Compat) -> tuple[str, ...]:
    """What of a profile cannot work on any node, by the versions that it names; as `findings` for a lock."""
    pins = dict(pin for text in (*profile.packages, *profile.constraints) if (pin := _pin(text)))
    torch = profile.torch.version if profile.torch else None
    built = any(source.build for source in profile.pinned_sources)
    both = {**pins, **({"torch": torch} if torch else {})}
    traits, uses = rules_packages.traits_of(both, (), compat, built=built)
    variables = {name: value for name, value in profile.environment.items() if isinstance(value, str)}
    training = profile.training or Training()
    decisions = [*refusals(profile, compat)]
    for python in profile.python:
        # `installed`: pins are not all that will be there.
        request = Request(torch=torch, python=python, installed=True, packages=pins, traits=traits, uses=uses,
                          variables=variables, zero_stage=training.zero_stage, pipeline=training.pipeline)  # fmt: skip
        decisions += rules_packages.package_rules(_NOBODY, request, compat)
        decisions += node.zero_needs_no_pipeline(_NOBODY, request, compat)
    return tuple(dict.fromkeys(_sentence(item) for item in decisions if item.verdict == "refuse"))


def _pin(text: str) -> tuple[str, str] | None:
    """Name and version of a requirement that leaves no choice."""
    wanted = requirement(text)
    versions = [item.version for item in wanted.specifier if item.operator == "==" and not item.version.endswith(".*")]
    return (package_name(text), versions[0]) if versions and wanted.marker is None else None


def refuse_locked(lock: Lock, compat: Compat) -> None:
    """Raise `package-homonym` (exit 7) if the lock has a known homonym, whichever package requires it."""
    rulings = (item for variant in lock.variants for item in decisions(variant, compat))
    _raise_first(tuple(item for item in rulings if (item.rule, item.verdict) == ("package-homonym", "refuse")))


def decisions(variant: Variant, compat: Compat) -> Decisions:
    """What the rules that no node can change say of a locked variant."""
    request = request_for(variant, None, compat, _ANYWHERE)
    return tuple(item for check in WITHOUT_NODE for item in check(_NOBODY, request, compat))


def findings(lock: Lock, compat: Compat) -> dict[str, Decision]:
    """What of a lock cannot work on any node, or will fail there, as sentences with an alternative.

    Refusals come first.
    """
    rows = (item for variant in lock.variants for item in decisions(variant, compat))
    bad = sorted((item for item in rows if item.verdict in ("refuse", "warn")), key=lambda item: item.verdict)
    return {_sentence(item): item for item in bad}


def _sentence(item: Decision) -> str:
    here = f" ({item.compared[0]})" if item.compared else ""
    says = "no node can take this: " if item.verdict == "refuse" else ""
    return f"{item.rule}: {says}{item.what}{here}" + (f"; instead: {item.alternatives}" if item.alternatives else "")


def mending(variant: Variant, compat: Compat) -> tuple[str, ...]:
    """Constraints with which no package rule refuses the locked versions of a variant."""
    rows = {rule.id: rule for rule in compat.package_rules}
    names = {str(canonicalize_name(package.name)) for package in variant.packages}
    versions: list[str] = []
    for item in decisions(variant, compat):
        row = rows.get(item.rule) if item.verdict == "refuse" else None
        if row is not None and canonicalize_name(row.breaks.name) in names:
            versions += row.alternatives[-1:]
    return tuple(dict.fromkeys(versions))


def _raise_first(rulings: Decisions) -> None:
    for item in rulings:
        here, limit = item.compared or ("", "")
        raise EnvbuildError(
            item.rule,
            item.what,
            why=f"{here}; {limit} ({item.source})",
            hint=item.alternatives,
            exit_code=ExitCode.REFUSED,
        )
