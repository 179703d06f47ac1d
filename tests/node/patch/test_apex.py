"""The Apex patches on every historical shape of setup.py; the edited file really runs, among stand-ins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.catalog.patches import load_patch
from envbuild.node.build import patch as node_patch
from tests.node.patch_support import APEX, NO_CHECK, RUFF, apply, run_setup, write
from tests.node.pythons import require_python
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.programs import completed

FORMS = pytest.mark.parametrize("form", APEX)


@pytest.fixture
def apex(tmp_path: Path, form: str) -> Path:
    return _checkout(tmp_path, APEX[form][0])


def _checkout(tmp_path: Path, text: str) -> Path:
    return write_file(tmp_path / "apex" / "setup.py", text).parent


# CUDA of torch, nvcc, what the log says, and whether the build goes on (None: never).
VERSIONS: dict[str, tuple[str | None, str, str, bool | None]] = {
    "another minor": (
        "11.3",
        "11.6",
        "nvcc 11.6, torch built with CUDA 11.3: same major, the check is passed over",
        True,
    ),
    "another major": ("11.3", "12.1", "nvcc 12.1, torch built with CUDA 11.3: the check runs", False),
    "equal": ("11.3", "11.3", "the check runs", True),
    "torch without CUDA": (None, "12.1", "torch was built with CUDA None", None),
}


@pytest.mark.parametrize(
    ("form", "versions"),
    [
        (form, name)
        for form in APEX
        for name in VERSIONS
        if name.startswith("another") or form in ("1 warns only", "8 ruff")
    ],
)
def test_only_another_minor_version_is_let_through_and_the_build_log_says_so(
    apex: Path, form: str, versions: str
) -> None:
    """The form that only warns lets another major version through as well, and none a torch without CUDA."""
    cuda, nvcc, says, passes = VERSIONS[versions]
    result = apply(apex, "apex-cuda-check")
    assert (result["changed"], result["hits"]) == (True, 1)
    done = run_setup(apex, "--cuda_ext", torch_cuda=cuda, nvcc=nvcc)
    reached = passes or (passes is False and form.startswith("1"))
    assert ("REACHED SETUP 1" in done.stdout, done.returncode) == (reached, int(not reached)), done.stderr
    assert says in done.stdout
    assert passes is not False or reached or "different CUDA versions" in done.stderr


@FORMS
def test_the_whole_minor_version_is_read(apex: Path, form: str) -> None:
    wanted = APEX[form][1]
    if not wanted:
        with fails("patch-hits", 4):
            apply(apex, "apex-cuda-minor-parse")
        return
    before = run_setup(apex, "--cuda_ext", torch_cuda="11.10", nvcc="11.10")
    assert (before.returncode == 1) != form.startswith("1")
    assert apply(apex, "apex-cuda-minor-parse")["hits"] == wanted
    after = run_setup(apex, "--cuda_ext", torch_cuda="11.10", nvcc="11.10")
    assert "REACHED SETUP 1" in after.stdout, after.stderr


@FORMS
def test_cpp_ext_needs_no_nvcc(apex: Path, form: str) -> None:
    wanted = APEX[form][2]
    before = run_setup(apex, "--cpp_ext", torch_cuda=None, nvcc=None)
    assert (before.returncode == 1) == bool(wanted)
    if not wanted:
        with fails("patch-hits", 4, match="found 0 places"):
            apply(apex, "apex-cuda-home-none")
        return
    assert apply(apex, "apex-cuda-home-none")["hits"] == wanted
    after = run_setup(apex, "--cpp_ext", torch_cuda=None, nvcc=None)
    assert "REACHED SETUP 1" in after.stdout, after.stderr
    cuda = run_setup(apex, "--cuda_ext", torch_cuda=None, nvcc=None)
    assert "wants nvcc" in cuda.stderr


@FORMS
def test_all_three_go_together_in_any_order_and_once_only(apex: Path, form: str) -> None:
    names = ["apex-cuda-home-none", "apex-cuda-check", "apex-cuda-minor-parse"]
    wanted = dict(zip(names, (APEX[form][2], 1, APEX[form][1]), strict=True))
    used = [name for name in names if wanted[name]]
    assert (run_setup(apex, "--cuda_ext", torch_cuda="11.3", nvcc="11.6").returncode == 0) == form.startswith("1")
    diffs = {name: apply(apex, name)["diff"].splitlines() for name in used}
    removed = [line for line in diffs["apex-cuda-check"] if line.startswith("-") and not line.startswith("---")]
    assert len(removed) == 1 and "check_cuda_torch_binary_vs_bare_metal(" in removed[0], "only the call changes"
    text = (apex / "setup.py").read_text()
    for name in reversed(used):
        again = apply(apex, name)
        assert (again["changed"], again["already"], again["hits"], again["diff"]) == (False, True, wanted[name], "")
    assert (apex / "setup.py").read_text() == text
    done = run_setup(apex, "--cpp_ext", "--cuda_ext", torch_cuda="11.3", nvcc="11.6")
    assert "REACHED SETUP 2" in done.stdout, done.stderr


def test_facts_tell_the_decision_beforehand_and_two_majors_are_refused(tmp_path: Path) -> None:
    for number, (torch, nvcc, note) in enumerate(
        (
            ("11.3", "11.6.124", "nvcc 11.6.124, torch CUDA 11.3: same major, passed over"),
            ("11.3", "11.3", "nvcc 11.3, torch CUDA 11.3: equal, the check runs"),
            ("11.3", None, "nvcc's version is not known here: decided when it is built"),
            (None, "12.1", "torch has no CUDA: the check stays in force"),
        )
    ):
        apex = _checkout(tmp_path / str(number), RUFF)
        assert apply(apex, "apex-cuda-check", torch_cuda=torch, nvcc=nvcc)["notes"] == [note]
    apex = _checkout(tmp_path, RUFF)
    with fails("patch-refused", 7):
        apply(apex, "apex-cuda-check", torch_cuda="11.3", nvcc="12.1")
    assert (apex / "setup.py").read_text() == RUFF


@pytest.mark.parametrize("version", ["3.8", "3.13"])
@pytest.mark.parametrize("form", ["4 parser moved", "8 ruff"])
def test_the_program_alone_does_the_same_under_every_python(apex: Path, form: str, version: str) -> None:
    python = require_python(version)
    text, minor, _ = APEX[form]
    names = ["apex-cuda-check", *(["apex-cuda-minor-parse"] if minor else [])]
    patches = [load_patch(name).spec(load_patch(name).expected()) for name in names]
    request = write(apex.parent, "patches.json", json.dumps(patches))
    command = [python, "-I", node_patch.__file__, str(request), str(apex)]
    done = completed(command, timeout=60)
    assert (done.returncode, done.stdout.count("applied")) == (0, len(names)), done.stderr
    there = (apex / "setup.py").read_text()
    (apex / "setup.py").write_text(text)
    for name in names:
        apply(apex, name)
    assert (apex / "setup.py").read_text() == there
    (apex / "setup.py").write_text(NO_CHECK)
    done = completed(command, timeout=60)
    assert done.returncode == 4 and "error[patch-hits]: patch apex-cuda-check" in done.stderr
