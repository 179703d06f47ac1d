"""The resolver: node facts against the variants of a lock, every decision kept. Pure; it reads and writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from envbuild.model.facts import NodeFacts, PythonFacts
from envbuild.model.lock import Lock, Variant
from envbuild.model.plan import Candidate, Decision, DeliveryChoice, Resolution
from envbuild.model.target import Target
from envbuild.resolve import arch, health
from envbuild.resolve.arch import bound_arch_list, toolkit, with_own_compilers
from envbuild.resolve.artifacts import platform_of
from envbuild.resolve.compat import Compat
from envbuild.resolve.estimate import Estimate, Supplied, Supply, estimate, fetch_words, supplied
from envbuild.resolve.health import Health
from envbuild.resolve.node_classes import signature
from envbuild.resolve.request import (
    NOTHING,
    OURS,
    OUTSIDE,
    Check,
    Decisions,
    Request,
    Ruling,
    in_image,
    named_variant,
    refused,
    seen_inside,
)
from envbuild.resolve.rules import compilers, gpu, node, packages, wheel
from envbuild.resolve.rules.compilers import other_gcc
from envbuild.resolve.rules.node import interface_rule
from envbuild.resolve.rules.packages import finds_libstdcxx, library_rule
from envbuild.resolve.variant_checks import (
    Interpreter,
    asked_python,
    bound_variant,
    disk_rules,
    dotted_minor,
    interpreter_rule,
    platform_rules,
    python_hint,
    record_command,
    recorded_rule,
    request_for,
    stamp_of,
)
from envbuild.text import few

# In the order in which they are asked; each has the name of its function.
RULES: dict[str, Check] = {
    check.__name__.removesuffix("_rule").replace("_", "-"): check
    for check in (
        wheel.torch_release_known, wheel.torch_lts_index, wheel.torch_python, wheel.torch_flavour_exists,
        wheel.torch_default_flavour, wheel.torch_locator, wheel.torch_aarch64, wheel.glibc_floor,
        gpu.gpu_arch, gpu.bf16_tensor_cores, gpu.driver_floor, gpu.driver_minor_compat, gpu.driver_cuda_compat,
        gpu.driver_knows_gpu, gpu.cuda_ceiling, gpu.image_gpu, gpu.image_driver,
        compilers.nvcc_absent, compilers.nvcc_major, compilers.nvcc_minor, compilers.apex_cuda_check,
        packages.apex_flags, compilers.own_cuda_list, compilers.setuptools_minor, compilers.nvcc_knows_gpu,
        compilers.gcc_range, compilers.cxx11_abi, arch.arch_list_from_target,
        packages.build_isolation, packages.package_homonym, packages.two_owners, packages.system_packages,
        node.visible_gpus_rule, node.mig_no_nccl, node.zero_needs_no_pipeline, gpu.peak_is_dense,
    )
}  # fmt: skip

# Rules about a variant and its node, which need no compatibility data: what each asks.
OF_NODE = {
    "platform": "the variant is for the node's processor architecture.",
    "no-fitting-file": "every package of the lock has a file for the node's C library and Python.",
    "engine-fits": "the variant is made by the engine that the target asks for, which can hold its sources.",
    "base-asked": "the variant stands on the base that the target asks for.",
    "base-module": "the module that the variant stands on is there.",
    "python-not-there": "an interpreter of the variant's Python is on the node, or may be brought there.",
    "conda-virtual": "the node has what the conda packages need of its system.",
    "prefix-usable": "the folder for environments can be written, allows programs, and has room.",
    "disk-space": (
        "its disk and quota have room for what is installed, and for what a build needs meanwhile. The sum holds "
        "tools, and git sources by an estimate if nobody measured them. Packages without a recorded size are not in it."
    ),
    "disk-inodes": "its disk and quota have inodes for the files of the environment.",
    "files-out-of-reach": "the index or repository can be reached from who fetches; else it warns; never refuses.",
    "stack-name-shared": "the environment in use of this name is of the same project; else it warns; never refuses.",
    "gpu-broken": "the node's GPUs can be used at all; else a build for the CPU must be asked for.",
    "gpu-health": "the GPUs report nothing that makes them slow or wrong; else it warns; never refuses.",
    "gpu-unused": "a node with GPUs does not get a build for the CPU unnoticed.",
    "cuda-without-gpu": "a node without a usable GPU gets a CUDA build only with a warning; never refuses.",
    "interface-absent": "the network interface that a variable names is there; else it warns; never refuses.",
    "libstdcxx-absent": "the C++ library that a package needs and does not bring is there.",
}

Made = TypeVar("Made")
# Rules about what only building needs.
_TOOLS = frozenset({"nvcc-absent", "gcc-range"})


def evaluate(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """Apply every rule that concerns the request, in order. Pure."""
    decisions = [item for check in RULES.values() for item in check(facts, request, compat)]
    decisions.extend(packages.package_rules(facts, request, compat))
    return tuple(decisions)


class _Judged(NamedTuple):
    """One variant judged on one node: as it would be built, its interpreter, its decisions, its rank, who fetches."""

    variant: Variant
    python: PythonFacts | None
    decisions: Decisions
    rank: tuple[int, ...]
    delivery: DeliveryChoice

    @property
    def fits(self) -> bool:
        return not refused(self.decisions)


class Resolver:
    """A lock and a target, ready to judge nodes.

    `supply`: what this machine could deliver; `variant`: the id that the user asked for, `interpreter` a path or a
    version; `reference`: the stack as commands name it; `tool_bytes`: disk space of tools that a node may lack, by
    folder.
    """

    def __init__(
        self,
        lock: Lock,
        target: Target,
        compat: Compat,
        supply: Supply | None = None,
        *,
        variant: str | None = None,
        interpreter: str | None = None,
        reference: str = "",
        tool_bytes: Mapping[str, int] | None = None,
    ) -> None:
        """Keep the inputs; raises EnvbuildError `variant-unknown` (exit 2) for one that the lock does not have."""
        self.lock, self.target, self.compat = lock, target, compat
        self.supply = supply or Supply()
        self.interpreter, self.reference = interpreter, reference or lock.stack
        self.tool_bytes = tool_bytes or {}
        self.variants = lock.variants if variant is None else (named_variant(lock, variant),)
        has_cuda = any(variant.flavour not in (None, "cpu") for variant in lock.variants)
        cpu = next(
            (f"; `--variant {variant.id}` builds for the CPU" for variant in lock.variants if variant.flavour == "cpu"),
            "",
        )
        self._unasked = cpu if has_cuda and variant is None else None
        self._expects_gpus = target.expects.gpu is not None or bool(target.expects.gpus_per_node)
        # The place where each comes first.
        self._flavours = {v.flavour: place for place, v in reversed([*enumerate(self.variants)])}
        self._pythons = {v.python: place for place, v in reversed([*enumerate(self.variants)])}
        self._signatures: dict[Hashable, int] = {}
        self._made: dict[Hashable, Any] = {}

    def fleet(self, facts: Mapping[str, NodeFacts]) -> dict[str, Resolution]:
        """`resolve` for many nodes; equal nodes are decided once."""
        return {node: self.resolve(value) for node, value in facts.items()}

    def resolve(self, facts: NodeFacts) -> Resolution:
        """Which variant one node gets, and with which interpreter.

        Nothing fits: the resolution is `refused` and its decisions say why.
        """
        # A number stands for the signature: hashing it once a node is what makes large fleets quick.
        shared = self._signatures.setdefault(signature(facts), len(self._signatures))
        state = health.health(facts)
        judged = [self._judge(place, v, facts, state, shared) for place, v in enumerate(self.variants)]
        best = min((j for j in judged if j.fits), key=lambda j: j.rank, default=None)
        path = best.python.path if best is not None and best.python is not None else None
        nvcc, gcc = self._compilers_of(best, facts, shared) if best is not None else (None, None)
        return Resolution(
            node=facts.node,
            stack=self.lock.stack,
            profile=self.lock.profile,
            variant_id=best.variant.id if best else None,
            variant_digest=best.variant.digest if best else None,
            interpreter=path,
            arch_list=best.variant.arch_list if best else None,
            nvcc=nvcc,
            gcc=gcc,
            delivery=best.delivery if best else DeliveryChoice(),
            decisions=best.decisions + _why_not_cuda(best, judged)
            if best
            else _why_nothing(judged, facts, self.interpreter or self.target.base_python),
            candidates=tuple(
                Candidate(variant_id=j.variant.id, chosen=j is best, decisions=j.decisions) for j in judged
            ),
        )

    def _once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What equal nodes share, made once."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    def _judge(self, place: int, variant: Variant, facts: NodeFacts, state: Health, shared: int) -> _Judged:
        fitting, bound = self._bound(variant, facts, shared)
        stamp, platform = stamp_of(facts, self.lock, bound.here), platform_of(variant, facts)
        cost = self._once(("cost", variant.id, shared), lambda: estimate(variant, platform))
        built = stamp is not None
        found_at = supplied(bound, facts, self.target, self.supply, platform)
        if built:
            # It needs neither its files nor room for them; who would fetch them matters for a repair.
            found_at = Supplied(found_at.choice)
        ruled = self._shared(variant, fitting.python, facts, shared)
        if built:  # it needs no compilers any more
            ruled = tuple(item for item in ruled if item.rule not in _TOOLS or item.verdict != "refuse")
        decisions = fitting.decisions + ruled
        if not built:
            decisions += tuple(recorded_rule(bound, facts, record_command(self.reference, self.lock.profile)))
            # Room is asked only for what could be built; a refused variant is refused for better reasons.
            if not refused(decisions):
                beside = cost.beside_bytes(delivered=found_at.choice.by == "controller") + self._tools(variant, facts)
                decisions += disk_rules(cost, beside, len(variant.packages), facts)
        decisions += (
            *_reach_rule(found_at),
            *_tree_rule(variant, facts),
            *_name_rule(variant, facts, self.lock.stack),
            *interface_rule({**variant.environment, **self.target.environment}, facts),
            *_gpu_use(variant, facts, state, cost, self._unasked, expected=self._expects_gpus),
        )
        is_unwanted = variant.flavour is not None and (variant.flavour != "cpu") != state.usable
        rank = (
            int(not (stamp is not None and stamp.current)),
            int(bool(found_at.missing)),
            int(variant.base.kind != "none"),
            int(is_unwanted),
            self._flavours[variant.flavour],
            int(variant.interpreter.kind != "present"),
            self._pythons[variant.python],
            place,
        )
        return _Judged(bound, fitting.python, decisions, rank, found_at.choice)

    def _bound(self, variant: Variant, facts: NodeFacts, shared: int) -> tuple[Interpreter, Variant]:
        """The interpreter of a variant on a node, and the variant with what its base provides and its GPUs."""
        seen = tuple((p.path, p.version, p.implementation, p.virtual) for p in facts.pythons)
        key: Hashable = ("bound", variant.id, shared, seen)
        if variant.base.kind != "none":
            key = (key, tuple(None if p.packages is None else frozenset(p.packages.items()) for p in facts.pythons))

        def bound() -> tuple[Interpreter, Variant]:
            fitting = interpreter_rule(variant, facts, self.target, self.interpreter)
            archs = self._arch_list(variant, fitting.python, facts)
            return fitting, bound_variant(self.lock, variant, fitting.python, archs)

        return self._once(key, bound)

    def _arch_list(self, variant: Variant, python: PythonFacts | None, facts: NodeFacts) -> tuple[str, ...] | None:
        if not any(source.build for source in variant.sources):
            return None
        seen = seen_inside(facts) if in_image(variant, self.target) else facts
        return bound_arch_list(seen, self._request(variant, python), self.compat)

    def _compilers_of(self, best: _Judged, facts: NodeFacts, shared: int) -> tuple[str | None, str | None]:
        """nvcc for the CUDA code of the sources, and gcc where not the usual one; nobody knows those of an image."""
        if in_image(best.variant, self.target):
            return None, None
        variant, python = best.variant, best.python

        def paths() -> tuple[str | None, str | None]:
            request, seen = self._request(variant, python), with_own_compilers(variant, facts)
            nvcc = toolkit(seen, request, self.compat) if any(source.build for source in variant.sources) else None
            return nvcc.path if nvcc else None, other_gcc(seen, request, self.compat)

        return self._once(("compilers", variant.digest, python.path if python else None, shared), paths)

    def _request(self, variant: Variant, python: PythonFacts | None) -> Request:
        return request_for(variant, python, self.compat, self.target)

    def _tools(self, variant: Variant, facts: NodeFacts) -> int:
        """Bytes of the tools that the node still needs beside the environment; those of a shared folder lie there."""
        own = f"python-{(variant.interpreter.sha256 or '')[:12]}"
        needed = (folder for folder in self.tool_bytes if folder == own or not folder.startswith("python-"))
        present = self.tool_bytes if facts.shared else facts.toolchain
        return sum(self.tool_bytes[folder] for folder in needed if folder not in present)

    def _shared(self, variant: Variant, python: PythonFacts | None, facts: NodeFacts, shared: int) -> Decisions:
        """Decisions that equal nodes share: platform, files and every compatibility rule."""
        torch = (python.packages or {}).get("torch") if python and variant.base.kind != "none" else None
        libstdcxx = finds_libstdcxx(variant, python, facts)

        def judged() -> Decisions:
            inside, request = in_image(variant, self.target), self._request(variant, python)
            seen = seen_inside(facts) if inside else facts
            seen_by_builds = seen if inside else with_own_compilers(variant, facts)
            known = platform_rules(variant, seen) + evaluate(seen_by_builds, request, self.compat)
            if inside:
                known = tuple(item for item in known if item.rule not in OUTSIDE)
            else:
                known += tuple(library_rule(variant, self.target, libstdcxx, self.compat))
            if variant.conda is not None:
                from envbuild.resolve.rules.conda import conda_rules

                known += conda_rules(variant.conda, self.lock, seen, inside=inside)
            return known

        key = ("rules", variant.id, torch, python.openssl if python else None, libstdcxx, shared)
        return self._once(key, judged)


def _gpu_use(
    variant: Variant, facts: NodeFacts, state: Health, cost: Estimate, unasked: str | None, *, expected: bool
) -> Iterator[Decision]:
    """`gpu-health`, `gpu-broken`, `gpu-unused`, `cuda-without-gpu`: what the node's GPUs are good for, and the flavour.

    A node with GPUs is built for the CPU only where somebody says so, or where its GPUs work and nothing else fits.
    `unasked` is what to say then, None where the variant was asked for; `expected`: the target is said to have GPUs.
    """
    if variant.flavour is None:
        return
    broken, is_cpu = state.broken, variant.flavour == "cpu"
    for fault in state.faults:
        if fault != broken:
            compared = (fault.what, "a node in good health")
            yield from Ruling("gpu-health", compared, OURS)("warn", fault.what, fault.helps)
    compared = (f"{len(facts.gpus)} GPUs" if facts.gpus else "no usable GPU", f"flavour {variant.flavour}")
    if broken is not None and unasked is not None:
        what = f"the node's GPUs cannot be used: {broken.what}"
        yield from Ruling("gpu-broken", compared, OURS)("refuse", what, f"{broken.helps}{unasked}")
    elif is_cpu and (facts.gpus or facts.driver.problem or expected):
        what = "the CPU build does not use the node's GPUs"
        if not state.usable:
            what = f"{what}: {broken.what if broken else facts.driver.problem or 'no GPU can be seen'}"
        refuses = expected and unasked is not None
        instead = "a CUDA variant" if state.usable else health.what_shows_gpus(facts)
        yield from Ruling("gpu-unused", compared, OURS)("refuse" if refuses else "warn", what, instead)
    elif not is_cpu and not state.usable:
        why = broken.what if broken else facts.driver.problem
        node = f"a node without a usable GPU{f' ({why})' if why else ''}"
        what = f"{fetch_words(cost.fetch_bytes, cost.unsized)} for a CUDA build on {node}; it runs on the CPU"
        instead = "a CPU variant (`flavours: [cpu]` in the stack file), if its files can be fetched"
        yield from Ruling("cuda-without-gpu", compared, OURS)("warn", what, instead)


def _reach_rule(supplied: Supplied) -> Decisions:
    """`files-out-of-reach`: a warning, because a cache may still have them."""
    if not supplied.missing:
        return NOTHING
    shown, places = few(supplied.missing), f"{', '.join(supplied.places)} cannot be reached"
    what = f"{shown} cannot be fetched: {places}, and no file of it was found"
    instead = "put files into a find-links folder, give a mirror (pip's index-url, git's insteadOf) or a proxy"
    return Ruling("files-out-of-reach", (shown, places), OURS)("warn", what, instead)


def _tree_rule(variant: Variant, facts: NodeFacts) -> Iterator[Decision]:
    """`source-unreachable`: a working tree is used where it lies, so the node must have it there."""
    for tree in variant.trees:
        state = facts.trees.get(tree.name)
        if state and state.problem:
            what = f"the working tree of source {tree.name}, {state.path}, {state.problem} on this node"
            instead = "a file system that the node mounts too, or `git:` and `commit:` for the source"
            yield from Ruling("source-unreachable", (state.path, state.problem), OURS)("refuse", what, instead)


def _name_rule(variant: Variant, facts: NodeFacts, stack: str) -> Decisions:
    """`stack-name-shared`: a warning, because the link `current` of the stack leaves another project.

    A project is the folders, repositories and commits that its code is from: of one project, at least one stays.
    """
    used = next((item.stamp or {} for item in facts.environments if item.current and item.stack == stack), None)
    if used is None:
        return NOTHING
    trees = [facts.trees[tree.name] for tree in variant.trees if tree.name in facts.trees]
    # Place and commit of each: a folder that was pushed and pinned is the same project.
    own = {tree.path: tree.commit for tree in trees} | {source.git: source.commit for source in variant.sources}
    before = {tree["at"]: (tree.get("state") or {}).get("commit") for tree in used.get("trees") or ()}
    before |= {str(source.get("git")): source.get("commit") for source in used.get("sources") or ()}
    alike = own.keys() & before.keys() or {*own.values()} & {*before.values()} - {None}
    if alike or not (own or before):
        return NOTHING
    was, now = (few(list(places)) or "a stack without sources" for places in (before, own))
    what = f"current/{stack} belongs to {was}; it will point at the environment of {now} instead"
    instead = "another `name:` in this stack file and a new lock, or `--prefix DIR`: both stay in use"
    return Ruling("stack-name-shared", (now, was), OURS)("warn", what, instead)


def _why_not_cuda(best: _Judged, judged: list[_Judged]) -> Decisions:
    """When the CPU build was taken on a node with GPUs: what kept the nearest CUDA variant of that Python away."""
    if best.variant.flavour != "cpu" or not any(d.rule == "gpu-unused" for d in best.decisions):
        return NOTHING
    python = best.variant.python
    others = (j for j in judged if j.variant.flavour not in (None, "cpu") and j.variant.python == python)
    cuda = [j for j in others if not j.fits]
    if not cuda:
        return NOTHING
    nearest = min(cuda, key=_distance)
    reason = _refusals(nearest)[0]
    what = f"{nearest.variant.id} was not taken ({reason.rule}): {reason.what}"
    return (reason.model_copy(update={"rule": "gpu-unused", "verdict": "warn", "what": what}),)


def _why_nothing(judged: list[_Judged], facts: NodeFacts, asked: str | None) -> tuple[Decision, ...]:
    """The most helpful refusals: of the variant that was nearest, and the interpreter where none was available."""
    without = [j for j in judged if any(d.rule == "python-not-there" and d.verdict == "refuse" for d in j.decisions)]
    if len(without) == len(judged):
        wanted = " or ".join(dict.fromkeys(j.variant.python for j in judged))
        present = ", ".join(f"{p.version} at {p.path}" for p in facts.pythons) or "none"
        what = f"the interpreter of the stack is not available: it needs Python {wanted}"
        first = wanted.split(" or ")[0]
        fits = next((p.path for p in facts.pythons if dotted_minor(p) in wanted.split(" or ")), None)
        if asked:
            what = asked_python(asked, wanted, facts)
        instead = (
            f"name {fits}, or no interpreter"
            if asked and fits
            else python_hint(first, by_stack=not asked and any(j.variant.base.kind == "none" for j in judged))
        )
        compared = (f"Python {wanted}", f"there: {present}")
        rest = _refusals(min(judged, key=_distance), skip="python-not-there")
        return Ruling("python-not-there", compared, OURS)("refuse", what, instead) + rest
    return _refusals(min(judged, key=_distance))


def _refusals(judged: _Judged, skip: str = "") -> Decisions:
    return tuple(d for d in judged.decisions if d.verdict == "refuse" and d.rule != skip)


def _distance(judged: _Judged) -> tuple[int, bool, int, tuple[int, ...]]:
    refusals = _refusals(judged)
    early = any(d.rule in ("engine-fits", "base-asked", "platform", "python-not-there") for d in refusals)
    # That a base is not there says less than what keeps the whole stack away.
    return int(early), judged.variant.base.kind != "none", len(refusals), judged.rank
