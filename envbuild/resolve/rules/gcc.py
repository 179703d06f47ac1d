"""Does the host compiler fit (gcc beside nvcc and torch, the C++ ABI of torch)? Only where something is compiled."""

from __future__ import annotations

from pathlib import PurePosixPath

from envbuild.model.facts import NodeFacts
from envbuild.model.resolution import Decision
from envbuild.resolve.artifacts import Numbers, dotted, numbers
from envbuild.resolve.compat import Compat, TorchBuild
from envbuild.resolve.request import NOTHING, Decisions, Request, decision
from envbuild.resolve.rules.nvcc import toolkits


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
