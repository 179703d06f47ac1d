"""What is asked of a node: the values that rules compare with its facts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from envbuild.errors import EnvbuildError
from envbuild.model.facts import LibcFacts, NodeFacts
from envbuild.model.lock import Lock, Variant
from envbuild.model.plan import Decision, Verdict
from envbuild.model.target import Target
from envbuild.node.read_text import integer
from envbuild.node.variables import visible_devices
from envbuild.resolve.artifacts import Numbers, minor
from envbuild.resolve.compat import Compat, Note, TorchBuild, TorchRelease
from envbuild.text import did_you_mean


def named_variant(lock: Lock, name: str) -> Variant:
    """The variant with the id `name`. Raises EnvbuildError `variant-unknown` (exit 2)."""
    variants = {variant.id: variant for variant in lock.variants}
    if name not in variants:
        raise EnvbuildError(
            "variant-unknown",
            f"the lock of {lock.stack} ({lock.profile}) has no variant {name}",
            why=f"it has {', '.join(variants)}",
            hint=did_you_mean(name, variants) or "name one of them",
        )
    return variants[name]


@dataclass(frozen=True, slots=True)
class Request:
    """One thing to decide about. A field that is None or empty is not asked, and its rules do not apply.

    `torch` is the public version, `flavour` cpu or cuXYZ; `index` the name of the index of torch; `compiled` the names
    of what nvcc compiles, `built` of every source that has a build. By a source's name: `commits`, `patches` and
    `flags`, and `build_variables` of its build alone. `arch_list` is the TORCH_CUDA_ARCH_LIST of the stack,
    `expected_gpu` the model that the target names; `exclusive`: jobs get whole nodes; `modules`: what jobs load.
    `packages`: canonical name to version, `from_pypi` those of the default index; `installed`: torch is part of a base,
    so its wheel is not judged. `variables` are those of the run; `abis` the C++ ABI of extensions that set their own,
    by name; `traits` what sources and packages do, `uses` the same with the place in a source. `gpus`: how many each
    node must give, `peak_tflops` the assumed dense peak and `floor_tflops` the floor, per GPU.
    """

    torch: str | None = None
    flavour: str | None = None
    python: str | None = None
    machine: str = "x86_64"
    index: str | None = None
    installed: bool = False
    compiled: tuple[str, ...] = ()
    built: tuple[str, ...] = ()
    commits: Mapping[str, str] = field(default_factory=dict)
    patches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    build_variables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    arch_list: str | None = None
    expected_gpu: str | None = None
    exclusive: bool = False
    modules: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    abis: Mapping[str, int] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    from_pypi: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    uses: Mapping[str, str] = field(default_factory=dict)
    precision: str | None = None
    gpus: int | None = None
    image: str | None = None
    zero_stage: int | None = None
    pipeline: bool | None = None
    peak_tflops: float | None = None
    floor_tflops: float | None = None

    def release(self, compat: Compat) -> TorchRelease | None:
        """The torch release that is asked for; None without torch or for an unknown release."""
        return compat.torch.get(self.torch) if self.torch else None

    def wheel(self, compat: Compat) -> TorchRelease | None:
        """The same where a wheel of it is installed; None where a base has torch."""
        return None if self.installed else self.release(compat)

    def wanted_flavour(self, compat: Compat) -> str | None:
        """The flavour asked for, or else PyPI's."""
        release = self.release(compat)
        return self.flavour or (release.pypi_flavour if release else None)

    def build(self, compat: Compat) -> TorchBuild | None:
        """The CUDA build asked for, None for cpu and for what does not exist."""
        release = self.release(compat)
        return release.builds.get(self.wanted_flavour(compat) or "") if release else None


def capabilities(facts: NodeFacts) -> tuple[tuple[str, Numbers], ...]:
    """The distinct GPUs of a node as (name, compute capability), those without a capability left out."""
    names = {minor(gpu.compute_capability): gpu.name for gpu in facts.gpus if minor(gpu.compute_capability)}
    return tuple((name, capability) for capability, name in sorted(names.items()))


def visible_gpus(facts: NodeFacts) -> int:
    """How many GPUs a process on the node sees: all, or the existing ones that CUDA_VISIBLE_DEVICES names."""
    named = visible_devices(facts.visible_devices)
    if named is None:
        return len(facts.gpus)
    visible = list(itertools.takewhile(lambda entry: _is_there(entry, facts), named))
    # CUDA shows none where one is named twice.
    return min(len(visible), len(facts.gpus)) if len(set(visible)) == len(visible) else 0


def _is_there(entry: str, facts: NodeFacts) -> bool:
    """Whether an entry of CUDA_VISIBLE_DEVICES is one of the node's; where their names are not known it is."""
    index = integer(entry)
    if index is not None:
        return index < len(facts.gpus)
    names = [gpu.uuid for gpu in facts.gpus if gpu.uuid]
    if entry.startswith("MIG-"):
        names = [name.rpartition(" ")[2] for gpu in facts.gpus for name in gpu.mig]
    return not names or any(name.startswith(entry) for name in names)


def physical_gpus(facts: NodeFacts) -> int:
    """How many GPUs the node has, seen or not."""
    return max(facts.gpus_physical or 0, len(facts.gpus))


Decisions = tuple[Decision, ...]
Check = Callable[[NodeFacts, Request, Compat], Iterable[Decision]]
NOTHING: Decisions = ()
OURS = Note("envbuild: what a node must have to build on", "2026-11-20")


class Ruling(NamedTuple):
    """A rule that was asked about one thing: what it compares, and the note that it rests on."""

    rule: str
    compared: tuple[str, str]
    note: Note

    def __call__(self, verdict: Verdict, what: str, instead: str | None = None, torch: str | None = None) -> Decisions:
        """The decision of this rule. Where its note is not verified, a refusal becomes a warning."""
        if verdict == "refuse" and not self.note.firm:
            verdict, what = "warn", f"{what} (by data that are not verified, so it is not refused)"
        made = Decision(
            rule=self.rule,
            verdict=verdict,
            what=what,
            compared=self.compared,
            source=self.note.source,
            verified=self.note.verified,
            instead=instead,
            torch=torch,
        )
        return (made,)


def refused(decisions: Decisions) -> bool:
    """True when one of them refuses."""
    return "refuse" in [item.verdict for item in decisions]  # asked ten times a node


TARGET = Note("the target and the lock", "compared as they are")
# They compare what the node has outside of images: its C library, compilers and toolkits.
OUTSIDE = frozenset({"glibc-floor", "nvcc-absent", "gcc-range", "system-packages"})
_NGC = re.compile(r"(?:.*/)?nvidia/pytorch:([0-9]{2}\.[0-9]{2})-py3(?:@.*)?")


def engine_rule(variant: Variant, target: Target) -> Decisions:
    """`engine-fits`: the variant can be built with the target's engine; no decision if both are venv."""
    base, engine = variant.base, target.engine
    standing = f"image {base.image}" if base.kind == "image" else f"base {base.kind}"
    says = Ruling("engine-fits", (f"engine {engine}", f"{variant.engine} on {standing}"), TARGET)
    if variant.engine != target.installer:
        what = f"the variant is made by {variant.engine}, and the target asks for {target.installer}"
        return says("refuse", what, f"`--engine {variant.engine}`")
    if engine == "container" and variant.outside:
        what = f"the source {variant.outside} uses folders of a node (`path:` or `outputs:`), which no image has"
        instead = "a target with `engine: venv`, or `git:` and `commit:` for the source, without `outputs:`"
        return says("refuse", what, instead)
    if engine == "container":
        if base.kind in ("none", "image"):
            what = f"the image is built on {base.image}" if base.image else "an image is built from the lock"
            return says("allow", what)
        what = f"the variant uses a base of the node ({base.kind}), which an image does not have"
        return says("refuse", what, "a target with `engine: venv`")
    if base.kind == "image" and target.base != "image":
        what = f"the variant needs the image {base.image}, and the target does not build in images"
        return says("refuse", what, "a target with `engine: container`, or a profile that needs no image")
    return NOTHING


def in_image(variant: Variant, target: Target) -> bool:
    """Whether the environment will be inside an image that is not built yet."""
    return target.engine == "container" and variant.base.kind in ("none", "image")


def seen_inside(facts: NodeFacts) -> NodeFacts:
    """The node as a process in a container sees it: its hardware and driver, not its system."""
    return facts.model_copy(update={"libc": LibcFacts(), "nvcc": (), "compilers": ()})


def image_tag(variant: Variant, compat: Compat) -> str | None:
    """The month (`22.02`) of NVIDIA's PyTorch image that the variant builds on, None for any other image."""
    match = _NGC.fullmatch(variant.base.image or "")
    return match.group(1) if match and match.group(1) in compat.images else None
