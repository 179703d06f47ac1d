"""The smoke item `extensions`: stand-ins in plain torch pass on the CPU, and each wrong line in one is found."""

from __future__ import annotations

import shutil
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuild.model.evidence import Check
from envbuild.node.smoke import smoke
from tests.node.torch_env import torch_environment
from tests.support.files import write_file, write_files
from tests.support.need import need
from tests.support.patience import with_deadline
from tests.support.programs import executable
from tests.support.torch_imported import torch_imported as torch_imported

STAND_INS = Path(__file__).parents[1] / "data" / "extensions"
PROGRAMS = Path(smoke.__file__).parent / "programs"
VARIANT = {"python": "3.11", "torch": "2.13.0", "flavour": "cpu"}
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("torch_imported")]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment above the one with torch, with room for stand-ins of its own."""
    below = torch_environment()
    (site_of(made(tmp_path / "env")) / "below.pth").write_text(f"{site_of(below)}\n")
    return tmp_path / "env"


@pytest.fixture
def without_torch(tmp_path: Path) -> Path:
    """One in which torch is a name, for what computes nothing with it: it takes 4 s to import."""
    text = "__version__, get_num_threads, set_num_threads = '0', int, int\nclass cuda:\n    is_initialized = bool\n"
    files = {"__init__.py": text, "nn.py": "functional = None\n"}
    write_files(site_of(made(tmp_path / "env")) / "torch", files)
    return tmp_path / "env"


def made(path: Path) -> Path:
    venv.EnvBuilder(symlinks=True, with_pip=False).create(path)
    return path


def site_of(environment: Path) -> Path:
    return next(environment.glob("lib/python3.*/site-packages"))


Change = tuple[str, str, str]


def add(environment: Path, *names: str, broken: Sequence[Change] = ()) -> None:
    """Copy stand-ins (all of them without names) into the environment; `broken`: a line of a file, and another."""
    site = site_of(environment)
    for source in sorted(STAND_INS.rglob("*.py")):
        inside = source.relative_to(STAND_INS)
        if names and inside.parts[0].removesuffix(".py") not in names:
            continue
        text = source.read_text()
        for file, line, instead in broken:
            if file == inside.stem:
                assert text.count(line) >= 1
                text = text.replace(line, instead)
        write_file(site / inside, text)


def on_cpu() -> dict[str, str]:
    """The programs with the CPU in the place of the GPU, without the size that takes it 10 s."""
    programs = {}
    for name, line, instead in (
        ("compare", 'DEVICE = "cuda"', 'DEVICE = "cpu"'), ("megatron_kernels", ", (4, 2048))", ")")
    ):  # fmt: skip
        text = (PROGRAMS / f"{name}.py").read_text()
        assert text.count(line) == 1
        programs[name] = text.replace(line, instead)
    return programs


def checks(
    environment: Path, programs: dict[str, str] | None = None, deadline: float = 500.0, **variant: Any
) -> dict[str, Check]:
    spec = smoke.Spec(str(environment), VARIANT | variant, bool(variant.pop("cuda", False)))
    item = {"name": "extensions", "deadline": deadline}
    raw = smoke.smoke_items(spec, [item], None, on_cpu() if programs is None else programs)
    found = {check["name"].removeprefix("smoke/extensions/"): Check.from_plain(check) for check in raw}
    assert len(found) == len(raw)
    return found


def test_right_extensions_pass_and_say_what_was_compared(environment: Path) -> None:
    add(environment)
    found = checks(environment, sources=[{"name": "apex", "build": {"extensions": ["amp_C", "apex_C"]}}])
    wrong = {name: check.says for name, check in found.items() if check.status != "passed"}
    assert wrong == {}
    assert list(found) == [
        "imports",
        "apex-flatten",
        "fused-adam",
        "multi-tensor-norm",
        "multi-tensor-scale",
        "layer-norm",
        "cross-entropy",
        "mlp",
        "fused-dense",
        "triangular-softmax",
        "masked-softmax",
        "megatron-layer-norm",
        "flash-attention",
    ]
    adam = found["fused-adam"]
    assert adam.details["dtypes"] == ["float32", "float16"]
    assert "only support fp16 and fp32" in adam.details["unsupported"]["bfloat16"]
    assert adam.says.startswith("FusedAdam(adam_w_mode, set_grad_none): 4 comparisons in float32, float16, at most ")
    assert found["layer-norm"].details["api"] == "FusedLayerNorm, MixedFusedLayerNorm"
    assert "2 of 2 that the lock names" in found["imports"].says
    assert "generic_scaled_masked_softmax_cuda" in found["imports"].details["not_there"]
    assert all(check.seconds is not None for check in found.values())


NORM = "each = torch.stack([part.double().norm() for part in lists[0]])"
ILLEGAL = "raise RuntimeError('CUDA error: an illegal memory access was encountered')"
OTHER_GPUS = "CUDA error: no kernel image is available for execution on the device"
ROUNDS: list[tuple[list[Change], dict[str, str]]] = [
    (
        [
            ("amp_C", "update + decay * p if mode == 1 else update", "update"),
            ("normalization", "None if part is None else part.float() for part in", "None for part in"),
            ("xentropy", "- smoothing * logs.mean(-1)", ""),
            ("mlp", "+ bias.float()", ""),
            ("fused_dense", "functional.gelu(_linear(", "(lambda x, **_: x)(_linear("),
            ("scaled_upper_triang_masked_softmax_cuda", "diagonal=1", "diagonal=2"),
            ("scaled_masked_softmax_cuda", "masked_fill(mask,", "masked_fill(mask[:1],"),
            ("fused_mix_prec_layer_norm_cuda", "(g * normal).sum(0)", "(g * normal)[:-1].sum(0)"),
            ("flash_attn", "if causal:", "if False:"),
            ("apex_C", "torch.cat([", "0 * torch.cat(["),
        ],
        {
            "fused-adam": "FusedAdam against torch.optim.AdamW, float32: wrong in",
            "layer-norm": "FusedLayerNorm 3×17, float32: wrong in",
            "cross-entropy": "cross entropy 5×1001, float32, smoothing 0.1: wrong in",
            "mlp": "MLP 64-128-32 with relu, float32: wrong in",
            "fused-dense": "FusedDenseGeluDense 256-512-128, float16: wrong in",
            "triangular-softmax": "triangular softmax 8×20×20, float16: wrong in",
            "masked-softmax": "scaled masked softmax 2×2×24×36, float16: wrong in",
            "megatron-layer-norm": "gradient of the weight: wrong in",
            "flash-attention": ", causal, float16: wrong in",
            "apex-flatten": "flatten, float32",
        },
    ),
    (
        [
            ("amp_C", "value.copy_(p - lr * update)", "value.copy_(p - lr * update * float('nan'))"),
            ("xentropy", "losses.masked_fill_(labels == padding_idx, 0)", "pass"),
            ("scaled_upper_triang_masked_softmax_cuda", "scale * p * (g", "p * (g"),
            ("flash_attn", "def flash_attn_func", "def flash"),
        ],
        {
            "fused-adam": "value 0 is nan instead of",
            "cross-entropy": "instead of 0 ",
            "triangular-softmax": "gradient: wrong in",
            "flash-attention": "flash-attn 2.8.3 has no flash_attn_func",
        },
    ),
    (
        [
            ("amp_C", "isfinite(source).all", "isfinite(source[:1]).all"),
            ("amp_C", NORM, NORM.replace("lists[0]", "lists[0][:110]")),
            ("optimizers", "adam_w_mode", "adam_mode"),
        ],
        {
            "multi-tensor-scale": "inf does not set the overflow flag",
            "multi-tensor-norm": "the shape is (110,)",
            "fused-adam": "FusedAdam has no adam_w_mode",
        },
    ),
    (
        [
            ("amp_C", NORM, NORM.replace("norm()", "norm() * 1.001")),
            ("amp_C", "zip(*lists, strict=True):\n        g, p", "list(zip(*lists, strict=True))[:110]:\n        g, p"),
        ],
        {"multi-tensor-norm": "multi-tensor L2 norm, float32: wrong in 1 of 1", "fused-adam": "wrong in"},
    ),
    # What ends a check is its failure, and the others go on.
    (
        [
            ("amp_C", "    each = torch.stack", "    import os; os.kill(os.getpid(), 11)\n    each = torch.stack"),
            ("amp_C", "target.copy_(", f"{ILLEGAL}\n        target.copy_("),
            (
                "flash_attn",
                "    dtype = q.dtype",
                f"    raise RuntimeError('{OTHER_GPUS}\\nCompile with `TORCH_USE_CUDA_DSA`.')",
            ),
        ],
        {
            "multi-tensor-norm": "the check crashed with SIGSEGV during multi-tensor L2",
            "multi-tensor-scale": "float32: CUDA error: an illegal memory access",
            "flash-attention": f"{OTHER_GPUS}: it was built for other GPUs",
        },
    ),
]


@pytest.mark.parametrize(("broken", "expected"), ROUNDS)
def test_a_wrong_line_in_an_extension_is_found(
    environment: Path, broken: list[Change], expected: dict[str, str]
) -> None:
    files, few = {file for file, _, _ in broken}, ["amp_C", "apex"]
    if files == {"amp_C", "flash_attn"}:
        few += ["apex_C", "flash_attn", "flash_attn_2_cuda"]
    alone = files <= {"optimizers", *few}
    add(environment, *(few if alone else []), broken=broken)
    found = checks(environment)
    failed = {name: check for name, check in found.items() if check.status == "failed"}
    assert set(failed) == set(expected) if alone else set(failed) >= set(expected)
    for name, says in expected.items():
        told = [failed[name].says, *failed[name].details.get("failures", [])]
        assert any(says in text for text in told), (name, told)


@pytest.mark.parametrize("cuda", [False, True])
def test_without_a_gpu_checks_are_skipped_and_one_that_is_asked_for_is_a_failure(environment: Path, cuda: bool) -> None:
    add(environment, "amp_C", "apex", "apex_C", "flash_attn", "flash_attn_2_cuda")
    found = checks(environment, {}, cuda=cuda)
    assert found["apex-flatten"].status == "passed"
    assert (found["imports"].status, found["imports"].says.startswith("torch sees no GPU")) == (
        ("failed", True) if cuda else ("passed", False)
    )
    for name in ("fused-adam", "multi-tensor-norm", "multi-tensor-scale", "flash-attention"):
        assert (found[name].status, found[name].says.startswith("no GPU here; ")) == ("skipped", True)


def test_nothing_installed_is_skipped_and_counted(without_torch: Path) -> None:
    found = checks(without_torch, {})
    assert [(name, check.status) for name, check in found.items()] == [("imports", "skipped")]
    assert found["imports"].says == "no compiled extension that is known here is installed"


def test_an_extension_that_the_lock_names_must_be_there_and_have_its_python_side(environment: Path) -> None:
    add(environment, "apex_C", "amp_C", "xentropy_cuda")
    modules = [{"name": "helpers_cuda", "sources": ["a.cu"]}]
    sources = [{"name": "apex", "build": {"extensions": ["apex_C", "mlp_cuda", "syncbn"], "modules": modules}}, {}]
    found = checks(environment, sources=[*sources, {"build": None}])
    failures = found["imports"].details["failures"]
    assert [text.split(":")[0] for text in failures] == [
        "import syncbn",
        "import envbuild_kernels.helpers_cuda",
        "import mlp_cuda",
    ]
    assert found["imports"].status == "failed"
    assert found["apex-flatten"].status == found["multi-tensor-norm"].status == "passed"
    for name in ("fused-adam", "cross-entropy"):
        assert "No module named 'apex'" in found[name].says


def test_a_hang_names_its_check_and_what_did_not_run(environment: Path) -> None:
    sleep = "__import__('time').sleep(600)"
    broken = [("amp_C", "each = torch.stack", f"{sleep}\n    each = torch.stack")]
    add(environment, "amp_C", "apex", "apex_C", broken=broken)
    _, found = with_deadline(
        lambda deadline: checks(environment, deadline=deadline), 12, lambda found: "multi-tensor-norm" in found
    )
    assert "hung past its deadline" in found["multi-tensor-norm"].says
    assert found["imports"].details["not_run"] == ["multi-tensor-scale"]


@pytest.mark.parametrize(
    ("script", "status", "says"),
    [
        ("echo envbuild-rank 0 2 3; echo envbuild-rank 1 2 3", "passed", "Stand-in MPI 4: 4 comparisons"),
        ("echo envbuild-rank 0 1 1; echo envbuild-rank 0 1 1", "failed", "each sees a world of 1: mpi4py is linked"),
        ("echo envbuild-rank 0 2 3; echo envbuild-rank 1 2 2", "failed", "the sum over the ranks is wrong"),
        ("echo no allocation; echo ------; exit 3", "skipped", "started no rank (exit 3): no allocation"),
        (
            "echo envbuild-begun; echo; echo 'check(1): uses unsupported PMI version'; echo -----; exit 16",
            "failed",
            "1 rank of",
        ),
        (None, "skipped", "no mpiexec here; mpi4py is linked to Stand-in MPI 4"),
    ],
)
def test_two_ranks_must_see_each_other(
    without_torch: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, status: str, says: str
) -> None:
    site = site_of(without_torch)
    (site / "mpi4py").mkdir()
    (site / "mpi4py/__init__.py").write_text("class rc:\n    initialize = True\n")
    text = (
        "from mpi4py import rc\nassert not rc.initialize\ndef Get_library_version():\n    return 'Stand-in MPI 4\\0'\n"
    )
    (site / "mpi4py/MPI.py").write_text(text)
    monkeypatch.setenv("PATH", "/nowhere")
    if script is not None:
        executable(without_torch / "bin/mpiexec", f'#!/bin/sh\n[ "$1 $2" = "-n 2" ] || exit 9\n{script}\n')
    found = checks(without_torch, {})["mpi"]
    assert (found.status, says in found.says) == (status, True), found.says


def test_the_real_mpi_sees_two_ranks(environment: Path) -> None:
    need("mpiexec")
    spec = smoke.Spec(str(environment), VARIANT, False)
    real = [
        each for each in smoke.smoke_items(spec, [{"name": "extensions"}], None, {}) if each["name"].endswith("mpi")
    ]
    if not real:
        pytest.skip("no mpi4py here")
    assert real[0]["status"] == "passed", real[0]["says"]


def test_kernels_built_ahead_and_those_of_apex_are_told_apart(environment: Path) -> None:
    """Of one kernel that which was built ahead is damaged, of the other that of Apex."""
    triangular, masked = "scaled_upper_triang_masked_softmax_cuda", "scaled_masked_softmax_cuda"
    add(environment, triangular, masked)
    site = site_of(environment)
    ahead = site / "envbuild_kernels"
    ahead.mkdir()
    for name in (triangular, masked):
        shutil.copy(site / f"{name}.py", ahead)
    for folder, name, line, instead in (
        (ahead, triangular, "diagonal=1", "diagonal=2"), (site, masked, "masked_fill(mask,", "masked_fill(mask[:1],")
    ):  # fmt: skip
        wrong = folder / f"{name}.py"
        assert line in wrong.read_text()
        wrong.write_text(wrong.read_text().replace(line, instead))
    modules = [{"name": triangular, "sources": ["a.cu"]}]
    found = checks(environment, sources=[{"name": "megatron", "build": {"kind": "kernels", "modules": modules}}])
    assert {each: check.status for each, check in found.items()} == {
        "imports": "passed",
        "triangular-softmax": "failed",
        "apex-triangular-softmax": "passed",
        "masked-softmax": "passed",
        "apex-masked-softmax": "failed",
    }
    assert found["triangular-softmax"].details["module"] == f"envbuild_kernels.{triangular}"
    assert found["apex-triangular-softmax"].details["module"] == triangular
    assert found["imports"].says.startswith("4 compiled extensions imported")
    assert "1 of 1 that the lock names" in found["imports"].says
