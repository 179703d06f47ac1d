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

Path = tuple[str | int, ...]
Answer = Callable[[Compat], object]

# A cell with this value is taken away.
REMOVED = object()
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


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all leaves."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from leaves(below, (*path, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from leaves(below, (*path, index))
    else:
        yield path


def cell(path: Path) -> Any:
    """The shipped value of a cell."""
    value: Any = plain_compat()
    for key in path:
        value = value[key]
    return value


def changed(plain: Any, path: Path, value: object) -> Any:
    """The data with one cell changed; what is not on the way to it is shared."""
    key, *rest = path
    if not rest and value is REMOVED:
        return {name: below for name, below in plain.items() if name != key}
    below = changed(plain[key], tuple(rest), value) if rest else value
    if isinstance(plain, list):
        return [below if index == key else old for index, old in enumerate(plain)]
    return {**plain, key: below}


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


def python_of(tag: str) -> str:
    """cp311 as 3.11."""
    return f"{tag[2]}.{tag[3:]}"


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


def _torch() -> Iterator[Probe]:
    torch = plain_compat()["torch"]
    for version, row in torch["releases"].items():
        at: Path = ("torch", "releases", version)
        yield Probe(at, REMOVED, verdicts("torch-release-known", node(), Request(torch=version)), whole=True)
        first = next(iter(row["flavours"]))
        asked = Request(torch=version, flavour=first, index="pypi")
        yield Probe((*at, "pypi"), not row["pypi"], verdicts("torch-lts-index", node(), asked))
        if "pypi_flavour" in row:
            asked = Request(torch=version, flavour=row["pypi_flavour"], index="pypi")
            yield Probe((*at, "pypi_flavour"), "cu999", verdicts("torch-locator", node(), asked))
        for machine in ("x86_64", "aarch64"):
            if machine in row:
                yield from _wheels(version, machine, row[machine])
        plain = next(name for name, build in row["flavours"].items() if "abi" not in build)
        yield Probe((*at, "abi"), 1 - row["abi"], _abi(version, plain, row["abi"]))
        for name, build in row["flavours"].items():
            yield from _build(version, name, build)
    for key, version in (("none_before", "2.4.1"), ("pypi_cpu_to", "2.8.0")):
        asked = Request(
            torch=version, flavour="cu126", index="pypi" if key == "pypi_cpu_to" else "x", machine="aarch64"
        )
        yield Probe(("torch", "aarch64_cuda", key), "1.0", verdicts("torch-aarch64", node(), asked), whole=True)
    for tag, glibc in torch["glibc"]["tags"].items():
        version, machine = next(
            (v, m) for v, r in torch["releases"].items() for m in ("x86_64", "aarch64") if m in r and r[m]["tag"] == tag
        )
        asked = Request(torch=version, flavour="cpu", machine=machine)
        yield Probe(
            ("torch", "glibc", "tags", tag), "9.99", verdicts("glibc-floor", node(glibc=glibc), asked), whole=True
        )


def _wheels(version: str, machine: str, row: Mapping[str, Any]) -> Iterator[Probe]:
    at: Path = ("torch", "releases", version, machine)
    for key in ("python", "unverified_python"):
        for index, tag in enumerate(row.get(key, ())):
            asked = Request(torch=version, python=python_of(tag), machine=machine)
            yield Probe((*at, key, index), "cp35", verdicts("torch-python", node(), asked))
    asked = Request(torch=version, flavour="cpu", machine=machine)
    yield Probe((*at, "tag"), "unknown", verdicts("glibc-floor", node(), asked))


def _abi(version: str, name: str, abi: int) -> Answer:
    return verdicts("cxx11-abi", node(), Request(torch=version, flavour=name, abis={"x": abi}))


def _build(version: str, name: str, row: Mapping[str, Any]) -> Iterator[Probe]:
    at: Path = ("torch", "releases", version, "flavours", name)
    asked = Request(torch=version, flavour=name)

    def on(capability: str) -> Answer:
        return verdicts("gpu-arch", node(gpu=f"{CARD} @ {capability}"), asked)

    yield Probe(at, REMOVED, verdicts("torch-flavour-exists", node(), asked))
    codes, plus, ptx = row.get("arch", "").partition("+PTX")
    listed = codes.split()
    for code in listed:
        # With an older code of the same major, or PTX that is not newer, the GPU runs without its own.
        older = any(other.split(".")[0] == code.split(".")[0] and float(other) < float(code) for other in listed)
        if not older and not any(float(other) <= float(code) for other in ptx.split()):
            less = " ".join(other for other in listed if other != code)
            yield Probe((*at, "arch"), less + plus + ptx, on(code))
    if plus:
        yield Probe((*at, "arch"), codes, on("30.0"))
    if "unverified" in row:
        yield Probe((*at, "unverified"), None, on("1.0"))
    if "ptx_unverified" in row:
        yield Probe((*at, "ptx_unverified"), None, on("30.0"))
    if "glibc" in row:
        yield Probe((*at, "glibc"), "9.99", verdicts("glibc-floor", node(glibc=row["glibc"]), asked))
    if "abi" in row:
        yield Probe((*at, "abi"), 1 - row["abi"], _abi(version, name, row["abi"]))
    for code in row.get("disputed", {}):
        yield Probe((*at, "disputed", code), REMOVED, on(code))


def _drivers() -> Iterator[Probe]:
    cuda = plain_compat()["cuda"]
    floors, lone = cuda["driver_floors"]["linux"], cuda["driver_floors"]["no_minor_compat"]
    for version, own in cuda["toolkit_drivers"]["linux"].items():
        floor = lone.get(version) or floors[version.split(".")[0]]
        driver = max(own, floor, key=lambda text: [int(part) for part in text.split(".")])
        asked = Request(flavour=flavour(version))
        answer = verdicts("driver-minor-compat", node(driver=driver), asked)
        yield Probe(("cuda", "toolkit_drivers", "linux", version), "999.1", answer)
    for key, rows in (("linux", floors), ("no_minor_compat", lone)):
        for version, floor in rows.items():
            asked = Request(flavour=flavour(version if "." in version else f"{version}.0"))
            answer = verdicts("driver-floor", node(driver=floor), asked)
            yield Probe(("cuda", "driver_floors", key, version), "999.1", answer)
    for index, branch in enumerate(cuda["forward_compat"]["excluded_branches"]):
        below = node(gpu=f"{SERVER} @ 8.0", driver=f"{branch}.10", ceiling="13.0")
        answer = verdicts("driver-cuda-compat", below, Request(flavour="cu130"))
        yield Probe(("cuda", "forward_compat", "excluded_branches", index), 9999, answer)
    for capability, branch in cuda["gpu_drivers"]["first_branch"].items():
        known = node(gpu=f"{SERVER} @ {capability}", driver=f"{branch}.10")
        answer = verdicts("driver-knows-gpu", known, Request(flavour="cu130"))
        yield Probe(("cuda", "gpu_drivers", "first_branch", capability), 9999, answer)
    old = verdicts("driver-knows-gpu", node(gpu=f"{SERVER} @ 9.0", driver="400.1"), Request(flavour="cu130"))
    yield Probe(("cuda", "gpu_drivers", "unverified"), False, old)


def _compiling(version: str, **asked: Any) -> Request:
    return Request(**{"flavour": flavour(version), "compiled": ("x",), **asked})


def _architectures() -> Iterator[Probe]:
    rows = plain_compat()["cuda"]["architectures"]
    for key, other in (("first_cuda", "99.0"), ("last_cuda", "1.0")):
        for capability, version in rows[key].items():
            there = node(gpu=f"{CARD} @ {capability}", nvcc=version)
            yield Probe(
                ("cuda", "architectures", key, capability),
                other,
                verdicts("nvcc-knows-gpu", there, _compiling(version)),
            )
    for index in range(len(rows["embedded"])):
        # As if 8.0 were a module's code: then nothing older is left to propose for 8.6.
        old = verdicts("nvcc-knows-gpu", node(gpu=f"{CARD} @ 8.6", nvcc="11.0"), _compiling("11.0"))
        yield Probe(("cuda", "architectures", "embedded", index), "8.0", old)
    check: Path = ("cuda", "nvcc_check")
    from_ = cell((*check, "torch_checks_from"))
    near = node(nvcc="11.6")
    asked = _compiling("11.3", torch=from_)
    yield Probe((*check, "torch_checks_from"), "99.0", verdicts("nvcc-minor", near, asked))
    for name in cell((*check, "exact_minor")):
        asked = _compiling("11.3", compiled=(name,))
        yield Probe((*check, "exact_minor", name), REMOVED, verdicts("apex-cuda-check", near, asked))
    yield from _own_lists((*check, "own_list"))
    for name, patch in cell((*check, "exact_minor")).items():
        asked = _compiling("11.3", compiled=(name,), patches={name: (patch,)})
        yield Probe((*check, "exact_minor", name), "other", verdicts("apex-cuda-check", near, asked))
    asked = _compiling("11.3", torch=from_, packages={"setuptools": cell((*check, "setuptools_needs"))})
    yield Probe((*check, "setuptools_needs"), "9999", verdicts("setuptools-minor", near, asked))


def _own_lists(at: Path) -> Iterator[Probe]:
    for name, own in cell(at).items():
        told = _compiling("13.0", compiled=(name,), variables={own["variable"]: "1"})
        yield Probe((*at, name, "variable"), "OTHER", verdicts("own-cuda-list", node(nvcc="13.1"), told))
        for major, versions in own["accepts"].items():
            for index, version in enumerate(versions):
                asked = _compiling(versions[index - 1], compiled=(name,))
                answer = verdicts("own-cuda-list", node(nvcc=version), asked)
                yield Probe((*at, name, "accepts", major, index), "1.1", answer)


def _compilers() -> Iterator[Probe]:
    at: Path = ("compilers", "gcc")
    rows = cell(at)

    def accepts(nvcc: str, gcc: int, **asked: Any) -> Answer:
        return verdicts("gcc-range", node(nvcc=nvcc, gcc=f"{gcc}.2.0"), _compiling(nvcc, **asked))

    for version, most in rows["max_major"].items():
        yield Probe((*at, "max_major", version), most - 1, accepts(f"{version}.1", most))
    for version, most in rows["max_major_exact"].items():
        yield Probe((*at, "max_major_exact", version), most + 1, accepts(version, most + 1))
    for version in rows["disputed"]:
        answer = accepts(f"{version}.1", rows["max_major"][version])
        yield Probe((*at, "disputed", version), REMOVED, answer)
        yield Probe((*at, "disputed", version, "from"), "99", answer)
    for version, least in rows["torch_errors_below"].items():
        yield Probe((*at, "torch_errors_below", version), least - 1, accepts("12.1.1", least - 1, torch=version))
    for version, least in rows["min_major"].items():
        yield Probe((*at, "min_major", version), least + 1, accepts(f"{version}.1", least))
    for version, least in rows["torch_min_major"].items():
        yield Probe((*at, "torch_min_major", version), least + 1, accepts("12.1.1", least, torch=version))
        old = accepts("12.1.1", least - 1, torch=version)
        yield Probe((*at, "torch_min_unverified"), False, old)


def _gpus() -> Iterator[Probe]:
    below = Request(flavour="cu130")
    for kind in ("geforce", "workstation", "data-centre"):
        for index, pattern in enumerate(cell(("gpus", "kinds", kind))):
            # The first pattern that is found decides, so a server's name behind a card's is a card's.
            name = f"NVIDIA {pattern}" if kind == "data-centre" else f"NVIDIA {pattern} A100"
            old = node(gpu=f"{name} @ 8.0", driver="535.10", ceiling="13.0")
            answer = verdicts("driver-cuda-compat", old, below)
            yield Probe(("gpus", "kinds", kind, index), "no such word", answer)
    for model, row in cell(("gpus", "models")).items():
        at: Path = ("gpus", "models", model)
        key = "bf16_dense_tflops" if "bf16_dense_tflops" in row else "fp16_dense_tflops"
        dense = Request(peak_tflops=float(row[key]))
        renamed = verdicts("peak-is-dense", node(gpu="NVIDIA Z9 @ 9.9"), dense)
        yield Probe((*at, "name"), "Z9", renamed)
        this = node(gpu=f"NVIDIA {row['name']} @ {row['cc']}")
        yield Probe((*at, key), row[key] * 3, verdicts("peak-is-dense", this, dense))
        if "sparse_tflops" in row:
            sparse = Request(peak_tflops=float(row["sparse_tflops"]))
            yield Probe((*at, "sparse_tflops"), row["sparse_tflops"] * 3, verdicts("peak-is-dense", this, sparse))
        yield Probe((*at, "cc"), "9.9", _codes_for(model))


def _codes_for(model: str) -> Answer:
    """What sources are compiled for on a node without a GPU, whose target expects the model."""
    asked = Request(torch="0.0.0", flavour="cu130", built=("x",), expected_gpu=model)
    return lambda compat: bound_arch_list(node_facts("cpu-laptop"), asked, compat)


def _images() -> Iterator[Probe]:
    for tag, row in cell(("images", "images")).items():
        at: Path = ("images", "images", tag)
        asked = Request(image=tag)
        old = node(gpu=f"{CARD} @ 7.0", driver=f"{row['min_driver']}.10")
        yield Probe((*at, "cuda"), "1.0", verdicts("image-gpu", old, asked))
        yield Probe((*at, "min_driver"), "999", verdicts("image-driver", old, asked))
        new = node(gpu=f"{CARD} @ 12.1", driver="300.10")
        for index, name in enumerate(row.get("unverified", ())):
            if name == "min_driver":
                yield Probe((*at, "unverified", index), "other", verdicts("image-driver", new, asked))
            elif name == "cuda" and why_not_read((*at, "unverified", index)) is None:
                yield Probe((*at, "unverified", index), "other", verdicts("image-gpu", new, asked))


def _limits() -> Iterator[Probe]:
    most = cell(("limits", "zero_pipeline", "max_stage"))
    zero = verdicts("zero-needs-no-pipeline", node(), Request(zero_stage=most, pipeline=True))
    yield Probe(("limits", "zero_pipeline", "max_stage"), most - 1, zero)
    ranks = cell(("limits", "mig", "max_ranks"))
    split = node_facts("cpu-laptop", gpus=f"1 x {SERVER} @ 8.0", mig=ranks + 1)
    asked = Request(torch="2.1.0", flavour="cu121")
    yield Probe(("limits", "mig", "max_ranks"), ranks + 1, verdicts("mig-no-nccl", split, asked))
    since = cell(("limits", "mig", "nccl_from"))
    asked = Request(torch="2.1.0", flavour="cu121", packages={"nvidia-nccl-cu12": since})
    yield Probe(("limits", "mig", "nccl_from"), "99.0", verdicts("mig-no-nccl", split, asked))
    least = cell(("limits", "bf16", "min_capability"))
    bf16 = verdicts("bf16-tensor-cores", node(gpu=f"{SERVER} @ {least}"), Request(precision="bf16"))
    yield Probe(("limits", "bf16", "min_capability"), "99.0", bf16)


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
            yield Probe(
                (*at, "when", "lacks"),
                "another",
                _row(row["id"], _request({**there, **broken, lacks: "1"}, traits=traits)),
            )
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
        answer = verdicts("package-homonym", node(), Request(from_pypi=frozenset({name})))
        yield Probe(("packages", "homonyms", "names", name), REMOVED, answer)
    for index, twins in enumerate(cell(("packages", "twins", "groups"))):
        for place, name in enumerate(twins):
            both = Request(packages={name: "1", twins[place - 1]: "1"})
            yield Probe(("packages", "twins", "groups", index, place), "another", verdicts("two-owners", node(), both))

    for name in cell(("packages", "system", "packages")):
        built = Request(packages={name: "1"}, traits=frozenset({f"{name}-from-source"}))
        yield Probe(("packages", "system", "packages", name), REMOVED, verdicts("system-packages", node(), built))


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
                asked = Request(commits={"x": commits[place]}, flags={"x": (flag,)})
                at: Path = ("apex", "flags", flag, number, end)
                yield Probe(at, 9999 if end == 0 else -1, verdicts("apex-flags", node(), asked))
    for number, ends in enumerate(cell(("apex", "raises"))):
        for end, place in enumerate(ends):
            asked = _compiling("11.3", compiled=("apex",), commits={"apex": commits[place]})
            answer = verdicts("apex-cuda-check", node(nvcc="11.6"), asked)
            yield Probe(("apex", "raises", number, end), 9999 if end == 0 else -1, answer)


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
