"""Does it run on these GPUs? (machine code, PTX, bf16, images, peaks)"""

from __future__ import annotations

from envbuild.model.facts import NodeFacts
from envbuild.model.resolution import Decision
from envbuild.resolve.artifacts import Numbers, dotted, flavour_cuda, numbers, python_tag
from envbuild.resolve.compat import Compat, Gpu, Image, Note, TorchBuild
from envbuild.resolve.request import NOTHING, Decisions, Request, capabilities, decision


def native_code(build: TorchBuild, capability: Numbers) -> Numbers | None:
    """The best machine code of a build for a GPU: the same major, at most its minor; None when there is none."""
    return max((a for a in build.archs if a[0] == capability[0] and a[1] <= capability[1]), default=None)


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
    what = f"{label} has no code for compute capability {dotted(capability)}"
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
            code = native_code(build, capability)
            if code is not None and code not in build.disputed and build.note.firm:
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
    """`bf16-tensor-cores`: training in bf16 on a GPU without bf16 tensor cores works, slowly."""
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
            out.append(_floor(request.floor_tflops, gpu, gpu.dense_tflops))
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


def _floor(floor: float, gpu: Gpu, dense: float) -> Decision:
    compared = (f"a floor of {floor:g} TFLOP/s", f"{dense:g} dense")
    if floor <= dense:
        return decision("peak-is-dense", "allow", "the floor is below the dense peak", compared, gpu.note)
    what = f"no {gpu.model} reaches {floor:g} TFLOP/s without sparsity"
    return decision("peak-is-dense", "refuse", what, compared, gpu.note, f"a floor below {dense:g}")
