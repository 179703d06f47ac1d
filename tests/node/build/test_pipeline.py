"""Sources within an install: patched, built once for every prefix, and never half done. Everything is real."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import protocol
from envbuild.node.build import patch_sources
from tests.node.env_support import Node, locked, make_variant, make_wheel, run_python
from tests.node.forge import BROKEN, EXTENSION, Forge, download, spec
from tests.support.programs import completed, executable

pytestmark = pytest.mark.slow


@pytest.fixture
def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forge:
    return Forge(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def setuptools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real setuptools that needs no `wheel` beside it."""
    return download(tmp_path_factory.mktemp("tools"), "setuptools>=75,<81")[0]


def args(store: Path | None = None, patches: bool = True, **build: Any) -> dict[str, Any]:
    """`patches` and `build` of an install request."""
    told = {"arch_list": [], "cuda_home": None, "nvcc": None, "jobs": 2, "check_rebuild": False, **build}
    given: dict[str, Any] = {"build": {**told, **({"store": str(store)} if store else {})}}
    return given | {"patches": {"quick": [spec()]}} if patches else given


def other_node(top: Path) -> Node:
    """Another prefix with nothing in it, on the same machine."""
    return Node(top / "other")


LOUD = """
def build_wheel(*args, **named):
    for number in range(900):
        print("compiling", number)
    raise RuntimeError("needs a licence file\\n" + "  see the manual\\n" * 40)
build_editable = build_wheel
"""


@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_d05_a_failed_build_says_why_first_and_where_its_whole_output_is(
    node: Node, forge: Forge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    monkeypatch.setattr(protocol.log, "path", str(tmp_path / "logs" / "run.log"))
    variant = make_variant([], sources=[forge.source(files={"backend.py": LOUD}, install=how)])
    error = node.fails(variant, "build-failed", 4, **args(patches=False))
    assert error.why.splitlines()[0] == "RuntimeError: needs a licence file"
    assert "the same command goes on" in error.hint, "what to do next, where nothing better is known"
    log = Path(error.details["log"])
    assert log == tmp_path / "logs" / "run.log"
    assert "compiling 0\\n" in log.read_text() and "compiling 899" in log.read_text()
    assert error.as_dict()["details"] == {"log": str(log)}


def test_without_a_store_of_its_own_a_prefix_keeps_its_wheels(node: Node, forge: Forge) -> None:
    one = make_variant([], sources=[forge.patched()])
    node.install(one, **args())
    node.activate(one)
    stamp = json.loads((node.environment(one) / ".envbuild" / "stamp.json").read_text())
    assert "diff" not in stamp["sources"][0]["patches"][0]
    two = make_variant([], sources=one["sources"], id="another")
    build = node.install(two, **args())[1]["sources"][0]["build"]
    assert (build["from"], build["store"]["path"]) == ("store", str(node.prefix / "store" / "wheels"))
    assert forge.compiled() == 1


def test_other_contents_of_a_build_are_other_wheels(node: Node, forge: Forge, tmp_path: Path) -> None:
    """Also another MPI behind the same name, which a build's own environment names: `MPICC` or `CC`."""
    mpi = tmp_path / "mpicc"
    source = forge.patched()
    plain = {key: value for key, value in source.items() if key not in ("patches", "patch_pins")}
    keys = set()

    def key_of(source: dict[str, Any], patches: bool = True, arch_list: tuple[str, ...] = ()) -> None:
        variant = make_variant([], sources=[source], arch_list=[*arch_list])
        (told,) = node.install(variant, **args(patches=patches, arch_list=[*arch_list]))[1]["sources"]
        assert told["build"]["from"] == "built"
        keys.add(told["build"]["key"])

    key_of(source)
    key_of(plain, patches=False)
    key_of({**source, "build": {"environment": {"CFLAGS": "-O1"}}})
    key_of(source, arch_list=("9.0",))
    for release in ("4.1.4", "5.0.11"):
        executable(mpi, f"#!/bin/sh\necho cc -I/opt/mpi-{release}/include\n")
        key_of({**source, "id": release, "build": {"environment": {"MPICC": str(mpi)}}})
    assert len(keys) == forge.compiled() == 6


def test_the_patches_and_their_bounds_are_those_of_the_lock(node: Node, forge: Forge) -> None:
    source = forge.patched()
    variant = make_variant([], sources=[source])
    node.fails(variant, "request-invalid", 2, **args(patches=False))
    node.fails(variant, "request-invalid", 2, **args() | {"patches": {"quick": [spec(), spec()]}})
    source["patch_pins"][0].update(least=2, most=9)
    node.fails(make_variant([], sources=[source]), "patch-hits", 4, **args())


def test_the_tree_of_a_path_source_is_patched_and_watched_beside_one_that_is_built(node: Node, forge: Forge) -> None:
    sources = [forge.source("tree"), forge.patched(install="path")]
    variant = make_variant([], sources=sources)
    result = node.install(variant, **args())[1]
    assert set(result["seconds"]) >= {"sources", "packages", "wheels", "builds"}
    assert [("build" in each, "patches" in each) for each in result["sources"]] == [(True, False), (False, True)]
    node.activate(variant)
    file = node.environment(variant) / "src" / "quick" / "quick" / "old.py"
    assert "KIND = float\n" in file.read_text()
    assert (result["sources"][1]["patches"][0]["hits"], forge.compiled()) == (1, 1)
    assert node.verify(deep=True)["ok"]
    file.write_text("import numpy as np\n\nKIND = np.float\n")
    assert [each["path"] for each in node.verify(deep=True)["drift"]] == ["src/quick/quick/old.py"]


def test_d44_a_bad_wheel_whose_builder_was_killed_before_its_proof_is_rejected_by_who_takes_it(
    node: Node, forge: Forge, tmp_path: Path
) -> None:
    variant = make_variant([], sources=[forge.patched(files={"fast.c": BROKEN})])
    store = tmp_path / "wheels-of-all"
    code = (
        "import json, os, signal, sys\nfrom envbuild.node.build import proof\n"
        "from envbuild.node.env import install\n"
        "proof.imports = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\ninstall.run(json.load(sys.stdin))\n"
    )
    request = json.dumps(node.install_request(variant, **args(store)))
    done = completed([sys.executable, "-c", code], input=request)
    assert done.returncode == -9, done.stderr
    (key,) = (path.name for path in store.iterdir() if len(path.name) == 64)
    other = other_node(tmp_path)
    other.fails(variant, "extension-broken", 4, **args(store))
    assert not (store / key).exists()
    assert forge.compiled() == 1
    other.fails(variant, "extension-broken", 4, **args(store))
    assert forge.compiled() == 1, "built again, and not taken"


MAKES = """
import subprocess, sysconfig
name = "quick/_fast" + sysconfig.get_config_var("EXT_SUFFIX")
subprocess.run(["cc", "-shared", "-fPIC", "-I", sysconfig.get_path("include"), "-o", name, "fast.c"], check=True)
"""


def test_an_extension_that_a_build_in_its_own_tree_makes_is_imported_and_one_that_it_does_not_is_a_failure(
    node: Node, forge: Forge
) -> None:
    build = {"kind": "inplace", "extensions": ["quick._fast"]}
    source = forge.source("nothing", files={"setup.py": ""}, install="path", build=build)
    error = node.fails(make_variant([], sources=[source]), "extensions-missing", 4, **args(patches=False))
    assert "quick._fast" in error.why
    source = forge.source(files={"setup.py": MAKES}, install="path", build=build)
    (told,) = node.install(make_variant([], sources=[source]), **args(patches=False))[1]["sources"]
    assert (told["build"]["from"], told["build"]["extensions"]) == ("built", ["quick._fast"])
    assert told["build"]["imports"]["imported"] == ["quick._fast"]


def test_d14_a_build_takes_the_compiler_that_the_plan_gives_it(node: Node, forge: Forge, tmp_path: Path) -> None:
    log = tmp_path / "taken"
    given = executable(tmp_path / "gcc-9", f'#!/bin/sh\necho "$@" >>{log}\nexec {shutil.which("gcc")} "$@"\n')
    variant = make_variant([], sources=[forge.patched(build={"extensions": ["quick._fast"]})])
    _, usual = node.install(variant, **args(tmp_path / "store"))
    assert not log.exists()
    _, other = other_node(tmp_path).install(variant, **args(tmp_path / "store", variables={"CC": str(given)}))
    assert "--version" in log.read_text(), "the build key holds the version of this compiler"
    keys = {result["sources"][0]["build"]["key"] for result in (usual, other)}
    assert len(keys) == 2


def test_a_wheel_of_the_store_is_compared_must_hold_what_is_asked_and_is_built_again_when_damaged(
    node: Node, forge: Forge, tmp_path: Path
) -> None:
    store = tmp_path / "wheels-of-all"
    source = forge.patched()
    variant = make_variant([], sources=[source])
    same = {"equal": True, "different": []}
    built = node.install(variant, **args(store, check_rebuild=True))[1]["sources"][0]["build"]
    assert (built["rebuild"], forge.compiled()) == (same, 2)
    stored = other_node(tmp_path).install(variant, **args(store, check_rebuild=True))[1]["sources"][0]["build"]
    assert (stored["from"], stored["rebuild"], forge.compiled()) == ("store", same, 1)

    more = make_variant([], sources=[{**source, "build": {"extensions": ["quick._fast", "quick._other"]}}])
    error = other_node(tmp_path).fails(more, "extensions-missing", 4, **args(store))
    assert "quick._other" in error.why and "wheel store" in error.why
    assert forge.compiled() == 0

    (wheel,) = (store / built["key"]).glob("*.whl")
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"X")
    again = Node(tmp_path / "third").install(variant, **args(store))[1]["sources"][0]["build"]
    assert (again["from"], forge.compiled()) == ("built", 1)
    assert any("quarantine" in note for note in again["store"]["notes"])


def test_what_torch_was_built_with_is_read_without_importing_it(node: Node, tmp_path: Path) -> None:
    files = {
        "torch/__init__.py": b"raise RuntimeError('imported')\n",
        "torch/version.py": b"__version__ = '2.5.0'\ncuda: str = '12.4'\n",
    }
    variant = make_variant([make_wheel(node.wheels, "torch", "2.5.0", files=files)])
    environment = node.build(variant)
    facts = patch_sources.facts_of(str(environment / "bin" / "python"), dict(os.environ), "12.6")
    assert facts == {"torch_cuda": "12.4", "nvcc": "12.6"}
    bare = node.build(make_variant([make_wheel(node.wheels)]))
    assert patch_sources.facts_of(str(bare / "bin" / "python"), dict(os.environ), None) == {"nvcc": None}


SETUP = """
import sys
from setuptools import Extension, setup
ext = []
if "--cpp_ext" in sys.argv:
    sys.argv.remove("--cpp_ext")
    ext.append(Extension("quick._fast", ["fast.c"]))
setup(name="quick", version="1.0", packages=["quick"], ext_modules=ext)
"""


def tools(node: Node, setuptools: Path) -> dict[str, Any]:
    shutil.copy(setuptools, node.wheels)
    return locked(setuptools, "setuptools", setuptools.name.split("-")[1])


# Fails where it sees a package that it does not ask for.
SEES = SETUP.replace(
    "setup(",
    """
from importlib.metadata import distributions
names = {dist.metadata["Name"] for dist in distributions()}
assert names >= {"base", "numpy", "setuptools"} and not names & {"six", "rich"}, names
assert [name for name in ("six", "rich") if __import__("importlib.util").util.find_spec(name)] == []
setup(""",
)


def test_d108_stacks_that_agree_in_what_a_build_sees_share_its_wheel(
    node: Node, setuptools: Path, forge: Forge, tmp_path: Path
) -> None:
    """Another stack has another six, other variables and another path: one compilation, one wheel."""
    toml = '[build-system]\nrequires = [\n  "setuptools", # builds\n  "Base >= 1",\n]\n'
    build = {"flags": ["cpp_ext"], "extensions": ["quick._fast"], "environment": {"CC": "cc"}}
    source = forge.patched(files={"setup.py": SEES, "pyproject.toml": toml}, build=build)
    store = tmp_path / "wheels-of-all"

    def stack(numpy: str, six: str, **more: Any) -> tuple[str, str]:
        at = Node(tmp_path / f"{numpy}-{six}-{len(more)}")
        packages = [tools(at, setuptools)]
        for name, version in (("numpy", numpy), ("six", six), ("base", "1.0"), ("rich", "1.0")):
            packages.append(make_wheel(at.wheels, name, version))
        variant = make_variant(packages, sources=[source], id=six, **more)
        told = at.install(variant, **args(store))[1]["sources"][0]["build"]
        return told["from"], told["key"]

    first = stack("1.0", "1.16")
    assert (first[0], forge.compiled()) == ("built", 2), "compiled and linked"
    assert stack("1.0", "1.17", environment={"OMP_NUM_THREADS": "1"}) == ("store", first[1])
    assert forge.compiled() == 0
    other = stack("2.0", "1.16")
    assert (other[0], forge.compiled()) == ("built", 2)
    assert other[1] != first[1]
    assert stack("1.0", "1.16", environment={"CFLAGS": "-O1"})[0] == "built"


def test_a_build_sees_what_its_stack_says_that_it_requires(node: Node, setuptools: Path, forge: Forge) -> None:
    toml = '[build-system]\nrequires = ["setuptools"]\n'
    setup = SETUP.replace("setup(", "import six\nsetup(", 1)
    packages = [tools(node, setuptools), make_wheel(node.wheels, "six", "1.16")]
    source = forge.patched(files={"setup.py": setup, "pyproject.toml": toml})
    build = {"flags": ["cpp_ext"], "extensions": ["quick._fast"]}
    error = node.fails(make_variant(packages, sources=[{**source, "build": build}]), "build-failed", 4, **args())
    assert "No module named 'six'" in error.why
    assert "`build.requires`" in error.hint
    variant = make_variant(packages, sources=[{**source, "build": {**build, "requires": ["Six"]}}])
    assert node.install(variant, **args())[1]["sources"][0]["build"]["from"] == "built"


# As much of torch as the setup.py of kernels needs; its extensions are those of setuptools.
TORCH = {
    "torch/__init__.py": b"",
    "torch/version.py": b"cuda = None\n",
    "torch/utils/__init__.py": b"",
    "torch/utils/cpp_extension.py": b"""
from setuptools import Extension
from setuptools.command.build_ext import build_ext as BuildExtension

def CppExtension(name, sources, include_dirs=(), extra_compile_args=None):
    flags = (extra_compile_args or {}).get("cxx") or []
    return Extension(name, sources, include_dirs=list(include_dirs), extra_compile_args=flags, language="c++")

CUDAExtension = CppExtension
""",
}
KERNEL = EXTENSION.replace("_fast", "quick_kernel").replace(
    "#include <Python.h>", '#include <Python.h>\n#include "level.h"'
)
KERNEL = KERNEL.replace("PyLong_FromLong(42)", "PyLong_FromLong(LEVEL)").replace("{0}", "{nullptr}")


def test_kernels_are_built_ahead_beside_the_tree(node: Node, setuptools: Path, forge: Forge, tmp_path: Path) -> None:
    module = {"name": "quick_kernel", "sources": ["kernels/k.cpp"], "include_dirs": ["kernels"], "cxx_flags": ["-O1"]}
    source = forge.patched(
        files={"kernels/k.cpp": KERNEL, "kernels/level.h": "#define LEVEL 7\n"},
        install="path",
        build={"kind": "kernels", "modules": [module]},
    )
    packages = [tools(node, setuptools), make_wheel(node.wheels, "torch", "2.5.0", files=TORCH)]
    variant = make_variant(packages, sources=[source])
    store = tmp_path / "wheels-of-all"
    (told,) = node.install(variant, **args(store))[1]["sources"]
    assert (told["build"]["route"], told["build"]["from"]) == ("kernels", "built")
    assert told["build"]["imports"]["imported"] == ["envbuild_kernels.quick_kernel"]
    assert told["patches"][0]["hits"] == 1
    node.activate(variant)
    environment = node.environment(variant)
    assert run_python(environment, "import envbuild_kernels.quick_kernel as k; print(k.answer())") == "7"
    assert (environment / "src" / "quick" / "kernels" / "k.cpp").exists()
    assert node.verify(deep=True)["ok"]
    other = other_node(tmp_path)
    for wheel in node.wheels.iterdir():
        shutil.copy(wheel, other.wheels)
    (again,) = other.install(variant, **args(store))[1]["sources"]
    assert (again["build"]["from"], again["patches"][0]["hits"]) == ("store", 1)
