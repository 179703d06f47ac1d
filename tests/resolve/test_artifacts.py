"""Which file of a package fits a node, and the small words about versions and sizes."""

from __future__ import annotations

import pytest

from envbuild.model.lock import ArtifactFile, LockedPackage
from envbuild.resolve.artifacts import Platform, fitting_file, flavour_cuda, minor, numbers

HASH = "a" * 64


def package(*files: str) -> LockedPackage:
    return LockedPackage(name="x", version="1", files=tuple(ArtifactFile(file=f, sha256=HASH) for f in files))


def chosen(platform: Platform, *files: str) -> str | None:
    best = fitting_file(package(*files), platform)
    return best.file if best else None


NODE = Platform("3.11", "x86_64", (2, 31))


@pytest.mark.parametrize(
    ("file", "fits"),
    [
        ("x-1-py3-none-any.whl", True),
        ("x-1-py2.py3-none-any.whl", True),
        ("x-1-py2-none-any.whl", False),
        ("x-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("x-1-cp311-cp311-manylinux_2_31_x86_64.whl", True),
        ("x-1-cp311-cp311-manylinux_2_34_x86_64.whl", False),
        ("x-1-cp311-cp311-manylinux2014_aarch64.whl", False),
        ("x-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("x-1-cp312-cp312-manylinux_2_17_x86_64.whl", False),
        ("x-1-cp38-abi3-manylinux_2_17_x86_64.whl", True),
        ("x-1-cp312-abi3-manylinux_2_17_x86_64.whl", False),
        ("x-1-cp311-cp311t-manylinux_2_17_x86_64.whl", False),
        ("x-1-cp311-cp311-linux_x86_64.whl", True),
        ("x-1-cp311-cp311-win_amd64.whl", False),
        ("x-1.tar.gz", True),
        ("x-1-nonsense.whl", False),
    ],
)
def test_a_file_fits_or_not(file: str, fits: bool) -> None:
    assert (chosen(NODE, file) is not None) is fits
    unknown = chosen(Platform("3.11", "x86_64"), "x-1-cp311-cp311-manylinux_2_39_x86_64.whl")
    assert unknown is not None, "an unknown C library refuses nothing"


@pytest.mark.parametrize(
    ("python", "offered", "best"),
    [
        ("3.11", ["cp310-cp310-linux_x86_64", "cp311-cp311-linux_x86_64"], "cp311-cp311-linux_x86_64"),
        ("3.11", ["py3-none-any", "cp39-abi3-manylinux_2_28_x86_64"], "cp39-abi3-manylinux_2_28_x86_64"),
        ("3.11", ["py3-none-any", "cp311-cp311-manylinux_2_17_x86_64"], "cp311-cp311-manylinux_2_17_x86_64"),
        ("3.12", ["py3-none-any", "cp311-cp311-manylinux_2_17_x86_64"], "py3-none-any"),
        ("3.11", ["py3-none-manylinux1_x86_64", "py3-none-manylinux_2_28_x86_64"], "py3-none-manylinux_2_28_x86_64"),
        ("3.11", ["cp311-cp311-manylinux_2_34_x86_64", "py2.py3-none-any"], "py2.py3-none-any"),
        ("3.7", ["cp37-cp37m-linux_x86_64", "cp37-cp37-linux_x86_64"], "cp37-cp37m-linux_x86_64"),
        ("3.11", ["py3-none-any", "1-py3-none-any", "2-py3-none-any", "10-py3-none-any"], "10-py3-none-any"),
        ("3.11", ["1a-py3-none-any", "1b-py3-none-any", "1-py3-none-any"], "1b-py3-none-any"),
        ("3.11", ["9-py3-none-any", "cp311-cp311-linux_x86_64"], "cp311-cp311-linux_x86_64"),
        ("3.11", ["py3-none-any", "py2.py3-none-any"], "py2.py3-none-any"),
    ],
)
def test_the_most_specific_wheel_of_the_highest_build_is_taken_and_a_source_archive_last(
    python: str, offered: list[str], best: str
) -> None:
    platform = Platform(python, "x86_64", (2, 31))
    assert chosen(platform, "x-1.tar.gz", *(f"x-1-{tag}.whl" for tag in offered)) == f"x-1-{best}.whl"


@pytest.mark.parametrize(
    ("text", "parts"),
    [("470.82.01 (GA)", (470, 82, 1)), ("", ()), (None, ()), ("x", ()), ("12", (12,)), ("3.11rc1", (3, 11))],
)
def test_numbers_of_a_version(text: str | None, parts: tuple[int, ...]) -> None:
    assert numbers(text) == parts
    assert minor(text) == (parts[:2] if len(parts) > 1 else ())


@pytest.mark.parametrize(
    ("flavour", "cuda"),
    [("cu113", (11, 3)), ("cu102", (10, 2)), ("cu130", (13, 0)), ("cpu", ()), (None, ()), ("cu9", ())],
)
def test_cuda_of_a_flavour(flavour: str | None, cuda: tuple[int, ...]) -> None:
    assert flavour_cuda(flavour) == cuda
