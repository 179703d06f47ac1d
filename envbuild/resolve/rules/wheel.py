"""Does the wheel exist, and can this node load it? (releases, Python tags, flavours, indexes, glibc)"""

from __future__ import annotations

from envbuild.model.facts import NodeFacts
from envbuild.resolve.artifacts import Numbers, dotted, flavour_cuda, numbers, python_tag
from envbuild.resolve.compat import Compat, TorchRelease
from envbuild.resolve.request import NOTHING, Decisions, Request, Ruling


def torch_release_known(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`torch-release-known`: envbuild's tables have the release; one outside their range is not judged and warns."""
    if request.torch is None or request.installed:
        return NOTHING
    known, asked = list(compat.torch), numbers(request.torch)
    compared = (f"torch {request.torch}", f"releases {known[0]} to {known[-1]}")
    says = Ruling("torch-release-known", compared, compat.torch_note)
    if request.torch in compat.torch:
        return says("allow", f"torch {request.torch} exists")
    if not numbers(known[0]) <= asked <= numbers(known[-1]):
        return says("warn", f"torch {request.torch} is not in envbuild's data; nothing about it was checked")
    nearest = max((v for v in known if numbers(v) < asked), key=numbers)
    return says("refuse", f"there is no torch {request.torch}", torch=f"torch {nearest}")


def torch_lts_index(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`torch-lts-index`: a release that is not on PyPI must come from its own index."""
    release = request.wheel(compat)
    if release is None or release.on_pypi:
        return NOTHING
    url = _locator(release, request.flavour or next(iter(release.builds)), compat)
    says = Ruling("torch-lts-index", (f"index {request.index or 'not given'}", url), release.note)
    if request.index != "pypi":
        return says("allow", f"torch {release.version} comes from its long-term index")
    asked = numbers(release.version)
    older = max((v for v, r in compat.torch.items() if r.on_pypi and numbers(v) < asked), key=numbers, default=None)
    torch = f"torch {release.version} from {url}" + (f", or torch {older} from PyPI" if older else "")
    return says("refuse", f"torch {release.version} is a long-term release that PyPI does not have", torch=torch)


def torch_python(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`torch-python`: the release has a wheel for this Python on this machine architecture."""
    release = request.wheel(compat)
    if release is None or request.python is None:
        return NOTHING
    tags, tag = release.tags.get(request.machine, ()), python_tag(request.python)
    compared = (f"Python {request.python}", f"{request.machine}: {', '.join(tags) or 'no wheels'}")
    says = Ruling("torch-python", compared, release.note)
    if tag in tags:
        return says("allow", f"torch {release.version} has a wheel for Python {request.python}")
    if tag in release.unverified_tags.get(request.machine, ()):
        mark = f"public scripts download a {tag} wheel by name, which was not checked"
        says = says._replace(note=release.note.but(mark))
    what = f"torch {release.version} has no wheel for Python {request.python} on {request.machine}"
    return says("refuse", what, torch=_for_python(request, release, compat))


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
    release, flavour = request.wheel(compat), request.flavour
    if release is None or flavour is None:
        return NOTHING
    says = Ruling("torch-flavour-exists", (flavour, f"{', '.join(release.builds)} and cpu"), release.note)
    if flavour in release.builds:
        says = says._replace(note=release.builds[flavour].note)
    if flavour == "cpu" or flavour in release.builds:
        return says("allow", f"torch {release.version} was built for {flavour}")
    # The same release in the nearest flavour of the same CUDA major, and the nearest release with the flavour.
    cuda = flavour_cuda(flavour)
    same_major = [f for f in release.builds if cuda and flavour_cuda(f)[:1] == cuda[:1]]
    torch = f"torch {release.version} in {', '.join(release.builds)}"
    if same_major:
        torch = (
            f"torch {release.version}+{max(same_major, key=flavour_cuda)} (the same CUDA major: with nvcc "
            f"{dotted(cuda)} extensions build, Apex with its version check patched)"
        )
    with_flavour = [v for v, r in compat.torch.items() if flavour in r.builds]
    if with_flavour:
        later = [v for v in with_flavour if numbers(v) > numbers(release.version)]
        line = numbers(min(later, key=numbers))[:2] if later else None
        best = max((v for v in later if numbers(v)[:2] == line), key=numbers) if later else with_flavour[-1]
        torch += f" or torch {best}+{flavour}"
    return says("refuse", f"torch {release.version} has no {flavour} build", torch=torch)


def torch_default_flavour(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`torch-default-flavour`: no flavour was asked for, so it is the one that PyPI has; it is named."""
    release = request.wheel(compat)
    if release is None or request.flavour is not None:
        return NOTHING
    compared = ("no flavour given", f"PyPI has {release.pypi_flavour or 'none'}")
    says = Ruling("torch-default-flavour", compared, release.note)
    if release.pypi_flavour:
        return says("allow", f"torch {release.version} without a flavour is {release.pypi_flavour}")
    torch = f"torch {release.version} in {', '.join(release.builds)}"
    return says("refuse", f"torch {release.version} is not on PyPI, so its flavour must be given", torch=torch)


def torch_locator(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`torch-locator`: the index named for torch can hold that flavour (x86_64; PyPI has one flavour a release)."""
    release = request.wheel(compat)
    if release is None or request.flavour is None or not request.index or request.machine != "x86_64":
        return NOTHING
    if not release.on_pypi or (request.flavour != "cpu" and request.flavour not in release.builds):
        return NOTHING
    url = _locator(release, request.flavour, compat)
    compared = (f"{request.flavour} from {request.index}", f"PyPI has {release.pypi_flavour}; else {url}")
    says = Ruling("torch-locator", compared, release.note)
    if request.index == "pypi" and request.flavour != release.pypi_flavour:
        what = f"PyPI has torch {release.version} only as {release.pypi_flavour}, not as {request.flavour}"
        return says("refuse", what, f"the index {url}")
    return says("allow", f"torch {release.version}+{request.flavour} can come from {request.index}")


def torch_aarch64(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`torch-aarch64`: on aarch64, older releases are CPU builds under any name; on PyPI, some newer ones too."""
    release, flavour = request.wheel(compat), request.wanted_flavour(compat)
    if release is None or request.machine != "aarch64" or not release.tags.get("aarch64"):
        return NOTHING
    line, before, pypi_to = numbers(release.version)[:2], compat.aarch64_no_cuda_before, compat.aarch64_pypi_cpu_to
    offered = f"PyPI: CPU builds up to {dotted(pypi_to)}; elsewhere before {dotted(before)}"
    compared = (f"torch {release.version}+{flavour} for aarch64", offered)
    says = Ruling("torch-aarch64", compared, compat.aarch64_note)
    if flavour == "cpu":
        return says("allow", "you asked for a CPU build")
    from_pypi = request.flavour is None or request.index == "pypi"
    if line < before or (from_pypi and line <= pypi_to):
        what = f"torch {release.version} for aarch64 from {request.index or 'PyPI'} is a CPU build; it uses no GPU"
        instead = f"a release after {dotted(pypi_to)}, an image or a module with CUDA for aarch64, or `flavours: [cpu]`"
        return says("refuse", what, instead)
    what = f"it is not known whether torch {release.version} for aarch64 has CUDA there"
    return says("warn", what, "look at `torch.version.cuda` after the build")


def _locator(release: TorchRelease, flavour: str, compat: Compat) -> str:
    option, url = compat.locators[release.locator]
    return f"--{option} {url.format(flavour=flavour)}"


def glibc_floor(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`glibc-floor`: the node's C library is glibc and not older than the wheel's platform tag asks for."""
    release, build = request.wheel(compat), request.build(compat)
    if release is None:
        return NOTHING
    need = compat.glibc_by_tag.get(release.platform_tag.get(request.machine, ""))
    if build and build.glibc:
        need = build.glibc
    if need is None:
        return NOTHING
    kind, libc = facts.libc.kind, numbers(facts.libc.version)
    compared = (f"{kind or 'unknown libc'} {facts.libc.version}".strip(), f"glibc {dotted(need)}")
    says = Ruling("glibc-floor", compared, compat.glibc_note)
    if kind == "glibc" and libc >= need:
        return says("allow", f"glibc {facts.libc.version} is new enough")
    if not kind or (kind == "glibc" and not libc):
        return says("warn", "the probe could not read the C library's version")
    what = f"torch {release.version} needs glibc {dotted(need)} or newer"
    if kind != "glibc":
        return says("refuse", what, "an image or a node with glibc")
    return says("refuse", what, "a node with a newer system, or an image", _for_glibc(libc, request, compat))


def _for_glibc(libc: Numbers, request: Request, compat: Compat) -> str | None:
    tag = python_tag(request.python or "")
    fitting = [
        v
        for v, r in compat.torch.items()
        if compat.glibc_by_tag.get(r.platform_tag.get(request.machine, ""), libc) <= libc
        and (not request.python or tag in r.tags.get(request.machine, ()))
    ]
    return f"torch {max(fitting, key=numbers)}" if fitting else None
