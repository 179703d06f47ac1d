"""The proofs of a build: what an import needs; what cuobjdump lists, what serves a wanted one, what is unknown."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from envbuild.node.build import proof
from tests.support.fails import fails
from tests.support.programs import completed, executable

ELF = "ELF file    1: amp_C.1.sm_90.cubin\nELF file    2: amp_C.2.sm_80.cubin\nELF file   13: amp_C.13.sm_90.cubin\n"
PTX = "PTX file    1: amp_C.1.sm_90.ptx\n"
NO_CODE = "cuobjdump info    : File '/x/apex_C.so' does not contain device code\n"
KERNEL = (
    '__global__ void grow(float *a) { a[threadIdx.x] += 1; }\nextern "C" void go(float *a) { grow<<<1, 32>>>(a); }\n'
)


def fake(folder: Path, *answers: str) -> Path:
    """A `cuda_home` whose cuobjdump is a shell script: `case` lines of the option and the file's name."""
    program = folder / "bin" / "cuobjdump"
    program.parent.mkdir(parents=True)
    body = "\n".join(answers)
    executable(
        program, f'#!/bin/sh\ncase "$1 ${{2##*/}}" in\n{body}\n*) echo "cuobjdump fatal   : no" >&2; exit 1 ;;\nesac\n'
    )
    return folder


def says(option: str, name: str, out: str = "", err: str = "", code: int = 0) -> str:
    return f"'{option} {name}') printf '%s' \"{out}\"; printf '%s' \"{err}\" >&2; exit {code} ;;"


def wheel_of(folder: Path, *names: str, data: bytes = b"\x7fELF") -> str:
    """A wheel with these members."""
    wheel = folder / "apex-0.1-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, data)
    return str(wheel)


@pytest.fixture
def toolkit(tmp_path: Path) -> str:
    answers = [
        says("--list-elf", "amp_C.cpython-311-x86_64-linux-gnu.so", ELF),
        says("--list-ptx", "amp_C.cpython-311-x86_64-linux-gnu.so", PTX),
        says("--list-elf", "apex_C.so", err=NO_CODE, code=255),
        says("--list-elf", "ptx_only.so", err="cuobjdump info    : No ELF file found to extract from 'x'.\n"),
        says("--list-ptx", "ptx_only.so", PTX),
        says("--list-elf", "silent.so"),
        says("--list-ptx", "silent.so"),
    ]
    return str(fake(tmp_path / "cuda", *answers))


def test_a_listing_gives_each_architecture_once_in_order() -> None:
    newer = "ELF file    1: k.1.sm_100f.cubin\nELF file    2: k.2.sm_90a.cubin\nELF file    3: a sm_75.3.sm_86.cubin"
    assert proof.parse_listing(newer) == ["sm_86", "sm_90a", "sm_100f"]
    assert proof.parse_listing("member libx.a:t.o:\nELF file    1: t.o.sm_70.cubin\n") == ["sm_70"]


@pytest.mark.parametrize(
    ("found", "wanted", "lacking", "note"),
    [
        (["sm_90"], "9.0", [], ""),
        (["sm_90a"], "9.0", [], ""),
        (["sm_90"], "9.0a", ["9.0a"], ""),
        (["sm_90a"], "9.0a", [], ""),
        (["sm_80"], "9.0", ["9.0"], ""),
        (["compute_90"], "9.0", ["9.0"], ""),
        (["sm_90"], "9.0+PTX", ["9.0+PTX"], ""),
        (["compute_90", "sm_90"], "9.0+PTX", [], ""),
        (["sm_80"], "8.6", [], "8.6 is served by sm_80"),
        (["sm_80", "sm_86"], "8.6", [], ""),
        (["sm_86"], "8.0", ["8.0"], ""),
        (["sm_90a"], "9.1", ["9.1"], ""),
        (["sm_100f"], "10.3", [], "10.3 is served by sm_100f"),
        (["sm_100a"], "10.3", ["10.3"], ""),
        (["sm_100"], "10.0", [], ""),
    ],
)
def test_what_serves_a_wanted_architecture(found: list[str], wanted: str, lacking: list[str], note: str) -> None:
    assert proof.missing(found, [wanted]) == (lacking, [note] if note else [])


def test_a_missing_architecture_is_exit_4_and_names_the_extension(tmp_path: Path, toolkit: str) -> None:
    amp = "compute_90, sm_80, sm_90; 1 of 2 extensions"
    for names, wanted, what, why in (
        (["apex_C.so", "amp_C.cpython-311-x86_64-linux-gnu.so"], "10.0", "amp_C", amp),
        (["ptx_only.so"], "9.0", "ptx_only", "it has compute_90;"),
    ):
        wheel = wheel_of(tmp_path, *names)
        with fails("arch-missing", 4) as caught:
            proof.architectures(wheel, [wanted], toolkit)
        assert caught.value.what == f"{what} has no device code for {wanted}"
        assert caught.value.details["missing"] == {what: [wanted]}
        assert why in caught.value.why
        assert proof.architectures(wheel, [], toolkit)["how"] == "cuobjdump", "none is demanded"


def test_a_cuobjdump_that_cannot_tell_or_is_not_there_is_not_a_proof(
    tmp_path: Path, toolkit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, why in (("unknown.so", "cuobjdump fatal   : no"), ("silent.so", "no answer")):
        result = proof.architectures(wheel_of(tmp_path, name), ["9.0"], toolkit)
        assert result["how"] == f"not checked: cuobjdump of {name}: {why}"
    monkeypatch.setenv("PATH", str(tmp_path))
    result = proof.architectures(wheel_of(tmp_path, "amp_C.so"), ["9.0"], str(tmp_path / "no-cuda"))
    assert result == {"wanted": ["9.0"], "found": {}, "how": "not checked: no cuobjdump"}


def test_the_toolkit_comes_before_path_and_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [fake(tmp_path / name) for name in ("toolkit", "path")]
    site = tmp_path / "site-packages"
    fake(site / "triton/backends/nvidia")
    monkeypatch.setenv("PATH", f"relative:{places[1] / 'bin'}")
    found = proof.find_cuobjdump
    assert found(str(places[0]), [str(site)]) == str(places[0] / "bin/cuobjdump")
    assert found(None, [str(site)]) == str(places[1] / "bin/cuobjdump")
    monkeypatch.setenv("PATH", "")
    assert found(None, [str(site)]) == str(site / "triton/backends/nvidia/bin/cuobjdump")
    os.chmod(site / "triton/backends/nvidia/bin/cuobjdump", 0o644)
    assert found(None, [str(site)]) is None


def test_every_object_is_listed_by_its_import_name_also_one_without_device_code(tmp_path: Path) -> None:
    names = ["a/helpers.so", "b/helpers.so", "apex-0.1.data/purelib/metaseq/data/fast.abi3.so", "apex/__init__.py"]
    home = fake(
        tmp_path / "cuda",
        says("--list-elf", "helpers.so", err=NO_CODE, code=255),
        says("--list-elf", "fast.abi3.so", ELF),
        says("--list-ptx", "fast.abi3.so", PTX),
    )
    assert proof.architectures(wheel_of(tmp_path, *names), ["9.0", "8.0"], str(home)) == {
        "wanted": ["8.0", "9.0"],
        "found": {"a.helpers": [], "b.helpers": [], "metaseq.data.fast": ["compute_90", "sm_80", "sm_90"]},
        "how": "cuobjdump",
    }
    (tmp_path / "broken.whl").write_bytes(b"PK")
    with fails("wheel-unreadable"):
        proof.architectures(str(tmp_path / "broken.whl"), ["9.0"], str(home))
    for wanted in ("sm_90", "9.0+ptx", "9.0; rm"):
        with fails("request-invalid"):
            proof.architectures("/no/wheel", [wanted], None)


def test_a_kernel_that_nvcc_built_and_an_object_without_device_code_are_read_by_the_real_cuobjdump(
    tmp_path: Path,
) -> None:
    # A toolkit here that has the program, or the package of it that tests are run with; it has no compiler.
    homes = [os.environ.get("CUDA_HOME") or "/usr/local/cuda", f"{sysconfig.get_path('purelib')}/nvidia/cu13"]
    home = next((home for home in homes if proof.find_cuobjdump(home)), None)
    nvcc, cc = shutil.which("nvcc"), shutil.which("cc")
    if home is None or nvcc is None or cc is None:
        pytest.skip("no nvcc, no cuobjdump or no C compiler here")
    (tmp_path / "tiny.cu").write_text(KERNEL)
    (tmp_path / "plain.c").write_text("int one(void) { return 1; }\n")
    codes = [f"-gencode=arch=compute_{code},code=sm_{code}" for code in ("80", "90")]
    codes.append("-gencode=arch=compute_90,code=compute_90")
    kernel = [nvcc, "-shared", "-Xcompiler", "-fPIC", *codes, "tiny.cu", "-o", "tiny.so"]
    for words in (kernel, [cc, "-shared", "plain.c", "-o", "plain.so"]):
        completed(words, cwd=tmp_path, check=True)
    built = wheel_of(tmp_path, "tiny.so", data=(tmp_path / "tiny.so").read_bytes())
    with zipfile.ZipFile(built, "a") as archive:
        archive.write(tmp_path / "plain.so", "plain.so")
    for wanted in ("9.0", "8.6"):
        result: dict[str, Any] = proof.architectures(built, [wanted], home)
        assert result["found"] == {"tiny": ["compute_90", "sm_80", "sm_90"], "plain": []}
        assert result["how"] == "cuobjdump"
    with fails("arch-missing", match=r"no device code for 7\.5"):
        proof.architectures(built, ["7.5"], home)


MODULES = {
    "torch.py": "",
    "crash.py": "import os\nos.kill(os.getpid(), 11)\n",
    "alone.py": "import sys\nassert 'torch' not in sys.modules\n",
    "linked.py": "LIBRARY = 'libtorch_cpu.so'\nimport sys\nassert 'torch' in sys.modules\n",
    "late.py": "import sys\nif 'torch' not in sys.modules:\n    raise ImportError('libcudart.so.12: cannot open')\n",
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    top = tmp_path_factory.mktemp("environment")
    venv.create(top, symlinks=True)
    site = top / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for name, text in MODULES.items():
        Path(site, name).write_text(text)
    return str(top / "bin" / "python")


@pytest.mark.parametrize("names", [["alone", "linked"], ["late"]])
def test_torch_is_imported_before_what_needs_it_and_only_then(python: str, names: list[str]) -> None:
    assert proof.imports(python, "own", names, {}) == {"imported": names, "libraries": [], "unchecked": {}}


def test_a_crash_while_importing_is_named(python: str) -> None:
    with fails("extension-broken", 4, match="crash") as caught:
        proof.imports(python, "own", ["alone", "crash"], {})
    assert caught.value.why.startswith("crash: the process ended with -11")
