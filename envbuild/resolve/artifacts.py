"""Which of a package's locked files fit a node: wheel tags against its Python, architecture and C library."""

from __future__ import annotations

from dataclasses import dataclass

from envbuild.model.lock import ArtifactFile, LockedPackage
from envbuild.resolve.versions import Numbers, numbers, python_tag

_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


@dataclass(frozen=True, slots=True)
class Platform:
    """What decides whether a file fits: `python` as `3.11`, `machine` as `x86_64`, glibc (empty: unknown)."""

    python: str
    machine: str
    glibc: Numbers = ()


def fitting_file(package: LockedPackage, platform: Platform) -> ArtifactFile | None:
    """The file an installer would take: the most specific wheel that fits, else a source archive, else None."""
    ranked = [(rank, file) for file in package.files if (rank := _rank(file.file, platform)) is not None]
    return max(ranked, key=lambda item: (item[0], item[1].file))[1] if ranked else None


def _rank(name: str, platform: Platform) -> tuple[int, Numbers] | None:
    """How specific a file is (source 0, any 1, platform 2; then its glibc); None when it does not fit."""
    if not name.endswith(".whl"):
        return 0, ()
    parts = name[: -len(".whl")].split("-")
    if len(parts) < 5:
        return None
    pythons, abis, platforms = parts[-3], parts[-2], parts[-1]
    if not any(_fits_python(tag, abis, platform.python) for tag in pythons.split(".")):
        return None
    ranks = [rank for tag in platforms.split(".") if (rank := _platform_rank(tag, platform)) is not None]
    return max(ranks, default=None)


def _fits_python(tag: str, abis: str, python: str) -> bool:
    wanted = python_tag(python)
    if tag.startswith("py"):
        asked = tag[2:]
        return asked == "3" or (asked.startswith("3") and asked[1:].isdigit() and int(asked[1:]) <= _minor(python))
    if not tag.startswith("cp3") or not tag[3:].isdigit():
        return False
    if "abi3" in abis.split("."):
        return int(tag[3:]) <= _minor(python)
    # cp313t and the like are free-threaded builds of the same Python.
    return tag == wanted and any(a in (wanted, wanted + "m", "none") for a in abis.split("."))


def _minor(python: str) -> int:
    parts = numbers(python)
    return parts[1] if len(parts) > 1 else 0


def _platform_rank(tag: str, platform: Platform) -> tuple[int, Numbers] | None:
    if tag == "any":
        return 1, ()
    name, separator, _ = tag.partition(f"_{platform.machine}")
    if not separator or not tag.endswith(platform.machine):
        return None
    if name == "linux":
        return 2, ()
    glibc = _LEGACY.get(name)
    if name.startswith("manylinux_"):
        major, _, least = name[len("manylinux_") :].partition("_")
        glibc = (int(major), int(least)) if major.isdigit() and least.isdigit() else None
    if glibc is None or (platform.glibc and glibc > platform.glibc):
        return None
    return 2, glibc
