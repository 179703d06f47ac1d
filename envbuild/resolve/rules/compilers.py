"""Do nvcc and gcc fit each other, and the CUDA and C++ ABI of torch? Only where something is compiled."""

from __future__ import annotations

from pathlib import PurePosixPath

from packaging.version import InvalidVersion, Version

from envbuild.model.facts import NodeFacts, NvccFacts
from envbuild.model.plan import Decision
from envbuild.resolve.arch import pick_nvcc
from envbuild.resolve.artifacts import Numbers, dotted, flavour_cuda, minor, numbers
from envbuild.resolve.compat import Compat, TorchBuild
from envbuild.resolve.request import NOTHING, Decisions, Request, capabilities, decision
from envbuild.resolve.rules.gpu import other_flavour

_MODULE = "a module of the site: `scheduler: {modules: {load: [MODULE]}}` in the target of a job"
ON_NODE = f"on the node ({_MODULE})"


def toolkits(facts: NodeFacts, request: Request, compat: Compat) -> tuple[NvccFacts | None, Numbers, Numbers]:
    """(nvcc, its version, the wheel's CUDA); the last is empty when nothing is compiled."""
    cuda = flavour_cuda(request.wanted_flavour(compat)) if request.compiled else ()
    nvcc = pick_nvcc(facts, cuda) if cuda else None
    return nvcc, minor(nvcc.version) if nvcc else (), cuda


def _toolkit(major: int) -> str:
    """The cure of a toolkit that is missing or of another major version."""
    return f"a CUDA {major}.x toolkit on the node ({_MODULE}; or a folder of yours: docs/troubleshooting.md)"


def nvcc_absent(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`nvcc-absent`: compiling CUDA code needs an nvcc; prebuilt wheels do not."""
    nvcc, release, cuda = toolkits(facts, request, compat)
    if not cuda:
        return NOTHING
    names = ", ".join(request.compiled)
    compared = (f"nvcc {nvcc.version if nvcc else 'absent'}", f"{names} for CUDA {dotted(cuda)}")
    if release:
        what = f"{nvcc.path if nvcc else ''} can compile {names}"
        return (decision("nvcc-absent", "allow", what, compared, compat.cuda.check_note),)
    what = f"{names} must be compiled and there is no nvcc"
    return (decision("nvcc-absent", "refuse", what, compared, compat.cuda.check_note, _toolkit(cuda[0])),)


def nvcc_major(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`nvcc-major`: torch's extension builder stops when the CUDA majors differ, and that is never patched."""
    nvcc, nvcc_release, cuda = toolkits(facts, request, compat)
    if not cuda or nvcc is None or not nvcc_release:
        return NOTHING
    compared = (f"nvcc {nvcc.version}", f"torch built with CUDA {dotted(cuda)}")
    note = compat.cuda.check_note
    if nvcc_release[0] == cuda[0]:
        return (decision("nvcc-major", "allow", "nvcc and torch have the same CUDA major version", compared, note),)
    torch = other_flavour(facts, request, compat, lambda other: other[0] == nvcc_release[0])
    what = f"nvcc {dotted(nvcc_release)} cannot compile for a torch built with CUDA {dotted(cuda)}"
    return (decision("nvcc-major", "refuse", what, compared, note, _toolkit(cuda[0]), torch),)


def _minor_pair(facts: NodeFacts, request: Request, compat: Compat) -> tuple[Numbers, Numbers] | None:
    _nvcc, release, cuda = toolkits(facts, request, compat)
    return (release, cuda) if cuda and release and release[0] == cuda[0] else None


def nvcc_minor(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`nvcc-minor`: where nvcc and torch's CUDA differ in the minor version, torch's builder warns; never refuses."""
    pair = _minor_pair(facts, request, compat)
    if pair is None:
        return NOTHING
    compared, note = (f"nvcc {dotted(pair[0])}", f"CUDA {dotted(pair[1])}"), compat.cuda.check_note
    if pair[0] == pair[1]:
        return (decision("nvcc-minor", "allow", "nvcc and torch have the same CUDA version", compared, note),)
    looks = numbers(request.torch) >= compat.cuda.torch_checks_from
    differ = f"nvcc {dotted(pair[0])} and torch's CUDA {dotted(pair[1])} differ in the minor version"
    what = f"{differ}; torch's builder {'only warns' if looks else 'does not check it'}"
    return (decision("nvcc-minor", "warn" if looks else "allow", what, compared, note),)


def apex_cuda_check(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`apex-cuda-check`: Apex stops at any difference of versions; within one major its check can be patched out.

    A commit outside the known history only warns, because not every Apex stops.
    """
    pair = _minor_pair(facts, request, compat)
    strict = [name for name in request.compiled if name.lower() in compat.cuda.exact_minor]
    if pair is None or not strict:
        return NOTHING
    compared, note = (f"nvcc {dotted(pair[0])}", f"CUDA {dotted(pair[1])}"), compat.cuda.check_note
    if pair[0] == pair[1]:
        return (decision("apex-cuda-check", "allow", "the versions are equal", compared, note),)
    return tuple(_apex_check(name, pair, compared, request, compat) for name in strict)


def _apex_check(
    name: str, pair: tuple[Numbers, Numbers], compared: tuple[str, str], request: Request, compat: Compat
) -> Decision:
    patch, commit, note = compat.cuda.exact_minor[name.lower()], request.commits.get(name, ""), compat.apex_note
    instead = f"`patches: [{patch}]` for this source and a new lock, or nvcc {dotted(pair[1])}"
    if patch in request.patches.get(name, ()):
        what = (
            f"{name} stops when the CUDA versions differ; a patch removes its check, and the major versions are equal"
        )
        return decision("apex-cuda-check", "patch", what, compared, note, f"nvcc {dotted(pair[1])}")
    if not compat.apex.knows(commit):
        what = f"{name} stops when the CUDA versions differ; whether this commit does is unknown, and no patch is given"
        return decision("apex-cuda-check", "warn", what, compared, note, instead)
    if not compat.apex.raises_at(commit):
        what = f"{name} at {commit[:12]} does not stop when the CUDA versions differ"
        return decision("apex-cuda-check", "allow", what, compared, note)
    what = f"{name} stops when the CUDA versions differ, and this stack does not patch that"
    return decision("apex-cuda-check", "refuse", what, compared, note, instead)


def own_cuda_list(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`own-cuda-list`: DeepSpeed keeps its own list of tolerated minor versions."""
    pair = _minor_pair(facts, request, compat)
    listed = [name for name in request.compiled if name.lower() in compat.cuda.own_list]
    if pair is None or not listed:
        return NOTHING
    compared = (f"nvcc {dotted(pair[0])}", f"CUDA {dotted(pair[1])}")
    return tuple(_own_list(name, pair, compared, request, compat) for name in listed)


def _own_list(
    name: str, pair: tuple[Numbers, Numbers], compared: tuple[str, str], request: Request, compat: Compat
) -> Decision:
    own = compat.cuda.own_list[name.lower()]
    if pair[0] == pair[1]:
        return decision("own-cuda-list", "allow", "the versions are equal", compared, own.note)
    if {**request.variables, **request.build_variables.get(name, {})}.get(own.variable) == "1":
        what = f"{name} accepts this pair of CUDA versions because the stack sets {own.variable}=1"
        return decision("own-cuda-list", "patch", what, compared, own.note, f"nvcc {dotted(pair[1])}")
    if set(pair) <= set(own.accepts.get(pair[0][0], ())):
        what = f"{name} accepts this pair of CUDA versions (its own list)"
        return decision("own-cuda-list", "allow", what, compared, own.note)
    what = f"{name} refuses this pair of CUDA versions (its own list)"
    instead = f'`build: {{environment: {{{own.variable}: "1"}}}}` for this source, or nvcc {dotted(pair[1])}'
    return decision("own-cuda-list", "refuse", what, compared, own.note, instead)


def setuptools_minor(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`setuptools-minor`: an old setuptools makes torch's warning about minor versions an error."""
    pair = _minor_pair(facts, request, compat)
    version = request.packages.get("setuptools")
    if pair is None or version is None or numbers(request.torch) < compat.cuda.torch_checks_from:
        return NOTHING
    compared, note = (f"setuptools {version}", compat.cuda.setuptools_needs), compat.cuda.check_note
    if pair[0] == pair[1] or _at_least(version, compat.cuda.setuptools_needs):
        return (
            decision(
                "setuptools-minor", "allow", "setuptools only warns about the CUDA minor versions", compared, note
            ),
        )
    what = f"setuptools {version} refuses a difference in the CUDA minor version"
    instead = f"setuptools>={compat.cuda.setuptools_needs}, or nvcc {dotted(pair[1])}"
    return (decision("setuptools-minor", "refuse", what, compared, note, instead),)


def _at_least(version: str, least: str) -> bool:
    try:
        return Version(version) >= Version(least)
    except InvalidVersion:
        return True


def nvcc_knows_gpu(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`nvcc-knows-gpu`: the toolkit can compile for each GPU, or for an older one of its major."""
    nvcc, release, _cuda = toolkits(facts, request, compat)
    if nvcc is None or not release:
        return NOTHING
    decisions = (_knows(name, capability, release, compat) for name, capability in capabilities(facts))
    return tuple(item for item in decisions if item is not None)


def _knows(name: str, capability: Numbers, release: Numbers, compat: Compat) -> Decision | None:
    cuda = compat.cuda
    first, last = cuda.first_cuda.get(capability), cuda.last_cuda.get(capability)
    if first is None and last is None:
        return None
    known = (("from", first), ("up to", last))
    bounds = " ".join(f"{word} {dotted(version)}" for word, version in known if version is not None)
    compared = (f"nvcc {dotted(release)}", f"{name} ({dotted(capability)}): CUDA {bounds}")
    if last is not None and release > last:
        what = f"nvcc {dotted(release)} no longer compiles for {dotted(capability)}"
        instead = f"a toolkit up to CUDA {dotted(last)}"
        return decision("nvcc-knows-gpu", "refuse", what, compared, cuda.arch_note, instead)
    if first is None or release >= first:
        what = f"nvcc {dotted(release)} compiles for {dotted(capability)}"
        return decision("nvcc-knows-gpu", "allow", what, compared, cuda.arch_note)
    codes = (a for a, first_known in cuda.first_cuda.items() if first_known <= release and a not in cuda.embedded)
    older = [a for a in codes if a[0] == capability[0] and a < capability]
    if older:
        best = dotted(max(older))
        what = f"nvcc {dotted(release)} does not know {dotted(capability)}: build for {best}, which runs on it"
        return decision("nvcc-knows-gpu", "patch", what, compared, cuda.arch_note, f"TORCH_CUDA_ARCH_LIST={best}")
    what = f"nvcc {dotted(release)} does not know {dotted(capability)}, and no older code runs on it"
    return decision("nvcc-knows-gpu", "refuse", what, compared, cuda.arch_note, f"CUDA {dotted(first)} or newer")


def _gccs(facts: NodeFacts) -> list[tuple[str, Numbers]]:
    """(path, version) of each gcc, the one named plain `gcc` first: that is what a build takes."""
    rows = []
    for compiler in facts.compilers:
        base = PurePosixPath(compiler.path).name
        if "gcc" in base and numbers(compiler.version):
            rows.append((base != "gcc", compiler.path, numbers(compiler.version)))
    return [(path, version) for _rank, path, version in sorted(rows, key=lambda item: item[0])]


def _with_cxx(facts: NodeFacts, gccs: list[tuple[str, Numbers]]) -> list[tuple[str, Numbers]]:
    """Those that are not the usual one and have a g++ of the same version beside them: a build needs both."""
    cxx = {(c.path, numbers(c.version)) for c in facts.compilers}
    return [(path, version) for path, version in gccs[1:] if (cxx_of(path), version) in cxx]


def cxx_of(gcc: str) -> str:
    """The g++ that belongs to a gcc: `/usr/bin/gcc-9` has `/usr/bin/g++-9`."""
    path = PurePosixPath(gcc)
    return str(path.with_name(path.name.replace("gcc", "g++")))


def _gcc_bounds(release: Numbers, full: Numbers, request: Request, compat: Compat) -> tuple[int | None, int, bool]:
    """(greatest gcc major, least gcc major, whether the least is firm) for a toolkit and a torch."""
    rules, asked = compat.compilers, numbers(request.torch)
    most = rules.max_gcc_exact.get(full, rules.max_gcc.get(release))
    by_cuda = max((gcc for cuda, gcc in rules.min_gcc.items() if cuda <= release), default=0)
    by_error = max((gcc for torch, gcc in rules.torch_gcc_errors.items() if torch <= asked), default=0)
    by_torch = max((gcc for torch, gcc in rules.torch_min_gcc.items() if torch <= asked), default=0)
    sure = max(by_cuda, by_error)
    return most, max(sure, by_torch), by_torch <= sure


def other_gcc(facts: NodeFacts, request: Request, compat: Compat) -> str | None:
    """The gcc that a build must use instead of the default one; None if the default works, or no gcc does."""
    nvcc, release, _cuda = toolkits(facts, request, compat)
    gccs = _gccs(facts)
    if nvcc is None or not release or not gccs:
        return None
    most, least, _firm = _gcc_bounds(release, numbers(nvcc.version), request, compat)
    if most is None or least <= gccs[0][1][0] <= most:
        return None
    return next((path for path, version in _with_cxx(facts, gccs) if least <= version[0] <= most), None)


def gcc_range(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`gcc-range`: nvcc accepts the node's gcc, or another gcc of the node, which the build then uses."""
    nvcc, release, _cuda = toolkits(facts, request, compat)
    gccs = _gccs(facts)
    if nvcc is None or not release:
        return NOTHING
    most, least, firm = _gcc_bounds(release, numbers(nvcc.version), request, compat)
    if most is None:
        return NOTHING
    path, version = gccs[0] if gccs else ("gcc", ())
    compared = (f"gcc {dotted(version) or 'absent'}", f"{least} to {most} for nvcc {nvcc.version}")
    note = compat.compilers.note
    if version and least <= version[0] <= most:
        from_, says = compat.compilers.disputed.get(release, ((), None))
        mark = says if version >= from_ else None
        what = f"gcc {dotted(version)} works with nvcc {nvcc.version}"
        return (decision("gcc-range", "warn" if mark else "allow", what, compared, note.but(mark)),)
    other = other_gcc(facts, request, compat)
    if other:
        what = f"nvcc {nvcc.version} does not take gcc {dotted(version)}; the build uses CC={other}"
        return (decision("gcc-range", "patch", what, compared, note, f"CC={other}"),)
    if version and version[0] < least and not firm:
        note = compat.compilers.torch_note
    what = f"nvcc {nvcc.version} does not take {path} {dotted(version)}" if version else "the node has no gcc"
    return (decision("gcc-range", "refuse", what, compared, note, f"install gcc and g++ {most} beside it"),)


def cxx11_abi(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`cxx11-abi`: a prebuilt package, and a source that sets a C++ ABI, has the C++ ABI of torch."""
    build = request.build(compat)
    if build is None:
        return NOTHING
    return tuple(_abi(name, abi, build, request, compat) for name, abi in request.abis.items())


def _abi(name: str, abi: int, build: TorchBuild, request: Request, compat: Compat) -> Decision:
    compared = (f"{name} has C++ ABI {abi}", f"torch {request.torch}+{build.flavour} has {build.abi}")
    if abi == build.abi:
        return decision("cxx11-abi", "allow", f"{name} and torch have the same C++ ABI", compared, compat.abi_note)
    what = f"{name} has the other C++ ABI, so loading it would fail"
    instead = "a build for this torch, or a source that leaves the ABI to torch"
    return decision("cxx11-abi", "refuse", what, compared, compat.abi_note, instead)
