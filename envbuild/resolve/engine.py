"""The resolver: node facts against the variants of a lock, every decision kept. Pure; it reads and writes nothing."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

from envbuild.model.facts import NodeFacts, PythonFacts
from envbuild.model.lock import Lock, Variant
from envbuild.model.plan import Candidate, Decision, DeliveryChoice, Resolution
from envbuild.model.target import Target
from envbuild.resolve import arch, health
from envbuild.resolve.arch import bound_arch_list, toolkit, with_own_compilers
from envbuild.resolve.artifacts import Platform
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
    decision,
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
    platform_of,
    platform_rules,
    python_hint,
    record_command,
    recorded_rule,
    request_for,
    stamp_of,
)
from envbuild.text import few

RULES: dict[str, Check] = {
    "torch-release-known": wheel.torch_release_known,
    "torch-lts-index": wheel.torch_lts_index,
    "torch-python": wheel.torch_python,
    "torch-flavour-exists": wheel.torch_flavour_exists,
    "torch-default-flavour": wheel.torch_default_flavour,
    "torch-locator": wheel.torch_locator,
    "torch-aarch64": wheel.torch_aarch64,
    "glibc-floor": wheel.glibc_floor,
    "gpu-arch": gpu.gpu_arch,
    "bf16-tensor-cores": gpu.bf16_tensor_cores,
    "driver-floor": gpu.driver_floor,
    "driver-minor-compat": gpu.driver_minor_compat,
    "driver-cuda-compat": gpu.driver_cuda_compat,
    "driver-knows-gpu": gpu.driver_knows_gpu,
    "cuda-ceiling": gpu.cuda_ceiling,
    "image-gpu": gpu.image_gpu,
    "image-driver": gpu.image_driver,
    "nvcc-absent": compilers.nvcc_absent,
    "nvcc-major": compilers.nvcc_major,
    "nvcc-minor": compilers.nvcc_minor,
    "apex-cuda-check": compilers.apex_cuda_check,
    "apex-flags": packages.apex_flags,
    "own-cuda-list": compilers.own_cuda_list,
    "setuptools-minor": compilers.setuptools_minor,
    "nvcc-knows-gpu": compilers.nvcc_knows_gpu,
    "gcc-range": compilers.gcc_range,
    "cxx11-abi": compilers.cxx11_abi,
    "arch-list-from-target": arch.arch_list_from_target,
    "build-isolation": packages.build_isolation,
    "package-homonym": packages.package_homonym,
    "two-owners": packages.two_owners,
    "system-packages": packages.system_packages,
    "visible-gpus": node.visible_gpus_rule,
    "mig-no-nccl": node.mig_no_nccl,
    "zero-needs-no-pipeline": node.zero_needs_no_pipeline,
    "peak-is-dense": gpu.peak_is_dense,
}

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
    "files-out-of-reach": "the index or repository can be reached from who fetches; else it warns; never refuses.",
    "stack-name-shared": "the environment in use of this name is of the same project; else it warns; never refuses.",
    "gpu-broken": "the node's GPUs can be used at all; else a build for the CPU must be asked for.",
    "gpu-health": "the GPUs report nothing that makes them slow or wrong; else it warns; never refuses.",
    "gpu-unused": "a node with GPUs does not get a build for the CPU unnoticed.",
    "cuda-without-gpu": "a node without a usable GPU gets a CUDA build only with a warning; never refuses.",
    "interface-absent": "the network interface that a variable names is there; else it warns; never refuses.",
    "libstdcxx-absent": "the C++ library that a package needs and does not bring is there.",
}

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
        self._flavours = _first_places(v.flavour for v in self.variants)
        self._pythons = _first_places(v.python for v in self.variants)
        self._known: dict[Hashable, Decisions] = {}
        self._signatures: dict[Hashable, int] = {}
        self._bounds: dict[Hashable, tuple[Interpreter, Variant]] = {}
        self._costs: dict[Hashable, tuple[Estimate, Platform]] = {}
        self._compilers: dict[Hashable, tuple[str | None, str | None]] = {}

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

    def _judge(self, place: int, variant: Variant, facts: NodeFacts, state: Health, shared: int) -> _Judged:
        fitting, bound = self._bound(variant, facts, shared)
        stamp = stamp_of(facts, self.lock, bound.here)
        cost, platform = self._cost(variant, facts, shared)
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
            decisions += recorded_rule(bound, facts, record_command(self.reference, self.lock.profile))
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
        rank = (
            int(not (stamp is not None and stamp.current)),
            int(bool(found_at.missing)),
            int(variant.base.kind != "none"),
            _flavour_rank(variant, usable=state.usable),
            self._flavours[variant.flavour],
            int(variant.interpreter.kind != "present"),
            self._pythons[variant.python],
            place,
        )
        return _Judged(bound, fitting.python, decisions, rank, found_at.choice)

    def _bound(self, variant: Variant, facts: NodeFacts, shared: int) -> tuple[Interpreter, Variant]:
        """The interpreter of a variant on a node, and the variant with what its base provides and its GPUs."""
        key: Hashable = (
            variant.id,
            shared,
            tuple((p.path, p.version, p.implementation, p.virtual) for p in facts.pythons),
        )
        if variant.base.kind != "none":
            key = (key, tuple(None if p.packages is None else frozenset(p.packages.items()) for p in facts.pythons))
        known = self._bounds.get(key)
        if known is None:
            fitting = interpreter_rule(variant, facts, self.target, self.interpreter)
            archs = self._arch_list(variant, fitting.python, facts)
            known = (fitting, bound_variant(self.lock, variant, fitting.python, archs))
            self._bounds[key] = known
        return known

    def _arch_list(self, variant: Variant, python: PythonFacts | None, facts: NodeFacts) -> tuple[str, ...] | None:
        if not any(source.build for source in variant.sources):
            return None
        seen = seen_inside(facts) if in_image(variant, self.target) else facts
        return bound_arch_list(seen, self._request(variant, python), self.compat)

    def _compilers_of(self, best: _Judged, facts: NodeFacts, shared: int) -> tuple[str | None, str | None]:
        """nvcc for the CUDA code of the sources, and gcc where not the usual one; nobody knows those of an image."""
        if in_image(best.variant, self.target):
            return None, None
        key = (best.variant.digest, best.python.path if best.python else None, shared)
        if key not in self._compilers:
            request, facts = self._request(best.variant, best.python), with_own_compilers(best.variant, facts)
            nvcc = (
                toolkit(facts, request, self.compat) if any(source.build for source in best.variant.sources) else None
            )
            self._compilers[key] = (nvcc.path if nvcc else None, other_gcc(facts, request, self.compat))
        return self._compilers[key]

    def _request(self, variant: Variant, python: PythonFacts | None) -> Request:
        return request_for(variant, python, self.compat, self.target)

    def _cost(self, variant: Variant, facts: NodeFacts, shared: int) -> tuple[Estimate, Platform]:
        """What the variant costs on the node's platform."""
        known = self._costs.get((variant.id, shared))
        if known is None:
            platform = platform_of(variant, facts)
            known = self._costs[(variant.id, shared)] = (estimate(variant, platform), platform)
        return known

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
        key = (variant.id, torch, python.openssl if python else None, libstdcxx, shared)
        known = self._known.get(key)
        if known is None:
            request = self._request(variant, python)
            if in_image(variant, self.target):
                seen = seen_inside(facts)
                rules = platform_rules(variant, seen) + evaluate(seen, request, self.compat)
                known = tuple(d for d in rules if d.rule not in OUTSIDE)
            else:
                seen = facts
                seen_by_builds = with_own_compilers(variant, facts)
                known = platform_rules(variant, facts) + evaluate(seen_by_builds, request, self.compat)
                known += library_rule(variant, self.target, libstdcxx, self.compat)
            if variant.conda is not None:
                from envbuild.resolve.rules.conda import conda_rules

                known += conda_rules(variant.conda, self.lock, seen, inside=seen is not facts)
            self._known[key] = known
        return known


def _first_places(values: Iterable[str | None]) -> dict[str | None, int]:
    """Each value with the place where it comes first."""
    places: dict[str | None, int] = {}
    for place, value in enumerate(values):
        places.setdefault(value, place)
    return places


def _flavour_rank(variant: Variant, *, usable: bool) -> int:
    """0 is what the node's hardware wants; `usable`: it has a GPU that works."""
    is_cuda = variant.flavour is not None and variant.flavour != "cpu"
    if variant.flavour is None:
        return 0
    if not usable:
        return 2 if is_cuda else 0
    return 0 if is_cuda else 1


def _gpu_use(
    variant: Variant, facts: NodeFacts, state: Health, cost: Estimate, unasked: str | None, *, expected: bool
) -> Decisions:
    """`gpu-health`, `gpu-broken`, `gpu-unused`, `cuda-without-gpu`: what the node's GPUs are good for, and the flavour.

    A node with GPUs is built for the CPU only where somebody says so, or where its GPUs work and nothing else fits.
    `unasked` is what to say then, None where the variant was asked for; `expected`: the target is said to have GPUs.
    """
    if variant.flavour is None:
        return NOTHING
    broken = state.broken
    decisions = [
        decision("gpu-health", "warn", fault.what, (fault.what, "a node in good health"), OURS, fault.helps)
        for fault in state.faults
        if fault != broken
    ]
    is_cpu = variant.flavour == "cpu"
    compared = (f"{len(facts.gpus)} GPUs" if facts.gpus else "no usable GPU", f"flavour {variant.flavour}")
    if broken is not None and unasked is not None:
        what = f"the node's GPUs cannot be used: {broken.what}"
        decisions.append(decision("gpu-broken", "refuse", what, compared, OURS, f"{broken.helps}{unasked}"))
    elif is_cpu and (facts.gpus or facts.driver.problem or expected):
        what = "the CPU build does not use the node's GPUs"
        if not state.usable:
            what = f"{what}: {broken.what if broken else facts.driver.problem or 'no GPU can be seen'}"
        refuses = expected and unasked is not None
        instead = "a CUDA variant" if state.usable else health.what_shows_gpus(facts)
        decisions.append(decision("gpu-unused", "refuse" if refuses else "warn", what, compared, OURS, instead))
    elif not is_cpu and not state.usable:
        amount = fetch_words(cost.fetch_bytes, cost.unsized)
        why = broken.what if broken else facts.driver.problem
        what = (
            f"{amount} for a CUDA build on a node without a usable GPU{f' ({why})' if why else ''}; it runs on the CPU"
        )
        instead = "a CPU variant (`flavours: [cpu]` in the stack file), if its files can be fetched"
        decisions.append(decision("cuda-without-gpu", "warn", what, compared, OURS, instead))
    return tuple(decisions)


def _reach_rule(supplied: Supplied) -> Decisions:
    """`files-out-of-reach`: a warning, because a cache may still have them."""
    names = supplied.missing
    if not names:
        return NOTHING
    shown = few(names)
    compared = (shown, f"{', '.join(supplied.places)} cannot be reached")
    what = f"{shown} cannot be fetched: {compared[1]}, and no file of it was found"
    instead = "put files into a find-links folder, give a mirror (pip's index-url, git's insteadOf) or a proxy"
    return (decision("files-out-of-reach", "warn", what, compared, OURS, instead),)


def _tree_rule(variant: Variant, facts: NodeFacts) -> Decisions:
    """`source-unreachable`: a working tree is used where it lies, so the node must have it there."""
    names = [tree.name for tree in variant.trees if tree.name in facts.trees]
    out = []
    for name in names:
        state = facts.trees[name]
        compared = (state.path, state.problem or "there")
        if state.problem:
            what = f"the working tree of source {name}, {state.path}, {state.problem} on this node"
            instead = "a file system that the node mounts too, or `git:` and `commit:` for the source"
            out.append(decision("source-unreachable", "refuse", what, compared, OURS, instead))
    return tuple(out)


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
    return (decision("stack-name-shared", "warn", what, (now, was), OURS, instead),)


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
        return (decision("python-not-there", "refuse", what, compared, OURS, instead), *rest)
    return _refusals(min(judged, key=_distance))


def _refusals(judged: _Judged, skip: str = "") -> Decisions:
    return tuple(d for d in judged.decisions if d.verdict == "refuse" and d.rule != skip)


def _distance(judged: _Judged) -> tuple[int, bool, int, tuple[int, ...]]:
    refusals = _refusals(judged)
    early = any(d.rule in ("engine-fits", "base-asked", "platform", "python-not-there") for d in refusals)
    # That a base is not there says less than what keeps the whole stack away.
    return int(early), judged.variant.base.kind != "none", len(refusals), judged.rank
