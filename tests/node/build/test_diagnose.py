"""The line of a build's output that says why it failed, and the hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.node.build.diagnose import cause, explanation
from tests.support.programs import completed

TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1\nRuntimeError: Error compiling objects\n'


NO_FILE = "No such file or directory"
NO_VERBS = f"/usr/bin/ld: cannot find -libverbs: {NO_FILE}\ncollect2: error: ld returned 1\n"
# What a compiler or a linker says in its first line, and the hint.
CAUSES = {
    f"a.cpp:3:10: fatal error: rdma/rdma_cma.h: {NO_FILE}\n    3 | #include\n": "install librdmacm-dev on the node",
    NO_VERBS: "install libibverbs-dev on the node",
    f"x.cu:1:10: fatal error: cublas_v2.h: {NO_FILE}\n": "the CUDA toolkit is not whole: it has no cublas_v2.h",
    f"a.h:1:10: fatal error: nobody/knows.h: {NO_FILE}\n": "",
    f"error: command 'mpicc' failed: {NO_FILE}\n": (
        "no program mpicc on the node: install libopenmpi-dev, or the site's MPI (a module)"
    ),
    "RuntimeError: liburing.a is not found in ['/usr/lib', '/usr/lib64']\n": "install liburing-dev on the node",
    "Package libavformat was not found in the pkg-config search path.\n": (
        "install libavformat-dev, libavdevice-dev and libavfilter-dev on the node"
    ),
    "Error: pg_config executable not found.\n": "no program pg_config on the node: install libpq-dev",
    "RuntimeError: CMake must be installed to build dlib\n": "no program CMake on the node: install cmake",
    "nvcc fatal   : Unsupported gpu architecture 'compute_70'\n": "",
    'k.cu(12): error: identifier "x" is undefined\n': "",
    "a.cpp:2:5: error: 'y' was not declared\n": "",
    "/bin/sh: 1: ninja: not found\n": "no program ninja on the node",
}
# What looks like the cause does not hide what was raised.
NO_CAUSES = (
    "ModuleNotFoundError: No module named 'packaging.version'\n",
    "checking for libnice: not found\n",
    "all is well\nno error: here\n",
)


@pytest.mark.parametrize(
    ("output", "line", "hint"),
    [(output, output.splitlines()[0], hint) for output, hint in CAUSES.items()]
    + [(output, "RuntimeError: Error compiling objects", "") for output in NO_CAUSES],
)
def test_the_compilers_own_word_is_found_above_the_traceback_and_nothing_that_looks_like_it(
    output: str, line: str, hint: str
) -> None:
    assert cause("compiling\n" + output + TRACE) == (line, hint)


def test_what_is_told_begins_with_the_cause_which_is_the_first_error() -> None:
    assert cause("a.cpp:1:1: error: first\nb.cpp:2:2: error: second\n")[0] == "a.cpp:1:1: error: first"
    output = "x.c:1:10: fatal error: mpi.h: No such file or directory\n" + TRACE
    assert explanation("y\n" + output).splitlines()[:3] == [output.splitlines()[0], "…", "y"]
    assert explanation(output) == output.strip()
    assert explanation("silence") == "silence" and explanation(" \n") == ""


# As uv prints it, to the letter but for the paths.
UV = """Using Python 3.9.18 environment at: /p/envs/opt
error: The build backend returned an error
  cause: Call to `setuptools.build_meta.build_editable` failed (exit status: 1)

         [stderr]
         Traceback (most recent call last):
           File "<string>", line 8, in <module>
         ModuleNotFoundError: No module named 'optional'

         During handling of the above exception, another exception occurred:

         {last}

         hint: This usually indicates a problem with the package or the build environment.
"""


@pytest.mark.parametrize(
    ("last", "hint"),
    [
        ("AttributeError: module 'setuptools.build_meta' has no attribute 'build_editable'", ""),
        (
            "ModuleNotFoundError: No module named 'cython.Build'",
            "the build sees no cython; add it to the stack's `packages`, and for a source to its `build.requires`",
        ),
        ("pkg.errors.BuildError: cannot go on", ""),
        ("SystemExit: no CUDA here", ""),
    ],
)
def test_d05_the_last_exception_of_a_backend_comes_first_and_hints_are_known_to_be_right(last: str, hint: str) -> None:
    output = UV.format(last=last)
    assert cause(output) == (last, hint)
    assert explanation(output).splitlines()[:2] == [last, "…"]
    assert "hint:" not in explanation(output) and "Using Python" not in explanation(output)


def test_a_real_compilers_missing_header_and_library_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text('#include "rdma/rdma_cma_not_here.h"\n')
    done = completed(["cc", "-c", "a.c"], cwd=tmp_path)
    assert "rdma/rdma_cma_not_here.h" in cause(done.stderr)[0]
    (tmp_path / "b.c").write_text("int main(void) { return 0; }\n")
    done = completed(["cc", "b.c", "-lnobodyhasthis"], cwd=tmp_path)
    assert "-lnobodyhasthis" in cause(done.stderr)[0]
