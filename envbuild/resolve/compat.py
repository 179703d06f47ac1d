"""Compat data as typed values: which torch wheels exist, what drivers, compilers and GPUs allow.

`compat_read.load_compat` makes them of the catalog's files. Every value keeps its `Note`: where it comes from, how it
was verified and whether that is firm enough to refuse on its own (`firm`); memory and unverified marks are not.
Named tuples, because every start makes these classes, and a frozen dataclass takes ten times as long to make.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from packaging.requirements import Requirement

from envbuild.model.plan import Verdict
from envbuild.resolve.artifacts import Numbers

_DIGITS = 8
Ranges = tuple[tuple[int, int], ...]


class ApexHistory(NamedTuple):
    """The known commits by their first digits, and by ranges of places among them: `flags`, and `raises`.

    `raises`: where setup.py stops when nvcc and torch differ in the CUDA minor version.
    """

    places: Mapping[str, int]
    flags: Mapping[str, Ranges]
    raises: Ranges

    def knows(self, commit: str) -> bool:
        """Whether a commit is in the history that was read."""
        return commit[:_DIGITS] in self.places

    def flags_at(self, commit: str) -> tuple[str, ...]:
        """The flags (`cuda_ext`) that setup.py takes at a known commit."""
        place = self.places[commit[:_DIGITS]]
        return tuple(flag for flag, ranges in self.flags.items() if _within(place, ranges))

    def raises_at(self, commit: str) -> bool:
        """Whether setup.py stops at another CUDA minor version at a known commit."""
        return _within(self.places[commit[:_DIGITS]], self.raises)


def _within(place: int, ranges: Ranges) -> bool:
    return any(first <= place <= last for first, last in ranges)


# What nvidia-smi puts before the name of a row; older drivers leave NVIDIA out, and Volta and Turing are Tesla.
_BRANDS = ("", "NVIDIA ", "Tesla ", "NVIDIA Tesla ")

# Words of a GPU's name that other words of it imply, or that are compared apart.
_BESIDE_MODEL = re.compile("[0-9]+gb|sxm[0-9]?|pcie|hbm[0-9]e?|rtx|geforce|nvidia|tesla")

_LONGEST_NOTE = 120


class Note(NamedTuple):
    """Where a value comes from and how far it was verified, in one short line each; if not `firm`, it can only warn.

    `source` begins with the place of the whole note in the catalog: `compat/torch.yaml#releases: ...`.
    """

    source: str
    verified: str
    firm: bool = True

    def but(self, mark: str | None) -> Note:
        """The same note with a mark that makes it not firm; unchanged without a mark."""
        return self if mark is None else Note(self.source, short(f"not verified: {mark}"), firm=False)


class TorchBuild(NamedTuple):
    """One flavour of one release: GPU architectures with machine code, those with PTX, and its C++ ABI (0 or 1)."""

    flavour: str
    archs: tuple[Numbers, ...]
    ptx: tuple[Numbers, ...]
    abi: int
    glibc: Numbers | None
    note: Note
    ptx_note: Note
    disputed: Mapping[Numbers, str]


class TorchRelease(NamedTuple):
    """One release: Python tags by machine architecture, flavours, and where its wheels are."""

    version: str
    on_pypi: bool
    pypi_flavour: str | None
    tags: Mapping[str, tuple[str, ...]]
    unverified_tags: Mapping[str, tuple[str, ...]]
    platform_tag: Mapping[str, str]
    locator: str
    builds: Mapping[str, TorchBuild]
    note: Note


class Gpu(NamedTuple):
    """One GPU model; peaks in dense TFLOP/s (bf16 or fp16), memory in GB, bandwidths in GB/s.

    `nvlink`: both directions together, 0 without NVLink; None: unknown, for example with a bridge.
    """

    model: str
    name: str
    capability: Numbers
    memory_gb: float
    dense_tflops: float | None
    sparse_tflops: float | None
    bandwidth: float | None
    nvlink: float | None
    note: Note


class Image(NamedTuple):
    """One NVIDIA PyTorch image: its CUDA and the driver branch it asks for."""

    tag: str
    cuda: Numbers
    torch: str
    min_driver: int
    cuda_note: Note
    driver_note: Note


class PackageRule(NamedTuple):
    """One row of packages.yaml: when it applies, what breaks, what then works, and the variable that helps.

    `fails`: the error text of Python that shows this failure; `at_run`: what a build does does not count.
    """

    id: str
    has: tuple[Requirement, ...]
    lacks: str | None
    at_run: bool
    trait: str | None
    breaks: Requirement
    verdict: Verdict
    says: str
    fix: str
    variable: tuple[str, str] | None
    fails: tuple[str, ...]
    note: Note

    @property
    def alternatives(self) -> tuple[str, ...]:
        """The parts of `fix` that are a range of what breaks, as `setuptools<82`."""
        name = self.breaks.name
        return tuple(part for part in re.split(r",? or ", self.fix) if re.fullmatch(rf"{name}[<>=!][0-9.,<>=!]+", part))


class PackageTraits(NamedTuple):
    """What a well-known package does; `at`: in which of its modules, `builds`: whether builds import that module."""

    has: Requirement
    traits: tuple[str, ...]
    at: str = ""
    builds: bool = False


class OwnList(NamedTuple):
    """The CUDA versions that a source accepts for one another, by major, and the variable that turns its check off."""

    variable: str
    accepts: Mapping[int, tuple[Numbers, ...]]
    note: Note


class Cuda(NamedTuple):
    """Toolkits, drivers and architectures. All versions are number tuples."""

    toolkit_drivers: Mapping[Numbers, Numbers]
    toolkit_note: Note
    floors: Mapping[int, Numbers]
    lone_floors: Mapping[Numbers, Numbers]
    floor_note: Note
    excluded_branches: frozenset[int]
    compat_package: str
    compat_note: Note
    gpu_first_branch: Mapping[Numbers, int]
    gpu_driver_note: Note
    first_cuda: Mapping[Numbers, Numbers]
    last_cuda: Mapping[Numbers, Numbers]
    embedded: frozenset[Numbers]
    arch_note: Note
    torch_checks_from: Numbers
    exact_minor: Mapping[str, str]
    own_list: Mapping[str, OwnList]
    setuptools_needs: str
    check_note: Note


class Compilers(NamedTuple):
    """Host gcc bounds per CUDA toolkit and per torch."""

    max_gcc: Mapping[Numbers, int]
    max_gcc_exact: Mapping[Numbers, int]
    disputed: Mapping[Numbers, tuple[Numbers, str]]
    min_gcc: Mapping[Numbers, int]
    torch_min_gcc: Mapping[Numbers, int]
    torch_gcc_errors: Mapping[Numbers, int]
    note: Note
    torch_note: Note


class Compat(NamedTuple):
    """All compat data. `torch` is in the order of release; `libstdcxx`: packages that load that library."""

    torch: Mapping[str, TorchRelease]
    torch_note: Note
    locators: Mapping[str, tuple[str, str]]
    glibc_by_tag: Mapping[str, Numbers]
    glibc_note: Note
    abi_note: Note
    aarch64_no_cuda_before: Numbers
    aarch64_pypi_cpu_to: Numbers
    aarch64_note: Note
    cuda: Cuda
    compilers: Compilers
    gpus: Mapping[str, Gpu]
    gpu_kinds: Mapping[str, tuple[str, ...]]
    images: Mapping[str, Image]
    max_pipeline_zero_stage: int
    zero_note: Note
    mig_max_ranks: int
    mig_nccl: Numbers
    mig_note: Note
    bf16_min_capability: Numbers
    bf16_note: Note
    sparse_note: Note
    package_rules: tuple[PackageRule, ...]
    package_traits: tuple[PackageTraits, ...]
    source_traits: Mapping[str, tuple[str, ...]]
    patched_traits: Mapping[str, tuple[str, ...]]
    libstdcxx: tuple[tuple[Requirement, Note], ...]
    twins: tuple[tuple[str, ...], ...]
    twins_note: Note
    system: Mapping[str, tuple[str, ...]]
    system_note: Note
    homonyms: Mapping[str, tuple[str, str]]
    homonym_note: Note
    apex: ApexHistory
    apex_note: Note

    def named_gpus(self) -> dict[str, Gpu]:
        """The rows by each whole name that nvidia-smi and torch may print, also of older drivers and cards.

        A longer name (`H200 NVL`, `… Laptop GPU`, `… MIG 3g.40gb`) is other hardware, or a part of a GPU.
        """
        return {f"{brand}{gpu.name}": gpu for gpu in self.gpus.values() for brand in _BRANDS}

    def gpu_of(self, name: str | None) -> Gpu | None:
        """The row for a GPU as nvidia-smi names it."""
        return self.named_gpus().get(name or "")

    def peaks(self) -> dict[str, float]:
        """Dense TFLOP/s by model of GPU."""
        return {gpu.model: gpu.dense_tflops for gpu in self.gpus.values() if gpu.dense_tflops is not None}

    def gpu_kind(self, name: str) -> str:
        """`geforce`, `workstation`, `data-centre` or `unknown`, from the name that nvidia-smi prints."""
        words = name.replace("-", " ").split()
        for kind, patterns in self.gpu_kinds.items():
            if any(p in name if " " in p or kind == "geforce" else p in words for p in patterns):
                return kind
        return "unknown"


@cache
def is_model(expected: str, name: str) -> bool:
    """Whether a GPU's name in full or in part (`A100 80 GB`) can be that of a GPU as its driver prints it.

    What only one of the two says, memory or PCIe and SXM, contradicts nothing: `H200-SXM-141GB` is `NVIDIA H200`.
    """
    wanted, printed = _words_of(expected), _words_of(name)
    model = {word for word in wanted if not _BESIDE_MODEL.fullmatch(word)}
    values = ((kind(wanted), kind(printed)) for kind in (_memory_of, _socket_of))
    return model <= printed and all(not mine or not its or mine & its for mine, its in values)


def _words_of(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[\s_-]+", re.sub(r"([0-9])[\s_-]+gb\b", r"\1gb", name.lower()).strip()))


def _memory_of(words: frozenset[str]) -> set[str]:
    return {word for word in words if re.fullmatch("[0-9]+gb", word)}


def _socket_of(words: frozenset[str]) -> set[str]:
    """PCIe or SXM; drivers name the H100 for SXM by its memory (`H100 80GB HBM3`)."""
    return {"pcie" if word == "pcie" else "sxm" for word in words if re.fullmatch("pcie|sxm[0-9]?|hbm3", word)}


def rows_like(model: str | None, compat: Compat) -> list[Gpu]:
    """The rows of our tables for a GPU that is named in full or in part (`H100`)."""
    return [gpu for gpu in compat.gpus.values() if model and is_model(model, f"{gpu.name} {gpu.model}")]


def short(text: str) -> str:
    """The first sentence, at most 120 characters: a decision cites it, and the catalog has the whole note."""
    first = " ".join(re.split(r"[;.]\s", text, maxsplit=1)[0].split())
    return first if len(first) <= _LONGEST_NOTE else textwrap.shorten(first, _LONGEST_NOTE, placeholder=" …")
