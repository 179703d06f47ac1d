"""Fixtures that several rooms use."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.once import once
from tests.support.shares import dealt

# The process that only starts the others needs none of what the fixtures need, and they wait for it.
if TYPE_CHECKING:
    from tests.container.storage import Storage
    from tests.e2e.world import World

# With two threads on a busy machine, most of torch's time goes into waiting for each other: four times as much in all.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A probe starts every Python that it finds: of pyenv's, which may be a dozen, the one that runs the tests is enough.
os.environ["PATH"] = os.pathsep.join(
    [
        *(folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder).name != "shims"),
        str(Path(os.path.realpath(sys.executable)).parent),
    ]
)
os.environ.setdefault("ENVBUILD_TEST_PYENV", os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv")))
os.environ["PYENV_ROOT"] = os.devnull
# What a test writes need not outlive the machine, and a disk takes some milliseconds to promise that it does.
os.fsync = lambda _: None
# Thousands of tests are no garbage: looking for some among them costs a fifth of collecting, and some of every test.
gc.disable()


def pytest_collection(session: pytest.Session) -> None:
    """Each process of a whole run imports other modules first: in a fresh checkout it finds most of them compiled."""
    from hypothesis import settings

    # An example takes as long as the machine needs that does other work, too.
    settings.register_profile("patient", settings(), max_examples=40, deadline=None)
    settings.load_profile("patient")
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    if worker["workerid"] == "gw0":
        # A second of looking at all of Unicode, which hypothesis keeps on disk; the others would look as well.
        importlib.import_module("hypothesis.strategies").text().validate()
    paths = sorted(path.relative_to(session.config.rootpath) for path in Path(__file__).parent.rglob("test_*.py"))
    first = len(paths) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in paths[first:] + paths[:first]:
        # What is wrong with a module is told when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.with_suffix("").parts))


def pytest_collection_finish() -> None:
    gc.freeze()
    # A test leaves little: to look for garbage after every 700 objects takes a tenth of rooms that start no programs.
    gc.set_threshold(50_000)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests begin first, then slow ones, in as many processes as there are."""
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = dealt(items, _module, _slow, processes)


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A fresh user with an own HOME, prefix, runs, wheels and repositories."""
    from tests.e2e.world import World

    return World(tmp_path)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all processes of this run of the tests."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def standalone_python(run_folder: Path) -> Path:
    """A tar.gz in `install_only` layout, made from the Python that runs the tests."""
    from tests.fleet.standalone import make_standalone_python
    from tests.support.debian import UnavailableError

    try:
        return once(run_folder / "standalone", make_standalone_python) / "python.tar.gz"
    except UnavailableError as error:
        pytest.skip(f"no standalone Python can be made here: {error}")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> Iterator[Storage]:
    """Where this machine builds images for the tests of a module."""
    from tests.container.storage import storage_in

    with storage_in(tmp_path_factory.mktemp("images"), run_folder) as storage:
        yield storage


@pytest.fixture(scope="session")
def conda_python(run_folder: Path, standalone_python: Path) -> Path:
    """The Python that runs the tests as a conda package: a folder with `linux-64/<archive>` and its `index.json`."""
    from tests.support import conda

    def make(folder: Path) -> None:
        folder.mkdir()
        package = conda.make_python(standalone_python, folder / "tree")
        package.write(folder / "linux-64")
        (folder / "index.json").write_text(json.dumps(package.index_json()))
        shutil.rmtree(folder / "tree")

    return once(run_folder / "conda-python", make)
