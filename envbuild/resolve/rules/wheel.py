"""Does the wheel exist, and can this node load it? (releases, Python tags, flavours, indexes, glibc)"""

from __future__ import annotations

from envbuild.model.facts import NodeFacts
from envbuild.resolve.artifacts import dotted, flavour_cuda, numbers, python_tag
from envbuild.resolve.compat import Compat, TorchRelease
from envbuild.resolve.request import NOTHING, Decisions, Request, decision


def torch_release_known(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`torch-release-known`: envbuild's tables have the release; one outside their range is not judged and warns."""
    if request.torch is None or request.installed:
        return NOTHING
    known = list(compat.torch)
    compared = (f"torch {request.torch}", f"releases {known[0]} to {known[-1]}")
    note = compat.torch_note
    if request.torch in compat.torch:
        return (decision("torch-release-known", "allow", f"torch {request.torch} exists", compared, note),)
    asked = numbers(request.torch)
    if not numbers(known[0]) <= asked <= numbers(known[-1]):
        what = f"torch {request.torch} is not in envbuild's data; nothing about it was checked"
        return (decision("torch-release-known", "warn", what, compared, note),)
    nearest = max((v for v in known if numbers(v) < asked), key=numbers)
    what = f"there is no torch {request.torch}"
    return (decision("torch-release-known", "refuse", what, compared, note, torch=f"torch {nearest}"),)


def torch_lts_index(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`torch-lts-index`: a release that is not on PyPI must come from its own index."""
    release = None if request.installed else request.release(compat)
    if release is None or release.on_pypi:
        return NOTHING
    url = _locator(release, request.flavour or next(iter(release.builds)), compat)
    compared = (f"index {request.index or 'not given'}", url)
    if request.index == "pypi":
        asked = numbers(release.version)
        older = max((v for v, r in compat.torch.items() if r.on_pypi and numbers(v) < asked), key=numbers, default=None)
        what = f"torch {release.version} is a long-term release that PyPI does not have"
        torch = f"torch {release.version} from {url}" + (f", or torch {older} from PyPI" if older else "")
        return (decision("torch-lts-index", "refuse", what, compared, release.note, torch=torch),)
    what = f"torch {release.version} comes from its long-term index"
    return (decision("torch-lts-index", "allow", what, compared, release.note),)


def torch_python(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`torch-python`: the release has a wheel for this Python on this machine architecture."""
    release = None if request.installed else request.release(compat)
    if release is None or request.python is None:
        return NOTHING
    tags = release.tags.get(request.machine, ())
    tag = python_tag(request.python)
    compared = (f"Python {request.python}", f"{request.machine}: {', '.join(tags) or 'no wheels'}")
    if tag in tags:
        what = f"torch {release.version} has a wheel for Python {request.python}"
        return (decision("torch-python", "allow", what, compared, release.note),)
    what = f"torch {release.version} has no wheel for Python {request.python} on {request.machine}"
    note = release.note
    if tag in release.unverified_tags.get(request.machine, ()):
        note = note.but(f"public scripts download a {tag} wheel by name, which was not checked")
    torch = _for_python(request, release, compat)
    return (decision("torch-python", "refuse", what, compared, note, torch=torch),)


def _for_python(request: Request, release: TorchRelease, compat: Compat) -> str | None:
    """The nearest torch for the Python that is asked for, and the Pythons of the torch that is asked for."""
    tag = python_tag(request.python or "")
    fitting = [v for v, r in compat.torch.items() if tag in r.tags.get(request.machine, ())]
    parts = []
    if fitting:
        newest, oldest = max(fitting, key=numbers), min(fitting, key=numbers)
        nearest = oldest if numbers(release.version) < numbers(oldest) else newest
        word = "oldest" if nearest == oldest else "newest"
        parts.append(f"torch {nearest} (the {word} for Python {request.python})")
    tags = release.tags.get(request.machine, ())
    if tags:
        parts.append(f"one of {', '.join(tags)} for torch {release.version}")
    return " or ".join(parts) or None


def torch_flavour_exists(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`torch-flavour-exists`: the release was built in this flavour (cpu always was)."""
    release = None if request.installed else request.release(compat)
    if release is None or request.flavour is None:
        return NOTHING
    compared = (request.flavour, f"{', '.join(release.builds)} and cpu")
    if request.flavour == "cpu" or request.flavour in release.builds:
        note = release.builds[request.flavour].note if request.flavour in release.builds else release.note
        what = f"torch {release.version} was built for {request.flavour}"
        return (decision("torch-flavour-exists", "allow", what, compared, note),)
    what = f"torch {release.version} has no {request.flavour} build"
    # The same release in the nearest flavour of the same CUDA major, and the nearest release with the flavour.
    flavour = request.flavour
    cuda = flavour_cuda(flavour)
    parts = []
    same_major = [f for f in release.builds if cuda and flavour_cuda(f)[:1] == cuda[:1]]
    if same_major:
        nearest = max(same_major, key=flavour_cuda)
        parts.append(
            f"torch {release.version}+{nearest} (the same CUDA major: with nvcc {dotted(cuda)} "
            "extensions build, Apex with its version check patched)"
        )
    else:
        parts.append(f"torch {release.version} in {', '.join(release.builds)}")
    with_flavour = [v for v, r in compat.torch.items() if flavour in r.builds]
    if with_flavour:
        asked = numbers(release.version)
        later = [v for v in with_flavour if numbers(v) > asked]
        line = numbers(min(later, key=numbers))[:2] if later else None
        best = max((v for v in later if numbers(v)[:2] == line), key=numbers) if later else with_flavour[-1]
        parts.append(f"torch {best}+{flavour}")
    torch = " or ".join(parts)
    return (decision("torch-flavour-exists", "refuse", what, compared, release.note, torch=torch),)


def torch_default_flavour(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`torch-default-flavour`: no flavour was asked for, so it is the one that PyPI has; it is named."""
    release = None if request.installed else request.release(compat)
    if release is None or request.flavour is not None:
        return NOTHING
    compared = ("no flavour given", f"PyPI has {release.pypi_flavour or 'none'}")
    if release.pypi_flavour:
        what = f"torch {release.version} without a flavour is {release.pypi_flavour}"
        return (decision("torch-default-flavour", "allow", what, compared, release.note),)
    what = f"torch {release.version} is not on PyPI, so its flavour must be given"
    torch = f"torch {release.version} in {', '.join(release.builds)}"
    return (decision("torch-default-flavour", "refuse", what, compared, release.note, torch=torch),)


def torch_locator(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`torch-locator`: the index named for torch can hold that flavour (x86_64; PyPI has one flavour a release)."""
    release = None if request.installed else request.release(compat)
    if release is None or request.flavour is None or not request.index or request.machine != "x86_64":
        return NOTHING
    if not release.on_pypi or (request.flavour != "cpu" and request.flavour not in release.builds):
        return NOTHING
    url = _locator(release, request.flavour, compat)
    compared = (f"{request.flavour} from {request.index}", f"PyPI has {release.pypi_flavour}; else {url}")
    if request.index == "pypi" and request.flavour != release.pypi_flavour:
        what = f"PyPI has torch {release.version} only as {release.pypi_flavour}, not as {request.flavour}"
        return (decision("torch-locator", "refuse", what, compared, release.note, f"the index {url}"),)
    what = f"torch {release.version}+{request.flavour} can come from {request.index}"
    return (decision("torch-locator", "allow", what, compared, release.note),)


def torch_aarch64(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`torch-aarch64`: on aarch64, older releases are CPU builds under any name; on PyPI, some newer ones too."""
    release = None if request.installed else request.release(compat)
    flavour = request.wanted_flavour(compat)
    if release is None or request.machine != "aarch64" or not release.tags.get("aarch64"):
        return NOTHING
    line, before, pypi_to = numbers(release.version)[:2], compat.aarch64_no_cuda_before, compat.aarch64_pypi_cpu_to
    from_pypi = request.flavour is None or request.index == "pypi"
    offered = f"PyPI: CPU builds up to {dotted(pypi_to)}; elsewhere before {dotted(before)}"
    compared, note = (f"torch {release.version}+{flavour} for aarch64", offered), compat.aarch64_note
    if flavour == "cpu":
        return (decision("torch-aarch64", "allow", "you asked for a CPU build", compared, note),)
    if line < before or (from_pypi and line <= pypi_to):
        what = f"torch {release.version} for aarch64 from {request.index or 'PyPI'} is a CPU build; it uses no GPU"
        instead = f"a release after {dotted(pypi_to)}, an image or a module with CUDA for aarch64, or `flavours: [cpu]`"
        return (decision("torch-aarch64", "refuse", what, compared, note, instead),)
    what = f"it is not known whether torch {release.version} for aarch64 has CUDA there"
    return (decision("torch-aarch64", "warn", what, compared, note, "look at `torch.version.cuda` after the build"),)


def _locator(release: TorchRelease, flavour: str, compat: Compat) -> str:
    option, url = compat.locators[release.locator]
    return f"--{option} {url.format(flavour=flavour)}"


def glibc_floor(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`glibc-floor`: the node's C library is glibc and not older than the wheel's platform tag asks for."""
    release = None if request.installed else request.release(compat)
    if release is None:
        return NOTHING
    build = request.build(compat)
    need = (
        build.glibc if build and build.glibc else compat.glibc_by_tag.get(release.platform_tag.get(request.machine, ""))
    )
    if need is None:
        return NOTHING
    libc = numbers(facts.libc.version)
    compared = (f"{facts.libc.kind or 'unknown libc'} {facts.libc.version}".strip(), f"glibc {dotted(need)}")
    if facts.libc.kind == "glibc" and libc >= need:
        what = f"glibc {facts.libc.version} is new enough"
        return (decision("glibc-floor", "allow", what, compared, compat.glibc_note),)
    if not facts.libc.kind or (facts.libc.kind == "glibc" and not libc):
        what = "the probe could not read the C library's version"
        return (decision("glibc-floor", "warn", what, compared, compat.glibc_note),)
    what = f"torch {release.version} needs glibc {dotted(need)} or newer"
    is_old = facts.libc.kind == "glibc"
    instead = "a node with a newer system, or an image" if is_old else "an image or a node with glibc"
    torch = _for_glibc(facts, request, compat) if is_old else None
    return (decision("glibc-floor", "refuse", what, compared, compat.glibc_note, instead, torch),)


def _for_glibc(facts: NodeFacts, request: Request, compat: Compat) -> str | None:
    libc = numbers(facts.libc.version)
    tag = python_tag(request.python or "")
    fitting = [
        v
        for v, r in compat.torch.items()
        if compat.glibc_by_tag.get(r.platform_tag.get(request.machine, ""), libc) <= libc
        and (not request.python or tag in r.tags.get(request.machine, ()))
    ]
    return f"torch {max(fitting, key=numbers)}" if fitting else None
