"""A source becomes a wheel: flags delivered or refused, extensions proven, equal files from equal sources."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sysconfig
import zipfile
from pathlib import Path

import pytest

from envbuild.lock.readers import wheel_record
from envbuild.model.lock import LockedPackage
from envbuild.node import protocol
from envbuild.node.build import build_dir, job_server, wheel
from envbuild.node.build.environment import no_network
from envbuild.node.protocol import Exit, NodeError
from tests.node import build_projects
from tests.node.build_projects import (
    EXTENSIONS,
    PYPROJECT,
    SETUP,
    build,
    rebuild,
    shape_project,
    source,
    unpack_run,
)  # fmt: skip
from tests.node.build_projects import own_folder as own_folder
from tests.node.build_projects import python as python
from tests.support.fails import fails
from tests.support.files import write_files
from tests.support.programs import completed, executable
from tests.support.wheels import write_wheel

pytestmark = pytest.mark.slow
FLAGS = ["cpp_ext", "cuda_ext"]
SHAPE = {"name": "shape", "version": "1.0", "files": [{"file": "shape-1.0.tar.gz", "sha256": "unrecorded"}]}
IMPORT = "import shape_C, shape.sub.amp_C as a; print(shape_C.value() + a.value())"


FLAGS_OF_PYTHON = """
#ifdef __OPTIMIZE__
#define OPTIMIZED 1
#else
#define OPTIMIZED 0
#endif
#ifdef NDEBUG
#define RELEASED 2
#else
#define RELEASED 0
#endif
#define VALUE (OPTIMIZED + RELEASED)
"""


def test_flags_arrive_those_of_python_are_kept_and_everything_else_of_the_package(tmp_path: Path, python: str) -> None:
    """setuptools takes CFLAGS and CXXFLAGS in place of Python's: then nothing would be optimized."""
    setup = SETUP.replace('rpartition(".")[2] + ".c"', 'rpartition(".")[2] + (".cpp" if "amp" in name else ".c")')
    project = shape_project(tmp_path / "project", setup, PYPROJECT, **{"csrc/value.h": FLAGS_OF_PYTHON})
    (project / "csrc" / "amp_C.c").rename(project / "csrc" / "amp_C.cpp")
    before = sorted(path.relative_to(project) for path in project.rglob("*"))
    asked = source(flags=FLAGS, extensions=EXTENSIONS)
    result = build(python, tmp_path, project, asked)
    assert (result["route"], result["extensions"], result["retried"]) == ("setup.py", EXTENSIONS, False)
    assert result["sha256"] == hashlib.sha256(Path(result["wheel"]).read_bytes()).hexdigest()
    assert wheel_record.check(Path(result["wheel"]), "shape", LockedPackage.from_plain(SHAPE), print) > 5
    with zipfile.ZipFile(result["wheel"]) as archive:
        assert archive.read("shape/data.txt") == b"data\n"
        assert archive.getinfo("shape-1.0.data/scripts/shape-run").external_attr >> 16 & 0o111
        assert {each.date_time for each in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.namelist()[-1] == "shape-1.0.dist-info/RECORD"
    usual = sysconfig.get_config_var("CFLAGS").split()
    value = (1 if {"-O1", "-O2", "-O3"}.intersection(usual) else 0) + (2 if "-DNDEBUG" in usual else 0)
    assert value
    assert unpack_run(result["wheel"], python, tmp_path / "unpacked", IMPORT) == str(2 * value)
    assert sorted(path.relative_to(project) for path in project.rglob("*")) == before, "the pinned tree was touched"


SWALLOWS = """
import argparse, sys
from setuptools import setup
known, rest = argparse.ArgumentParser(add_help=False).parse_known_args()
sys.argv = sys.argv[:1] + [word for word in rest if not word.startswith("--c")]
setup(name="shape", version="1.0", packages=["shape"])
"""


def test_flags_that_this_commit_does_not_know_or_swallows_without_effect_give_no_wheel(
    tmp_path: Path, python: str
) -> None:
    with fails("extensions-missing", Exit.BUILD_FAILED) as caught:
        build(python, tmp_path, shape_project(tmp_path / "project"), source(flags=["cpp_ext", "fmha"]))
    assert "--fmha" in caught.value.why and "--cpp_ext" not in caught.value.why
    with fails("extensions-missing", Exit.BUILD_FAILED) as caught:
        project = shape_project(tmp_path / "swallows", SWALLOWS)
        build(python, tmp_path, project, source(flags=FLAGS, extensions=EXTENSIONS))
    assert caught.value.details == {"extensions": EXTENSIONS}
    assert not list((tmp_path / "out").iterdir())


def test_a_build_that_ends_without_a_wheel_has_failed(tmp_path: Path, python: str) -> None:
    with fails("build-failed", Exit.BUILD_FAILED) as caught:
        build(python, tmp_path, shape_project(tmp_path / "project", "raise SystemExit(0)\n"), source())
    assert "the build made 0 wheels" in caught.value.why


def test_flags_of_the_commands_themselves_are_understood(tmp_path: Path, python: str) -> None:
    setup = "from setuptools import setup\nsetup(name='shape', version='1.0', packages=['shape'])\n"
    project = shape_project(tmp_path / "project", setup)
    asked = source(flags=["build-number=3", "--quiet"])
    result = build(python, tmp_path, project, asked)
    assert Path(result["wheel"]).name == "shape-1.0-3-py3-none-any.whl"
    assert result["extensions"] == []


def test_a_project_below_the_top_of_its_source_and_an_optional_extension_that_fails(
    tmp_path: Path, python: str
) -> None:
    setup = SETUP.replace('["csrc"]', '["../common"], optional=name == "shape_C"')
    project = shape_project(tmp_path / "tree" / "python", setup, **{"csrc/shape_C.c": "#error no\n"})
    (tmp_path / "tree" / "common").mkdir()
    shutil.move(project / "csrc" / "value.h", tmp_path / "tree" / "common" / "value.h")
    result = build(python, tmp_path, project, {**source(flags=FLAGS), "path": "python"})
    assert result["extensions"] == ["shape.sub.amp_C"]


def test_another_backend_goes_through_pep_517_and_is_proven_too(tmp_path: Path, python: str) -> None:
    backend = PYPROJECT.replace('"setuptools.build_meta"', '"backend"\nbackend-path = ["."]')
    project = shape_project(
        tmp_path / "project", SETUP, pyproject=backend, **{"backend.py": "from setuptools.build_meta import *\n"}
    )
    assert wheel.route(str(project)) == "pep517"
    result = build(python, tmp_path, project, source(flags=["cpp_ext"], extensions=["shape_C"]))
    assert (result["route"], result["extensions"]) == ("pep517", ["shape_C"])
    with fails("extensions-missing"):
        build(python, tmp_path, project, source(extensions=["shape_C"]))


@pytest.mark.parametrize(
    ("text", "route"),
    [
        (None, "setup.py"),
        ("[tool.black]\nline-length = 88\n", "setup.py"),
        ('[build-system]\nrequires = ["setuptools"]\n', "setup.py"),
        ('[build-system]\nbuild-backend = "setuptools.build_meta:__legacy__"\nrequires = ["setuptools"]\n', "setup.py"),
        ('[project]\nname = "x"\n[build-system]\nrequires = []\nbuild-backend = "hatchling.build"\n', "pep517"),
        ('[build-system]\nbuild-backend = "own"\nbackend-path = ["."]\n[tool.x]\nbuild-backend = "y"\n', "pep517"),
    ],
)  # fmt: skip
def test_the_route_follows_the_backend(tmp_path: Path, text: str | None, route: str) -> None:
    write_files(tmp_path, {"setup.py": ""} | ({"pyproject.toml": text} if text else {}))
    assert wheel.route(str(tmp_path)) == route
    (tmp_path / "setup.py").unlink()
    assert wheel.route(str(tmp_path)) == "pep517"


def test_an_extension_that_does_not_compile_is_named_with_its_output(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = shape_project(
        tmp_path / "project", **{"csrc/shape_C.c": "#error https://me:secret@example.org/ is no C\n"}
    )
    monkeypatch.setattr(protocol.log, "path", str(tmp_path / "log.jsonl"))
    with fails("build-failed", Exit.BUILD_FAILED) as caught:
        build(python, tmp_path, project, source(flags=FLAGS))
    assert "extension shape_C" in caught.value.why and "is no C" in caught.value.why
    assert "secret" not in caught.value.why
    whole = [json.loads(line)["message"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert any(
        text.startswith("output of the build of source shape:") and "running bdist_wheel" in text for text in whole
    )
    assert "secret" not in "".join(whole)
    assert not os.listdir(build_dir.CANONICAL), "the build folder was left behind"


# What setup.py sees, what debug information and assertions hold, and what nvcc -lineinfo writes into device code.
DATED = """
import glob, hashlib, os, shutil, subprocess, sys, sysconfig
[header] = glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "*", "include", "part.h"))
dates = [int(os.stat(name).st_mtime) for name in ("csrc/value.h", "csrc/shape_C.c", header)]
seen = repr((dates, header))
if shutil.which("nvcc"):
    words = ["nvcc", "-c", "-O3", "-lineinfo", "-I" + os.path.dirname(header), "-gencode=arch=compute_90,code=sm_90"]
    subprocess.run(words + ["csrc/k.cu", "-o", "k.o"], check=True)
    seen += hashlib.sha256(open("k.o", "rb").read()).hexdigest()
open("shape/data.txt", "w").write(seen)
"""
PATHS = """
#include <assert.h>
const char *where(int x) { assert(x > 0); return __FILE__; }
"""
KERNEL = """
#include "part.h"
__global__ void scale(float *out, float by) { out[threadIdx.x] = part(out[threadIdx.x], by); }
"""
PART = "__attribute__((always_inline)) __device__ inline float part(float x, float by) { return x * by + 1.0f; }\n"


def test_d33_two_environments_folders_and_dates_give_one_file(tmp_path: Path, python: str) -> None:
    """Paths are in debug information and in assertions, with Apex's -lineinfo dates too; times are in the archive."""
    more = {"csrc/shape_C.c": build_projects.c_module("shape_C") + PATHS, "csrc/k.cu": KERNEL}
    asked = source(flags=FLAGS, environment={"CFLAGS": "-g"})
    other = build_projects.environment(tmp_path / "another-prefix" / "environment")
    results = []
    for number, (interpreter, name) in enumerate(((python, "one"), (other, "deeper/two"))):
        project = shape_project(tmp_path / name, DATED + SETUP, **more)
        site = next((Path(interpreter).parent.parent / "lib").glob("python*/site-packages"))
        header = write_files(site, {"parts/include/part.h": PART}) / "parts/include/part.h"
        for path in (*project.rglob("*"), header):
            os.utime(path, (1.0e9 + number * 1000, 1.0e9 + number * 1000))
        results.append(build(interpreter, tmp_path, project, asked, name))
    here, there = results
    assert here["canonical"] and there["canonical"]
    assert here["sha256"] == there["sha256"]
    assert Path(here["wheel"]).read_bytes() == Path(there["wheel"]).read_bytes()
    assert rebuild(other, tmp_path, project, asked, here["wheel"]) == {"equal": True, "different": []}


def test_a_rebuild_that_differs_is_told(tmp_path: Path) -> None:
    one, two = (write_wheel(tmp_path / text, "shape", "1.0", {"shape/data.txt": text}) for text in ("a", "b"))
    different = ["shape-1.0.dist-info/RECORD", "shape/data.txt"]
    assert wheel.compare(str(one), str(two)) == {"equal": False, "different": different}


PRINTS = """
#include <Python.h>
#include <iostream>
static PyObject *value(PyObject *, PyObject *) { std::cout << 7 << std::endl; return PyLong_FromLong(7); }
static PyMethodDef methods[] = {{"value", value, METH_NOARGS, 0}, {0, 0, 0, 0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "shape_C", 0, -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_shape_C(void) { return PyModule_Create(&module); }
"""


def test_d55_a_compiler_with_only_a_static_cpp_runtime_links_with_the_shared_one(tmp_path: Path, python: str) -> None:
    """A second libstdc++ inside an extension shares half of its symbols with the first: SIGSEGV in std::cout."""
    real = shutil.which("g++")
    if real is None:
        pytest.skip("no g++ on this machine")
    found = completed([real, "-print-file-name=libstdc++.a"]).stdout.strip()
    alone = tmp_path / "only-static"
    alone.mkdir()
    shutil.copy(found, alone)
    compiler = executable(
        tmp_path / "g++",
        "#!/bin/sh\n"
        '[ "$1" = -print-file-name=libstdc++.so ] && echo libstdc++.so && exit 0\n'
        f'exec {real} "$@" -L{alone}\n',
    )
    project = shape_project(tmp_path / "project", SETUP.replace('[2] + ".c"', '[2] + ".cpp"'))
    write_files(project, {"csrc/shape_C.cpp": PRINTS})
    asked = source(flags=["cpp_ext"], extensions=["shape_C"], environment={"CXX": str(compiler)})
    result = build(python, tmp_path, project, asked)
    with zipfile.ZipFile(result["wheel"]) as archive:
        [name] = [each for each in archive.namelist() if each.startswith("shape_C")]
        archive.extract(name, tmp_path)
    needed = completed(["readelf", "-d", tmp_path / name], check=True).stdout
    assert "Shared library: [libstdc++.so.6]" in needed
    assert unpack_run(result["wheel"], python, tmp_path / "unpacked", "import shape_C; shape_C.value()") == "7"


NETWORK = """
import socket, sys
from setuptools import setup
line = socket.socket(socket.AF_INET)
line.settimeout(5)
try:
    line.connect(("127.0.0.1", int(open("port").read())))
except OSError as error:
    print("refused:", error)
else:
    sys.exit("there is a network")
setup(name="shape", version="1.0", packages=["shape"])
"""


def test_there_is_no_network_during_a_build(tmp_path: Path, python: str) -> None:
    words, said = no_network()
    if not words:
        pytest.skip(f"the network cannot be switched off here ({said})")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        project = shape_project(tmp_path / "project", NETWORK, port=str(listener.getsockname()[1]))
        result = build(python, tmp_path, project, source())
    assert result["network"] == "off"


def test_a_node_that_cannot_switch_it_off_says_so() -> None:
    words, said = no_network(ways=[["--no-such-option"]])
    assert words == [] and said.startswith("on: ")


def test_a_source_that_fails_does_not_hide_behind_the_others() -> None:
    def bad(_: job_server.Budget) -> None:
        raise NodeError("build-failed", "no", exit_code=Exit.BUILD_FAILED)

    with pytest.raises(NodeError, match="no"):
        wheel.build_all({"good": lambda _: 1, "bad": bad})


SEES = """
import json, os, subprocess
said = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
json.dump({**os.environ, "git": said.stdout + said.stderr}, open('shape/data.txt', 'w'))
"""


def test_setup_py_gets_the_variables_of_stack_and_target_and_finds_no_repository_that_is_not_its_own(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    project = shape_project(tmp_path / "project", SEES + SETUP)
    asked = source(environment={"FORCE_BUILD": "TRUE", "MAX": "own"})
    more = {"variables": {"MAX": "stack", "TOPOLOGY": {"path": "/x"}}, "arch_list": ["8.0", "9.0+PTX"]}
    # Another build has the canonical folder, so this one is below the repository.
    with build_dir.folder("shape-" + asked["commit"][:12], 0, str(tmp_path)):
        result = build(python, tmp_path, project, asked, jobs=3, **more)
    assert not result["canonical"]
    with zipfile.ZipFile(result["wheel"]) as archive:
        seen = json.loads(archive.read("shape/data.txt"))
    assert (seen["FORCE_BUILD"], seen["MAX"]) == ("TRUE", "own")
    assert seen["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0+PTX"
    assert (seen["MAX_JOBS"], result["jobs"]) == ("3", 3)
    assert (seen["SOURCE_DATE_EPOCH"], seen["PYTHONHASHSEED"]) == ("315532800", "0")
    assert "TOPOLOGY" not in seen and "GIT_DIR" not in seen
    assert seen["PATH"].split(":")[0] == os.path.dirname(python)
    assert "not a git repository" in seen["git"]
