"""py-rattler as a tool: the installed package in an archive that is made once, and a Python that can load it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.catalog.node_facts import load_facts
from envbuild.errors import EnvbuildError
from envbuild.model.facts import NodeFacts
from envbuild.provision.contact import toolchain as module
from envbuild.regular_file import sha256_of
from tests.resolve.builders import make_lock
from tests.support.fails import fails
from tests.support.programs import completed


@pytest.fixture
def facts() -> NodeFacts:
    return next(iter(load_facts("h200").values()))


@pytest.mark.slow
def test_the_archive_is_made_once_and_loads_where_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module.rattler_tool.cache_clear()
    planned = module.rattler_tool(make=False)
    assert not list(tmp_path.rglob("*.tar.gz")) and planned.name == "py-rattler"
    tool = module.rattler_tool(make=True)
    assert tool.sha256 == sha256_of(tool.source) and tool.kind == "folder"
    module.rattler_tool.cache_clear()
    monkeypatch.setattr(module, "_write", lambda *_: pytest.fail("made again"))
    assert module.rattler_tool(make=True) == tool
    (tmp_path / "out").mkdir()
    # `extractall(filter=...)` is not in every Python 3.11, Debian 12's for one.
    subprocess.run(["tar", "-xf", str(tool.source), "-C", str(tmp_path / "out")], check=True)
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'out')!r}); import rattler; print(rattler.__file__)"
    said = completed([sys.executable, "-I", "-S", "-c", code], check=True)
    assert said.stdout.startswith(str(tmp_path / "out"))


def test_a_python_is_taken_that_can_load_it(facts: NodeFacts) -> None:
    known = facts.pythons[0]
    versions = ("3.9.18", "3.10.4", "3.12.1", "3.11.2")
    pythons = tuple(known.model_copy(update={"version": each, "path": f"/py/{each}"}) for each in versions)
    assert module.newest_python(facts.model_copy(update={"pythons": pythons}), module.LEAST_PYTHON) == "/py/3.12.1"
    assert module.newest_python(facts.model_copy(update={"pythons": pythons[:1]}), module.LEAST_PYTHON) is None


def test_a_node_of_another_machine_is_refused(facts: NodeFacts) -> None:
    module.check_platform(facts)
    other = facts.model_copy(update={"os": facts.os.model_copy(update={"arch": "aarch64"})})
    with fails("rattler-unfit", 7):
        module.check_platform(other)


def test_d114_a_python_that_cannot_be_fetched_names_those_that_are_there(
    facts: NodeFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise EnvbuildError("download-failed", "cannot download", hint="check the network")

    monkeypatch.setattr(module, "standalone_python", unreachable)
    pinned = {"kind": "standalone", "name": "cpython-x", "sha256": "0" * 64}
    variant = make_lock({"id": "v", "python": "3.11", "interpreter": pinned}).variants[0]
    with pytest.raises(EnvbuildError) as caught:
        module.node_tools(facts, variant, None, folder=None, toolchain_file=None)
    says = 'check the network; or write `python: ["3.12"]` in the stack file: localhost has Python 3.12'
    assert caught.value.hint == says
