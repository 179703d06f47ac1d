"""A patched source with an extension through the real command: built once, proven, told, kept for other prefixes."""

from __future__ import annotations

import html
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.killing import descendants
from tests.e2e.world import World, drift, edit_lock
from tests.node.forge import BROKEN, FILES, LOGGED, PATCH, need_compiler
from tests.support.patience import until
from tests.support.programs import executable

pytestmark = pytest.mark.slow


@pytest.fixture
def forge(world: World) -> Path:
    """The file into which a `cc` on PATH writes what it compiles."""
    log, programs = world.top / "compiled", world.top / "programs"
    executable(programs / "cc", LOGGED.format(log=log, compiler=need_compiler()))
    world.env |= {"PATH": f"{programs}:{world.env['PATH']}", "CCACHE_DISABLE": "1"}
    return log


def locked(world: World, files: dict[str, str] | None = None, **source: Any) -> None:
    """The stack `tiny` with the package alpha and the source quick."""
    pin = world.repository("quick", {**FILES, **(files or {})})
    build = {"kind": "wheel", "extensions": ["quick._fast"]}
    world.tiny(sources=[{**pin, "ref": "main", "patches": [PATCH], "build": build, **source}], imports=["quick._fast"])


def answer(world: World) -> str:
    return world.python("import quick._fast as f; print(f.answer())")


def compiled(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_a_patched_extension_is_built_proven_reported_and_compiled_once_for_all_prefixes(
    world: World, forge: Path
) -> None:
    locked(world)
    plan = world.good("plan", "--target", "local", "--stack", "./tiny.yaml").out
    assert "compile quick, where the wheel store has no wheel of it" in plan
    first = world.built("--compile-jobs", "1", "--check-rebuild")
    (told,) = first["sources"]
    assert answer(world) == "42"
    build, (patched,) = told["build"], told["patches"]
    assert (build["from"], build["extensions"], build["jobs"]) == ("built", ["quick._fast"], 1)
    assert build["rebuild"] == {"equal": True, "different": []}
    assert (patched["name"], patched["hits"]) == (PATCH, 1)
    assert "+KIND = float" in patched["diff"]
    assert drift(world) == (0, {})
    assert compiled(forge) == 2, "once more, to compare"
    page = min(world.runs.glob("*/report.html"))  # of the provision; the verify has one too
    text = html.unescape(page.read_text())
    assert "+KIND = float" in text and PATCH in text
    assert build["key"][:12] in text and "quick._fast" in text

    again = world.provision(rc=0)
    assert (again.node["status"], again.json["steps_run"]) == ("unchanged", 0)
    assert again.node["sources"][0]["build"]["key"] == build["key"]
    elsewhere = {"ENVBUILD_PREFIX": str(world.top / "second")}
    target = world.work / "shared.yaml"
    target.write_text(f"name: shared\nextends: local\nstore: {world.prefix}/store/wheels\nprefix: {world.top}/second\n")
    shutil.rmtree(world.hub / "quick")
    other = world.good("provision", "--target", "./shared.yaml", "--stack", "./tiny.yaml", "--json", env=elsewhere).node
    assert (other["sources"][0]["build"]["from"], compiled(forge)) == ("store", 2)
    assert other["root"] == first["root"]


def test_what_does_not_work_is_told_and_what_is_in_use_stays(world: World, forge: Path) -> None:
    locked(world)
    lock = world.work / "tiny.lock.toml"
    text = lock.read_text()
    edit_lock(lock, lambda plain: plain["sources"][0]["patch_pins"][0].update(digest="0" * 64))
    world.fails(5, "patch-changed")
    assert compiled(forge) == 0
    assert not (world.prefix / "current").exists() or list((world.prefix / "current").iterdir()) == []

    lock.write_text(text)
    world.built()
    before = world.current
    for files, code in (
        ({"fast.c": BROKEN}, "extension-broken"),
        ({"quick/old.py": "KIND = float\n"}, "patch-hits"),
    ):
        locked(world, {"fast.c": FILES["fast.c"], **files})
        world.fails(4, code)
    assert world.current == before
    assert answer(world) == "42"


def test_a_kill_while_it_compiles_leaves_nothing_that_the_next_run_could_stumble_over(
    world: World, forge: Path
) -> None:
    # The compiler hangs as long as a file is there.
    slow, cc = world.top / "slow", world.top / "programs" / "cc"
    cc.write_text(
        cc.read_text().replace("exec ", f'while [ -e "{slow}" ] && [ "$1" != --version ]; do sleep 0.1; done\nexec ')
    )
    locked(world)
    slow.touch()
    process = world.start("provision", "--target", "local", "--stack", "./tiny.yaml")
    try:
        until(lambda: compiled(forge) or process.poll() is not None)
        assert compiled(forge) == 1
    finally:
        for pid in [process.pid, *descendants(process.pid)]:
            # The node program ends with who called it, and may be first.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        slow.unlink()
    build = world.built()["sources"][0]["build"]
    assert (build["from"], compiled(forge)) == ("built", 2)
    assert answer(world) == "42"
    store = world.prefix / "store" / "wheels"
    assert [list((store / name).iterdir()) for name in ("leases", "tmp", "quarantine")] == [[], [], []]
    assert drift(world) == (0, {})
