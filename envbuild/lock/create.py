"""Makes a lock from a stack: one variant for each Python, flavour, base and interpreter kind of a profile.

What conda installs is solved first, and pip's resolver leaves that out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from envbuild import __version__
from envbuild.catalog.indexes import DEFAULT_INDEX, IndexEntry, distributions, index_for_torch, load_distributions
from envbuild.catalog.loader import manifest_digest
from envbuild.catalog.toolchain import load_toolchain
from envbuild.conda.channels import places
from envbuild.conda.virtual import Virtual
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock import packages
from envbuild.lock.files import field_digests
from envbuild.lock.packages import (
    BasePython,
    Request,
    carry_over,
    check_provides,
    lock_offers,
    newcomers,
    on_top,
    read_base,
    resolve,
    yanked_sentences,
)
from envbuild.lock.readers.build_requires import Needs, additions, read_needs, unmet, with_needs
from envbuild.lock.readers.git import GitReader, git_reader, git_version
from envbuild.lock.readers.pylock import Offer
from envbuild.lock.readers.scan import open_imports
from envbuild.lock.readers.torch_wheels import (
    Supply,
    TorchChoice,
    can_reach,
    check_against_records,
    choose_torch,
    load_records,
)
from envbuild.lock.readers.uvtool import uv_version
from envbuild.lock.sources import lock_source, with_what_trees_say
from envbuild.lock.variants import Plan, decided, locked_image, provides, specs, variant_plans
from envbuild.model.finding import package_name
from envbuild.model.lock import Lock, LockedInterpreter, LockedPackage, LockedSource, Variant
from envbuild.model.stack import SUBDIRS, LockedConda, Profile, Stack
from envbuild.node import pip_config
from envbuild.resolve.compat_read import load_compat
from envbuild.resolve.profile import mending
from envbuild.resolve.rules.packages import sdists
from envbuild.text import few

_BUILT_WITH_TORCH = ("torchaudio", "torchvision")


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


def default_supply(
    find_links: Sequence[str] = (), indexes: Mapping[str, str] | None = None, allow_build: Sequence[str] = ()
) -> Supply:
    """Where wheels come from: the given find-links, pip's own, the catalog's indexes and records.

    `indexes` replaces the address of a named index, for a mirror: name to URL.
    """

    def torch_index(version: str, flavour: str) -> IndexEntry:
        entry = index_for_torch(version, flavour)
        return entry.model_copy(update={"url": (indexes or {}).get(entry.name, entry.url)})

    links = pip_config.alive(dict.fromkeys([*find_links, *pip_config.read(os.environ).find_links]))
    compat, (records, requires) = load_compat(), load_records()
    return Supply(
        find_links=tuple(pip_config.local_path(link) or link for link in links),
        torch_index=torch_index,
        pypi_flavours={version: release.pypi_flavour for version, release in compat.torch.items()},
        records=records,
        requires=requires,
        reachable=can_reach,
        allow_build=tuple(allow_build),
    )


def create_lock(
    stack: Stack,
    profile_name: str,
    supply: Supply,
    *,
    as_of: date | None = None,
    base_python: Path | None = None,
    previous: Lock | None = None,
    upgrade: bool = False,
    standalone: Mapping[str, LockedInterpreter] | None = None,
    virtual: Sequence[Virtual] = (),
    conda_offline: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Lock:
    """Resolve every variant of a profile. Without `as_of` and `upgrade`, versions of `previous` are kept.

    `virtual`: virtual packages of nodes, for which conda solves instead of the profile's; `conda_offline`: its channels
    are left alone. `say` gets a sentence for what builds want and the
    lock has not, for each newcomer, for each tree that could not be looked at and for what conda had to choose. Raises
    EnvbuildError: what resolution, sources, bases, records and conda raise.
    """
    profile = stack.profiles[profile_name]
    base = read_base(base_python) if base_python else None
    day = as_of or profile.as_of
    old = {variant.id: variant for variant in previous.variants} if previous else {}
    say = cache(say)  # a sentence once, whichever variants it is about
    pinned = standalone_interpreters() if standalone is None else standalone
    plans = tuple(variant_plans(profile, pinned, virtual))
    until = day.isoformat() if day else None
    supply = replace(supply, reachable=cache(supply.reachable))
    maker = _Maker(
        stack.name, profile_name, profile, supply, until, (), say, base, upgrade, conda_offline=conda_offline
    )
    # Whether indexes are in reach costs seconds, and resolving without one minutes.
    for plan in plans:
        maker.torch(plan, _packages_of(old.get(plan.id)))
    with git_reader() as reader:
        sources = tuple(lock_source(source, reader) for source in profile.pinned_sources)
        sources = with_what_trees_say(sources, previous, reader, say)
        needs = read_needs(profile.pinned_sources, reader)
        imported = _imported(profile, previous, reader)
    sources = with_needs(sources, needs, profile)
    maker = replace(maker, needs=needs, sources=sources)
    solver = {"py-rattler": version("py-rattler")} if profile.conda else {}
    lock = Lock(
        stack=stack.name,
        profile=profile_name,
        manifest_digest=manifest_digest(stack, profile_name),
        manifest_fields=field_digests(profile),
        as_of=maker.as_of,
        created_with={"envbuild": __version__, "git": git_version(), "uv": uv_version(), **solver},
        data=previous.data if previous else {},
        variants=tuple(maker.variant(plan, old.get(plan.id)) for plan in plans),
    )
    for text in _unbrought(imported, lock.variants):
        say(text)
    # The same contents give the same bytes, whatever versions the tools have.
    same = previous is not None and previous.model_copy(update={"created_with": lock.created_with}) == lock
    return previous if previous and same else lock


def _imported(profile: Profile, previous: Lock | None, reader: GitReader) -> dict[str, dict[str, str]]:
    """What the sources whose commits are new in the lock import beyond their trees, as `open_imports`, by source."""
    before = {source.commit for variant in (previous.variants if previous else ()) for source in variant.sources}
    imports: dict[str, dict[str, str]] = {}
    for source in profile.pinned_sources:
        scripts = [item.step.script for item in profile.smoke if item.step and item.step.source == source.name]
        if source.commit not in before:
            with contextlib.suppress(EnvbuildError):  # what cannot be read has been told of
                entries = (*scripts, *profile.imports)
                imports[source.name] = open_imports(reader, source.git, source.commit, entries)
    return imports


def _unbrought(imported: Mapping[str, Mapping[str, str]], variants: Sequence[Variant]) -> Iterator[str]:
    """A sentence for each module that a source imports and nothing of a lock is known to provide.

    What an unknown base has is not known.
    """
    lacking: dict[tuple[str, str, str], list[str]] = {}
    known = [variant for variant in variants if variant.base.kind == "none" or variant.provided]
    vendors = load_distributions()["vendors"]
    for variant in known:
        there = {*_packages_of(variant), *variant.provided, *(variant.conda.distributions if variant.conda else ())}
        there |= {
            str(canonicalize_name(name)) for source in variant.sources for name in (source.name, *_extensions(source))
        }
        for source, modules in imported.items():
            for module, way in modules.items():
                if there.isdisjoint(distributions(module)) and module not in vendors:
                    lacking.setdefault((source, module, way), []).append(variant.id)
    for (source, module, way), names in lacking.items():
        lock = "the lock" if len(names) == len(known) else few(names)
        lacks = f"{source} imports {module} ({way}), and no package of {lock} is known to have it"
        yield f"{lacks}: add it if that code runs"


def _extensions(source: LockedSource) -> Iterator[str]:
    """The top-level modules that building a source makes."""
    build = source.build
    names = (*(build.extensions or ()), *(module.name for module in build.modules or ())) if build else ()
    return (name.partition(".")[0] for name in names)


def standalone_interpreters(toolchain: Path | None = None) -> dict[str, LockedInterpreter]:
    """The standalone CPython builds that the catalog, or the toolchain file at `toolchain`, pins, by minor version."""
    return {
        python: LockedInterpreter(kind="standalone", name=build.name, sha256=build.sha256)
        for python, build in load_toolchain(toolchain).pythons.items()
    }


def added_names(
    lock: Lock, stack: Stack, supply: Supply, say: Callable[[str], None] = lambda _: None
) -> dict[str, list[str]]:
    """Names that somebody wrote into a lock, by the id of a variant or the name of a source.

    Of a variant packages that its stack, resolved at the versions of the lock, does not need; of a source `needs` that
    its tree does not say. A variant on a base that is known is left out: only that base can answer. `say` gets a
    sentence for each locked version that is yanked. Raises what resolution and sources raise.
    """
    profile = stack.profiles[lock.profile]
    with git_reader() as reader:
        needs = read_needs(profile.pinned_sources, reader)
    locked = {variant.id: variant for variant in lock.variants}
    maker = _Maker(stack.name, lock.profile, profile, supply, lock.as_of, needs, cache(say))
    solved: list[Virtual] = [
        {str(name): value for name, value in variant.conda.solved_for.items()}
        for variant in lock.variants
        if variant.conda
    ]
    plans = {plan.id: plan for plan in variant_plans(profile, standalone_interpreters(), solved)}
    both = [(plan, locked[name]) for name, plan in plans.items() if name in locked and not locked[name].provided]
    sources = lock.sources
    read = {need.name: set(need.needs or ()) for need in with_needs(tuple(sources.values()), needs, profile)}
    named = {name: sorted(set(source.needs or ()) - read[name]) for name, source in sources.items()}
    return named | {plan.id: maker.added(plan, variant) for plan, variant in both}


def _packages_of(variant: Variant | None) -> dict[str, LockedPackage]:
    return {package.name: package for package in variant.packages} if variant else {}


def _twins(offers: Sequence[Offer], request: Request) -> dict[str, str]:
    """Offers that another one stands for, with that one: what the stack names goes first."""
    asked = {package_name(text) for text in request.requirements}
    twins = dict[str, str]()
    for group in load_compat().twins:
        offered = [name for name in group if name in {offer.name for offer in offers}]
        kept = next((name for name in offered if name in asked), next(iter(offered), ""))
        twins |= {name: kept for name in offered if name != kept and name not in asked}
    return twins


def _needed_by_sibling(request: Request, choice: TorchChoice, known: BasePython | None) -> tuple[str, ...]:
    """The packages of a choice's `left_out` that nothing but the sibling of its torch needs."""
    every = _versions(request, known)
    kept = {name: version for name, version in every.items() if not name.startswith(choice.left_out)}
    if kept == every:
        return ()
    stated = [text for text in request.requirements if text not in choice.requirements]
    pinned = [f"{name}==={version}" for name, version in kept.items() if name != "torch"]
    others = replace(request, requirements=(*stated, *pinned), excludes=(*request.excludes, "torch"))
    return tuple(sorted(every.keys() - kept.keys() - _versions(others, known).keys()))


def _versions(request: Request, known: BasePython | None) -> dict[str, str]:
    """Name to version of what a request needs, on top of a base that is known."""
    if known:
        return {name: version for name, _, version in (pin.partition("==") for pin in on_top(request, known))}
    return {offer.name: offer.version for offer in resolve(request)}


@dataclass(frozen=True)
class _Maker:
    stack: str
    profile_name: str
    profile: Profile
    supply: Supply
    as_of: str | None
    needs: tuple[Needs, ...]
    say: Callable[[str], None]
    base: BasePython | None = None
    upgrade: bool = False
    sources: tuple[LockedSource, ...] = ()
    conda_offline: bool = False

    def say_all(self, texts: Iterable[str]) -> None:
        """Each of these sentences."""
        for text in texts:
            self.say(text)

    def variant(self, plan: Plan, old: Variant | None) -> Variant:
        """One locked variant."""
        previous = _packages_of(old)
        keep = old if not self.upgrade and self.as_of is None else None
        conda = self._conda(plan, keep)
        choice = self.torch(plan, previous)
        request = self._request(plan, choice, previous, conda)
        known = self.base if self.base and plan.base.kind != "none" and self.base.python == plan.python else None
        if known:
            check_provides(plan.base, known.packages)
        if choice and choice.sibling:
            request = replace(request, excludes=request.excludes + _needed_by_sibling(request, choice, known))
        if known:
            pins = on_top(request, known)
            request = replace(request, requirements=pins, constraints=(), excludes=(), no_deps=True)
        draft = Variant(
            id=plan.id,
            digest="0" * 64,
            platform=plan.platform,
            image=locked_image(plan.base, old.image if old else None),
            provided=known.packages if known else {},
            interpreter=plan.interpreter,
            conda=conda,
            sources=self.sources,
            **decided(self.profile, plan),
        )
        draft = draft.model_copy(update={"packages": self._packages(request, choice, previous)})
        if not known:
            draft = self._mended(draft, request, choice, previous)
        refuse_both(conda, draft.packages)
        check_against_records(draft.packages, self.supply.records)
        versions = {item.name: item.version for item in draft.packages} | dict(known.packages if known else {})
        versions |= {item.name: item.version for item in (conda.packages if conda else ())}
        provided = {package_name(text) for text in plan.base.provides} | self._left_to_conda(plan)
        self.say_all(unmet(self.needs, versions, provided, plan.python, plan.platform))
        return draft.with_fields(self.stack, self.profile_name)

    def _conda(self, plan: Plan, old: Variant | None) -> LockedConda | None:
        """What conda installs for a variant; None for the engine venv. `old`: its versions are kept.

        Raises EnvbuildError: what `conda.channels.places` and `conda.solve.solve` raise.
        """
        spec = self.profile.conda
        if spec is None or plan.virtual is None:
            return None
        from envbuild.conda.solve import Wish, solve, with_sizes  # with it comes rattler

        fields: dict[str, Any] = {"link_scripts": spec.link_scripts, "solved_for": dict(plan.virtual)}
        fields["provides"] = dict(sorted(provides(spec).items()))
        channels = places(spec)
        if self.conda_offline:
            return LockedConda(unrecorded="the channels were not asked", **fields)
        kept = old.conda.packages if old and old.conda else ()
        wanted = specs(self.profile, spec, plan.python, plan.platform)
        wish = Wish(wanted, channels, plan.virtual, SUBDIRS[plan.platform], self.as_of, kept)
        sizes = {package.sha256: package.unpacked for package in kept}
        packages = [one.model_copy(update={"unpacked": sizes.get(one.sha256)}) for one in solve(wish, self.say)]
        urls = {place.name: place.urls for place in channels}
        return LockedConda(packages=with_sizes(packages, urls, self.say), **fields)

    def _left_to_conda(self, plan: Plan) -> frozenset[str]:
        """The distributions that pip's resolver leaves out of a variant."""
        return frozenset(provides(self.profile.conda)) if plan.virtual is not None else frozenset()

    def _mended(
        self, draft: Variant, request: Request, choice: TorchChoice | None, previous: Mapping[str, LockedPackage]
    ) -> Variant:
        """The variant with versions that no rule refuses, where the stack leaves them open."""
        bounds = mending(draft, load_compat())
        if not bounds:
            return draft
        try:
            bounded = replace(request, constraints=(*request.constraints, *bounds))
            return draft.model_copy(update={"packages": self._packages(bounded, choice, previous)})
        except EnvbuildError as error:
            if error.exit_code != ExitCode.REFUSED:
                raise
            self.say(f"{', '.join(bounds)} would be needed, and does not go with the rest: {error.why or error.what}")
            return draft

    def added(self, plan: Plan, old: Variant) -> list[str]:
        """The packages of a locked variant without which the profile is resolved at the same versions."""
        previous = {package.name: package for package in old.packages}
        choice = self.torch(plan, previous)
        request = self._request(plan, choice, previous, old.conda if old else None)
        offers = resolve(replace(request, pins={name: package.version for name, package in previous.items()}))
        locked = [offer for offer in offers if offer.name in previous and offer.version == previous[offer.name].version]
        self.say_all(yanked_sentences(locked))
        return sorted(previous.keys() - {offer.name for offer in offers} - {"torch"})

    def torch(self, plan: Plan, previous: Mapping[str, LockedPackage]) -> TorchChoice | None:
        """Where the torch of a variant comes from; raises as `choose_torch`."""
        if self.profile.torch is None or plan.flavour is None or "torch" in self._left_to_conda(plan):
            return None
        version = self.profile.torch.version
        return choose_torch(version, plan.flavour, plan.python, plan.platform, self.supply, previous.get("torch"))

    def _request(
        self, plan: Plan, choice: TorchChoice | None, previous: Mapping[str, LockedPackage], conda: LockedConda | None
    ) -> Request:
        theirs = self._left_to_conda(plan)
        versions = packages.versions(conda.distributions if conda else {}, "conda")
        left = theirs | ({"torch"} if choice else set())
        wanted = tuple(text for text in self.profile.packages if package_name(text) not in left)
        excludes = tuple(package_name(text) for text in plan.base.provides) + tuple(sorted(theirs - versions.keys()))
        # A base that is known is asked through its interpreter; it answers for its packages itself.
        if self.base and self.base.python == plan.python:
            excludes = ()
        if choice and choice.package and not choice.sibling:
            excludes += ("torch",)
        keep = not self.upgrade and self.as_of is None
        return Request(
            python=plan.python,
            platform=plan.platform,
            requirements=wanted + additions(self.needs, self.profile) + (choice.requirements if choice else ()),
            constraints=self.profile.constraints,
            excludes=excludes,
            stand_ins=versions,
            as_of=self.as_of,
            find_links=self.supply.find_links,
            pins={name: package.version for name, package in previous.items()} if keep else {},
            indexes={"torch": choice.index} if choice and choice.index else {},
            # What a lock has as a source distribution was allowed when it was made.
            allow_build=sdists(previous.values()),
            may_build=self.supply.allow_build,
        )

    def _packages(
        self, request: Request, choice: TorchChoice | None, previous: Mapping[str, LockedPackage]
    ) -> tuple[LockedPackage, ...]:
        offers = resolve(request)
        # They are built against one torch and flavour: PyPI's do not load beside a build of another index.
        beside = [item.name for item in offers if item.name in _BUILT_WITH_TORCH]
        if choice and choice.index and beside:
            indexes = {**request.indexes, **dict.fromkeys(beside, choice.index)}
            request = replace(request, requirements=(*request.requirements, *beside), indexes=indexes)
            offers = resolve(request)
        if twins := _twins(offers, request):
            request = replace(request, excludes=(*request.excludes, *twins))
            self.say_all(f"{name} is left out: {kept} holds the same files" for name, kept in twins.items())
            offers = resolve(request)
        self.say_all(newcomers(offers, request, previous))
        if choice and choice.sibling:
            offers = [item for item in offers if item.name != "torch"]
        self.say_all(yanked_sentences(offers))
        packages = lock_offers(offers, request, previous)
        if choice and choice.package:
            packages = (*packages, choice.package)
        origin = choice.origin if choice else DEFAULT_INDEX
        # Under the name of its index, whatever folder it came from.
        locked = [item.model_copy(update={"index": origin}) if item.name == "torch" else item for item in packages]
        return tuple(carry_over(item, previous.get(item.name)) for item in sorted(locked, key=lambda item: item.name))
