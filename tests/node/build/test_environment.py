"""Variables of a build: the real CUDA toolkit behind a script named nvcc."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from envbuild.node.build import environment


def script(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + body + "\n")
    path.chmod(0o755)


def make_toolkit(folder: Path, headers: bool = True) -> Path:
    """A toolkit whose nvcc says where it is, as the real one does."""
    script(folder / "bin" / "nvcc", f'echo "#$ _HERE_={folder}/bin" >&2; echo "#$ TOP={folder}/bin/.." >&2')
    if headers:
        (folder / "include").mkdir(exist_ok=True)
        (folder / "include" / "cuda_runtime.h").touch()
    return folder


def test_a_toolkit_with_its_headers_is_taken_as_it_is(tmp_path: Path) -> None:
    assert environment.toolkit(str(make_toolkit(tmp_path / "cuda"))) == str(tmp_path / "cuda")
    assert environment.toolkit(None) is None


def test_a_script_named_nvcc_leads_to_the_toolkit_that_it_starts(tmp_path: Path) -> None:
    real = make_toolkit(tmp_path / "cuda 13")
    script(tmp_path / "local" / "bin" / "nvcc", f'exec "{real}/bin/nvcc" "$@"')
    assert environment.toolkit(str(tmp_path / "local")) == str(real)


@pytest.mark.parametrize("says", ["exit 1", "echo '#$ TOP=/nowhere/at/all'", "echo '#$ TOP='"])
def test_an_nvcc_that_does_not_say_where_it_is_is_left_where_it_was_found(tmp_path: Path, says: str) -> None:
    script(tmp_path / "bin" / "nvcc", says)
    assert environment.toolkit(str(tmp_path)) == str(tmp_path)


def test_the_real_nvcc_behind_a_script_is_found(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on this machine")
    script(tmp_path / "bin" / "nvcc", f'exec "{nvcc}" "$@"')
    found = environment.toolkit(str(tmp_path))
    assert found is not None and os.path.isfile(os.path.join(found, "include", "cuda_runtime.h"))
