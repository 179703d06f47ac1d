"""Does the driver allow it? (floors, minor-version compatibility, compat packages, the CUDA ceiling)"""

from __future__ import annotations

from pathlib import PurePosixPath

from envbuild.model.facts import NodeFacts
from envbuild.resolve.artifacts import Numbers, dotted, flavour_cuda, numbers
from envbuild.resolve.compat import Compat
from envbuild.resolve.request import NOTHING, Decisions, Request, capabilities, decision
from envbuild.resolve.rules.gpu import needs_ptx

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
    return (decision("driver-floor", "refuse", what, compared, note, UPDATE, _for_driver(request, driver, compat)),)


def _for_driver(request: Request, driver: Numbers, compat: Compat) -> str | None:
    """The same torch in a flavour whose floor the driver meets."""
    release = request.release(compat)
    fitting = []
    for flavour in release.builds if release else ():
        floor = _floor(flavour_cuda(flavour), compat)
        if floor is not None and driver >= floor:
            fitting.append(flavour)
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
    compared = (f"driver branch {driver[0]}, {kinds} GPU", f"not {sorted(compat.cuda.excluded_branches)}")
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
    torch = _for_driver(request, driver, compat)
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
    """`cuda-ceiling`: what nvidia-smi prints is the newest CUDA of the driver; the flavour need not equal it."""
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
