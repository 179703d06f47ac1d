"""What sources need to be built is read in their pinned trees and locked, or said (D04); newcomers are said (D54)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError
from envbuild.lock.agreement import asked
from envbuild.lock.readers.build_requires import Needs, read_needs, unmet
from envbuild.lock.readers.git import git_reader
from envbuild.lock.readers.torch_wheels import Supply
from envbuild.model.lock import Lock
from envbuild.model.stack import Profile, Source
from tests.lock.build import MakeSupply, make, make_wheel, make_wheels, sha256, stack, versions
from tests.lock.conftest import Repos
from tests.support.repositories import make_repository
from tests.support.served import Folder, serving

MARKED = "hatch-vcs; python_version < '3'"
HATCH = f'[build-system]\nrequires = ["hatchling>=1.5", "{MARKED}"]\nbuild-backend = "hatchling.build"\n'
PLAIN = '[build-system]\nrequires = ["setuptools>=60", "cython"]\nbuild-backend = "setuptools.build_meta"\n'
OWN = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
SETUP = """
import os
import numpy, helper
from Cython.Build import cythonize
from tools.own import flags
import mystery.build
try:
    import optional_thing
except ImportError:
    pass
from setuptools import setup
setup(name="x", setup_requires=["pybind11>=2"] , ext_modules=cythonize("x.pyx"))
"""


def source(repos: Repos, files: dict[str, str], **more: object) -> Source:
    commit, _ = make_repository(repos.folder / "x", files)
    return Source.from_plain({"name": "x", "git": Repos.url("x"), "commit": commit, **more})


def needs_of(source: Source) -> tuple[Needs, ...]:
    with git_reader() as reader:
        return read_needs([source], reader)


SCM = '[build-system]\nrequires = ["setuptools-scm>=8"]\nbuild-backend = "setuptools.build_meta"\n'
PRETEND = {"environment": {"SETUPTOOLS_SCM_PRETEND_VERSION": "1.0"}}


@pytest.mark.parametrize(
    ("pyproject", "more", "asked_for"),
    [
        (SCM, {}, True),
        (SCM, {"build": PRETEND}, False),
        (SCM + '[tool.setuptools_scm]\nfallback_version = "1.0"\n', {}, False),
        (HATCH, {}, False),  # its marker does not hold
    ],
)
def test_a_version_that_comes_from_tags_of_git_is_asked_for(
    pyproject: str, more: dict[str, object], asked_for: bool, repos: Repos
) -> None:
    needs = needs_of(source(repos, {"pyproject.toml": pyproject}, **more))
    there = {"setuptools-scm": "8.0", "setuptools": "80", "wheel": "0.45", "hatchling": "1.27"}
    said = list(unmet(needs, there, (), "3.11", "linux_x86_64"))
    assert any("SETUPTOOLS_SCM_PRETEND_VERSION" in each for each in said) is asked_for, said
    elsewhere = [Needs("x", ("cmake; platform_machine == 'x86_64'", "ninja; platform_machine == 'aarch64'"))]
    (asked,) = unmet(elsewhere, {}, (), "3.9", "linux_aarch64")
    assert "ninja" in asked


@pytest.mark.parametrize(
    ("files", "more", "requirements", "imports"),
    [
        ({"pyproject.toml": HATCH}, {}, ("hatchling>=1.5", MARKED), ()),
        ({"pyproject.toml": HATCH}, {"install": "editable"}, ("hatchling>=1.5", MARKED, "editables"), ()),
        ({"pyproject.toml": PLAIN}, {}, ("setuptools>=60", "cython", "setuptools", "wheel"), ()),
        ({"pyproject.toml": OWN, "setup.py": "import sys\n"}, {}, (), ()),
        ({"setup.cfg": "[metadata]\nname = x\n"}, {}, ("setuptools", "wheel"), ()),
        ({"pyproject.toml": "[build-system\n", "setup.py": ""}, {}, ("setuptools", "wheel"), ()),
        ({"README": "nothing to build"}, {}, (), ()),
        (
            {"setup.py": SETUP, "helper.py": "", "tools/own.py": ""},
            {},
            ("setuptools", "wheel", "pybind11>=2", "numpy", "cython"),
            ("mystery",),
        ),
        ({"below/setup.py": SETUP, "below/mystery/build.py": "", "below/helper/x": "", "below/tools/x": ""},
         {"path": "below", "install": "editable"}, ("setuptools", "wheel", "pybind11>=2", "numpy", "cython"), ()),
        ({"setup.py": SETUP}, {"install": "path"}, None, None),
        ({"setup.py": "from setuptools import setup\n", "pyproject.toml": HATCH},
         {"install": "path", "build": {"kind": "inplace"}}, ("setuptools",), ()),
        ({"setup.py": SETUP}, {"install": "path", "build": {"kind": "kernels", "modules": [
            {"name": "k", "sources": ["k.cpp"]}]}}, ("setuptools", "wheel"), ()),
    ],
)  # fmt: skip
def test_d04_needs_are_read_in_the_pinned_tree(
    repos: Repos,
    files: dict[str, str],
    more: dict[str, object],
    requirements: tuple[str, ...],
    imports: tuple[str, ...],
) -> None:
    needs = needs_of(source(repos, files, **more))
    assert [(each.requirements, each.imports) for each in needs] == (
        [] if requirements is None else [(requirements, imports)]
    )


def locked(supply: Supply, sources: list[Source], said: list[str], **profile: object) -> Lock:
    wanted = stack(sources=[each.model_dump(mode="json") for each in sources], **profile)
    return make(wanted, supply, say=said.append)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    backends = ("hatchling 1.4", "hatchling 1.9: pluggy", "pluggy 1.0", "wheel 0.40", "setuptools 59.5.0")
    return make_wheels(tmp_path / "house", *backends, "setuptools 70.0", "cython 3.0", "alpha 1.0")


def test_d04_a_build_backend_is_locked_with_its_bound_and_what_it_needs(
    repos: Repos, supply: MakeSupply, house: Path
) -> None:
    said: list[str] = []
    lock = locked(supply(house), [source(repos, {"pyproject.toml": HATCH})], said, packages=["alpha"])
    assert versions(lock) == {"alpha": "1.0", "hatchling": "1.9", "pluggy": "1.0"} and said == []
    assert lock.variants[0].sources[0].needs == ("hatch-vcs", "hatchling")
    profile = Profile.from_plain({"python": ["3.11"], "packages": ["Alpha>=1"]})
    assert asked(lock, profile) == ("alpha", "hatch-vcs", "hatchling", "torch")


def test_d04_what_the_stack_itself_names_is_its_own_business_and_said(
    repos: Repos, supply: MakeSupply, house: Path
) -> None:
    said: list[str] = []
    tree = {"pyproject.toml": PLAIN, "setup.py": "import mystery\n"}
    lock = locked(supply(house), [source(repos, tree)], said, constraints=["setuptools<60"], packages=["setuptools"])
    assert versions(lock) == {"cython": "3.0", "setuptools": "59.5.0", "wheel": "0.40"}
    assert said == [
        "source x is built with setuptools>=60; `packages` of the stack makes it 59.5.0",
        "setup.py of source x imports mystery: add what brings it to `packages`",
    ]
    said.clear()  # of an address, and of what a base provides
    table = '[build-system]\nrequires = ["own @ https://x.org/own.whl", "setuptools", "wheel"]\n'
    tree = {"pyproject.toml": table, "setup.py": ""}
    bases = [{"kind": "system", "provides": ["setuptools"]}]
    assert versions(locked(supply(house), [source(repos, tree)], said, bases=bases, packages=[])) == {"wheel": "0.40"}
    assert said == [
        "source x is built with own @ https://x.org/own.whl, which no lock can hold: add what fits to `packages`"
    ]
    with pytest.raises(EnvbuildError) as found:
        locked(supply(), [source(repos, {"pyproject.toml": HATCH})], [])
    assert "hatchling" in found.value.what + found.value.why, "no index has it"


class Index(Folder):
    """An index that states upload times."""

    def guess_type(self, path: object) -> str:
        return "application/vnd.pypi.simple.v1+json" if str(path).endswith("index.html") else "application/octet-stream"


@pytest.fixture
def dated(tmp_path: Path, home: Path) -> Iterator[Callable[..., None]]:
    """`dated(name, {version: age in days}, requires)` puts a project into the index that uv is configured with."""
    root = tmp_path / "simple"

    def put(name: str, ages: dict[str, int], requires: tuple[str, ...] = ()) -> None:
        files = []
        for version, days in ages.items():
            wheel = make_wheel(root / name, name, version, requires=requires)
            time = f"{datetime.now(UTC) - timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}"
            files.append(
                {"filename": wheel.name, "url": wheel.name, "hashes": {"sha256": sha256(wheel)}, "upload-time": time}
            )
        page = {"meta": {"api-version": "1.1"}, "name": name, "files": files, "versions": list(ages)}
        (root / name / "index.html").write_text(json.dumps(page))

    with serving(partial(Index, directory=str(root))) as address:
        (home / ".config" / "uv" / "uv.toml").write_text(f'index = [{{url = "{address}", default = true}}]\n')
        yield put


def test_d54_d99_a_young_project_that_nobody_named_is_said_when_it_is_locked_first(
    supply: MakeSupply, dated: Callable[..., None]
) -> None:
    dated("logger", {"1.0": 900}, ("unheard", "unseen", "steady", "aged", "ordinary"))
    dated("unheard", {"0.0.1b1": 30})
    dated("unseen", {"1.0": 3})
    dated("ordinary", {"1.0": 200})
    dated("steady", {"1.0": 2000, "9.0": 3})
    dated("aged", {"1.0": 800})
    dated("youngster", {"1.0": 20})
    said: list[str] = []
    lock = locked(supply(), [], said, packages=["logger", "youngster"])
    assert set(versions(lock)) == {"logger", "unheard", "unseen", "steady", "aged", "youngster", "ordinary"}
    (sentence,) = said
    assert re.search(r"younger than 90 days: unheard 0\.0\.1b1 \(\S+\), unseen 1\.0 \(\S+\); ", sentence)
    again: list[str] = []
    make(stack(packages=["logger"]), supply(), previous=lock, say=again.append)
    assert again == [], "it is not new any more"
