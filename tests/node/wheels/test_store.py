"""The wheel store: every use is checked, an entry is there whole or not at all, and strangers' files are not run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import trust
from envbuild.node.protocol import NodeError
from envbuild.node.wheels.acquire import obtain
from envbuild.node.wheels.build_key import build_key
from envbuild.node.wheels.store import Entry, Store, default_path, is_wheel_name
from tests.node.wheel_support import filled, inputs, wheel
from tests.support.fails import fails
from tests.support.files import write_file

STRANGER = 54321
WHEEL = "apex-0.1-py3-none-any.whl"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Builder:
    """A build that counts how often it runs."""

    def __init__(self, content: str = "VERSION = 1\n") -> None:
        self.content, self.runs = content, 0

    def __call__(self, out: str) -> dict[str, Any]:
        self.runs += 1
        return {"seconds": 1.5, "wheel": str(wheel(Path(out), self.content))}


def get(store: Store, builder: Builder, tmp: Path, **more: Any) -> tuple[Entry, bool]:
    tmp.mkdir(exist_ok=True)
    return obtain(store, inputs(), {"run": "run-1", "what": "apex"}, builder, str(tmp), **more)


def test_what_one_builds_another_finds_with_its_record(tmp_path: Path) -> None:
    builder = Builder()
    store = Store(default_path(str(tmp_path / "prefix")), create=True)
    assert store.use == "read-write"
    half, foreign = (
        write_file(Path(store.path, "tmp", f"{key}.half", "x.whl")) for key in (build_key(inputs()), "0" * 64)
    )
    first, built = get(store, builder, tmp_path / "tmp1")
    assert (built, first.stored, builder.runs) == (True, True, 1)
    record = Path(store.path, first.key, "build.json")
    os.utime(record, (1, 1))
    again, built = get(Store(store.path, create=True), builder, tmp_path / "tmp2")
    assert (built, builder.runs) == (False, 1)
    assert record.stat().st_mtime > 1000, "the use is recorded"
    assert (again.key, again.sha256, again.facts) == (first.key, first.sha256, {"seconds": 1.5})
    assert (again.builder["run"], again.builder["what"]) == ("run-1", "apex")
    assert again.inputs == inputs()
    assert Path(again.wheel).is_relative_to(tmp_path / "tmp2"), "installed is the private, checked copy"
    assert zipfile.ZipFile(again.wheel).testzip() is None
    folder = Path(store.path)
    assert names(folder / first.key) == [WHEEL, "build.json"]
    assert names(folder / "leases") == names(folder / "quarantine") == []
    assert not half.exists() and foreign.exists(), "what a dead builder of this key left is swept"
    assert store.notes == []


def test_a_store_is_the_same_under_every_umask(tmp_path: Path) -> None:
    for umask in (0o077, 0o002, 0o022):
        old = os.umask(umask)
        try:
            store, key = filled(tmp_path / f"store-{umask:o}", tmp_path)
        finally:
            os.umask(old)
        folder = Path(store.path, key)
        modes = [folder.stat().st_mode & 0o7777, *(each.stat().st_mode & 0o7777 for each in folder.iterdir())]
        assert modes == [0o755, 0o644, 0o644]
        assert store.find(key) is not None


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rewrite(folder: Path, **changes: Any) -> None:
    record = folder / "build.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), **changes}))


def to_link(path: Path) -> None:
    shutil.copy(path, path.parents[2] / "elsewhere.whl")
    path.unlink()
    path.symlink_to(path.parents[2] / "elsewhere.whl")


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "one bit": lambda folder: flip(folder / WHEEL),
    "cut short": lambda folder: os.truncate(folder / WHEEL, 10),
    "wheel gone": lambda folder: (folder / WHEEL).unlink(),
    "wheel a link": lambda folder: to_link(folder / WHEEL),
    "record gone": lambda folder: (folder / "build.json").unlink(),
    "record deep": lambda folder: (folder / "build.json").write_text("[" * 100000),
    "record of another version": lambda folder: rewrite(folder, version=2),
    "record without sha256": lambda folder: rewrite(folder, sha256=None),
    "inputs of another key": lambda folder: rewrite(folder, inputs={"commit": "x"}),
    "wheel outside": lambda folder: rewrite(folder, wheel="../x.whl"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_entry_is_quarantined_with_its_reason_and_built_again(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store, key = filled(tmp_path / "store", tmp_path)
    DAMAGE[name](Path(store.path, key))
    builder = Builder("VERSION = 2\n")
    entry, built = get(store, builder, tmp_path / "tmp")
    assert (built, builder.runs, entry.stored) == (True, 1, True)
    (moved, reason) = names(Path(store.path, "quarantine"))
    assert (moved.split(".")[0], reason) == (key, moved + ".json")
    note = json.loads(Path(store.path, "quarantine", reason).read_text())
    assert note["entry"] == key and note["why"]
    assert f"warning: wheel store {store.path}: entry {key[:12]} is not good and is in quarantine now" in (
        capsys.readouterr().err
    )
    assert store.find(key) is not None
    assert any("quarantine" in note for note in store.notes)


def test_d44_a_wheel_that_does_not_work_is_rejected_unless_it_has_worked_somewhere(tmp_path: Path) -> None:
    store, key = filled(tmp_path / "store", tmp_path)
    store.proved(key)
    store.proved(key)
    Store(store.path, create=True).reject(key, "it does not import here")
    assert (store.find(key) is not None, names(Path(store.path, "quarantine"))) == (True, [])
    Path(store.path, key, "proven.json").unlink()
    Store(store.path).reject(key, "a store that is only read is left as it is")
    store.reject("0" * 64, "nobody has it")
    assert store.find(key) is not None
    store.reject(key, "it does not import")
    assert (store.find(key), len(names(Path(store.path, "quarantine")))) == (None, 2)


def test_a_failed_build_gives_its_lease_back_and_stores_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), create=True)

    def fails(_out: str) -> dict[str, Any]:
        raise NodeError("build-failed", "no compiler", exit_code=4)

    for _ in range(2):
        with pytest.raises(NodeError, match="no compiler"):
            obtain(store, inputs(), {"run": "r"}, fails, str(tmp_path))
    assert names(tmp_path / "store") == ["leases", "quarantine", "tmp"]
    assert names(tmp_path / "store" / "leases") == []
    assert get(store, Builder(), tmp_path / "tmp")[1] is True
    assert names(tmp_path / "store" / "leases") == []


# Strangers


def give(*paths: Path) -> None:
    """To another user."""
    for path in paths:
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


root = pytest.mark.skipif(os.geteuid() != 0, reason="giving files to another user needs root")


def test_a_store_that_every_user_can_write_is_not_used_and_that_is_said(tmp_path: Path) -> None:
    store, key = filled(tmp_path / "store", tmp_path)
    for mode in (0o777, 0o1777, 0o757):
        Path(store.path).chmod(mode)
        again = Store(store.path, create=True)
        assert (again.use, again.find(key)) == ("none", None)
        assert f"every user can write it (mode {mode:04o})" in again.notes[0]
        builder = Builder()
        entry, built = get(again, builder, tmp_path / "tmp")
        assert (built, entry.stored, builder.runs) == (True, False, 1)
        assert names(Path(store.path)) == sorted([key, "leases", "quarantine", "tmp"])


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARM: dict[str, tuple[Callable[[Path], Any], str]] = {
    "belongs to a stranger": (give, f"belongs to user id {STRANGER}"),
    "a group can write it": (lambda path: path.chmod(path.stat().st_mode | 0o020), "others can write it"),
    "all can write it": (lambda path: path.chmod(path.stat().st_mode | 0o002), "others can write it"),
    "is a folder": (to_folder, "it is not a regular file"),
}


@pytest.mark.parametrize(
    ("which", "harm"),
    [
        pytest.param(which, harm, marks=[root] if harm == "belongs to a stranger" else [])
        for which in (".", "build.json", WHEEL)
        for harm in HARM
        if harm != "is a folder" or which == WHEEL
    ],
)
def test_an_entry_that_others_could_have_made_is_not_used_nor_moved(tmp_path: Path, which: str, harm: str) -> None:
    store, key = filled(tmp_path / "store", tmp_path)
    do, note = HARM[harm]
    do(Path(store.path, key, which))
    builder = Builder()
    entry, built = get(store, builder, tmp_path / "tmp")
    assert (built, entry.stored) == (True, True)
    assert note in store.notes[0]
    assert names(Path(store.path, "quarantine")) == []
    assert f"{key}-{os.geteuid()}" in names(Path(store.path)), "we keep our own beside it"
    again, built = get(Store(store.path, create=True), builder, tmp_path / "tmp")
    assert (built, builder.runs, again.sha256) == (False, 1, entry.sha256)


@root
def test_the_owner_of_a_store_is_trusted_where_nobody_else_could_have_put_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = tmp_path / "above"
    store, key = filled(above / "store", tmp_path)
    give(Path(store.path), Path(store.path, key), *Path(store.path, key).iterdir())

    def refused(note: str) -> bool:
        careful = Store(store.path)
        return careful.find(key) is None and note in careful.notes[0]

    assert Store(store.path).find(key) is not None
    above.chmod(0o775)
    assert refused(f"others can write {above}")
    above.chmod(0o755)
    with monkeypatch.context() as unknown:
        unknown.setattr(trust, "overflow_uid", lambda: STRANGER)
        assert refused("its owner is not known here")
    os.chown(above, STRANGER + 1, STRANGER)
    assert refused("")


# Disks


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A small file system of its own, mounted with the options given."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755," + options, "tmpfs", str(folder)], check=False)
        if done.returncode:
            pytest.skip("mounting a small tmpfs needs root")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


def read_only(disk: Path) -> Store:
    """The store on a small file system, from now on only readable."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    return Store(str(disk / "store"), create=True)


def test_a_store_that_cannot_be_written_is_read_and_building_goes_on_without_it(
    tmp_path: Path, small: Callable[[str], Path]
) -> None:
    disk = small("size=2m")
    _, key = filled(disk / "store", tmp_path)
    read = read_only(disk)
    assert read.use == "read-only"
    assert "is only read, what is built is not kept" in read.notes[0]
    entry, built = get(read, Builder(), tmp_path / "tmp")
    assert (built, entry.key) == (False, key)
    (tmp_path / "tmp2").mkdir()
    more, built = obtain(read, inputs(commit="5" * 40), {"run": "r"}, Builder(), str(tmp_path / "tmp2"))
    assert (built, more.stored) == (True, False)
    assert Path(more.wheel).exists()
    with fails("not-writable", 7):
        read.put(inputs(commit="5" * 40), more.wheel, {})
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    flip(disk / "store" / key / WHEEL)
    read = read_only(disk)
    entry, built = get(read, Builder(), tmp_path / "tmp")
    assert (built, entry.stored) == (True, False), "a damaged entry is told and passed over"
    assert any(f"entry {key[:12]} is not used: " in note for note in read.notes)


def use_up(disk: Path, files: int) -> None:
    """Make so many folders, or as many as there is room for."""
    with suppress(OSError):
        for _ in range(files):
            tempfile.mkdtemp(dir=disk)


def test_a_disk_that_fills_up_costs_the_entry_and_one_that_is_full_is_told_before_the_build(
    tmp_path: Path, small: Callable[[str], Path]
) -> None:
    for options, files in (("size=128k", 0), ("size=16m,nr_inodes=12", 100)):
        disk = small(options)
        store = Store(str(disk / "store"), create=True)

        def fills(out: str, disk: Path = disk, files: int = files) -> dict[str, Any]:
            facts = Builder("".join(f"A{n} = {os.urandom(20)!r}\n" for n in range(20000)))(out)
            use_up(disk, files)
            return facts

        (tmp_path / "tmp").mkdir(exist_ok=True)
        entry, built = obtain(store, inputs(), {"run": "r"}, fills, str(tmp_path / "tmp"))
        assert (built, entry.stored) == (True, False)
        assert zipfile.ZipFile(entry.wheel).testzip() is None
        assert any("is used and not kept: error[disk-full]" in note for note in store.notes)
        with fails("disk-full", 75):
            store.put(inputs(), entry.wheel, {})
        assert names(disk / "store") == ["leases", "quarantine", "tmp"]
        assert names(disk / "store" / "tmp") == names(disk / "store" / "leases") == []
    builder = Builder()
    use_up(disk, files)
    for full in (store, None):
        with fails("disk-full", 75):
            get(full or Store(store.path, create=True), builder, tmp_path / "tmp")
    assert builder.runs == 0


def test_a_store_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "none"))
    assert (store.use, store.folders(), store.find("0" * 64)) == ("none", [], None)
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("")
    assert Store(str(tmp_path / "file"), create=True).use == "none"


def test_a_wheel_whose_name_is_no_plain_name_is_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), create=True)
    (tmp_path / "-x.whl").write_text("")
    with pytest.raises(NodeError, match="not the name of a wheel"):
        store.put(inputs(), str(tmp_path / "-x.whl"), {})
    assert not is_wheel_name("a/b.whl")
