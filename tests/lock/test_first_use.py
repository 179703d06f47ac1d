"""This user's record of first uses: written once, never replaced, and part of what an environment is named by."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.check import check_lock
from envbuild.lock.first_use import add_first_uses, check_against_uses, fill, read_first_uses
from envbuild.model.first_use import FirstUse, is_trusted, trusted_files
from envbuild.model.lock import ArtifactFile, Lock, LockedPackage, Variant
from envbuild.model.stack import Profile, Stack

FILE = "torch-1.8.2+cu111-cp38-cp38-linux_x86_64.whl"
OTHER = "torch-1.8.2+cu111-cp39-cp39-linux_x86_64.whl"


def use(sha256: str = "a" * 64, file: str = FILE, index: str = "pytorch-lts-cu111") -> FirstUse:
    return FirstUse(
        file=file, sha256=sha256, size=1_900_000_000, package="torch", version="1.8.2+cu111", index=index,
        found=f"the index {index}", first_used="2026-11-21T10:00:00.000000Z", run="20261121T100000Z-aaaa",
    )  # fmt: skip


def lock(sha256: str = "unrecorded", index: str = "pytorch-lts-cu111") -> Lock:
    files = (ArtifactFile(file=FILE, sha256=sha256), ArtifactFile(file=OTHER, sha256="unrecorded", reason="never seen"))
    package = LockedPackage(name="torch", version="1.8.2+cu111", index=index, files=files)
    draft = Variant(id="v", digest="0" * 64, python="3.8", packages=(package,))
    variant = draft.model_copy(update={"digest": draft.compute_digest("s", "exact")})
    return Lock(stack="s", profile="exact", manifest_digest="0" * 64, variants=(variant,))


def refused(code: str, call: Callable[[], Any]) -> EnvbuildError:
    with pytest.raises(EnvbuildError) as caught:
        call()
    assert (caught.value.code, caught.value.exit_code) == (code, ExitCode.INTEGRITY)
    return caught.value


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "data" / "first-use.toml"
    assert read_first_uses(path) == {}
    assert add_first_uses([use(), use("b" * 64, OTHER)], path) == {FILE: use(), OTHER: use("b" * 64, OTHER)}
    assert read_first_uses(path) == {FILE: use(), OTHER: use("b" * 64, OTHER)}
    assert path.parent.stat().st_mode & 0o077 == 0, "nobody else may write what this user trusts"


def test_a_record_keeps_its_date_and_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "first-use.toml"
    add_first_uses([use()], path)
    before = path.read_bytes()
    later = use().model_copy(update={"first_used": "2027-01-01T00:00:00Z"})
    assert add_first_uses([later], path)[FILE].first_used == use().first_used
    error = refused("hash-mismatch", lambda: add_first_uses([use("b" * 64, OTHER), use("c" * 64)], path))
    assert "a" * 64 in error.why and "c" * 64 in error.why
    assert path.read_bytes() == before, "nothing of a refused set is recorded"


def test_records_of_several_runs_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "first-use.toml"
    files = [f"p{number}-1.0-py3-none-any.whl" for number in range(12)]
    threads = [threading.Thread(target=add_first_uses, args=([use(file=file)], path)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_first_uses(path)) == sorted(files)


@pytest.mark.parametrize(
    "text",
    [
        "version = 2\n",
        "file = 3\nversion = 1\n",
        "not toml",
        "version = 1\n[[file]]\nfile = 'x'\n",
        "version = 1\n[[file]]\n" * 2,
    ],
)
def test_a_damaged_record_is_never_taken_for_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "first-use.toml"
    path.write_text(text)
    refused("first-use-unreadable", lambda: read_first_uses(path))
    refused("first-use-unreadable", lambda: add_first_uses([use()], path))
    assert path.read_text() == text


def test_a_record_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvbuildError) as caught:
        add_first_uses([use()], tmp_path / "file" / "first-use.toml")
    assert caught.value.code == "first-use-unwritable"


def test_a_lock_is_filled_with_hash_and_witness_and_only_there() -> None:
    filled = fill(lock(), {FILE: use()})
    known, open_ = filled.variants[0].packages[0].files
    assert (known.sha256, known.size, known.witness, known.reason) == (
        "a" * 64, 1_900_000_000, "first use on 2026-11-21 by this user", None,
    )  # fmt: skip
    assert (open_.sha256, open_.reason) == ("unrecorded", "never seen")
    assert is_trusted(known) and not is_trusted(open_)
    assert [file.file for file in trusted_files(filled.variants[0])] == [FILE]
    assert Lock.model_validate(filled.model_dump()) == filled, "its digests hold"


def test_an_environment_is_named_by_what_was_taken() -> None:
    digests = {fill(lock(), uses).variants[0].digest for uses in ({}, {FILE: use()}, {FILE: use("b" * 64)})}
    assert len(digests) == 3
    recorded = lock("a" * 64)
    assert fill(lock(), {FILE: use()}).variants[0].digest == recorded.variants[0].digest, "whoever vouches for it"


def test_a_lock_that_does_not_need_it_stays_the_same_object() -> None:
    full = lock("a" * 64)
    assert fill(full, {}) is full
    assert fill(full, {FILE: use(), "x-1.0.tar.gz": use(file="x-1.0.tar.gz")}) is full


def test_a_lock_that_names_another_hash_is_refused_for_the_same_index_only() -> None:
    error = refused("hash-mismatch", lambda: fill(lock("b" * 64), {FILE: use()}))
    assert "a" * 64 in error.why and "b" * 64 in error.why
    elsewhere = lock("b" * 64, index="pypi")
    assert fill(elsewhere, {FILE: use()}) is elsewhere, "another index may have another file of that name"
    check_against_uses(elsewhere.variants[0].packages, {FILE: use()})


def test_lock_check_notes_whose_word_a_hash_is() -> None:
    stack = Stack(name="s", summary="a test", profiles={"exact": Profile(python=("3.8",))})
    notes = {f.code: f for f in check_lock(fill(lock(), {FILE: use()}), stack, online=False) if f.kind == "note"}
    assert set(notes) == {"hash-first-use", "hash-unrecorded"}
    assert "first use on 2026-11-21" in notes["hash-first-use"].says
