"""Reads the compat data of the catalog; the only I/O of resolve/."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from envbuild import resources
from envbuild.catalog.yaml_load import load_yaml
from envbuild.errors import EnvbuildError
from envbuild.resolve.artifacts import Numbers, numbers
from envbuild.resolve.compat import (
    ApexHistory,
    Compat,
    Compilers,
    Cuda,
    Gpu,
    Image,
    Note,
    OwnList,
    PackageRule,
    PackageTraits,
    Ranges,
    TorchBuild,
    TorchRelease,
    short,
)

FILES = ("torch", "cuda", "compilers", "gpus", "images", "python", "packages", "limits", "apex")


@cache
def load_compat() -> Compat:
    """Read the shipped compat files, once: one command asks several times, and reading takes 30 ms.

    Raises EnvbuildError `installation-broken` when a file lacks a key or holds a value of a wrong type, and what the
    YAML loader raises for unreadable files.
    """
    return compat_from_plain(read_plain(resources.catalog() / "compat"))


def read_plain(directory: Path) -> dict[str, Any]:
    """The files as plain data, one key a file. The commits of Apex are a text beside it: YAML takes 40 ms for them."""
    data: dict[str, Any] = {name: load_yaml(directory / f"{name}.yaml") for name in FILES}
    commits = (directory / "apex_commits.txt").read_text(encoding="ascii")
    return {**data, "apex": {**data["apex"], "commits": commits}}


def compat_from_plain(data: Mapping[str, Any]) -> Compat:
    """Build the typed data from parsed YAML, one mapping a file. Raises EnvbuildError `installation-broken`."""
    try:
        return _build(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise EnvbuildError(
            "installation-broken",
            "the shipped compatibility data cannot be used",
            why=f"{type(error).__name__}: {error}",
            hint="reinstall envbuild",
        ) from error


def _build(data: Mapping[str, Any]) -> Compat:
    torch, gpus, packages, limits = data["torch"], data["gpus"], data["packages"], data["limits"]
    torch_note = _note(torch, "torch.yaml#releases")
    gpu_note = _note(gpus, "gpus.yaml#models")
    image_note = _note(data["images"], "images.yaml#images")
    library_note = _note(packages["libstdcxx"], "packages.yaml#libstdcxx")
    return Compat(
        torch={v: _release(v, row, torch_note) for v, row in torch["releases"].items()},
        torch_note=torch_note,
        locators={name: (row["option"], row["url"]) for name, row in torch["locators"].items()},
        glibc_by_tag={tag: numbers(value) for tag, value in torch["glibc"]["tags"].items()},
        glibc_note=_note(torch["glibc"], "torch.yaml#glibc"),
        abi_note=_note(torch["abi"], "torch.yaml#abi"),
        aarch64_no_cuda_before=numbers(torch["aarch64_cuda"]["none_before"]),
        aarch64_pypi_cpu_to=numbers(torch["aarch64_cuda"]["pypi_cpu_to"]),
        aarch64_note=_note(torch["aarch64_cuda"], "torch.yaml#aarch64_cuda"),
        cuda=_cuda(data["cuda"]),
        compilers=_compilers(data["compilers"]["gcc"]),
        gpus={name: _gpu(name, row, gpu_note) for name, row in gpus["models"].items()},
        gpu_kinds={k: tuple(gpus["kinds"][k]) for k in ("geforce", "workstation", "data-centre")},
        images={tag: _image(tag, row, image_note) for tag, row in data["images"]["images"].items()},
        max_pipeline_zero_stage=int(limits["zero_pipeline"]["max_stage"]),
        zero_note=_note(limits["zero_pipeline"], "limits.yaml#zero_pipeline"),
        mig_max_ranks=int(limits["mig"]["max_ranks"]),
        mig_nccl=numbers(limits["mig"]["nccl_from"]),
        mig_note=_note(limits["mig"], "limits.yaml#mig"),
        bf16_min_capability=numbers(limits["bf16"]["min_capability"]),
        bf16_note=_note(limits["bf16"], "limits.yaml#bf16"),
        sparse_note=_note(limits["sparse_peaks"], "limits.yaml#sparse_peaks"),
        package_rules=tuple(_package_rule(row, packages) for row in packages["rules"]),
        package_traits=tuple(
            PackageTraits(Requirement(row["has"]), tuple(row["traits"]), row.get("at", ""), row.get("builds", False))
            for row in packages["traits"]["packages"]
        ),
        source_traits=_words(packages["traits"]["sources"]),
        patched_traits=_words(packages["traits"]["patches"]),
        libstdcxx=tuple(
            (Requirement(row["has"]), library_note.but(row.get("unverified")))
            for row in packages["libstdcxx"]["packages"]
        ),
        twins=tuple(map(tuple, packages["twins"]["groups"])),
        twins_note=_note(packages["twins"], "packages.yaml#twins"),
        system=_words({name: names.split() for name, names in packages["system"]["packages"].items()}),
        system_note=_note(packages["system"], "packages.yaml#system"),
        homonyms={n: (row["is"], row["meant"]) for n, row in packages["homonyms"]["names"].items()},
        homonym_note=_note(packages["homonyms"], "packages.yaml#homonyms"),
        apex=ApexHistory(
            places={commit: place for place, commit in enumerate(str(data["apex"]["commits"]).split())},
            flags={flag: _ranges(rows) for flag, rows in data["apex"]["flags"].items()},
            raises=_ranges(data["apex"]["raises"]),
        ),
        apex_note=_note(data["apex"], "apex.yaml#flags"),
    )


def _note(row: Mapping[str, Any], where: str, default: Mapping[str, Any] | None = None) -> Note:
    """The note of a row of the compat data; `where` is its file and place, `default` has what the row leaves out."""
    both = {**(default or {}), **row}
    source = f"compat/{where}: {short(str(both['source']))}"
    return Note(source, short(str(both["verified"])), firm=not row.get("unverified", False))


def _release(version: str, row: Mapping[str, Any], note: Note) -> TorchRelease:
    machines = {m: row[m] for m in ("x86_64", "aarch64") if m in row}
    return TorchRelease(
        version=version,
        on_pypi=bool(row["pypi"]),
        pypi_flavour=row.get("pypi_flavour"),
        tags={m: tuple(value["python"]) for m, value in machines.items()},
        unverified_tags={m: tuple(value.get("unverified_python", ())) for m, value in machines.items()},
        platform_tag={m: value["tag"] for m, value in machines.items()},
        locator=row["locator"],
        builds={f: _torch_build(f, value, int(row["abi"]), note) for f, value in row["flavours"].items()},
        note=note,
    )


def _torch_build(flavour: str, row: Mapping[str, Any], abi: int, note: Note) -> TorchBuild:
    codes, _, ptx = str(row.get("arch", "")).partition("+PTX")
    mark = row.get("unverified")
    return TorchBuild(
        flavour=flavour,
        archs=tuple(numbers(code) for code in codes.split()),
        ptx=tuple(numbers(code) for code in ptx.split()),
        abi=int(row.get("abi", abi)),
        glibc=numbers(row["glibc"]) if "glibc" in row else None,
        note=note.but(mark),
        ptx_note=note.but(row.get("ptx_unverified", mark)),
        disputed={numbers(arch): text for arch, text in row.get("disputed", {}).items()},
    )


def _ranges(rows: list[list[int]]) -> Ranges:
    return tuple((int(first), int(last)) for first, last in rows)


def _words(row: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(words) for name, words in row.items()}


def _versions(row: Mapping[str, Any]) -> dict[Numbers, Numbers]:
    return {numbers(key): numbers(value) for key, value in row.items()}


def _counts(row: Mapping[str, Any]) -> dict[Numbers, int]:
    return {numbers(key): int(value) for key, value in row.items()}


def _cuda(row: Mapping[str, Any]) -> Cuda:
    floors, forward, archs, check = row["driver_floors"], row["forward_compat"], row["architectures"], row["nvcc_check"]
    return Cuda(
        toolkit_drivers=_versions(row["toolkit_drivers"]["linux"]),
        toolkit_note=_note(row["toolkit_drivers"], "cuda.yaml#toolkit_drivers"),
        floors={int(major): numbers(value) for major, value in floors["linux"].items()},
        lone_floors=_versions(floors["no_minor_compat"]),
        floor_note=_note(floors, "cuda.yaml#driver_floors"),
        excluded_branches=frozenset(int(branch) for branch in forward["excluded_branches"]),
        compat_package=str(forward["package"]),
        compat_note=_note(forward, "cuda.yaml#forward_compat"),
        gpu_first_branch=_counts(row["gpu_drivers"]["first_branch"]),
        gpu_driver_note=_note(row["gpu_drivers"], "cuda.yaml#gpu_drivers"),
        first_cuda=_versions(archs["first_cuda"]),
        last_cuda=_versions(archs["last_cuda"]),
        embedded=frozenset(numbers(code) for code in archs["embedded"]),
        arch_note=_note(archs, "cuda.yaml#architectures"),
        torch_checks_from=numbers(check["torch_checks_from"]),
        exact_minor=dict(check["exact_minor"]),
        own_list={name: _own_list(own) for name, own in check["own_list"].items()},
        setuptools_needs=str(check["setuptools_needs"]),
        check_note=_note(check, "cuda.yaml#nvcc_check"),
    )


def _own_list(row: Mapping[str, Any]) -> OwnList:
    accepts = {int(major): tuple(map(numbers, versions)) for major, versions in row["accepts"].items()}
    return OwnList(str(row["variable"]), accepts, _note(row, "cuda.yaml#nvcc_check"))


def _compilers(row: Mapping[str, Any]) -> Compilers:
    torch_min = {key: row[f"torch_min_{key}"] for key in ("source", "verified", "unverified")}
    return Compilers(
        max_gcc=_counts(row["max_major"]),
        max_gcc_exact=_counts(row["max_major_exact"]),
        disputed={numbers(key): (numbers(value["from"]), str(value["says"])) for key, value in row["disputed"].items()},
        min_gcc=_counts(row["min_major"]),
        torch_min_gcc=_counts(row["torch_min_major"]),
        torch_gcc_errors=_counts(row["torch_errors_below"]),
        note=_note(row, "compilers.yaml#gcc"),
        torch_note=_note(torch_min, "compilers.yaml#gcc"),
    )


# The units that end the names of a GPU's figures.
_UNITS = ("_gb", "_tflops", "_gbs")


def _gpu(model: str, row: Mapping[str, Any], note: Note) -> Gpu:
    figures = {name: float(value) for name, value in row.items() if name.endswith(_UNITS)}
    unverified = ", ".join(row.get("unverified", ())) or None
    return Gpu(
        model=model,
        name=row["name"],
        capability=numbers(row["cc"]),
        memory_gb=figures["memory_gb"],
        dense_tflops=figures.get("bf16_dense_tflops", figures.get("fp16_dense_tflops")),
        sparse_tflops=figures.get("sparse_tflops"),
        bandwidth=figures.get("memory_bandwidth_gbs"),
        # Whether two cards have a bridge, and which two, nothing here says.
        nvlink=None if "nvlink_note" in row else figures.get("nvlink_gbs"),
        note=note.but(unverified and f"{unverified} from memory"),
    )


def _image(tag: str, row: Mapping[str, Any], note: Note) -> Image:
    unverified = row.get("unverified", ())
    return Image(
        tag=tag,
        cuda=numbers(row["cuda"]),
        torch=row["torch"],
        min_driver=int(row["min_driver"]),
        cuda_note=note.but("cuda from memory" if "cuda" in unverified else None),
        driver_note=note.but("min_driver from memory" if "min_driver" in unverified else None),
    )


def _package_rule(row: Mapping[str, Any], packages: Mapping[str, Any]) -> PackageRule:
    if row["verdict"] not in ("warn", "refuse"):
        raise ValueError(f"rule {row['id']}: unknown verdict {row['verdict']!r}")
    name, _, value = (row.get("variable") or "").partition("=")
    return PackageRule(
        id=row["id"],
        has=tuple(Requirement(text) for text in row.get("when", {}).get("has", ())),
        lacks=row.get("when", {}).get("lacks"),
        at_run=row.get("when", {}).get("at") == "run",
        trait=row.get("trait"),
        breaks=Requirement(row["breaks"]),
        verdict=row["verdict"],
        says=row["says"],
        fix=row["fix"],
        variable=(name, value) if name else None,
        fails=tuple(row.get("fails", ())),
        note=_note(row, f"packages.yaml#{row['id']}", packages),
    )
