"""The conda part of a variant: the request to conda, its answer, and what pip resolves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name

from envbuild.conda.channels import places
from envbuild.conda.virtual import Virtual
from envbuild.errors import EnvbuildError
from envbuild.lock.variants import Plan, provides, specs
from envbuild.model.lock import LockedPackage, Variant
from envbuild.model.stack import SUBDIRS, CondaPackage, LockedConda, Profile

NOT_ASKED = "the channels were not asked"


class CondaAsked(NamedTuple):
    """How conda is asked: virtual packages of nodes instead of the profile's; `offline`: channels are left alone."""

    virtual: tuple[Virtual, ...] = ()
    offline: bool = False


AS_THE_PROFILE_SAYS = CondaAsked()


def lock_conda(
    profile: Profile, plan: Plan, as_of: str | None, old: Variant | None, asked: CondaAsked, say: Callable[[str], None]
) -> LockedConda | None:
    """What conda installs for a variant; None for the engine venv. `old`: its versions are kept.

    Raises EnvbuildError: what `conda.channels.places` and `conda.solve.solve` raise.
    """
    spec = profile.conda
    if spec is None or plan.virtual is None:
        return None
    from envbuild.conda.solve import Wish, solve, with_sizes  # with it comes rattler

    fields: dict[str, Any] = {"link_scripts": spec.link_scripts, "solved_for": dict(plan.virtual)}
    fields["provides"] = dict(sorted(provides(spec).items()))
    channels = places(spec)
    if asked.offline:
        return LockedConda(unrecorded=NOT_ASKED, **fields)
    kept = old.conda.packages if old and old.conda else ()
    wanted = specs(profile, spec, plan.python, plan.platform)
    wish = Wish(wanted, channels, plan.virtual, SUBDIRS[plan.platform], as_of, kept)
    before = {package.sha256: package for package in kept}
    packages = [_measured(record, before) for record in solve(wish, say)]
    return LockedConda(packages=with_sizes(packages, {place.name: place.urls for place in channels}, say), **fields)


def solver_version(profile: Profile) -> dict[str, str]:
    """The solver of a profile with a conda section, by name."""
    return {"py-rattler": version("py-rattler")} if profile.conda is not None else {}


def left_to_conda(plan: Plan, profile: Profile) -> frozenset[str]:
    """The distributions that pip's resolver leaves out of a variant."""
    return frozenset(provides(profile.conda)) if plan.virtual is not None else frozenset()


def _measured(package: CondaPackage, before: Mapping[str, CondaPackage]) -> CondaPackage:
    old = before.get(package.sha256)
    return package.model_copy(update={"unpacked": old.unpacked}) if old else package


def refuse_both(conda: LockedConda | None, packages: Iterable[LockedPackage]) -> None:
    """Raises EnvbuildError `conda-and-wheel` (exit 7) if conda and pip would install one distribution."""
    theirs = {str(canonicalize_name(package.name)): package for package in (conda.packages if conda else ())}
    both = [(theirs[package.name], package) for package in packages if package.name in theirs]
    for archive, package in both:
        raise EnvbuildError(
            "conda-and-wheel",
            f"{package.name} would be installed twice: {archive.file} by conda, {package.files[0].file} as a wheel",
            why=f"conda has version {archive.version}, the wheel {package.version}, and one would overwrite the other",
            hint=f"`provides: {{{package.name}: {archive.name}}}` in the `conda:` section leaves it to conda, as a "
            f"dependency `{archive.name}` of environment.yml does",
        )
