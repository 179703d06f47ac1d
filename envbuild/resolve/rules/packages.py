"""Do the package tools and packages fit together? Each row of packages.yaml is one rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.model.facts import NodeFacts, PythonFacts
from envbuild.model.lock import LockedPackage, LockedSource, Variant
from envbuild.model.plan import Decision
from envbuild.model.target import Target
from envbuild.resolve.compat import Compat, PackageRule
from envbuild.resolve.request import NOTHING, Decisions, Request, Ruling
from envbuild.resolve.rules.compilers import ON_NODE

# What wheels expect of every Linux, and a small one may lack: Debian's name, and what others call it where they differ.
PACKAGES = {
    "libstdc++.so.6": "Debian, Ubuntu: package libstdc++6; Red Hat, Fedora: libstdc++",
    "libgomp.so.1": "Debian, Ubuntu: package libgomp1; Red Hat, Fedora: libgomp",
    "libgcc_s.so.1": "Debian, Ubuntu: package libgcc-s1; Red Hat, Fedora: libgcc",
}
_CXX = "libstdc++.so.6"


def install_words(library: str) -> str:
    """How to install a library of the operating system, as a hint."""
    package = PACKAGES.get(library)
    return f"install {library} on that node{f' ({package})' if package else ''}"


def finds_libstdcxx(variant: Variant, python: PythonFacts | None, facts: NodeFacts) -> bool | None:
    """Whether the variant finds libstdc++.so.6; None if no probe asked, or if conda brings it.

    An interpreter of the toolchain has none of its own: it finds what the node's interpreters find. If these differ,
    because a conda interpreter brings its own, the answer is unknown (None).
    """
    if variant.conda is not None:
        return None
    if python is not None:
        return python.libstdcxx
    known = {python.libstdcxx for python in facts.pythons if python.libstdcxx is not None}
    return known.pop() if len(known) == 1 else None


def library_rule(variant: Variant, target: Target, present: bool | None, compat: Compat) -> Iterator[Decision]:
    """`libstdcxx-absent`: a package loads libstdc++.so.6, and `present` says that the node's loader has none.

    Refused where the wheel was read; a run that sets LD_LIBRARY_PATH itself may know better.
    """
    if present is not False:
        return
    own_path = "LD_LIBRARY_PATH" in {**variant.environment, **target.environment}
    for loading, known in compat.libstdcxx:
        package = next((package for package in variant.packages if package.name == loading.name), None)
        if package is None or not meets(package.version, loading):
            continue
        name = f"{package.name} {package.version}"
        note = known.but("the run sets LD_LIBRARY_PATH" if own_path else None)
        says = Ruling("libstdcxx-absent", (f"no {_CXX}", f"{name} needs it and does not bring it"), note)
        yield from says(
            "refuse", f"{name} loads {_CXX} when it is imported, and this node has none", install_words(_CXX)
        )


# What this file does stops the build; what a module does stops who imports it.
_STOPS = "setup.py"
# After the place of what is done when its module is imported.
AT_IMPORT = " at import"
_PATCHED = " patched by "
_FROM_SOURCE = "-from-source"


def meets(version: str, requirement: Requirement) -> bool:
    """Whether a version is in the requirement's range; a version that PEP 440 does not know is in no range."""
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def lacking(provides: Iterable[str], versions: Mapping[str, str]) -> dict[str, str | None]:
    """The requirements that packages (normalised name to version) do not meet, with the version that is there."""
    present = {text: versions.get(canonicalize_name(Requirement(text).name)) for text in provides}
    return {text: have for text, have in present.items() if have is None or not meets(have, Requirement(text))}


def _version(name: str, request: Request) -> str | None:
    if name == "python":
        return request.python
    if name == "torch" and request.torch is not None:
        return request.torch
    return request.packages.get(canonicalize_name(name))


def _holds(requirement: Requirement, request: Request) -> bool:
    version = _version(requirement.name, request)
    return version is not None and meets(version, requirement)


def package_rule(
    rule: PackageRule, request: Request, patches: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> Decisions:
    """One row applied; nothing if it does not concern the request. `patches`: the traits that each ends."""
    traits, place = request.traits, request.uses.get(rule.trait or "", "")
    if rule.at_run:
        # A package that does so in a call has said itself what it requires.
        traits = frozenset()
        place = place if AT_IMPORT in place or place.partition("/")[0] in request.commits else ""
    done = rule.trait is None or rule.trait in traits or bool(place)
    if not (done and all(_holds(requirement, request) for requirement in rule.has)):
        return NOTHING
    version = _version(rule.breaks.name, request)
    if version is None or (rule.lacks is not None and request.installed):
        return NOTHING  # what a base brings beside torch is not known here
    if rule.lacks is not None and (other := _version(rule.lacks, request)) is not None:
        there = (f"{rule.lacks} {other}", f"{rule.lacks} is there")
        return Ruling(rule.id, there, rule.note)("allow", f"{rule.lacks} brings it")
    compared = (f"{rule.breaks.name} {version}", f"not {rule.breaks.name}{rule.breaks.specifier}")
    says = Ruling(rule.id, compared, rule.note)
    if not meets(version, rule.breaks):
        return says("allow", f"{rule.breaks.name} {version} is fine here")
    if rule.variable and request.variables.get(rule.variable[0]) == rule.variable[1]:
        return says("patch", f"{rule.says}; {rule.variable[0]} is set to {rule.variable[1]}, so it works", rule.fix)
    if not place or rule.trait in traits:
        return says(rule.verdict, rule.says, rule.fix)
    name, _, mended = place.partition(_PATCHED)
    if mended:
        return says("patch", f"{rule.says}; the patch {mended} corrects this in {name}")
    source, _, _ = name.partition("/")
    fix = _with_patch(rule, patches, f"the source {source}") if source in request.commits else rule.fix
    if AT_IMPORT in place:
        return says(rule.verdict, f"{rule.says}: {place} uses it, so its import fails", fix)
    return says("warn", f"{rule.says}: {place} uses it, and fails when that code runs", fix)


def _with_patch(rule: PackageRule, patches: Mapping[str, tuple[str, ...]], source: str) -> str:
    patch = next((name for name, ended in patches.items() if rule.trait in ended), None)
    return f"{rule.fix}, or `patches: [{patch}]` for {source}" if patch else rule.fix


def advice(output: str, compat: Compat) -> str:
    """How to end a failure that a rule knows by Python's error text: rule, and edit of the stack; else empty."""
    rule = next((rule for rule in compat.package_rules if any(text in output for text in rule.fails)), None)
    if rule is None:
        return ""
    fix = _with_patch(rule, compat.patched_traits, "the source that does so")
    return f"{rule.says} (rule {rule.id}): write {fix} into the stack file, then `envbuild lock create` with it"


def package_rules(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """All rows of packages.yaml; their ids are the rule ids."""
    rows = compat.package_rules
    return tuple(item for row in rows for item in package_rule(row, request, compat.patched_traits))


def two_owners(_facts: NodeFacts, request: Request, compat: Compat) -> Iterator[Decision]:
    """`two-owners`: of packages that hold the same files, the environment has one; never refuses."""
    for group in compat.twins:
        names = [name for name in group if name in request.packages]
        compared = (" and ".join(f"{name} {request.packages[name]}" for name in names), "one of them")
        says = Ruling("two-owners", compared, compat.twins_note)
        if len(names) == 1:
            yield from says("allow", "its files have one owner")
        elif names:
            what = "they hold the same files, and what runs is the one that is installed last"
            yield from says("warn", what, f"{names[0]} alone")


def package_homonym(_facts: NodeFacts, request: Request, compat: Compat) -> Iterator[Decision]:
    """`package-homonym`: a package of the default index is the project that recipes mean by its name."""
    names = sorted(request.from_pypi & set(compat.homonyms))
    for name in names:
        other, meant = compat.homonyms[name]
        says = Ruling("package-homonym", (f"{name} on the default index", f"{name} of recipes"), compat.homonym_note)
        yield from says("refuse", f"{name} on the default index is {other}", f"{meant}, if that was meant")
    if request.from_pypi and not names:
        compared = (f"{len(request.from_pypi)} packages of the default index", f"not {', '.join(compat.homonyms)}")
        says = Ruling("package-homonym", compared, compat.homonym_note)
        yield from says("allow", "no package only shares its name with the one that recipes mean")


def system_packages(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`system-packages`: what a package or source is compiled against is named before a build; never refuses."""
    built = {name: f"{name} {version} as a source distribution" for name, version in request.packages.items()
             if f"{name}{_FROM_SOURCE}" in request.traits}  # fmt: skip
    built |= {name: f"the source {name}" for name in request.built if name in compat.system}
    out: list[Decision] = []
    for name in (name for name in built if name in compat.system):
        needs = compat.system[name]
        missing = [need for need in needs if not facts.system_packages.get(need)]
        if not missing:
            continue
        known = "the node lacks" if facts.system_packages else "not checked, because the node has no dpkg:"
        known = f"{known} {', '.join(missing)}"
        if name == "mpi4py" and request.modules:
            known = f"the target loads modules ({', '.join(request.modules)}): whether they bring mpicc is not checked"
        says = Ruling("system-packages", (built[name], f"it needs {', '.join(needs)}"), compat.system_note)
        other = "`mpicc` of MPICH, PALS or Open MPI" if name == "mpi4py" else "what they are called there,"
        install = f"`apt-get install {' '.join(missing)}` there first (Debian, Ubuntu), or {other} {ON_NODE}"
        out += says(
            "warn", f"{name} is compiled where it is installed, against packages of the system; {known}", install
        )
    if built and not out:
        compared = (f"compiled there: {', '.join(built)}", "the packages of the system that they need, as far as known")
        says = Ruling("system-packages", compared, compat.system_note)
        out += says("allow", "what they are compiled against is there, as far as it is known")
    return tuple(out)


def build_isolation(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`build-isolation`: a source whose setup.py imports torch is built in the environment, which has torch."""
    base_unknown = request.installed and request.torch is None
    if "imports-torch" not in request.traits or base_unknown:
        return NOTHING
    has = f"{'no torch' if request.torch is None else f'torch {request.torch}'} in the environment"
    says = Ruling("build-isolation", (has, "the recipe imports torch"), compat.cuda.check_note)
    if request.torch is not None:
        return says("allow", "sources are built beside torch, without isolation")
    what = "setup.py of a source imports torch, and the environment has none"
    return says("refuse", what, "`torch:` in the profile, or a base with it")


def apex_flags(_facts: NodeFacts, request: Request, compat: Compat) -> Iterator[Decision]:
    """`apex-flags`: the setup.py of an Apex takes the flags that it is built with, which differ by commit."""
    for name, flags in request.flags.items():
        commit = request.commits.get(name, "")
        if not flags or not compat.apex.knows(commit):
            continue
        taken, here = compat.apex.flags_at(commit), f"{name} at {commit[:12]}"
        unknown = [flag for flag in flags if flag not in taken]
        compared = (f"{here}: {', '.join(flags)}", f"it takes {', '.join(taken)}")
        says = Ruling("apex-flags", compared, compat.apex_note)
        if not unknown:
            yield from says("allow", f"{name} takes its flags")
        else:
            what = f"{here} has no flag {' and no flag '.join(unknown)}, so its build would fail"
            yield from says("refuse", what, f"`flags` without {', '.join(unknown)}, or a commit that has it")


def traits_of(
    packages: Mapping[str, str], names: Iterable[str], compat: Compat, *, built: bool
) -> tuple[frozenset[str], dict[str, str]]:
    """The traits of well-known packages and sources, and those of one module, with its place.

    Builds import some of these modules, so such a trait stops what is `built`.
    """
    stops = {trait for name in names for trait in compat.source_traits.get(name.lower(), ())}
    uses: list[tuple[str, str]] = []
    for row in compat.package_traits:
        version = packages.get(canonicalize_name(row.has.name))
        if version is None or not meets(version, row.has):
            continue
        if row.at and not (built and row.builds):
            uses += ((trait, f"{row.has.name} {version}/{row.at}") for trait in row.traits)
        else:
            stops.update(row.traits)
    return frozenset(stops), gravest(uses)


def from_source(packages: Iterable[LockedPackage]) -> frozenset[str]:
    """The trait `<name>-from-source` of every package that is locked as a source distribution."""
    return frozenset(f"{canonicalize_name(name)}{_FROM_SOURCE}" for name in sdists(packages))


def sdists(packages: Iterable[LockedPackage]) -> tuple[str, ...]:
    """The packages that are locked as source distributions."""
    return tuple(p.name for p in packages if not any(file.file.endswith(".whl") for file in p.files))


def system_needs(variant: Variant, compat: Compat) -> set[str]:
    """Packages of the system that source distributions and sources of a variant are compiled against."""
    built = from_source(variant.packages) | {
        f"{source.name}{_FROM_SOURCE}" for source in variant.sources if source.build
    }
    return {need for name, needs in compat.system.items() if f"{name}{_FROM_SOURCE}" in built for need in needs}


def scanned(sources: Iterable[LockedSource], compat: Compat) -> tuple[frozenset[str], dict[str, str]]:
    """Traits that the scan of the trees found: those that stop a build, and the others with their first place."""
    stops: set[str] = set()
    elsewhere: list[tuple[str, str]] = []
    for source in sources:
        ended = {trait: patch for patch in source.patches for trait in compat.patched_traits.get(patch, ())}
        for trait, place in (source.uses or {}).items():
            if trait in ended:
                elsewhere.append((trait, f"{source.name}{_PATCHED}{ended[trait]}"))
            elif place.startswith(_STOPS):
                stops.add(trait)
            else:
                elsewhere.append((trait, f"{source.name}/{place}"))
    return frozenset(stops), gravest(elsewhere)


def gravest(places: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The most severe place of each trait, the first of equal ones.

    A stopped import is more severe than a stopped call, and a place that a patch corrects is least severe.
    """
    places_of: dict[str, str] = {}
    for trait, place in sorted(places, key=lambda pair: (_PATCHED in pair[1], AT_IMPORT not in pair[1])):
        places_of.setdefault(trait, place)
    return places_of
