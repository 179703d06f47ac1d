"""The line of a build's output that says why it failed, and the hint."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from envbuild.node.build_causes import cause, told

TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1\nRuntimeError: Error compiling objects\n'


@pytest.mark.parametrize(
    ("output", "line", "hint"),
    [
        (
            "a.cpp:3:10: fatal error: rdma/rdma_cma.h: No such file or directory\n    3 | #include\n",
            "a.cpp:3:10: fatal error: rdma/rdma_cma.h: No such file or directory",
            "install librdmacm-dev on the node",
        ),
        (
            "/usr/bin/ld: cannot find -libverbs: No such file or directory\ncollect2: error: ld returned 1\n",
            "/usr/bin/ld: cannot find -libverbs: No such file or directory",
            "install libibverbs-dev on the node",
        ),
        (
            "x.cu:1:10: fatal error: cublas_v2.h: No such file or directory\n",
            "x.cu:1:10: fatal error: cublas_v2.h: No such file or directory",
            "the CUDA toolkit is not whole: it has no cublas_v2.h",
        ),
        (
            "a.h:1:10: fatal error: nobody/knows.h: No such file or directory\n",
            "a.h:1:10: fatal error: nobody/knows.h: No such file or directory",
            "",
        ),
        (
            "error: command 'mpicc' failed: No such file or directory\n",
            "error: command 'mpicc' failed: No such file or directory",
            "no program mpicc on the node",
        ),
        (
            "ModuleNotFoundError: No module named 'packaging.version'\n",
            "ModuleNotFoundError: No module named 'packaging.version'",
            "the build imports packaging: it must be a package of the lock",
        ),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_70'\n", "", ""),
        ('k.cu(12): error: identifier "x" is undefined\n', 'k.cu(12): error: identifier "x" is undefined', ""),
        ("a.cpp:2:5: error: 'y' was not declared\n", "a.cpp:2:5: error: 'y' was not declared", ""),
        ("all is well\nno error: here\n", "", ""),
    ],
)
def test_the_compilers_own_word_is_found_above_the_traceback(output: str, line: str, hint: str) -> None:
    if output.startswith("nvcc fatal"):
        line = output.strip()
    assert cause("compiling\n" + output + TRACE) == (line, hint)


def test_the_first_error_is_the_one() -> None:
    text = "a.cpp:1:1: error: first\nb.cpp:2:2: error: second\n"
    assert cause(text)[0] == "a.cpp:1:1: error: first"


def test_what_is_told_begins_with_the_cause() -> None:
    output = "x.c:1:10: fatal error: mpi.h: No such file or directory\n" + TRACE
    assert (
        told(output, ["RuntimeError: Error compiling objects"])
        .splitlines()[0]
        .endswith("mpi.h: No such file or directory")
    )
    assert told(output, output.splitlines()) == output.strip()
    assert told("silence", ["silence"]) == "silence"


def test_a_real_compilers_missing_header_and_library_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text('#include "rdma/rdma_cma_not_here.h"\n')
    done = subprocess.run(["cc", "-c", "a.c"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "rdma/rdma_cma_not_here.h" in cause(done.stderr)[0]
    (tmp_path / "b.c").write_text("int main(void) { return 0; }\n")
    done = subprocess.run(["cc", "b.c", "-lnobodyhasthis"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "-lnobodyhasthis" in cause(done.stderr)[0]
