"""A source becomes a wheel: flags delivered or refused, extensions proven, equal files from equal sources."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sysconfig
import time
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

pytestmark = pytest.mark.slow
FLAGS = ["cpp_ext", "cuda_ext"]
SHAPE = {"name": "shape", "version": "1.0", "files": [{"file": "shape-1.0.tar.gz", "sha256": "unrecorded"}]}
IMPORT = "import shape_C, shape.sub.amp_C as a; print(shape_C.value() + a.value())"


def test_flags_arrive_and_everything_else_of_the_package_is_kept(tmp_path: Path, python: str) -> None:
    project = shape_project(tmp_path / "project", pyproject=PYPROJECT)
    before = sorted(path.relative_to(project) for path in project.rglob("*"))
    asked = source(flags=FLAGS, extensions=EXTENSIONS)
    result = build(python, tmp_path, project, asked)
    assert result["route"] == "setup.py"
    assert result["extensions"] == EXTENSIONS
    assert result["sha256"] == hashlib.sha256(Path(result["wheel"]).read_bytes()).hexdigest()
    assert not result["retried"]
    assert wheel_record.check(Path(result["wheel"]), "shape", LockedPackage.from_plain(SHAPE), print) > 5
    with zipfile.ZipFile(result["wheel"]) as archive:
        names = archive.namelist()
        assert archive.read("shape/data.txt") == b"data\n"
        script = archive.getinfo("shape-1.0.data/scripts/shape-run")
        assert script.external_attr >> 16 & 0o111
        assert {each.date_time for each in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert names[-1] == "shape-1.0.dist-info/RECORD"
    assert unpack_run(result["wheel"], python, tmp_path / "unpacked", IMPORT) == "14"
    assert sorted(path.relative_to(project) for path in project.rglob("*")) == before, "the pinned tree was touched"


def test_a_flag_that_this_commit_does_not_know_is_a_failure(tmp_path: Path, python: str) -> None:
    project = shape_project(tmp_path / "project")
    with fails("extensions-missing", Exit.BUILD_FAILED) as caught:
        build(python, tmp_path, project, source(flags=["cpp_ext", "fmha"]))
    assert "--fmha" in caught.value.why and "--cpp_ext" not in caught.value.why


SWALLOWS = """
import argparse, sys
from setuptools import setup
known, rest = argparse.ArgumentParser(add_help=False).parse_known_args()
sys.argv = sys.argv[:1] + [word for word in rest if not word.startswith("--c")]
setup(name="shape", version="1.0", packages=["shape"])
"""


def test_flags_that_are_swallowed_without_effect_do_not_give_a_wheel(tmp_path: Path, python: str) -> None:
    project = shape_project(tmp_path / "project", SWALLOWS)
    with fails("extensions-missing", Exit.BUILD_FAILED) as caught:
        build(python, tmp_path, project, source(flags=FLAGS, extensions=EXTENSIONS))
    assert caught.value.details == {"extensions": EXTENSIONS}
    assert not list((tmp_path / "out").iterdir())


def test_flags_of_the_commands_themselves_are_understood(tmp_path: Path, python: str) -> None:
    setup = "from setuptools import setup\nsetup(name='shape', version='1.0', packages=['shape'])\n"
    project = shape_project(tmp_path / "project", setup)
    asked = source(flags=["build-number=3", "--quiet"])
    result = build(python, tmp_path, project, asked)
    assert Path(result["wheel"]).name == "shape-1.0-3-py3-none-any.whl"
    assert result["extensions"] == []


def test_a_project_below_the_top_of_its_source(tmp_path: Path, python: str) -> None:
    setup = SETUP.replace('["csrc"]', '["../common"]')
    shape_project(tmp_path / "tree" / "python", setup)
    (tmp_path / "tree" / "common").mkdir()
    shutil.move(tmp_path / "tree" / "python" / "csrc" / "value.h", tmp_path / "tree" / "common" / "value.h")
    asked = {**source(flags=["cpp_ext"], extensions=["shape_C"]), "path": "python"}
    result = build(python, tmp_path, tmp_path / "tree" / "python", asked)
    assert result["extensions"] == ["shape_C"]


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


def test_an_optional_extension_may_fail(tmp_path: Path, python: str) -> None:
    setup = SETUP.replace('include_dirs=["csrc"]', 'include_dirs=["csrc"], optional=name == "shape_C"')
    project = shape_project(tmp_path / "project", setup, **{"csrc/shape_C.c": "#error no\n"})
    result = build(python, tmp_path, project, source(flags=FLAGS))
    assert result["extensions"] == ["shape.sub.amp_C"]


PATHS = """
#include <assert.h>
const char *where(int x) { assert(x > 0); return __FILE__; }
"""


def test_two_environments_and_two_folders_give_one_file(tmp_path: Path, python: str) -> None:
    """Paths are in debug information and in assertions; times and order are in the archive."""
    more = {"csrc/shape_C.c": build_projects.c_module("shape_C") + PATHS}
    first = shape_project(tmp_path / "one", **more)
    second = shape_project(tmp_path / "deeper" / "two", **more)
    asked = source(flags=FLAGS, environment={"CFLAGS": "-g"})
    other = build_projects.environment(tmp_path / "another-prefix" / "environment")
    here = build(python, tmp_path, first, asked, "a")
    time.sleep(1.1)
    there = build(other, tmp_path, second, asked, "b")
    assert here["canonical"] and there["canonical"]
    assert rebuild(python, tmp_path, first, asked, here["wheel"]) == {"equal": True, "different": []}
    assert here["sha256"] == there["sha256"]
    assert Path(here["wheel"]).read_bytes() == Path(there["wheel"]).read_bytes()


DATED = """
import glob, os, sys, sysconfig
[header] = glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "*", "include", "part.h"))
dates = [int(os.stat(name).st_mtime) for name in ("csrc/value.h", "csrc/shape_C.c", header)]
open("shape/data.txt", "w").write(repr((dates, header)))
"""
DEVICE_CODE = """
import os, subprocess, sysconfig
[header] = glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "*", "include"))
words = ["nvcc", "-c", "-O3", "-lineinfo", "-I" + header, "-gencode=arch=compute_90,code=sm_90", "csrc/k.cu"]
subprocess.run([*words, "-o", os.path.abspath("shape/data.txt")], check=True)
"""
KERNEL = """
#include "part.h"
__global__ void scale(float *out, float by) { out[threadIdx.x] = part(out[threadIdx.x], by); }
"""
PART = "__attribute__((always_inline)) __device__ inline float part(float x, float by) { return x * by + 1.0f; }\n"


@pytest.mark.parametrize("how", ["what setup.py sees", "what nvcc writes"])
def test_d33_neither_dates_nor_the_prefix_of_headers_are_in_what_is_compiled(
    tmp_path: Path, python: str, how: str
) -> None:
    """nvcc -lineinfo (Apex's amp_C) writes the path and the date of every source and header into device code."""
    if how == "what nvcc writes" and shutil.which("nvcc") is None:
        pytest.skip("no nvcc on this machine")
    script = DATED if how == "what setup.py sees" else "import glob" + DEVICE_CODE
    other = build_projects.environment(tmp_path / "another-prefix" / "environment")
    digests = set()
    for index, interpreter in enumerate((python, other)):
        project = shape_project(tmp_path / f"project{index}", script + SETUP, **{"csrc/k.cu": KERNEL})
        site = next((Path(interpreter).parent.parent / "lib").glob("python*/site-packages"))
        header = write_files(site, {"parts/include/part.h": PART}) / "parts/include/part.h"
        for path in (*project.rglob("*"), header):
            os.utime(path, (1.0e9 + index * 1000, 1.0e9 + index * 1000))
        try:
            result = build(interpreter, tmp_path, project, source(), f"out{index}")
        finally:
            shutil.rmtree(site / "parts")
        digests.add(result["sha256"])
    assert result["canonical"]
    assert len(digests) == 1


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


def test_the_compiler_flags_that_python_brings_are_kept(tmp_path: Path, python: str) -> None:
    """setuptools takes CFLAGS and CXXFLAGS in their place: then nothing would be optimized."""
    setup = SETUP.replace('rpartition(".")[2] + ".c"', 'rpartition(".")[2] + (".cpp" if "amp" in name else ".c")')
    project = shape_project(tmp_path / "project", setup, **{"csrc/value.h": FLAGS_OF_PYTHON})
    (project / "csrc" / "amp_C.c").rename(project / "csrc" / "amp_C.cpp")
    asked = source(flags=FLAGS, extensions=EXTENSIONS)
    result = build(python, tmp_path, project, asked)
    usual = sysconfig.get_config_var("CFLAGS").split()
    value = (1 if {"-O1", "-O2", "-O3"}.intersection(usual) else 0) + (2 if "-DNDEBUG" in usual else 0)
    assert value
    assert unpack_run(result["wheel"], python, tmp_path / "unpacked", IMPORT) == str(2 * value)


def test_a_rebuild_that_differs_is_told(tmp_path: Path, python: str) -> None:
    setup = SETUP + "open('shape/data.txt', 'a')\n"
    setup = "import os\nopen('shape/data.txt', 'w').write(os.urandom(8).hex())\n" + setup
    project = shape_project(tmp_path / "project", setup)
    result = build(python, tmp_path, project, source())
    again = rebuild(python, tmp_path, project, source(), result["wheel"])
    assert again == {"equal": False, "different": ["shape-1.0.dist-info/RECORD", "shape/data.txt"]}


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
    import socket

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


def test_the_variables_of_the_stack_and_the_target_reach_setup_py(tmp_path: Path, python: str) -> None:
    setup = "import json, os\njson.dump(dict(os.environ), open('shape/data.txt', 'w'))\n" + SETUP
    project = shape_project(tmp_path / "project", setup)
    asked = source(environment={"FORCE_BUILD": "TRUE", "MAX": "own"})
    more = {"variables": {"MAX": "stack", "TOPOLOGY": {"path": "/x"}}, "arch_list": ["8.0", "9.0+PTX"]}
    result = build(python, tmp_path, project, asked, jobs=3, **more)
    with zipfile.ZipFile(result["wheel"]) as archive:
        seen = json.loads(archive.read("shape/data.txt"))
    assert (seen["FORCE_BUILD"], seen["MAX"]) == ("TRUE", "own")
    assert seen["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0+PTX"
    assert (seen["MAX_JOBS"], result["jobs"]) == ("3", 3)
    assert (seen["SOURCE_DATE_EPOCH"], seen["PYTHONHASHSEED"]) == ("315532800", "0")
    assert "TOPOLOGY" not in seen
    assert seen["PATH"].split(":")[0] == os.path.dirname(python)


ASKS_GIT = """
import os, subprocess
from setuptools import setup
said = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
assert said.returncode and "not a git repository" in said.stderr, said
assert "GIT_DIR" not in os.environ
setup(name="shape", version="1.0", packages=["shape"])
"""


def test_a_setup_py_that_asks_git_finds_no_repository_that_is_not_its_own(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    project = shape_project(tmp_path / "project", ASKS_GIT)
    # Another build has the canonical folder, so this one is below the repository.
    with build_dir.Folder("shape-" + source()["commit"][:12], 0, str(tmp_path)):
        result = build(python, tmp_path, project, source())
    assert Path(result["wheel"]).exists() and not result["canonical"]
