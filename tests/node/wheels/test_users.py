"""The wheel store between real users of one machine; each acts in a process that has become that user."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild.node.wheels import manage
from envbuild.node.wheels.acquire import obtain
from envbuild.node.wheels.store import Store
from tests.node.wheel_support import filled, inputs, wheel

ALICE, BOB, GROUP = 54321, 54322, 54400


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user can reach (pytest's own are private), in it one for temporary files of all."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    folder = Path(tempfile.mkdtemp(prefix="envbuild-users-"))
    folder.chmod(0o755)
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    shutil.rmtree(folder)


def as_user(user: int, function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `function` returns in a child process of that user, whose group is GROUP."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer: dict[str, Any] = {}
        try:
            os.setgroups([GROUP])
            os.setgid(GROUP)
            os.setuid(user)
            os.umask(0o027)
            answer = function()
        except BaseException as error:  # noqa: BLE001 - told to the test
            answer = {"error": repr(error)}
        finally:
            os.write(write, json.dumps(answer).encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        result = json.loads(stream.read())
    os.waitpid(child, 0)
    assert isinstance(result, dict)
    assert "error" not in result, result
    return result


def build_in(path: Path) -> dict[str, Any]:
    """Obtain the usual wheel from the store at `path`, in this process."""
    store = Store(str(path), create=True)

    def build(out: str) -> dict[str, Any]:
        return {"by": os.geteuid(), "wheel": str(wheel(Path(out), f"BY = {os.geteuid()}\n"))}

    with tempfile.TemporaryDirectory() as tmp:
        entry, built = obtain(store, inputs(), {"run": "r"}, build, tmp)
        return {"built": built, "stored": entry.stored, "by": entry.facts["by"], "use": store.use, "notes": store.notes}


@pytest.fixture
def store(place: Path) -> Path:
    """The folder of a group, in which each may write."""
    folder = place / "store"
    folder.mkdir()
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2775)
    return folder


@pytest.mark.parametrize("owner", [0, ALICE], ids=["root", "a builder's account"])
def test_everybody_reads_a_store_that_its_owner_fills(place: Path, owner: int) -> None:
    (place / "store").mkdir()
    os.chown(place / "store", owner, GROUP)
    first = as_user(owner, lambda: build_in(place / "store"))
    assert (first["built"], first["stored"]) == (True, True)
    result = as_user(BOB, lambda: build_in(place / "store"))
    assert (result["built"], result["by"], result["use"]) == (False, owner, "read-only")
    assert "is only read, what is built is not kept: [Errno 13]" in result["notes"][0]


def test_members_of_a_group_build_into_one_store_and_run_only_their_own(store: Path) -> None:
    results = [as_user(user, lambda: build_in(store)) for user in (ALICE, BOB, ALICE, BOB)]
    assert [(result["built"], result["stored"], result["by"]) for result in results] == [
        (True, True, ALICE),
        (True, True, BOB),
        (False, True, ALICE),
        (False, True, BOB),
    ]
    assert [(result["use"], result["notes"]) for result in results[2:3]] == [("read-write", [])]
    assert f"belongs to user id {ALICE}" in results[1]["notes"][0]
    modes = {(store / folder).stat().st_mode & 0o7777 for folder in ("tmp", "leases", "quarantine")}
    assert modes == {0o2775}, "the others of the group can build too, whatever the umask of the first"
    (plain, beside) = Store(str(store)).folders()
    assert beside == f"{plain}-{BOB}"


def test_nobody_removes_or_damages_what_another_keeps_in_the_store_of_a_group(store: Path) -> None:
    as_user(ALICE, lambda: build_in(store))

    def prune() -> dict[str, Any]:
        args = {"action": "prune", "store": str(store), "keep_days": 0}
        changed, result = manage.run({"prefix": "/nowhere", "args": args})
        return {"changed": changed, **result}

    result = as_user(BOB, prune)
    assert (result["changed"], result["removed"]) == (False, [])
    assert "cannot be removed: Permission denied" in result["kept"][0]["why"]
    assert as_user(ALICE, prune)["changed"] is True
    assert Store(str(store)).folders() == []


def test_forged_and_exchanged_entries_in_the_store_of_a_group_are_not_run(store: Path) -> None:

    def keep(**source: Any) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as top:
            return {"key": filled(store, Path(top), **source)[1]}

    key = as_user(BOB, keep)["key"]
    result = as_user(ALICE, lambda: build_in(store))
    assert (result["built"], result["by"]) == (True, ALICE), "Bob's wheel under the key that Alice asks for"
    assert f"belongs to user id {BOB}" in result["notes"][0]

    other = as_user(ALICE, lambda: keep(commit="9" * 40))["key"]
    shutil.rmtree(store / f"{key}-{ALICE}")
    shutil.rmtree(store / key)
    os.rename(store / other, store / key)
    result = as_user(ALICE, lambda: build_in(store))
    assert (result["built"], result["by"]) == (True, ALICE), (
        "Alice's own wheel of another source, in the place of this one"
    )
    assert "its inputs give" in result["notes"][0]
