"""What a build sees: the real CUDA toolkit behind a script named nvcc; the packages it asks for, and no other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.node.build import environment
from tests.node.env_support import uv_path
from tests.support.fails import fails
from tests.support.files import write_file, write_files
from tests.support.programs import completed, executable


def script(path: Path, body: str) -> None:
    executable(path, "#!/bin/sh\n" + body + "\n")


def make_toolkit(folder: Path) -> Path:
    """A toolkit whose nvcc says where it is, as the real one does."""
    script(folder / "bin" / "nvcc", f'echo "#$ _HERE_={folder}/bin" >&2; echo "#$ TOP={folder}/bin/.." >&2')
    write_file(folder / "include" / "cuda_runtime.h")
    return folder


def test_a_script_named_nvcc_leads_to_the_toolkit_that_it_starts(tmp_path: Path) -> None:
    real = make_toolkit(tmp_path / "cuda 13")
    script(tmp_path / "local" / "bin" / "nvcc", f'exec "{real}/bin/nvcc" "$@"')
    for given in (real, tmp_path / "local"):
        assert environment.toolkit(str(given)) == str(real)
    assert environment.toolkit(None) is None
    for says in ("exit 1", "echo '#$ TOP=/nowhere/at/all'", "echo '#$ TOP='"):
        script(tmp_path / "bin" / "nvcc", says)
        assert environment.toolkit(str(tmp_path)) == str(tmp_path), "it does not say where it is"


def test_the_real_nvcc_behind_a_script_is_found(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on this machine")
    script(tmp_path / "bin" / "nvcc", f'exec "{nvcc}" "$@"')
    found = environment.toolkit(str(tmp_path))
    assert found is not None and os.path.isfile(os.path.join(found, "include", "cuda_runtime.h"))


def put(site: Path, name: str, version: str = "1.0", requires: tuple[str, ...] = (), **files: str) -> None:
    """An installed distribution, with the record of an installer."""
    info = f"{name}-{version}.dist-info"
    wants = "".join(f"Requires-Dist: {each}\n" for each in requires)
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{wants}"
    contents = {f"{name}/__init__.py": f"VERSION = {version!r}\n", **files, f"{info}/METADATA": head}
    write_files(site, contents)
    (site / info / "RECORD").write_text("".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"]))


@pytest.fixture
def python(tmp_path: Path) -> str:
    done = subprocess.run([uv_path(), "venv", "-q", "--python", sys.executable, str(tmp_path / "env")])
    assert done.returncode == 0
    return str(tmp_path / "env" / "bin" / "python")


@pytest.fixture
def site(tmp_path: Path, python: str) -> Path:
    return next((tmp_path / "env" / "lib").glob("python*/site-packages"))


def run(python: str, code: str) -> str:
    return completed([python, "-I", "-c", code], check=True).stdout.strip()


def test_what_is_asked_for_comes_with_what_it_requires_and_with_the_extras_that_are_named(
    python: str, site: Path
) -> None:
    """torch asks for its CUDA libraries as extras of one package."""
    libraries = "cuda-toolkit[cudart, NVRTC]==13.0; platform_system == 'Linux'"
    put(site, "torch", requires=("Sympy>=1", "pytest; extra == 'test'", "colorama; sys_platform == 'win32'", libraries))
    put(site, "cuda_toolkit", requires=("cudart; extra == 'cudart'", 'nvrtc; extra == "nvrtc"', "npp; extra == 'npp'"))
    put(site, "sympy", "1.2", requires=("mpmath (<2)", "torch"))
    for name in ("mpmath", "pytest", "six", "cudart", "nvrtc", "npp"):
        put(site, name)
    packages = environment.Packages(python)
    assert packages.closure({"torch", "ninja"}) == {
        **dict.fromkeys(("torch", "mpmath", "cuda-toolkit", "cudart", "nvrtc"), "1.0"),
        "sympy": "1.2", "colorama": "", "ninja": "",
    }  # fmt: skip
    assert packages.versions()["six"] == "1.0"


def test_a_view_holds_the_wanted_packages_and_no_other(tmp_path: Path, python: str, site: Path) -> None:
    put(site, "torch", **{"nvidia/torch.txt": "t", "torch/include/torch.h": "int x;\n"})
    put(site, "six", **{"nvidia/six.txt": "s", "nvidia/shared/six.txt": "s"})
    put(site, "tool", **{"../../../bin/tool": f"#!{python}\nimport tool, sys; print(sys.prefix)\n"})
    put(site, "ninja", **{"../../../bin/ninja": "#!/bin/sh\necho 1.13\n"})
    view = environment.Packages(python).view(
        str(tmp_path / "view"), {"torch": "1.0", "tool": "1.0", "ninja": "1", "no": ""}
    )
    folder = tmp_path / "view"
    assert view == str(folder / "bin" / "python")
    assert run(view, "import torch, tool, sys; print(sys.prefix, torch.VERSION)") == f"{folder} 1.0"
    assert run(view, "import importlib.util as u; print(u.find_spec('six'))") == "None"
    names = "from importlib.metadata import distributions as d; print(*sorted(x.metadata['Name'] for x in d()))"
    assert run(view, names) == "ninja tool torch"
    inside = next((folder / "lib").glob("python*/site-packages"))
    assert sorted(path.name for path in (inside / "nvidia").rglob("*")) == ["torch.txt"]
    assert (inside / "torch" / "include" / "torch.h").read_text() == "int x;\n"
    assert sorted(os.listdir(folder / "bin"))[:2] == ["ninja", "python"]
    (tmp_path / "env" / "bin" / "ninja").chmod(0o755)
    assert subprocess.check_output([folder / "bin" / "tool"], text=True).strip() == str(folder)
    assert subprocess.check_output([folder / "bin" / "ninja"], text=True) == "1.13\n"


def test_packages_of_a_base_are_seen_as_those_of_the_environment(tmp_path: Path, python: str, site: Path) -> None:
    """A base may be an older installer's, which left no record; what lies above it hides its packages."""
    base = tmp_path / "base"
    put(base, "numpy", "1.0")
    put(base, "six", "1.0")
    write_file(base / "old_thing-0.5.egg-info" / "PKG-INFO", "Metadata-Version: 1.0\nName: old-thing\nVersion: 0.5\n")
    (base / "old_thing-0.5.egg-info" / "requires.txt").write_text("six>=1\n\n[test]\npytest\n")
    (base / "old_thing.py").write_text("import six\n")
    (site / "base.pth").write_text(f"{base}\n")
    put(site, "numpy", "2.0")
    packages = environment.Packages(python)
    wanted = packages.closure({"old-thing", "numpy"})
    assert wanted == {"old-thing": "0.5", "numpy": "2.0", "six": "1.0"}
    view = packages.view(str(tmp_path / "view"), wanted)
    assert run(view, "import old_thing, numpy; print(numpy.VERSION)") == "2.0"


def test_an_interpreter_that_does_not_run_is_a_failure(tmp_path: Path) -> None:
    with fails("build-failed"):
        environment.Packages(str(tmp_path / "python"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (None, set()),
        ('[build-system]\nrequires = ["hatchling>=1", "Cython[x]"]  # why\n', {"hatchling", "cython"}),
        ("[build-system]\nrequires = [\n 'a.b; python_version > \"3\"',\n]\n[other]\nrequires = ['c']\n", {"a-b"}),
    ],
)
def test_a_build_asks_for_what_it_declares_its_stack_says_and_nobody_declares(
    tmp_path: Path, text: str | None, names: set[str]
) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    common = environment.wanted(str(tmp_path / "nothing"), {})
    assert {"torch", "setuptools", "wheel", "ninja"} <= common
    assert environment.wanted(str(tmp_path), {}) - common == names
    asked = {"build": {"requires": ["Odd_One"]}, "needs": ["psutil"]}  # setup.py's `setup_requires`, in the lock
    assert environment.wanted(str(tmp_path), asked) - common == {*names, "odd-one", "psutil"}
