"""Every cell of the compatibility data with another value, and a question whose answer must then be another one.

A cell is a leaf of the parsed YAML, by its path. For each cell that a rule reads, `probes` makes facts and a request at
the very boundary that the cell draws; `NOT_READ` names the others with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from packaging.requirements import Requirement

from envbuild.model.facts import NodeFacts
from envbuild.model.lock import LockedSource
from envbuild.resolve.arch import bound_arch_list
from envbuild.resolve.compat import Compat
from envbuild.resolve.engine import RULES
from envbuild.resolve.request import Request
from envbuild.resolve.rules.packages import library_rule, meets, package_rule, scanned, traits_of
from tests.resolve.builders import make_variant, node_facts, package, plain_compat, target
from tests.support.plain import REMOVED, at, places

Path = tuple[str | int, ...]
Answer = Callable[[Compat], object]

CARD, SERVER = "NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-80GB"
PROSE = (
    r"(source|verified|says|fix|fails/[0-9]+|number|meaning|limits|note|trap|contradictions.*|units.*|seen_in|driver_note|"
    r"registry)"
)

# Cells that no rule's verdict depends on: a pattern over the whole path, and why.
NOT_READ: dict[str, str] = {
    rf"(.*/)?{PROSE}": "words: where a value comes from, or what a decision says",
    r"torch/locators/.*": "words: the address that a decision names",
    r"torch/releases/[^/]*/locator": "words: which of the addresses a decision names",
    r"cuda/forward_compat/(package|gpus)": "words: the package that a decision names; the kind is gpus.yaml's",
    r"compilers/gcc/torch_min_(source|verified)": "words: where a value comes from",
    r"gpus/models/[^/]*/(memory_gb|memory_bandwidth_gbs|nvlink_gbs|nvlink_note)": "for smoke tests; no rule reads it",
    r"gpus/models/A100-SXM4-[0-9]*GB/fp16_dense_tflops": "the bf16 figure of the same card is taken",
    r"gpus/models/[^/]*/unverified/[0-9]+": "makes a note less firm; the rule that cites it never refuses by it",
    r"images/images/[^/]*/(python|torch|cudnn|nccl)": "what else an image has; its own interpreter is not asked about",
    r"images/images/24.01/unverified/0": "a later image, whose CUDA was read, proves the same",
    r"images/images/[^/]*/unverified/[0-9]+": "marks of what no rule reads; those of cuda and min_driver have a probe",
    r"python/.*": "what the rows of packages.yaml and torch.yaml were checked against; tests compare them",
    r"packages/rules/[0-9]+/id": "the rule's own name",
    r"packages/homonyms/names/[^/]*/(is|meant)": "words: what a name is there, and what was meant",
    r"apex/commits": "the places that the ranges speak of: each range has its probes",
}


@dataclass(frozen=True, slots=True)
class Probe:
    """One cell, the value it is given, and the answer that must change. `whole`: with all torch releases."""

    path: Path
    value: object
    answer: Answer
    whole: bool = False

    @property
    def name(self) -> str:
        """The path as text."""
        return "/".join(map(str, self.path))


def leaves(plain: Any) -> Iterator[Path]:
    """The paths of all leaves."""
    return (path for path in places(plain) if not isinstance(at(plain, path), dict | list))


def cell(path: Path) -> Any:
    """The shipped value of a cell."""
    return at(plain_compat(), path)


def why_not_read(path: Path) -> str | None:
    """The reason why a cell changes no verdict, None where it has to."""
    name = "/".join(map(str, path))
    marks = r"images/images/(?!24\.01/unverified/0)[^/]*/unverified/[0-9]+"
    if re.fullmatch(marks, name) and cell(path) in ("cuda", "min_driver"):
        return None
    return next((why for pattern, why in NOT_READ.items() if re.fullmatch(pattern, name)), None)


def verdicts(rule: str, facts: NodeFacts, request: Request) -> Answer:
    """The verdicts of one rule."""
    return lambda compat: sorted(item.verdict for item in RULES[rule](facts, request, compat))


@cache
def node(
    *,
    gpu: str = f"{CARD} @ 8.9",
    driver: str = "600.10",
    ceiling: str | None = None,
    nvcc: str | None = None,
    gcc: str | None = None,
    glibc: str = "2.39",
) -> NodeFacts:
    """A node with one GPU, and only what is said."""
    return node_facts(
        "cpu-laptop",
        gpus=f"1 x {gpu}",
        driver=driver,
        ceiling=ceiling,
        glibc=glibc,
        nvcc=[nvcc] if nvcc else [],
        gcc=[gcc] if gcc else [],
    )


def flavour(cuda: str) -> str:
    """`11.3` as cu113."""
    return "cu" + "".join(cuda.split(".")[:2])


def probes() -> Iterator[Probe]:
    """A probe, or several, for every cell that a rule reads."""
    yield from _torch()
    yield from _drivers()
    yield from _architectures()
    yield from _compilers()
    yield from _gpus()
    yield from _images()
    yield from _limits()
    yield from _packages()


def probe(
    path: Path, value: object, rule: str, facts: NodeFacts | None = None, *, whole: bool = False, **asked: Any
) -> Probe:
    """A probe whose answer is the verdicts of one rule about a node and a request."""
    return Probe(path, value, verdicts(rule, facts or node(), Request(**asked)), whole)


def _torch() -> Iterator[Probe]:
    torch = plain_compat()["torch"]
    for version, row in torch["releases"].items():
        at: Path = ("torch", "releases", version)
        yield probe(at, REMOVED, "torch-release-known", torch=version, whole=True)
        asked = {"torch": version, "index": "pypi"}
        yield probe((*at, "pypi"), not row["pypi"], "torch-lts-index", flavour=next(iter(row["flavours"])), **asked)
        if "pypi_flavour" in row:
            yield probe((*at, "pypi_flavour"), "cu999", "torch-locator", flavour=row["pypi_flavour"], **asked)
        for machine in ("x86_64", "aarch64"):
            if machine in row:
                yield from _wheels(version, machine, row[machine])
        plain = next(name for name, build in row["flavours"].items() if "abi" not in build)
        yield probe((*at, "abi"), 1 - row["abi"], "cxx11-abi", torch=version, flavour=plain, abis={"x": row["abi"]})
        for name, build in row["flavours"].items():
            yield from _build(version, name, build)
    for key, version, index in (("none_before", "2.4.1", "x"), ("pypi_cpu_to", "2.8.0", "pypi")):
        asked = {"torch": version, "flavour": "cu126", "index": index, "machine": "aarch64"}
        yield probe(("torch", "aarch64_cuda", key), "1.0", "torch-aarch64", whole=True, **asked)
    for tag, glibc in torch["glibc"]["tags"].items():
        version, machine = next(
            (v, m) for v, r in torch["releases"].items() for m in ("x86_64", "aarch64") if m in r and r[m]["tag"] == tag
        )
        asked = {"torch": version, "flavour": "cpu", "machine": machine}
        yield probe(("torch", "glibc", "tags", tag), "9.99", "glibc-floor", node(glibc=glibc), whole=True, **asked)


def _wheels(version: str, machine: str, row: Mapping[str, Any]) -> Iterator[Probe]:
    at, asked = ("torch", "releases", version, machine), {"torch": version, "machine": machine}
    for key in ("python", "unverified_python"):
        for index, tag in enumerate(row.get(key, ())):
            yield probe((*at, key, index), "cp35", "torch-python", python=f"{tag[2]}.{tag[3:]}", **asked)
    yield probe((*at, "tag"), "unknown", "glibc-floor", flavour="cpu", **asked)


def _build(version: str, name: str, row: Mapping[str, Any]) -> Iterator[Probe]:
    at, asked = ("torch", "releases", version, "flavours", name), {"torch": version, "flavour": name}

    def on(capability: str, place: Path, value: object) -> Probe:
        return probe((*at, *place), value, "gpu-arch", node(gpu=f"{CARD} @ {capability}"), **asked)

    yield probe(at, REMOVED, "torch-flavour-exists", **asked)
    codes, plus, ptx = row.get("arch", "").partition("+PTX")
    listed = codes.split()
    for code in listed:
        # With an older code of the same major, or PTX that is not newer, the GPU runs without its own.
        older = any(other.split(".")[0] == code.split(".")[0] and float(other) < float(code) for other in listed)
        if not older and not any(float(other) <= float(code) for other in ptx.split()):
            yield on(code, ("arch",), " ".join(other for other in listed if other != code) + plus + ptx)
    if plus:
        yield on("30.0", ("arch",), codes)
    for key, capability in (("unverified", "1.0"), ("ptx_unverified", "30.0")):
        if key in row:
            yield on(capability, (key,), None)
    if "glibc" in row:
        yield probe((*at, "glibc"), "9.99", "glibc-floor", node(glibc=row["glibc"]), **asked)
    if "abi" in row:
        yield probe((*at, "abi"), 1 - row["abi"], "cxx11-abi", abis={"x": row["abi"]}, **asked)
    for code in row.get("disputed", {}):
        yield on(code, ("disputed", code), REMOVED)


def _drivers() -> Iterator[Probe]:
    cuda = plain_compat()["cuda"]
    floors, lone = cuda["driver_floors"]["linux"], cuda["driver_floors"]["no_minor_compat"]
    for version, own in cuda["toolkit_drivers"]["linux"].items():
        floor = lone.get(version) or floors[version.split(".")[0]]
        driver = max(own, floor, key=lambda text: [int(part) for part in text.split(".")])
        at: Path = ("cuda", "toolkit_drivers", "linux", version)
        yield probe(at, "999.1", "driver-minor-compat", node(driver=driver), flavour=flavour(version))
    for key, rows in (("linux", floors), ("no_minor_compat", lone)):
        for version, floor in rows.items():
            asked = flavour(version if "." in version else f"{version}.0")
            yield probe(
                ("cuda", "driver_floors", key, version), "999.1", "driver-floor", node(driver=floor), flavour=asked
            )
    for index, branch in enumerate(cuda["forward_compat"]["excluded_branches"]):
        below = node(gpu=f"{SERVER} @ 8.0", driver=f"{branch}.10", ceiling="13.0")
        at = ("cuda", "forward_compat", "excluded_branches", index)
        yield probe(at, 9999, "driver-cuda-compat", below, flavour="cu130")
    for capability, branch in cuda["gpu_drivers"]["first_branch"].items():
        known = node(gpu=f"{SERVER} @ {capability}", driver=f"{branch}.10")
        at = ("cuda", "gpu_drivers", "first_branch", capability)
        yield probe(at, 9999, "driver-knows-gpu", known, flavour="cu130")
    old = node(gpu=f"{SERVER} @ 9.0", driver="400.1")
    yield probe(("cuda", "gpu_drivers", "unverified"), False, "driver-knows-gpu", old, flavour="cu130")


def _compiling(version: str, **asked: Any) -> dict[str, Any]:
    return {"flavour": flavour(version), "compiled": ("x",), **asked}


def _architectures() -> Iterator[Probe]:
    rows = plain_compat()["cuda"]["architectures"]
    at: Path = ("cuda", "architectures")
    for key, other in (("first_cuda", "99.0"), ("last_cuda", "1.0")):
        for capability, version in rows[key].items():
            there = node(gpu=f"{CARD} @ {capability}", nvcc=version)
            yield probe((*at, key, capability), other, "nvcc-knows-gpu", there, **_compiling(version))
    for index in range(len(rows["embedded"])):
        # As if 8.0 were a module's code: then nothing older is left to propose for 8.6.
        old = node(gpu=f"{CARD} @ 8.6", nvcc="11.0")
        yield probe((*at, "embedded", index), "8.0", "nvcc-knows-gpu", old, **_compiling("11.0"))
    at, near = ("cuda", "nvcc_check"), node(nvcc="11.6")
    from_ = cell((*at, "torch_checks_from"))
    yield probe((*at, "torch_checks_from"), "99.0", "nvcc-minor", near, **_compiling("11.3", torch=from_))
    for name, patch in cell((*at, "exact_minor")).items():
        for value, patches in ((REMOVED, {}), ("other", {name: (patch,)})):
            asked = _compiling("11.3", compiled=(name,), patches=patches)
            yield probe((*at, "exact_minor", name), value, "apex-cuda-check", near, **asked)
    asked = _compiling("11.3", torch=from_, packages={"setuptools": cell((*at, "setuptools_needs"))})
    yield probe((*at, "setuptools_needs"), "9999", "setuptools-minor", near, **asked)
    for name, own in cell((*at, "own_list")).items():
        here, told = (*at, "own_list", name), _compiling("13.0", compiled=(name,), variables={own["variable"]: "1"})
        yield probe((*here, "variable"), "OTHER", "own-cuda-list", node(nvcc="13.1"), **told)
        for major, versions in own["accepts"].items():
            for index, version in enumerate(versions):
                asked = _compiling(versions[index - 1], compiled=(name,))
                yield probe((*here, "accepts", major, index), "1.1", "own-cuda-list", node(nvcc=version), **asked)


def _compilers() -> Iterator[Probe]:
    rows = cell(("compilers", "gcc"))

    def gcc(place: Path, value: object, nvcc: str, major: int, **asked: Any) -> Probe:
        at = ("compilers", "gcc", *place)
        return probe(at, value, "gcc-range", node(nvcc=nvcc, gcc=f"{major}.2.0"), **_compiling(nvcc, **asked))

    for version, most in rows["max_major"].items():
        yield gcc(("max_major", version), most - 1, f"{version}.1", most)
    for version, most in rows["max_major_exact"].items():
        yield gcc(("max_major_exact", version), most + 1, version, most + 1)
    for version in rows["disputed"]:
        for place, value in ((("disputed", version), REMOVED), (("disputed", version, "from"), "99")):
            yield gcc(place, value, f"{version}.1", rows["max_major"][version])
    for version, least in rows["torch_errors_below"].items():
        yield gcc(("torch_errors_below", version), least - 1, "12.1.1", least - 1, torch=version)
    for version, least in rows["min_major"].items():
        yield gcc(("min_major", version), least + 1, f"{version}.1", least)
    for version, least in rows["torch_min_major"].items():
        yield gcc(("torch_min_major", version), least + 1, "12.1.1", least, torch=version)
        yield gcc(("torch_min_unverified",), False, "12.1.1", least - 1, torch=version)


def _gpus() -> Iterator[Probe]:
    for kind in ("geforce", "workstation", "data-centre"):
        for index, pattern in enumerate(cell(("gpus", "kinds", kind))):
            # The first pattern that is found decides, so a server's name behind a card's is a card's.
            name = f"NVIDIA {pattern}" if kind == "data-centre" else f"NVIDIA {pattern} A100"
            old = node(gpu=f"{name} @ 8.0", driver="535.10", ceiling="13.0")
            at: Path = ("gpus", "kinds", kind, index)
            yield probe(at, "no such word", "driver-cuda-compat", old, flavour="cu130")
    for model, row in cell(("gpus", "models")).items():
        at = ("gpus", "models", model)
        key = "bf16_dense_tflops" if "bf16_dense_tflops" in row else "fp16_dense_tflops"
        dense, this = float(row[key]), node(gpu=f"NVIDIA {row['name']} @ {row['cc']}")
        yield probe((*at, "name"), "Z9", "peak-is-dense", node(gpu="NVIDIA Z9 @ 9.9"), peak_tflops=dense)
        for figure in {key, "sparse_tflops"} & row.keys():
            peak = float(row[figure])
            yield probe((*at, figure), row[figure] * 3, "peak-is-dense", this, peak_tflops=peak)
        yield Probe((*at, "cc"), "9.9", _codes_for(model))


def _codes_for(model: str) -> Answer:
    """What sources are compiled for on a node without a GPU, whose target expects the model."""
    asked = Request(torch="0.0.0", flavour="cu130", built=("x",), expected_gpu=model)
    return lambda compat: bound_arch_list(node_facts("cpu-laptop"), asked, compat)


def _images() -> Iterator[Probe]:
    rules = {"cuda": "image-gpu", "min_driver": "image-driver"}
    for tag, row in cell(("images", "images")).items():
        at: Path = ("images", "images", tag)
        old = node(gpu=f"{CARD} @ 7.0", driver=f"{row['min_driver']}.10")
        for key, value in (("cuda", "1.0"), ("min_driver", "999")):
            yield probe((*at, key), value, rules[key], old, image=tag)
        new = node(gpu=f"{CARD} @ 12.1", driver="300.10")
        for index, name in enumerate(row.get("unverified", ())):
            place = (*at, "unverified", index)
            if name in rules and why_not_read(place) is None:
                yield probe(place, "other", rules[name], new, image=tag)


def _limits() -> Iterator[Probe]:
    at: Path = ("limits", "zero_pipeline", "max_stage")
    most = cell(at)
    yield probe(at, most - 1, "zero-needs-no-pipeline", zero_stage=most, pipeline=True)
    ranks, since = cell(("limits", "mig", "max_ranks")), cell(("limits", "mig", "nccl_from"))
    split = node_facts("cpu-laptop", gpus=f"1 x {SERVER} @ 8.0", mig=ranks + 1)
    asked = {"torch": "2.1.0", "flavour": "cu121"}
    yield probe(("limits", "mig", "max_ranks"), ranks + 1, "mig-no-nccl", split, **asked)
    asked["packages"] = {"nvidia-nccl-cu12": since}
    yield probe(("limits", "mig", "nccl_from"), "99.0", "mig-no-nccl", split, **asked)
    at = ("limits", "bf16", "min_capability")
    yield probe(at, "99.0", "bf16-tensor-cores", node(gpu=f"{SERVER} @ {cell(at)}"), precision="bf16")


def version_in(text: str) -> str:
    """A version that meets a requirement, next to one of its bounds."""
    requirement = Requirement(text)
    bounds = [specifier.version for specifier in requirement.specifier]
    candidates = [*bounds, *(f"{bound}.1" for bound in bounds), "0.1", "9999"]
    return next(version for version in candidates if meets(version, requirement))


def _request(versions: Mapping[str, str], **asked: Any) -> Request:
    """Traits are given as those of a module too: rules may pass over what a build does."""
    asked["uses"] = dict.fromkeys(asked.get("traits", ()), "a.py:1 at import")
    packages = {name: version for name, version in versions.items() if name not in ("torch", "python")}
    return Request(torch=versions.get("torch"), python=versions.get("python"), packages=packages, **asked)


def _row(identity: str, request: Request) -> Answer:
    """The verdict of one row of packages.yaml."""

    def answer(compat: Compat) -> object:
        rule = next(rule for rule in compat.package_rules if rule.id == identity)
        return [item.verdict for item in package_rule(rule, request)]

    return answer


def _packages() -> Iterator[Probe]:
    rows = cell(("packages", "rules"))
    for index, row in enumerate(rows):
        at: Path = ("packages", "rules", index)
        broken = {Requirement(row["breaks"]).name: version_in(row["breaks"])}
        wanted = row.get("when", {}).get("has", [])
        there = {Requirement(text).name: version_in(text) for text in wanted}
        traits = frozenset({row["trait"]} if "trait" in row else ())
        both = _request({**there, **broken}, traits=traits)
        either = _row(row["id"], both)
        yield Probe((*at, "breaks"), f"{Requirement(row['breaks']).name}>99999", either)
        yield Probe((*at, "verdict"), "warn" if row["verdict"] == "refuse" else "refuse", either)
        if traits:
            yield Probe((*at, "trait"), "another", either)
        if "variable" in row:
            name, _, value = row["variable"].partition("=")
            told = _request({**there, **broken}, traits=traits, variables={name: value})
            yield Probe((*at, "variable"), "OTHER=1", _row(row["id"], told))
        for place, text in enumerate(wanted):
            yield Probe((*at, "when", "has", place), f"{Requirement(text).name}>99999", either)
        if row.get("when", {}).get("at"):
            in_build = _row(row["id"], Request(python="3.11", traits=traits))
            yield Probe((*at, "when", "at"), "any", in_build)
        if lacks := row.get("when", {}).get("lacks"):
            brought = _request({**there, **broken, lacks: "1"}, traits=traits)
            yield Probe((*at, "when", "lacks"), "another", _row(row["id"], brought))
        if "unverified" in row:
            yield Probe((*at, "unverified"), False, either)
    for name, traits_of_source in cell(("packages", "traits", "sources")).items():
        for index, trait in enumerate(traits_of_source):
            yield Probe(("packages", "traits", "sources", name, index), "another", _brought(name, trait))

    yield from _package_traits()
    yield from _libraries()
    yield from _apex()


def _package_traits() -> Iterator[Probe]:
    for index, row in enumerate(cell(("packages", "traits", "packages"))):
        version = {Requirement(row["has"]).name: version_in(row["has"])}
        at: Path = ("packages", "traits", "packages", index)
        yield Probe((*at, "has"), f"{Requirement(row['has']).name}>99999", _traits(version))
        for place in range(len(row["traits"])):
            yield Probe((*at, "traits", place), "another", _traits(version))
        if "at" in row:
            yield Probe((*at, "at"), "another", _traits(version))
        if "builds" in row:
            yield Probe((*at, "builds"), False, _traits(version))
    for patch, ended in cell(("packages", "traits", "patches")).items():
        for index, trait in enumerate(ended):
            yield Probe(("packages", "traits", "patches", patch, index), "another", _mended(patch, trait))
    for name in cell(("packages", "homonyms", "names")):
        at = ("packages", "homonyms", "names", name)
        yield probe(at, REMOVED, "package-homonym", from_pypi=frozenset({name}))
    for index, twins in enumerate(cell(("packages", "twins", "groups"))):
        for place, name in enumerate(twins):
            at = ("packages", "twins", "groups", index, place)
            yield probe(at, "another", "two-owners", packages={name: "1", twins[place - 1]: "1"})
    for name in cell(("packages", "system", "packages")):
        at = ("packages", "system", "packages", name)
        built = frozenset({f"{name}-from-source"})
        yield probe(at, REMOVED, "system-packages", packages={name: "1"}, traits=built)


def _libraries() -> Iterator[Probe]:
    at: Path = ("packages", "libstdcxx", "packages")
    for index, row in enumerate(cell(at)):
        needed = Requirement(row["has"])
        version = next(v for v in ("2.12.0", "2.13.0", "2.11.0", "2.4.6", "2.5.5") if meets(v, needed))
        yield Probe((*at, index, "has"), f"{needed.name}>99999", _library(needed.name, version))
        if "unverified" in row:
            yield Probe((*at, index, "unverified"), None, _library(needed.name, version))


def _library(name: str, version: str) -> Answer:
    variant = make_variant("s", "exact", id="v", python="3.11", packages=[package(name, version)])
    return lambda compat: [item.verdict for item in library_rule(variant, target(), False, compat)]


def _traits(versions: Mapping[str, str]) -> Answer:
    return lambda compat: [traits_of(versions, (), compat, built=built) for built in (True, False)]


def _mended(patch: str, trait: str) -> Answer:
    source = LockedSource(
        name="x", git="https://example.org/x", commit="0" * 40, tree="0" * 40, patches=(patch,), uses={trait: "x.py:1"}
    )
    return lambda compat: scanned((source,), compat)


def _apex() -> Iterator[Probe]:
    commits = cell(("apex", "commits")).split()
    for flag, ranges in cell(("apex", "flags")).items():
        for number, ends in enumerate(ranges):
            for end, place in enumerate(ends):
                asked: dict[str, Any] = {"commits": {"x": commits[place]}, "flags": {"x": (flag,)}}
                at: Path = ("apex", "flags", flag, number, end)
                yield probe(at, 9999 if end == 0 else -1, "apex-flags", **asked)
    for number, ends in enumerate(cell(("apex", "raises"))):
        for end, place in enumerate(ends):
            asked = _compiling("11.3", compiled=("apex",), commits={"apex": commits[place]})
            at = ("apex", "raises", number, end)
            yield probe(at, 9999 if end == 0 else -1, "apex-cuda-check", node(nvcc="11.6"), **asked)


def _brought(source: str, trait: str) -> Answer:
    """What a trait that a source brings leads to."""

    def answer(compat: Compat) -> object:
        traits = traits_of({}, (source,), compat, built=True)[0]
        if trait == "imports-torch":
            asked = Request(traits=traits)
            return [item.verdict for item in RULES["build-isolation"](node(), asked, compat)]
        row = next(row for row in cell(("packages", "rules")) if row.get("trait") == trait)
        broken = {Requirement(row["breaks"]).name: version_in(row["breaks"])}
        return _row(row["id"], _request(broken, traits=traits))(compat)

    return answer
