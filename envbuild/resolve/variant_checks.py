"""One lock variant against one node: what the node itself must have, before any rule about torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from packaging.utils import canonicalize_name

from envbuild.model.facts import NodeFacts, PythonFacts, StampFacts
from envbuild.model.lock import ArtifactFile, Lock, LockedPackage, LockedSource, Variant
from envbuild.model.plan import Decision
from envbuild.model.stack import Build, Training
from envbuild.model.target import Target
from envbuild.resolve.artifacts import fitting_file, minor, numbers, platform_of, split_local
from envbuild.resolve.compat import Compat, Note
from envbuild.resolve.estimate import Estimate, disk_words, uncounted
from envbuild.resolve.request import (
    OURS,
    TARGET,
    Decisions,
    Request,
    Ruling,
    engine_rule,
    image_tag,
    in_image,
    refused,
)
from envbuild.resolve.rules.packages import from_source, gravest, lacking, scanned, traits_of
from envbuild.text import few, size

# Names of machine architectures that wheel tags spell in another way.
_MACHINES = {"arm64": "aarch64", "amd64": "x86_64"}
LOCKED = Note("the lock", "its digest holds")
_OTHER_BASE = "another interpreter (`base_python`), or a variant that needs no base"
# What is asked for where a module brings the interpreter: the first in PATH of that name.
MODULE_PYTHON = "python3"
# A source is compiled with nvcc when a build flag, the name of an extension or a `.cu` file says so.
NVCC_WORDS = ("nvcc", "cuda", "fused")
# Floors of the tensor cores, whose peaks the catalog knows; the smoke test measures what the GPU has of the two.
_TENSOR_FLOORS = {"gemm_cuda_bf16_tflops": "bf16", "gemm_cuda_fp16_tflops": "fp16"}
# What docs/tutorials/reproduce-a-document.md asks for; it only warns.
_ROOM_FOR_UNCOUNTED = 10 * 10**9
# Prebuilt wheels say their C++ ABI in their name or version: `flash_attn-2.7.4+cu12torch2.6cxx11abiFALSE-...`.
_NAMED_ABI = re.compile(r"cxx11_?abi_?(true|false|0|1)", re.IGNORECASE)


class Interpreter(NamedTuple):
    """The interpreter of a candidate: `python` is None for a standalone build that the toolchain brings."""

    python: PythonFacts | None
    decisions: Decisions


def request_for(variant: Variant, python: PythonFacts | None, compat: Compat, target: Target) -> Request:
    """The request for the rules about a variant on a target; for a base, about the base's torch."""
    named = [(str(canonicalize_name(package.name)), package) for package in variant.packages]
    packages = {name: package.version for name, package in named}
    packages |= variant.conda.distributions if variant.conda else {}
    if python is not None and python.openssl is not None:
        packages["openssl"] = python.openssl
    torch, flavour, installed = variant.torch or packages.get("torch"), variant.flavour, False
    index = next((package.index for name, package in named if name == "torch"), None)
    if variant.conda is not None and "torch" in variant.conda.provides:
        installed = True
    if index is None and variant.base.kind != "none":
        torch, installed = ((python.packages or {}).get("torch") if python else None) or torch, True
    if torch is not None:
        torch, local = split_local(torch)
        flavour = flavour or (local if local and (local == "cpu" or local[2:].isdigit()) else None)
    stops, uses = scanned(variant.sources, compat)
    unscanned = [source.name for source in variant.sources if source.uses is None]
    built = any(source.build for source in variant.sources)
    known, at = traits_of({**packages, **({"torch": torch} if torch else {})}, unscanned, compat, built=built)
    training = variant.training or Training()
    variables = {**variant.environment, **target.environment}
    floors = {**target.node_floors, **{name: least for item in variant.smoke for name, least in item.floors.items()}}
    floor = max(((floors[name], name) for name in _TENSOR_FLOORS if name in floors), default=None)
    return Request(
        torch=torch,
        flavour=flavour,
        python=variant.python,
        machine=variant.machine,
        index=index,
        installed=installed,
        compiled=tuple(s.name for s in variant.sources if s.build and needs_nvcc(s.build)),
        built=tuple(s.name for s in variant.sources if s.build),
        commits={s.name: s.commit for s in variant.sources},
        patches={s.name: s.patches for s in variant.sources},
        flags={s.name: s.build.flags for s in variant.sources if s.build},
        build_variables={s.name: s.build.environment or {} for s in variant.sources if s.build},
        arch_list=stack_arch_list(variant),
        expected_gpu=target.expects.gpu,
        exclusive=target.scheduler.exclusive,
        modules=target.scheduler.modules.load if target.scheduler.modules else (),
        variables={name: value for name, value in variables.items() if isinstance(value, str)},
        abis=_abis(variant.packages, variant.sources),
        image=image_tag(variant, compat),
        packages=packages,
        from_pypi=frozenset(name for name, package in named if package.index == "pypi"),
        traits=stops | known | from_source(variant.packages),
        uses=gravest([*uses.items(), *at.items()]),
        precision=training.precision or (_TENSOR_FLOORS[floor[1]] if floor else None),
        gpus=training.gpus,
        zero_stage=training.zero_stage,
        pipeline=training.pipeline,
        peak_tflops=training.peak_tflops,
        floor_tflops=floor[0] if floor else None,
    )


def _abis(packages: tuple[LockedPackage, ...], sources: tuple[LockedSource, ...]) -> Mapping[str, int]:
    """The C++ ABI of what does not take torch's: prebuilt wheels that name theirs, sources that set one."""
    named = {package.name: _NAMED_ABI.search(package.files[0].file) for package in packages}
    abis = {name: int(match.group(1).lower() in ("true", "1")) for name, match in named.items() if match}
    set_ = {s.name: s.build.cxx11_abi for s in sources if s.build and s.build.cxx11_abi is not None}
    return {**abis, **set_}


def needs_nvcc(build: Build) -> bool:
    """Whether a build compiles CUDA code, by its flags, extensions and files."""
    options = (*build.flags, *(build.extensions or ()))
    files = [file for module in build.modules or () for file in module.sources]
    return any(word in text for text in options for word in NVCC_WORDS) or any(file.endswith(".cu") for file in files)


def stack_arch_list(variant: Variant) -> str | None:
    """The TORCH_CUDA_ARCH_LIST of the stack itself; it wins over the node's GPUs."""
    value = variant.environment.get("TORCH_CUDA_ARCH_LIST")
    return value if isinstance(value, str) and value.strip() else None


def platform_rules(variant: Variant, facts: NodeFacts) -> Decisions:
    """`platform` and `no-fitting-file`: the node's architecture and C library take the variant's files."""
    arch, wanted = _MACHINES.get(facts.os.arch, facts.os.arch), variant.machine
    says = Ruling("platform", (arch or "unknown architecture", wanted), LOCKED)
    if arch and arch != wanted:
        return says("refuse", f"the variant is for {wanted} and the node is {arch}", f"a variant for {arch}")
    out = says("allow" if arch else "warn", f"the variant is for {wanted}")
    platform, is_musl = platform_of(variant, facts), facts.libc.kind == "musl"
    for package in variant.packages:
        first = package.files[0].file
        glibc_only = first.endswith(".whl") and ("manylinux" in first or "-linux_" in first)
        if fitting_file(package, platform) is None or (is_musl and glibc_only):
            libc = f"{facts.libc.kind or 'libc'} {facts.libc.version}".strip()
            what = f"no file of {package.name} {package.version} fits Python {variant.python} on {wanted} with {libc}"
            files = first + (f" and {len(package.files) - 1} more" if len(package.files) > 1 else "")
            return out + Ruling("no-fitting-file", (libc, files), LOCKED)("refuse", what, "a node with a newer system")
    return out


def unrecorded_files(variant: Variant, facts: NodeFacts) -> tuple[ArtifactFile, ...]:
    """The files that the node would install and whose hash is missing from the lock."""
    platform = platform_of(variant, facts)
    chosen = (fitting_file(package, platform) for package in _without_hashes(variant))
    return tuple(file for file in chosen if file is not None and file.sha256 == "unrecorded")


@lru_cache
def _without_hashes(variant: Variant) -> tuple[LockedPackage, ...]:
    """The packages with a file whose hash is missing from the lock."""
    return tuple(package for package in variant.packages if any(file.sha256 == "unrecorded" for file in package.files))


def record_command(reference: str, profile: str) -> str:
    """The command that records the hashes that the lock of a stack lacks; `reference`: its name or its file."""
    return f"envbuild lock record {reference}" + ("" if profile == "exact" else f" --profile {profile}")


def recorded_rule(variant: Variant, facts: NodeFacts, command: str) -> Iterator[Decision]:
    """`hash-unrecorded`: a file without a hash can be planned; `provision` refuses it until `command` records it."""
    for file in unrecorded_files(variant, facts):
        what = f"the lock lacks the hash of {file.file}: {file.reason or 'it was not recorded'}"
        instead = f"`{command}` records it; until then `provision` refuses this lock"
        yield from Ruling("hash-unrecorded", (file.file, "sha256 unrecorded"), LOCKED)("warn", what, instead)


def interpreter_rule(variant: Variant, facts: NodeFacts, target: Target, asked: str | None) -> Interpreter:
    """The interpreter to build with: `engine-fits`, `python-not-there`, and for a base `base-asked` and others."""
    engine = engine_rule(variant, target)
    if refused(engine):
        return Interpreter(None, engine)
    if in_image(variant, target) and variant.conda is None:
        compared = (f"Python {variant.python}", variant.base.image or "an image to be built")
        what = f"Python {variant.python} comes with the image; it was not looked at"
        return Interpreter(None, engine + Ruling("python-not-there", compared, TARGET)("allow", what))
    interpreter = _outside_images(variant, facts, target, asked)
    return interpreter._replace(decisions=engine + interpreter.decisions)


def _outside_images(variant: Variant, facts: NodeFacts, target: Target, asked: str | None) -> Interpreter:
    kind, base = variant.base.kind, target.base
    if base is not None and kind != base:
        what = f"the target asks for base {base} and this variant needs base {kind}"
        instead = f"`--base {kind}`, or `base: {kind}` in the target"
        return Interpreter(None, Ruling("base-asked", (kind, base), LOCKED)("refuse", what, instead))
    by, name = "", variant.interpreter.name or ""
    if variant.conda is not None:
        by, name = "conda", next((item.file for item in variant.conda.packages if item.name == "python"), "python")
    elif kind == "none" and variant.interpreter.kind == "standalone":
        by = "the toolchain"
    if by:
        says = Ruling("python-not-there", (f"Python {variant.python}", name), LOCKED)
        return Interpreter(None, says("allow", f"Python {variant.python} is brought by {by}"))
    if kind == "module" and not (target.base_python or asked):
        # A module that the jobs of a target load: PATH gives its interpreter there.
        modules = target.scheduler.modules
        if not (target.connection.kind == "job" and modules is not None and variant.base.module in modules.load):
            return Interpreter(None, _not_loaded(variant, target))
        asked = MODULE_PYTHON
    return _present(variant, facts, asked or (target.base_python if kind != "none" else target.interpreter))


def _not_loaded(variant: Variant, target: Target) -> Decisions:
    module, loaded = variant.base.module, target.scheduler.modules
    lacks = "the target does not name its interpreter"
    instead = "`base_python: PATH` in the target, the python3 of that module on a node"
    if target.connection.kind == "job":
        lacks = f"jobs of {target.name} load {', '.join(loaded.load) if loaded and loaded.load else 'no module'}"
        # It may be gone from the site, or be of another, so that no line to paste names it.
        instead = f"the missing module in the target's `scheduler: modules:`, if the site has it; or {instead}"
    says = Ruling("base-module", (f"module {module}", "base_python is not set"), LOCKED)
    return says("refuse", f"the base is the module {module}, and {lacks}", instead)


def _present(variant: Variant, facts: NodeFacts, asked: str | None) -> Interpreter:
    below = f"{(variant.base.prefix or '').rstrip('/')}/" if variant.base.kind == "prefix" else ""
    usable = [
        p
        for p in facts.pythons
        if p.implementation == "cpython"
        and minor(p.version) == numbers(variant.python)
        and p.path.startswith(below)
        and (asked is None or asked in (p.path, *p.also, p.version, dotted_minor(p)))
    ]
    if not usable:
        return Interpreter(None, _no_python(variant, facts, asked))
    provides = ", ".join(variant.base.provides)
    misses = [(_missing(variant, python), -i, python) for i, python in enumerate(usable)]
    fitting = [(order, python) for missing, order, python in misses if not missing]
    if not fitting:
        what = f"{usable[0].path} lacks what the base must provide: {', '.join(misses[0][0])}"
        says = Ruling("base-lacks", (usable[0].path, provides), LOCKED)
        return Interpreter(None, says("refuse", what, _OTHER_BASE))
    good = [((not p.virtual, *numbers(p.version)), order, p) for order, p in fitting if not _hidden(variant, p)]
    if not good:
        base = fitting[0][1]
        what = f"{base.path} has {', '.join(_hidden(variant, base))}, which the variant would hide"
        says = Ruling("replaces-base-package", (base.path, variant.id), LOCKED)
        return Interpreter(None, says("refuse", what, _OTHER_BASE))
    python = max(good, key=lambda item: item[:2])[2]
    says = Ruling("python-not-there", (f"Python {variant.python}", f"{python.version} at {python.path}"), LOCKED)
    decisions = says("allow", f"Python {python.version} is there")
    if provides:
        decisions += Ruling("base-lacks", (python.path, provides), LOCKED)("allow", "the base has what it must provide")
    return Interpreter(python, decisions)


def dotted_minor(python: PythonFacts) -> str:
    """`3.11` of a version."""
    return ".".join(map(str, minor(python.version)))


def _missing(variant: Variant, python: PythonFacts) -> list[str]:
    if not variant.base.provides:
        return []
    if python.packages is None:
        return ["its packages were not listed"]
    packages: dict[str, str] = {canonicalize_name(name): version for name, version in python.packages.items()}
    missing = lacking(variant.base.provides, packages)
    return [f"{text} (it has {version})" if version else text for text, version in missing.items()]


def _hidden(variant: Variant, python: PythonFacts) -> list[str]:
    """The packages of the base that the variant would hide: those that it has and does not accept."""
    if variant.base.kind == "none" or python.packages is None:
        return []
    versions: dict[str, str] = {canonicalize_name(name): version for name, version in python.packages.items()}
    brought = (canonicalize_name(package.name) for package in variant.on_top(versions))
    return [f"{name} {versions[name]}" for name in brought if name in versions]


def _no_python(variant: Variant, facts: NodeFacts, asked: str | None) -> Decisions:
    present = ", ".join(f"{p.version} at {p.path}" for p in facts.pythons if p.implementation == "cpython") or "none"
    wanted = f"Python {variant.python}" + (f" as {asked}" if asked else "")
    if variant.base.kind == "prefix":
        wanted += f" under {variant.base.prefix}"
    what = asked_python(asked, variant.python, facts) if asked else f"{wanted} is not on the node"
    instead = python_hint(variant.python, by_stack=variant.base.kind == "none" and asked is None)
    return Ruling("python-not-there", (wanted, f"there: {present}"), OURS)("refuse", what, instead)


def python_hint(python: str, *, by_stack: bool) -> str:
    """How a node gets a Python; `by_stack`: its stack may bring one."""
    install = f"`uv python install {python}` on the node (or a module, or the system's package)"
    own = "; or `interpreters: [present, standalone]` in a stack file of your own, which brings one"
    return install + own * by_stack


def asked_python(asked: str, wanted: str, facts: NodeFacts) -> str:
    """Why an interpreter that the user named, by path or version, does not fit `wanted`."""
    named = next((p for p in facts.pythons if asked in (p.path, *p.also)), None)
    if named is not None:
        return f"{asked} is Python {named.version}, and the stack needs Python {wanted}"
    if "/" in asked or asked == MODULE_PYTHON:
        return f"{asked} is not a Python on this node; the stack needs Python {wanted}"
    return f"Python {asked} was asked for; the stack needs Python {wanted}, and this node has none"


def disk_rules(cost: Estimate, beside: int, packages: int, facts: NodeFacts) -> Decisions:
    """`prefix-usable`, `disk-space` and `disk-inodes` for the prefix; `beside`: further bytes while building."""
    prefix = facts.prefix
    if prefix.writable is False or prefix.noexec:
        problem = prefix.reason or ("it is mounted noexec" if prefix.writable else "it cannot be written")
        says = Ruling("prefix-usable", (prefix.path, "writable, programs allowed"), OURS)
        return says("refuse", f"the prefix {prefix.path} cannot be used: {problem}", "another `--prefix`")
    free = min((n for n in (prefix.free_bytes, prefix.quota_bytes) if n is not None), default=None)
    inodes = min((n for n in (prefix.free_inodes, prefix.quota_inodes) if n is not None), default=None)
    out: list[Decision] = []
    if free is not None:
        need = cost.disk_bytes + beside
        needed = f"{disk_words(need, cost.unsized, rough=cost.rough)} needed"
        says = Ruling("disk-space", (f"{size(free)} free in {prefix.path}", needed), OURS)
        left_out = uncounted(cost.unsized)
        if left_out and need <= free < _ROOM_FOR_UNCOUNTED:
            out += says("warn", f"{few(left_out)} may not fit, without a recorded size: {', '.join(says.compared)}")
        else:
            least = cost.certain_bytes if cost.rough else need
            out += _room(says, free, need, least, left_out)
    # A file system that reports no inodes at all (btrfs, some network ones) has no limit on them.
    if inodes is not None and prefix.total_inodes != 0:
        compared = (f"{inodes} inodes free in {prefix.path}", f"about {cost.inodes} needed")
        least = packages if cost.rough else cost.inodes
        out += _room(Ruling("disk-inodes", compared, OURS), inodes, cost.inodes, least)
    return tuple(out)


def _room(says: Ruling, free: int, need: int, certain: int, left_out: Sequence[str] = ()) -> Decisions:
    """Whether it is enough; `left_out`: what is not in `need`."""
    if free >= need:
        return says("allow", "there is room" + (f" for what was counted, without {few(left_out)}" if left_out else ""))
    if free >= certain:
        return says("warn", f"there may be too little room: {', '.join(says.compared)}, which is an estimate")
    instead = "another `--prefix`, or remove environments (`envbuild store clean`)"
    return says("refuse", f"there is too little room: {', '.join(says.compared)}", instead)


def bound_variant(
    lock: Lock, variant: Variant, python: PythonFacts | None, arch_list: tuple[str, ...] | None
) -> Variant:
    """The variant as it will be built: packages of its base and GPU architectures become part of its digest."""
    if variant.base.kind != "none" and python is not None and python.packages is not None:
        variant = variant.with_provided(lock.stack, lock.profile, dict(python.packages))
    return variant.with_arch_list(lock.stack, lock.profile, arch_list)


def stamp_of(facts: NodeFacts, lock: Lock, digest: str) -> StampFacts | None:
    """The finished environment with that `here`: the one in use, else the newest; None without a stamp."""
    return max(
        stamps_of(facts, lock, digest),
        key=lambda environment: (environment.current, environment.generation),
        default=None,
    )


def stamps_of(facts: NodeFacts, lock: Lock, digest: str) -> list[StampFacts]:
    """All finished generations of the environment with that `here`."""
    wanted = (lock.stack, lock.profile, digest)
    finished = (environment for environment in facts.environments if environment.stamp is not None)
    return [
        environment for environment in finished if (environment.stack, environment.profile, environment.here) == wanted
    ]
