"""Does it run on these GPUs (machine code, PTX, bf16, peaks), and does their driver allow it (floors, compat)?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

from envbuild.model.facts import NodeFacts
from envbuild.model.plan import Decision
from envbuild.resolve.artifacts import Numbers, dotted, flavour_cuda, numbers, python_tag
from envbuild.resolve.compat import Compat, Gpu, Image, Note, TorchBuild
from envbuild.resolve.request import NOTHING, Decisions, Request, capabilities, decision


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
    return tuple(_gpu_arch(name, capability, build, request, compat) for name, capability in capabilities(facts))


def _gpu_arch(name: str, capability: Numbers, build: TorchBuild, request: Request, compat: Compat) -> Decision:
    label = f"torch {request.torch}+{build.flavour}"
    ptx = f" +PTX {' '.join(map(dotted, build.ptx))}" if build.ptx else ""
    compared = (f"{name} ({dotted(capability)})", f"{' '.join(map(dotted, build.archs)) or 'unknown'}{ptx}")
    code = native_code(build, capability)
    if code is not None and code in build.disputed:
        what = f"{label} should hold code for {dotted(capability)}, but sources disagree: {build.disputed[code]}"
        return decision("gpu-arch", "warn", what, compared, build.note)
    if code is not None:
        return decision("gpu-arch", "allow", f"{label} holds code for {dotted(code)}", compared, build.note)
    if needs_ptx(build, capability):
        what = f"{label} runs on {dotted(capability)} through PTX only, which the driver compiles when it loads"
        return decision("gpu-arch", "allow" if build.ptx_note.firm else "warn", what, compared, build.ptx_note)
    has = "has no" if build.archs else "is not known to have"
    what = f"{label} {has} code for compute capability {dotted(capability)}"
    cannot = _cannot_compile(build, capability, compat)
    note = build.note if build.note.firm or not cannot else compat.cuda.arch_note
    what = f"{what}; {cannot}" if cannot else what
    nearest = nearest_build(request, capability, compat)
    return decision("gpu-arch", "refuse", what, compared, note, torch=nearest)


def _cannot_compile(build: TorchBuild, capability: Numbers, compat: Compat) -> str:
    """Why the toolkit of a build rules a GPU out, whatever the build's own list is worth; empty where it does not.

    A toolkit that dropped the GPU makes no PTX for it either; one from before the GPU could have left PTX, so there the
    list has to be known and hold none.
    """
    cuda = flavour_cuda(build.flavour)
    first, last = compat.cuda.first_cuda.get(capability), compat.cuda.last_cuda.get(capability)
    if last is not None and cuda > last:
        return f"CUDA {dotted(cuda)} no longer compiles for {dotted(capability)}, {dotted(last)} was the last"
    if first is not None and cuda < first and build.archs:
        return f"CUDA {dotted(cuda)} cannot compile for {dotted(capability)}, {dotted(first)} was the first"
    return ""


def nearest_build(request: Request, capability: Numbers, compat: Compat) -> str | None:
    """The release nearest to the one asked for that holds machine code for the GPU, for the same Python if possible."""
    order = list(compat.torch)
    here = order.index(request.torch or "")
    tag = python_tag(request.python or "")
    builds: list[tuple[bool, int, bool, bool, Numbers, str]] = []
    for place, (version, release) in enumerate(compat.torch.items()):
        same_python = not request.python or tag in release.tags.get(request.machine, ())
        for flavour, build in release.builds.items():
            if holds_code(build, capability):
                cuda = tuple(-part for part in flavour_cuda(flavour))
                usual = flavour == release.pypi_flavour
                builds.append(
                    (not same_python, abs(place - here), place < here, not usual, cuda, f"{version}+{flavour}")
                )
    if not builds:
        return None
    other_python, *_, label = min(builds)
    return f"torch {label}" + (", with another Python" if other_python else "")


def bf16_tensor_cores(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`bf16-tensor-cores`: training in bf16 on a GPU without bf16 tensor cores works, slowly; never refuses."""
    if request.precision != "bf16":
        return NOTHING
    limits, out = compat.limits, []
    for name, capability in capabilities(facts):
        compared = (f"{name} ({dotted(capability)})", f"bf16 from {dotted(limits.bf16_min_capability)}")
        if capability >= limits.bf16_min_capability:
            out.append(decision("bf16-tensor-cores", "allow", f"{name} has bf16", compared, limits.bf16_note))
        else:
            what = f"{name} has no bf16 tensor cores: bf16 training will be slow"
            out.append(decision("bf16-tensor-cores", "warn", what, compared, limits.bf16_note, "fp16"))
    return tuple(out)


def image_gpu(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`image-gpu`: the CUDA of an NVIDIA image knows the GPUs."""
    image = compat.images.get(request.image or "")
    if image is None:
        return NOTHING
    out = []
    for name, capability in capabilities(facts):
        first = compat.cuda.first_cuda.get(capability)
        if first is None:
            continue
        compared = (f"{name} ({dotted(capability)}) needs CUDA {dotted(first)}", f"CUDA {dotted(image.cuda)}")
        if image.cuda[:2] >= first:
            what = f"the image {image.tag} knows {dotted(capability)}"
            out.append(decision("image-gpu", "allow", what, compared, image.cuda_note))
            continue
        newer = min((i.tag for i in compat.images.values() if i.cuda[:2] >= first), key=numbers, default=None)
        what = f"the image {image.tag} was built before {dotted(capability)} was known"
        instead = f"the image {newer} or later" if newer else "an image with a newer CUDA"
        out.append(decision("image-gpu", "refuse", what, compared, _cuda_note(image, first, compat), instead))
    return tuple(out)


def _cuda_note(image: Image, first: Numbers, compat: Compat) -> Note:
    """The note of an image's CUDA; where that is not firm, that of a later image whose CUDA is too old as well."""
    later = (i for i in compat.images.values() if numbers(i.tag) >= numbers(image.tag))
    proof = (i.cuda_note for i in later if i.cuda_note.firm and i.cuda[:2] < first)
    return image.cuda_note if image.cuda_note.firm else next(proof, image.cuda_note)


def image_driver(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`image-driver`: the driver is new enough for the image; data-centre GPUs may rely on its compat package."""
    image = compat.images.get(request.image or "")
    driver = numbers(facts.driver.version)
    if image is None or not driver or not facts.gpus:
        return NOTHING
    compared = (f"driver {facts.driver.version}", f"{image.min_driver} for {image.tag}")
    if driver[0] >= image.min_driver:
        return (decision("image-driver", "allow", "the driver is new enough", compared, image.driver_note),)
    if all(compat.gpu_kind(gpu.name) == "data-centre" for gpu in facts.gpus):
        what = f"the driver is older than {image.tag} asks for; its own compat package may bridge that"
        return (decision("image-driver", "warn", what, compared, image.driver_note, "a newer driver"),)
    fitting = [i.tag for i in compat.images.values() if i.min_driver <= driver[0] and i.driver_note.firm]
    instead = "a newer driver" + (f", or the image {max(fitting, key=numbers)}" if fitting else "")
    what = f"the image {image.tag} needs driver {image.min_driver}"
    return (decision("image-driver", "refuse", what, compared, image.driver_note, instead),)


def peak_is_dense(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`peak-is-dense`: a peak (TFLOP/s) for MFU is the dense figure, without sparsity, and no floor is above it."""
    out = []
    for name in dict.fromkeys(gpu.device_name for gpu in facts.gpus):
        gpu = compat.gpu_of(name)
        if gpu is None or gpu.dense_tflops is None:
            continue
        if request.peak_tflops is not None:
            out.append(_peak(request.peak_tflops, gpu, gpu.dense_tflops, compat))
        if request.floor_tflops is not None:
            out.append(_tflops_floor(request.floor_tflops, gpu, gpu.dense_tflops))
    return tuple(out)


def _peak(peak: float, gpu: Gpu, dense: float, compat: Compat) -> Decision:
    compared = (f"{peak:g} TFLOPS", f"{dense:g} dense")
    if gpu.sparse_tflops is not None and abs(peak - gpu.sparse_tflops) <= 1:
        what = f"{peak:g} is the figure with sparsity; it would halve MFU"
        return decision("peak-is-dense", "refuse", what, compared, compat.limits.sparse_note, f"{dense:g}")
    if abs(peak - dense) <= 1:
        return decision("peak-is-dense", "allow", "it is the dense figure", compared, gpu.note)
    what = f"{gpu.model} has another peak in envbuild's table"
    return decision("peak-is-dense", "warn", what, compared, gpu.note, f"{dense:g}")


def _tflops_floor(floor: float, gpu: Gpu, dense: float) -> Decision:
    compared = (f"a floor of {floor:g} TFLOP/s", f"{dense:g} dense")
    if floor <= dense:
        return decision("peak-is-dense", "allow", "the floor is below the dense peak", compared, gpu.note)
    what = f"no {gpu.model} reaches {floor:g} TFLOP/s without sparsity"
    return decision("peak-is-dense", "refuse", what, compared, gpu.note, f"a floor below {dense:g}")


UPDATE = "a driver update"


def shown(driver: Numbers) -> str:
    """A driver version as NVIDIA writes it: (450, 80, 2) is 450.80.02."""
    return ".".join(f"{part:02d}" for part in driver)


def _asked(facts: NodeFacts, request: Request, compat: Compat) -> Numbers:
    """The CUDA version that the wheel was built with; empty when no driver is needed (cpu, or no GPU)."""
    return flavour_cuda(request.wanted_flavour(compat)) if facts.gpus else ()


def _floor(cuda: Numbers, compat: Compat) -> Numbers | None:
    return compat.cuda.lone_floors.get(cuda) or compat.cuda.floors.get(cuda[0])


def driver_floor(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`driver-floor`: the driver is not older than the CUDA major's floor, unless a compat package bridges it."""
    cuda = _asked(facts, request, compat)
    floor = _floor(cuda, compat) if cuda else None
    if floor is None:
        return NOTHING
    driver, note = numbers(facts.driver.version), compat.cuda.floor_note
    compared = (f"driver {facts.driver.version or 'unknown'}", f"{shown(floor)} for CUDA {dotted(cuda)}")
    if not driver:
        what = f"the driver cannot be asked: {facts.driver.problem or 'no version was read'}"
        return (decision("driver-floor", "warn", what, compared, note, "look at the node's NVIDIA driver"),)
    if driver >= floor:
        what = f"driver {facts.driver.version} runs CUDA {cuda[0]} wheels"
        return (decision("driver-floor", "allow", what, compared, note),)
    if _bridged(facts, cuda, compat):
        return NOTHING
    what = f"CUDA {dotted(cuda)} needs driver {shown(floor)} or newer"
    return (decision("driver-floor", "refuse", what, compared, note, UPDATE, _for_driver(facts, request, compat)),)


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
    kinds = {compat.gpu_kind(gpu.name) for gpu in facts.gpus}
    return (
        cuda not in compat.cuda.lone_floors
        and kinds == {"data-centre"}
        and bool(branch)
        and branch[0] not in compat.cuda.excluded_branches
    )


def driver_cuda_compat(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`driver-cuda-compat`: below the floor, a data-centre GPU can run with NVIDIA's compat package."""
    cuda = _asked(facts, request, compat)
    floor = _floor(cuda, compat) if cuda else None
    driver = numbers(facts.driver.version)
    if floor is None or not driver:
        return NOTHING
    note = compat.cuda.compat_note
    kinds = " and ".join(sorted({compat.gpu_kind(gpu.name) for gpu in facts.gpus}))
    compared = (
        f"driver branch {driver[0]}, {kinds} GPU",
        f"no compat package for {', '.join(map(str, sorted(compat.cuda.excluded_branches)))}",
    )
    if driver >= floor:
        return (decision("driver-cuda-compat", "allow", "no compat package is needed", compared, note),)
    if not _bridged(facts, cuda, compat):
        what = "no compat package bridges this driver"
        return (decision("driver-cuda-compat", "refuse", what, compared, note, UPDATE),)
    package = compat.cuda.compat_package.format(major=cuda[0], minor=cuda[1])
    if numbers(facts.driver.cuda_ceiling) >= cuda:
        what = f"a compat package is in use: with this driver nvidia-smi says CUDA {facts.driver.cuda_ceiling}"
        return (decision("driver-cuda-compat", "allow", what, compared, note),)
    folders = request.variables.get("LD_LIBRARY_PATH", "").split(":")
    given = next((folder for folder in folders if PurePosixPath(folder).name == "compat"), None)
    if given is not None:
        what = f"the driver is below the floor of CUDA {dotted(cuda)}; the target's LD_LIBRARY_PATH brings {given}"
        return (decision("driver-cuda-compat", "patch", what, compared, note, UPDATE),)
    what = f"the driver is below the floor of CUDA {dotted(cuda)}, and no compat package is in use"
    instead = (
        f"{package} on the node, and `environment: {{LD_LIBRARY_PATH: /usr/local/cuda-{dotted(cuda)}/compat}}` in the "
        f"target; or {UPDATE}"
    )
    torch = _for_driver(facts, request, compat)
    return (decision("driver-cuda-compat", "refuse", what, compared, note, instead, torch),)


def driver_minor_compat(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`driver-minor-compat`: between the floor and the toolkit's own driver it runs, but PTX may not."""
    cuda = _asked(facts, request, compat)
    floor = _floor(cuda, compat) if cuda else None
    own = compat.cuda.toolkit_drivers.get(cuda)
    driver = numbers(facts.driver.version)
    if floor is None or own is None or not floor <= driver:
        return NOTHING
    note = compat.cuda.toolkit_note
    compared = (f"driver {facts.driver.version}", f"{shown(own)} came with CUDA {dotted(cuda)}")
    if driver >= own:
        what = f"the driver is as new as CUDA {dotted(cuda)}"
        return (decision("driver-minor-compat", "allow", what, compared, note),)
    build = request.build(compat)
    by_ptx = [dotted(c) for _, c in capabilities(facts) if build is not None and needs_ptx(build, c)]
    if by_ptx:
        what = f"GPUs of {', '.join(by_ptx)} need PTX, which this driver cannot compile for CUDA {dotted(cuda)}"
        return (decision("driver-minor-compat", "refuse", what, compared, note, f"driver {shown(own)} or newer"),)
    what = f"the driver is older than CUDA {dotted(cuda)}: it runs by minor-version compatibility, PTX may fail"
    return (decision("driver-minor-compat", "warn", what, compared, note),)


def driver_knows_gpu(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`driver-knows-gpu`: the driver's branch is one that knows the GPU model at all."""
    driver = numbers(facts.driver.version)
    if not driver or not _asked(facts, request, compat):
        return NOTHING
    out = []
    for name, capability in capabilities(facts):
        first = compat.cuda.gpu_first_branch.get(capability)
        if first is None:
            continue
        compared = (f"driver {facts.driver.version}", f"R{first} for {dotted(capability)}")
        if driver[0] >= first:
            what = f"the driver knows {name}"
            out.append(decision("driver-knows-gpu", "allow", what, compared, compat.cuda.gpu_driver_note))
        else:
            what = f"the driver may not know {name}"
            out.append(decision("driver-knows-gpu", "refuse", what, compared, compat.cuda.gpu_driver_note))
    return tuple(out)


def cuda_ceiling(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`cuda-ceiling`: nvidia-smi prints the newest CUDA of the driver; the flavour may be older; never refuses."""
    cuda, ceiling = _asked(facts, request, compat), numbers(facts.driver.cuda_ceiling)
    if not cuda or not ceiling:
        return NOTHING
    compared = (f"flavour {request.wanted_flavour(compat)}", f"nvidia-smi says CUDA {facts.driver.cuda_ceiling}")
    note = compat.cuda.floor_note
    if cuda[0] > ceiling[0]:
        what = f"the driver's newest CUDA is {facts.driver.cuda_ceiling}, a major below {dotted(cuda)}"
        return (decision("cuda-ceiling", "warn", what, compared, note),)
    what = f"nvidia-smi's CUDA {facts.driver.cuda_ceiling} is the driver's ceiling, not a toolkit; {dotted(cuda)} fits"
    return (decision("cuda-ceiling", "allow", what, compared, note),)
