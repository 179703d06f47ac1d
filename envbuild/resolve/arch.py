"""For which GPU architectures sources are compiled (TORCH_CUDA_ARCH_LIST): from the GPUs that run them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from envbuild.model.facts import CompilerFacts, NodeFacts, NvccFacts
from envbuild.model.lock import Variant
from envbuild.resolve.artifacts import Numbers, dotted, flavour_cuda, minor, numbers
from envbuild.resolve.compat import Compat, Cuda, TorchBuild, rows_like
from envbuild.resolve.request import NOTHING, OURS, Decisions, Request, Ruling, capabilities

_CODE = re.compile(r"[0-9]{1,2}\.[0-9][af]?(\+PTX)?")
# The conda package that activates a compiler, so that builds take it.
_COMPILER = re.compile(r"g(cc|xx)_linux-[a-z0-9]+")


class Architectures(NamedTuple):
    """`codes` as TORCH_CUDA_ARCH_LIST spells them, oldest first; `given`: their origin; `gpus`: the GPUs they are for.

    Origins: `stack`: its own variable; `node`: the node's GPUs; `target`: its `expects`; `torch`: none of these, so all
    architectures of torch.
    """

    codes: tuple[str, ...]
    given: Literal["stack", "node", "target", "torch"]
    gpus: tuple[tuple[str, Numbers], ...] = ()

    @property
    def text(self) -> str:
        """The value of the variable: `8.0;9.0`."""
        return ";".join(self.codes)


def with_own_compilers(variant: Variant, facts: NodeFacts) -> NodeFacts:
    """The node as builds of a variant see it: compilers among its conda packages come before those of the node."""
    packages = variant.archives
    compilers = [(match[1], package) for package in packages if (match := _COMPILER.fullmatch(package.name))]
    own = [
        CompilerFacts(path=f"{p.name}/{'gcc' if kind == 'cc' else 'g++'}", version=p.version) for kind, p in compilers
    ]
    return facts.model_copy(update={"compilers": (*own, *facts.compilers)}) if own else facts


def pick_nvcc(facts: NodeFacts, cuda: Numbers) -> NvccFacts | None:
    """The toolkit to compile with: the wheel's own version, else the nearest of its major, else the newest."""

    def fitness(nvcc: NvccFacts) -> tuple[bool, bool, int, Numbers]:
        release = minor(nvcc.version)
        same = bool(release) and bool(cuda) and release[0] == cuda[0]
        return release == cuda, same, -abs(release[1] - cuda[1]) if same else 0, numbers(nvcc.version)

    return max(facts.nvcc, key=fitness, default=None)


def toolkit(facts: NodeFacts, request: Request, compat: Compat) -> NvccFacts | None:
    """The nvcc that sources are compiled with on this node, None without one or without a CUDA torch."""
    if request.torch is None or request.wanted_flavour(compat) == "cpu":
        return None
    return pick_nvcc(facts, flavour_cuda(request.wanted_flavour(compat)))


def architectures(facts: NodeFacts, request: Request, compat: Compat) -> Architectures | None:
    """What the sources of a request are compiled for; None if no source has a build or torch has no CUDA."""
    if not (request.built or request.compiled) or request.torch is None or request.wanted_flavour(compat) == "cpu":
        return None
    if request.arch_list is not None:
        return Architectures(given_codes(request.arch_list), "stack")
    nvcc, build = toolkit(facts, request, compat), request.build(compat)
    release = minor(nvcc.version) if nvcc else ()
    on_node, expected = capabilities(facts), _expected(request.expected_gpu, compat)
    gpus = on_node or expected
    if gpus:
        codes = _codes(((c for _, c in gpus)), build, release, compat.cuda)
        return Architectures(codes, "node" if on_node else "target", gpus)
    own = [a for a in (build.archs if build else ()) if _knows(release, a, compat.cuda)]
    return Architectures(_codes(own, build, release, compat.cuda), "torch")


def bound_arch_list(facts: NodeFacts, request: Request, compat: Compat) -> tuple[str, ...] | None:
    """What becomes part of the variant; None also if the stack's own variable, which is part already, says it."""
    archs = architectures(facts, request, compat)
    return None if archs is None or archs.given == "stack" else archs.codes


def given_codes(arch_list: str | None) -> tuple[str, ...]:
    """The codes of a TORCH_CUDA_ARCH_LIST of a stack; empty without one, or if it has no numbers."""
    words = [word for word in re.split(r"[;\s]+", arch_list or "") if word]
    return tuple(words) if all(_CODE.fullmatch(word) for word in words) else ()


def _expected(text: str | None, compat: Compat) -> tuple[tuple[str, Numbers], ...]:
    """The GPU model that a target names, as (name, compute capability); empty for one that is not known."""
    return tuple((text or "", capability) for capability in sorted({gpu.capability for gpu in rows_like(text, compat)}))


def _codes(wanted: Iterable[Numbers], build: TorchBuild | None, nvcc: Numbers, cuda: Cuda) -> tuple[str, ...]:
    codes = {_code(capability, build, nvcc, cuda) for capability in wanted}
    return tuple(sorted(codes, key=lambda code: (numbers(code), code)))


def _code(capability: Numbers, build: TorchBuild | None, nvcc: Numbers, cuda: Cuda) -> str:
    """The newest code that runs on a GPU and that both nvcc and torch can do.

    Machine code runs on GPUs of its major that are not older; where torch has none of that major, it has PTX, and the
    extensions get the same. torch's own builder refuses an architecture that it was not written for, so nothing newer
    than what torch itself has is asked of it.
    """
    torch = set(build.archs) if build is not None else set()
    able = torch or {capability, *(set(cuda.first_cuda) - cuda.embedded)}
    native = [a for a in able if a[0] == capability[0] and a <= capability and _knows(nvcc, a, cuda)]
    if native:
        return dotted(max(native))
    ptx = [a for a in (build.ptx if build is not None else ()) if a <= capability and _knows(nvcc, a, cuda)]
    return f"{dotted(max(ptx))}+PTX" if ptx else dotted(capability)


def _knows(nvcc: Numbers, arch: Numbers, cuda: Cuda) -> bool:
    """Whether a toolkit of that version compiles for an architecture; what the data do not say is taken to be so."""
    first, last = cuda.first_cuda.get(arch), cuda.last_cuda.get(arch)
    return not nvcc or ((first is None or first <= nvcc) and (last is None or nvcc <= last))


def arch_list_from_target(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`arch-list-from-target`: architectures are those of the GPUs that run the code, not guessed; never refuses."""
    archs = architectures(facts, request, compat)
    if archs is None:
        return NOTHING
    built = f"extensions are built for {archs.text or 'what torch chooses'}"
    gpus = ", ".join(f"{name} ({dotted(capability)})" for name, capability in archs.gpus)
    setting = f"TORCH_CUDA_ARCH_LIST={archs.text}"
    says = Ruling("arch-list-from-target", (gpus, setting), compat.cuda.arch_note)
    if archs.given == "stack":
        compared = (f"{len(facts.gpus)} GPUs on the node", f"TORCH_CUDA_ARCH_LIST={request.arch_list} in the stack")
        return Ruling("arch-list-from-target", compared, OURS)("allow", built)
    if archs.given == "node":
        return says("allow", f"{built}, the node's own GPUs")
    if archs.given == "target":
        return says("patch", f"this node has no GPU, so {built}, the GPU that the target expects", setting)
    says = says._replace(compared=(f"no GPU, expected: {request.expected_gpu or 'nothing'}", setting))
    what = f"the node has no GPU and the target expects no known GPU, so {built}"
    return says("warn", what, "`expects: {gpu: MODEL}` in the target: less to compile")
