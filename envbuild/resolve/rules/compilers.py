"""Do nvcc and gcc fit each other, and the CUDA and C++ ABI of torch? Only where something is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from packaging.version import InvalidVersion, Version

from envbuild.model.facts import NodeFacts, NvccFacts
from envbuild.model.plan import Decision
from envbuild.resolve.arch import pick_nvcc
from envbuild.resolve.artifacts import Numbers, dotted, flavour_cuda, minor, numbers
from envbuild.resolve.compat import Compat
from envbuild.resolve.request import NOTHING, Decisions, Request, Ruling, capabilities
from envbuild.resolve.rules.gpu import other_flavour

_MODULE = "a module of the site: `scheduler: {modules: {load: [MODULE]}}` in the target of a job"
ON_NODE = f"on the node ({_MODULE})"


def toolkits(facts: NodeFacts, request: Request, compat: Compat) -> tuple[NvccFacts | None, Numbers, Numbers]:
    """(nvcc, its version, the wheel's CUDA); the last is empty when nothing is compiled."""
    cuda = flavour_cuda(request.wanted_flavour(compat)) if request.compiled else ()
    nvcc = pick_nvcc(facts, cuda) if cuda else None
    return nvcc, minor(nvcc.version) if nvcc else (), cuda


def _toolkit(facts: NodeFacts, request: Request, major: int) -> str:
    """The cure of a toolkit that is missing or of another major version."""
    module = f"{_MODULE}; or" if facts.modules else "no `module` command was seen there;"
    if request.modules:
        loaded = ", ".join(request.modules)
        record = "`envbuild doctor --target TARGET --facts-out FILE` records facts where they are loaded"
        module = f"jobs load {loaded}, whose nvcc must stand in the facts: {record}; or another module, or"
    return f"a CUDA {major}.x toolkit on the node ({module} a folder of yours: docs/troubleshooting.md)"


def nvcc_absent(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`nvcc-absent`: compiling CUDA code needs an nvcc; prebuilt wheels do not."""
    nvcc, release, cuda = toolkits(facts, request, compat)
    if not cuda:
        return NOTHING
    names = ", ".join(request.compiled)
    compared = (f"nvcc {nvcc.version if nvcc else 'absent'}", f"{names} for CUDA {dotted(cuda)}")
    says = Ruling("nvcc-absent", compared, compat.cuda.check_note)
    if release:
        return says("allow", f"{nvcc.path if nvcc else ''} can compile {names}")
    return says("refuse", f"{names} must be compiled and there is no nvcc", _toolkit(facts, request, cuda[0]))


def nvcc_major(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`nvcc-major`: torch's extension builder stops when the CUDA majors differ, and that is never patched."""
    nvcc, release, cuda = toolkits(facts, request, compat)
    if not cuda or nvcc is None or not release:
        return NOTHING
    compared = (f"nvcc {nvcc.version}", f"torch built with CUDA {dotted(cuda)}")
    says = Ruling("nvcc-major", compared, compat.cuda.check_note)
    if release[0] == cuda[0]:
        return says("allow", "nvcc and torch have the same CUDA major version")
    torch = other_flavour(facts, request, compat, lambda other: other[0] == release[0])
    what = f"nvcc {dotted(release)} cannot compile for a torch built with CUDA {dotted(cuda)}"
    return says("refuse", what, _toolkit(facts, request, cuda[0]), torch)


def _minor_pair(facts: NodeFacts, request: Request, compat: Compat) -> tuple[Numbers, Numbers] | None:
    """The versions of nvcc and of torch's CUDA where both are of one major."""
    _nvcc, release, cuda = toolkits(facts, request, compat)
    return (release, cuda) if cuda and release and release[0] == cuda[0] else None


def _as_text(pair: tuple[Numbers, Numbers]) -> tuple[str, str]:
    return f"nvcc {dotted(pair[0])}", f"CUDA {dotted(pair[1])}"


def nvcc_minor(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`nvcc-minor`: where nvcc and torch's CUDA differ in the minor version, torch's builder warns; never refuses."""
    pair = _minor_pair(facts, request, compat)
    if pair is None:
        return NOTHING
    says = Ruling("nvcc-minor", _as_text(pair), compat.cuda.check_note)
    if pair[0] == pair[1]:
        return says("allow", "nvcc and torch have the same CUDA version")
    looks = numbers(request.torch) >= compat.cuda.torch_checks_from
    differ = f"nvcc {dotted(pair[0])} and torch's CUDA {dotted(pair[1])} differ in the minor version"
    builder = "only warns" if looks else "does not check it"
    return says("warn" if looks else "allow", f"{differ}; torch's builder {builder}")


def apex_cuda_check(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`apex-cuda-check`: Apex stops at any difference of versions; within one major its check can be patched out.

    A commit outside the known history only warns, because not every Apex stops.
    """
    pair = _minor_pair(facts, request, compat)
    strict = [name for name in request.compiled if name.lower() in compat.cuda.exact_minor]
    if pair is None or not strict:
        return NOTHING
    says = Ruling("apex-cuda-check", _as_text(pair), compat.cuda.check_note)
    if pair[0] == pair[1]:
        return says("allow", "the versions are equal")
    says, out, nvcc = says._replace(note=compat.apex_note), list[Decision](), f"nvcc {dotted(pair[1])}"
    for name in strict:
        patch, commit = compat.cuda.exact_minor[name.lower()], request.commits.get(name, "")
        stops = f"{name} stops when the CUDA versions differ"
        instead = f"`patches: [{patch}]` for this source and a new lock, or {nvcc}"
        if patch in request.patches.get(name, ()):
            out += says("patch", f"{stops}; a patch removes its check, and the major versions are equal", nvcc)
        elif not compat.apex.knows(commit):
            out += says("warn", f"{stops}; whether this commit does is unknown, and no patch is given", instead)
        elif not compat.apex.raises_at(commit):
            out += says("allow", f"{name} at {commit[:12]} does not stop when the CUDA versions differ")
        else:
            out += says("refuse", f"{stops}, and this stack does not patch that", instead)
    return tuple(out)


def own_cuda_list(facts: NodeFacts, request: Request, compat: Compat) -> Iterator[Decision]:
    """`own-cuda-list`: DeepSpeed keeps its own list of tolerated minor versions."""
    pair = _minor_pair(facts, request, compat)
    if pair is None:
        return
    for name in request.compiled:
        own = compat.cuda.own_list.get(name.lower())
        if own is None:
            continue
        says, nvcc = Ruling("own-cuda-list", _as_text(pair), own.note), f"nvcc {dotted(pair[1])}"
        accepts = f"{name} accepts this pair of CUDA versions"
        if pair[0] == pair[1]:
            yield from says("allow", "the versions are equal")
        elif {**request.variables, **request.build_variables.get(name, {})}.get(own.variable) == "1":
            yield from says("patch", f"{accepts} because the stack sets {own.variable}=1", nvcc)
        elif set(pair) <= set(own.accepts.get(pair[0][0], ())):
            yield from says("allow", f"{accepts} (its own list)")
        else:
            instead = f'`build: {{environment: {{{own.variable}: "1"}}}}` for this source, or {nvcc}'
            yield from says("refuse", f"{name} refuses this pair of CUDA versions (its own list)", instead)


def setuptools_minor(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`setuptools-minor`: an old setuptools makes torch's warning about minor versions an error."""
    pair, version = _minor_pair(facts, request, compat), request.packages.get("setuptools")
    if pair is None or version is None or numbers(request.torch) < compat.cuda.torch_checks_from:
        return NOTHING
    needed = compat.cuda.setuptools_needs
    says = Ruling(
        "setuptools-minor", (f"setuptools {version}", f"setuptools {needed} or newer"), compat.cuda.check_note
    )
    if pair[0] == pair[1] or _at_least(version, needed):
        return says("allow", "setuptools only warns about the CUDA minor versions")
    what = f"setuptools {version} refuses a difference in the CUDA minor version"
    return says("refuse", what, f"setuptools>={needed}, or nvcc {dotted(pair[1])}")


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
    gpus = capabilities(facts)
    return tuple(item for name, capability in gpus for item in _knows(name, capability, release, compat))


def _knows(name: str, capability: Numbers, release: Numbers, compat: Compat) -> Decisions:
    cuda, gpu = compat.cuda, dotted(capability)
    first, last = cuda.first_cuda.get(capability), cuda.last_cuda.get(capability)
    if first is None and last is None:
        return NOTHING
    known = (("from", first), ("up to", last))
    bounds = " ".join(f"{word} {dotted(version)}" for word, version in known if version is not None)
    nvcc = f"nvcc {dotted(release)}"
    says = Ruling("nvcc-knows-gpu", (nvcc, f"{name} ({gpu}): CUDA {bounds}"), cuda.arch_note)
    if last is not None and release > last:
        return says("refuse", f"{nvcc} no longer compiles for {gpu}", f"a toolkit up to CUDA {dotted(last)}")
    if first is None or release >= first:
        return says("allow", f"{nvcc} compiles for {gpu}")
    codes = (a for a, first_known in cuda.first_cuda.items() if first_known <= release and a not in cuda.embedded)
    older = [a for a in codes if a[0] == capability[0] and a < capability]
    if older:
        best = dotted(max(older))
        what = f"{nvcc} does not know {gpu}: build for {best}, which runs on it"
        return says("patch", what, f"TORCH_CUDA_ARCH_LIST={best}")
    return says("refuse", f"{nvcc} does not know {gpu}, and no older code runs on it", f"CUDA {dotted(first)} or newer")


def _gccs(facts: NodeFacts) -> list[tuple[str, Numbers]]:
    """(path, version) of each gcc, the one named plain `gcc` first: that is what a build takes."""
    named = [(PurePosixPath(c.path).name, c.path, numbers(c.version)) for c in facts.compilers]
    gccs = [(name != "gcc", path, version) for name, path, version in named if "gcc" in name and version]
    return [(path, version) for _rank, path, version in sorted(gccs, key=lambda item: item[0])]


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
    # A build needs a g++ of the same version beside it.
    cxx = {(c.path, numbers(c.version)) for c in facts.compilers}
    others = (path for path, version in gccs[1:] if least <= version[0] <= most and (cxx_of(path), version) in cxx)
    return next(others, None)


def gcc_range(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`gcc-range`: nvcc accepts the node's gcc, or another gcc of the node, which the build then uses."""
    nvcc, release, _cuda = toolkits(facts, request, compat)
    if nvcc is None or not release:
        return NOTHING
    most, least, firm = _gcc_bounds(release, numbers(nvcc.version), request, compat)
    if most is None:
        return NOTHING
    path, version = next(iter(_gccs(facts)), ("gcc", ()))
    gcc, note = f"gcc {dotted(version) or 'absent'}", compat.compilers.note
    says = Ruling("gcc-range", (gcc, f"{least} to {most} for nvcc {nvcc.version}"), note)
    if version and least <= version[0] <= most:
        from_, disputed = compat.compilers.disputed.get(release, ((), None))
        mark = disputed if version >= from_ else None
        what = f"{gcc} works with nvcc {nvcc.version}"
        return says._replace(note=note.but(mark))("warn" if mark else "allow", what)
    other = other_gcc(facts, request, compat)
    if other:
        what = f"nvcc {nvcc.version} does not take gcc {dotted(version)}; the build uses CC={other}"
        return says("patch", what, f"CC={other}")
    if version and version[0] < least and not firm:
        says = says._replace(note=compat.compilers.torch_note)
    what = f"nvcc {nvcc.version} does not take {path} {dotted(version)}" if version else "the node has no gcc"
    tops = compat.compilers.max_gcc.items()
    taking = [cuda for cuda, top in tops if cuda[0] == release[0] and version and most < version[0] <= top]
    other_nvcc = f", or take a toolkit of CUDA {dotted(max(taking))}, which takes {gcc}" if taking else ""
    return says("refuse", what, f"install gcc and g++ {most} beside it{other_nvcc}")


def cxx11_abi(_facts: NodeFacts, request: Request, compat: Compat) -> Iterator[Decision]:
    """`cxx11-abi`: a prebuilt package, and a source that sets a C++ ABI, has the C++ ABI of torch."""
    build = request.build(compat)
    if build is None:
        return
    for name, abi in request.abis.items():
        torch = f"torch {request.torch}+{build.flavour} has {build.abi}"
        says = Ruling("cxx11-abi", (f"{name} has C++ ABI {abi}", torch), compat.abi_note)
        if abi == build.abi:
            yield from says("allow", f"{name} and torch have the same C++ ABI")
        else:
            instead = "a build for this torch, or a source that leaves the ABI to torch"
            yield from says("refuse", f"{name} has the other C++ ABI, so loading it would fail", instead)
