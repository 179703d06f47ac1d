"""Does it run on these GPUs (machine code, PTX, bf16, peaks), and does their driver allow it (floors, compat)?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from envbuild.model.facts import NodeFacts
from envbuild.model.plan import Decision
from envbuild.resolve.artifacts import Numbers, dotted, flavour_cuda, numbers, python_tag
from envbuild.resolve.compat import Compat, Image, Note, TorchBuild
from envbuild.resolve.request import NOTHING, Decisions, Request, Ruling, capabilities


def native_code(build: TorchBuild, capability: Numbers) -> Numbers | None:
    """The best machine code of a build for a GPU: the same major, at most its minor; None when there is none."""
    return max((a for a in build.archs if a[0] == capability[0] and a[1] <= capability[1]), default=None)


def holds_code(build: TorchBuild, capability: Numbers) -> bool:
    """Whether a build is known to hold machine code for a GPU, by data that are verified and not disputed."""
    code = native_code(build, capability)
    return code is not None and code not in build.disputed and build.note.firm


def needs_ptx(build: TorchBuild, capability: Numbers) -> bool:
    """True when the GPU runs only what the driver compiles from PTX."""
    return native_code(build, capability) is None and any(ptx <= capability for ptx in build.ptx)


def gpu_arch(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`gpu-arch`: the build holds code for each GPU model (same major and not newer, or PTX)."""
    build = request.build(compat)
    if build is None:
        return NOTHING
    gpus = capabilities(facts)
    return tuple(item for name, capability in gpus for item in _gpu_arch(name, capability, build, request, compat))


def _gpu_arch(name: str, capability: Numbers, build: TorchBuild, request: Request, compat: Compat) -> Decisions:
    label = f"torch {request.torch}+{build.flavour}"
    ptx = f" +PTX {' '.join(map(dotted, build.ptx))}" if build.ptx else ""
    compared = (f"{name} ({dotted(capability)})", f"{' '.join(map(dotted, build.archs)) or 'unknown'}{ptx}")
    says, code = Ruling("gpu-arch", compared, build.note), native_code(build, capability)
    if code is not None and code in build.disputed:
        what = f"{label} should hold code for {dotted(capability)}, but sources disagree: {build.disputed[code]}"
        return says("warn", what)
    if code is not None:
        return says("allow", f"{label} holds code for {dotted(code)}")
    if needs_ptx(build, capability):
        what = f"{label} runs on {dotted(capability)} through PTX only, which the driver compiles when it loads"
        return says._replace(note=build.ptx_note)("allow" if build.ptx_note.firm else "warn", what)
    cannot = _cannot_compile(build, capability, compat)
    if cannot and not build.note.firm:
        says = says._replace(note=compat.cuda.arch_note)
    has = "has no" if build.archs else "is not known to have"
    what = f"{label} {has} code for compute capability {dotted(capability)}{cannot}"
    return says("refuse", what, torch=nearest_build(request, capability, compat))


def _cannot_compile(build: TorchBuild, capability: Numbers, compat: Compat) -> str:
    """Why the toolkit of a build rules a GPU out, whatever the build's own list is worth; empty where it does not.

    A toolkit that dropped the GPU makes no PTX for it either; one from before the GPU could have left PTX, so there the
    list has to be known and hold none.
    """
    cuda = flavour_cuda(build.flavour)
    first, last = compat.cuda.first_cuda.get(capability), compat.cuda.last_cuda.get(capability)
    if last is not None and cuda > last:
        return f"; CUDA {dotted(cuda)} no longer compiles for {dotted(capability)}, {dotted(last)} was the last"
    if first is not None and cuda < first and build.archs:
        return f"; CUDA {dotted(cuda)} cannot compile for {dotted(capability)}, {dotted(first)} was the first"
    return ""


def nearest_build(request: Request, capability: Numbers, compat: Compat) -> str | None:
    """The release nearest to the one asked for that holds machine code for the GPU, for the same Python if possible."""
    here = list(compat.torch).index(request.torch or "")
    tag = python_tag(request.python or "")
    builds: list[tuple[bool, int, bool, bool, Numbers, str]] = []
    for place, (version, release) in enumerate(compat.torch.items()):
        other_python = bool(request.python) and tag not in release.tags.get(request.machine, ())
        for flavour, build in release.builds.items():
            if holds_code(build, capability):
                cuda = tuple(-part for part in flavour_cuda(flavour))
                order = (other_python, abs(place - here), place < here, flavour != release.pypi_flavour, cuda)
                builds.append((*order, f"{version}+{flavour}"))
    if not builds:
        return None
    other_python, *_, label = min(builds)
    return f"torch {label}" + (", with another Python" if other_python else "")


def bf16_tensor_cores(facts: NodeFacts, request: Request, compat: Compat) -> Iterator[Decision]:
    """`bf16-tensor-cores`: training in bf16 on a GPU without bf16 tensor cores works, slowly; never refuses."""
    if request.precision != "bf16":
        return
    least = compat.bf16_min_capability
    for name, capability in capabilities(facts):
        compared = (f"{name} ({dotted(capability)})", f"bf16 from {dotted(least)}")
        says = Ruling("bf16-tensor-cores", compared, compat.bf16_note)
        if capability >= least:
            yield from says("allow", f"{name} has bf16")
        else:
            yield from says("warn", f"{name} has no bf16 tensor cores: bf16 training will be slow", "fp16")


def image_gpu(facts: NodeFacts, request: Request, compat: Compat) -> Iterator[Decision]:
    """`image-gpu`: the CUDA of an NVIDIA image knows the GPUs."""
    image = compat.images.get(request.image or "")
    if image is None:
        return
    for name, capability in capabilities(facts):
        first = compat.cuda.first_cuda.get(capability)
        if first is None:
            continue
        compared = (f"{name} ({dotted(capability)}) needs CUDA {dotted(first)}", f"CUDA {dotted(image.cuda)}")
        says = Ruling("image-gpu", compared, image.cuda_note)
        if image.cuda[:2] >= first:
            yield from says("allow", f"the image {image.tag} knows {dotted(capability)}")
            continue
        newer = min((i.tag for i in compat.images.values() if i.cuda[:2] >= first), key=numbers, default=None)
        instead = f"the image {newer} or later" if newer else "an image with a newer CUDA"
        what = f"the image {image.tag} was built before {dotted(capability)} was known"
        yield from says._replace(note=_cuda_note(image, first, compat))("refuse", what, instead)


def _cuda_note(image: Image, first: Numbers, compat: Compat) -> Note:
    """The note of an image's CUDA; where that is not firm, that of a later image whose CUDA is too old as well."""
    later = (i for i in compat.images.values() if numbers(i.tag) >= numbers(image.tag))
    proof = (i.cuda_note for i in later if i.cuda_note.firm and i.cuda[:2] < first)
    return image.cuda_note if image.cuda_note.firm else next(proof, image.cuda_note)


def image_driver(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`image-driver`: the driver is new enough for the image; data-centre GPUs may rely on its compat package."""
    image, driver = compat.images.get(request.image or ""), numbers(facts.driver.version)
    if image is None or not driver or not facts.gpus:
        return NOTHING
    compared = (f"driver {facts.driver.version}", f"{image.min_driver} for {image.tag}")
    says = Ruling("image-driver", compared, image.driver_note)
    if driver[0] >= image.min_driver:
        return says("allow", "the driver is new enough")
    if all(compat.gpu_kind(gpu.name) == "data-centre" for gpu in facts.gpus):
        what = f"the driver is older than {image.tag} asks for; its own compat package may bridge that"
        return says("warn", what, "a newer driver")
    fitting = [i.tag for i in compat.images.values() if i.min_driver <= driver[0] and i.driver_note.firm]
    instead = "a newer driver" + (f", or the image {max(fitting, key=numbers)}" if fitting else "")
    return says("refuse", f"the image {image.tag} needs driver {image.min_driver}", instead)


def peak_is_dense(facts: NodeFacts, request: Request, compat: Compat) -> Iterator[Decision]:
    """`peak-is-dense`: a peak (TFLOP/s) for MFU is the dense figure, without sparsity, and no floor is above it."""
    peak, floor = request.peak_tflops, request.floor_tflops
    for name in dict.fromkeys(gpu.device_name for gpu in facts.gpus):
        gpu = compat.gpu_of(name)
        if gpu is None or gpu.dense_tflops is None:
            continue
        dense, sparse = gpu.dense_tflops, gpu.sparse_tflops
        if peak is not None:
            says = Ruling("peak-is-dense", (f"{peak:g} TFLOPS", f"{dense:g} dense"), gpu.note)
            if sparse is not None and abs(peak - sparse) <= 1:
                what = f"{peak:g} is the figure with sparsity; it would halve MFU"
                yield from says._replace(note=compat.sparse_note)("refuse", what, f"{dense:g}")
            elif abs(peak - dense) <= 1:
                yield from says("allow", "it is the dense figure")
            else:
                yield from says("warn", f"{gpu.model} has another peak in envbuild's table", f"{dense:g}")
        if floor is not None:
            says = Ruling("peak-is-dense", (f"a floor of {floor:g} TFLOP/s", f"{dense:g} dense"), gpu.note)
            if floor <= dense:
                yield from says("allow", "the floor is below the dense peak")
            else:
                what = f"no {gpu.model} reaches {floor:g} TFLOP/s without sparsity"
                yield from says("refuse", what, f"a floor below {dense:g}")


UPDATE = "a driver update"


def shown(driver: Numbers) -> str:
    """A driver version as NVIDIA writes it: (450, 80, 2) is 450.80.02."""
    return ".".join(f"{part:02d}" for part in driver)


def _asked(facts: NodeFacts, request: Request, compat: Compat) -> tuple[Numbers, Numbers | None]:
    """The CUDA version of the wheel and its floor; empty when no driver is needed (cpu, or no GPU)."""
    cuda = flavour_cuda(request.wanted_flavour(compat)) if facts.gpus else ()
    return cuda, _floor(cuda, compat) if cuda else None


def _floor(cuda: Numbers, compat: Compat) -> Numbers | None:
    return compat.cuda.lone_floors.get(cuda) or compat.cuda.floors.get(cuda[0])


def driver_floor(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`driver-floor`: the driver is not older than the CUDA major's floor, unless a compat package bridges it."""
    cuda, floor = _asked(facts, request, compat)
    if floor is None:
        return NOTHING
    driver = numbers(facts.driver.version)
    compared = (f"driver {facts.driver.version or 'unknown'}", f"{shown(floor)} for CUDA {dotted(cuda)}")
    says = Ruling("driver-floor", compared, compat.cuda.floor_note)
    if not driver:
        what = f"the driver cannot be asked: {facts.driver.problem or 'no version was read'}"
        return says("warn", what, "look at the node's NVIDIA driver")
    if driver >= floor:
        return says("allow", f"driver {facts.driver.version} runs CUDA {cuda[0]} wheels")
    if _bridged(facts, cuda, compat):
        return NOTHING
    what = f"CUDA {dotted(cuda)} needs driver {shown(floor)} or newer"
    return says("refuse", what, UPDATE, _for_driver(facts, request, compat))


def _for_driver(facts: NodeFacts, request: Request, compat: Compat) -> str | None:
    """The same torch in a flavour whose floor the driver meets."""
    driver = numbers(facts.driver.version)

    def runs(cuda: Numbers) -> bool:
        floor = _floor(cuda, compat)
        return floor is not None and driver >= floor

    return other_flavour(facts, request, compat, runs)


def other_flavour(facts: NodeFacts, request: Request, compat: Compat, fits: Callable[[Numbers], bool]) -> str | None:
    """The same torch in the newest flavour whose CUDA fits and whose build is known to have code for the GPUs."""
    release, asked = request.release(compat), [capability for _, capability in capabilities(facts)]
    fitting = [
        flavour
        for flavour, build in (release.builds.items() if release else ())
        if fits(flavour_cuda(flavour)) and all(holds_code(build, capability) for capability in asked)
    ]
    return f"torch {request.torch}+{max(fitting, key=flavour_cuda)}" if fitting else None


def _bridged(facts: NodeFacts, cuda: Numbers, compat: Compat) -> bool:
    """True when every GPU is a data-centre one and the driver's branch takes a compat package."""
    branch = numbers(facts.driver.version)[:1]
    if cuda in compat.cuda.lone_floors or {compat.gpu_kind(gpu.name) for gpu in facts.gpus} != {"data-centre"}:
        return False
    return bool(branch) and branch[0] not in compat.cuda.excluded_branches


def driver_cuda_compat(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`driver-cuda-compat`: below the floor, a data-centre GPU can run with NVIDIA's compat package."""
    (cuda, floor), driver = _asked(facts, request, compat), numbers(facts.driver.version)
    if floor is None or not driver:
        return NOTHING
    kinds = " and ".join(sorted({compat.gpu_kind(gpu.name) for gpu in facts.gpus}))
    excluded = ", ".join(map(str, sorted(compat.cuda.excluded_branches)))
    compared = (f"driver branch {driver[0]}, {kinds} GPU", f"no compat package for {excluded}")
    says = Ruling("driver-cuda-compat", compared, compat.cuda.compat_note)
    if driver >= floor:
        return says("allow", "no compat package is needed")
    if not _bridged(facts, cuda, compat):
        return says("refuse", "no compat package bridges this driver", UPDATE)
    ceiling = facts.driver.cuda_ceiling
    if numbers(ceiling) >= cuda:
        return says("allow", f"a compat package is in use: with this driver nvidia-smi says CUDA {ceiling}")
    folders = request.variables.get("LD_LIBRARY_PATH", "").split(":")
    given = next((folder for folder in folders if PurePosixPath(folder).name == "compat"), None)
    what = f"the driver is below the floor of CUDA {dotted(cuda)}"
    if given is not None:
        return says("patch", f"{what}; the target's LD_LIBRARY_PATH brings {given}", UPDATE)
    instead = (
        f"{compat.cuda.compat_package.format(major=cuda[0], minor=cuda[1])} on the node, and `environment: "
        f"{{LD_LIBRARY_PATH: /usr/local/cuda-{dotted(cuda)}/compat}}` in the target; or {UPDATE}"
    )
    what = f"{what}, and no compat package is in use"
    return says("refuse", what, instead, _for_driver(facts, request, compat))


def driver_minor_compat(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`driver-minor-compat`: between the floor and the toolkit's own driver it runs, but PTX may not."""
    (cuda, floor), driver = _asked(facts, request, compat), numbers(facts.driver.version)
    own = compat.cuda.toolkit_drivers.get(cuda)
    if floor is None or own is None or not floor <= driver:
        return NOTHING
    compared = (f"driver {facts.driver.version}", f"{shown(own)} came with CUDA {dotted(cuda)}")
    says = Ruling("driver-minor-compat", compared, compat.cuda.toolkit_note)
    if driver >= own:
        return says("allow", f"the driver is as new as CUDA {dotted(cuda)}")
    build = request.build(compat)
    by_ptx = [dotted(c) for _, c in capabilities(facts) if build is not None and needs_ptx(build, c)]
    if by_ptx:
        what = f"GPUs of {', '.join(by_ptx)} need PTX, which this driver cannot compile for CUDA {dotted(cuda)}"
        return says("refuse", what, f"driver {shown(own)} or newer")
    what = f"the driver is older than CUDA {dotted(cuda)}: it runs by minor-version compatibility, PTX may fail"
    return says("warn", what)


def driver_knows_gpu(facts: NodeFacts, request: Request, compat: Compat) -> Iterator[Decision]:
    """`driver-knows-gpu`: the driver's branch is one that knows the GPU model at all."""
    driver, (cuda, _) = numbers(facts.driver.version), _asked(facts, request, compat)
    if not driver or not cuda:
        return
    for name, capability in capabilities(facts):
        first = compat.cuda.gpu_first_branch.get(capability)
        if first is None:
            continue
        compared = (f"driver {facts.driver.version}", f"R{first} for {dotted(capability)}")
        says = Ruling("driver-knows-gpu", compared, compat.cuda.gpu_driver_note)
        if driver[0] >= first:
            yield from says("allow", f"the driver knows {name}")
        else:
            yield from says("refuse", f"the driver may not know {name}")


def cuda_ceiling(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`cuda-ceiling`: nvidia-smi prints the newest CUDA of the driver; the flavour may be older; never refuses."""
    (cuda, _), newest = _asked(facts, request, compat), facts.driver.cuda_ceiling
    ceiling = numbers(newest)
    if not cuda or not ceiling:
        return NOTHING
    compared = (f"flavour {request.wanted_flavour(compat)}", f"nvidia-smi says CUDA {newest}")
    says = Ruling("cuda-ceiling", compared, compat.cuda.floor_note)
    if cuda[0] > ceiling[0]:
        return says("warn", f"the driver's newest CUDA is {newest}, a major below {dotted(cuda)}")
    return says("allow", f"nvidia-smi's CUDA {newest} is the driver's ceiling, not a toolkit; {dotted(cuda)} fits")
