from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from envbuild.errors import ExitCode
from envbuild.lock.files import MAX_BYTES, parse_lock, read_lock
from envbuild.lock.record import render_lock, write_lock
from envbuild.model.lock import ArtifactFile, LockedPackage, LockedSource, LockedSubmodule
from envbuild.model.stack import Base, Build, EnvPath, SmokeItem
from envbuild.text import unsafe
from tests.lock.build import SHA, lock, package, variant
from tests.support.fails import fails

TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=20).filter(
    lambda text: not unsafe(text, prose=True)
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.tuples(*[TEXT] * 8), st.floats(0, 1e6))
def test_what_is_read_is_what_was_written_and_writes_the_same_bytes(texts: tuple[str, ...], floor: float) -> None:
    one, two, three, four, five, six, seven, eight = texts
    file = ArtifactFile(file="a-1.0.tar.gz", sha256="unrecorded", reason=one)
    below = LockedSubmodule(path="third/sub", git="ssh://git@example.org/b", commit="1" * 40, tree="2" * 40)
    pinned = {"name": "a", "git": "https://example.org/a.git", "commit": "3" * 40, "tree": "4" * 40}
    source = LockedSource(**pinned, ref=two, submodules=(below, below), build=Build(flags=(three,), environment={}))
    full = variant(
        "full",
        base=Base(kind="system", provides=("torch>=2",), accepts=()),
        provided={"source": four, "a.b": four},
        arch_list=(),
        packages=(LockedPackage(name="a", version="1.0", files=(file, file)), package("b")),
        sources=(source, LockedSource(**pinned)),
        environment={"package": five, "source": EnvPath.model_validate({"path": six, "if": "exists"}), "variant": ""},
        smoke=(SmokeItem(name="sound", floors={"x": floor}),),
    )
    made = lock(full, variant("empty"), created_with={"uv": seven}, as_of=eight)
    text = render_lock(made)
    again = parse_lock(text, "x")
    assert again == made
    assert render_lock(again) == text


@settings(max_examples=25, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(TEXT).map(lambda names: "\n".join(f"{name} = 1" for name in names))))
def test_any_text_is_read_or_refused_with_a_code(text: str) -> None:
    with fails("lock-invalid"):
        parse_lock(text, "x")


SMALL = lock(variant(packages=(package("six"),), environment={"A": "1"}))


@pytest.mark.parametrize("umask", [0o022, 0o002])
def test_a_written_lock_reads_for_people(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "demo.lock.toml"
    before = os.umask(umask)
    try:
        write_lock(path, SMALL)
    finally:
        os.umask(before)
    text = path.read_text()
    assert text.startswith("# A lock of envbuild")
    assert "[[variant]]" in text
    assert "[[variant.package]]" in text
    assert f'{{file = "six-1.0-py3-none-any.whl", sha256 = "{SHA}", size = 10}}' in text
    assert "://" not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    with fails("output-unwritable"):
        write_lock(tmp_path / "no" / "x.lock.toml", SMALL)
    assert [p.name for p in tmp_path.iterdir()] == ["demo.lock.toml"]
    assert read_lock(path) == SMALL


@pytest.mark.parametrize(
    ("old", "new", "code", "exit_code", "says"),
    [
        ('"1.0"', '"1.1"', "lock-digest-mismatch", ExitCode.INTEGRITY, "cp311-linux_x86_64"),
        (SHA, SHA[::-1], "lock-digest-mismatch", ExitCode.INTEGRITY, "digest"),
        ("version = 1\n", "version = 2\n", "lock-invalid", ExitCode.USAGE, ""),
        ("version = 1\n", "version = 1\nas_of = 2020-01-01\n", "lock-invalid", ExitCode.USAGE, "JSON"),
        ("version = 1\n", 'version = "1"\n', "lock-invalid", ExitCode.USAGE, "version"),
        ("version = 1\n", "version = = 1\n", "lock-invalid", ExitCode.USAGE, "line 4, column"),
        ("version = 1\n", "version = 1\nversion = 1\n", "lock-invalid", ExitCode.USAGE, "line 5, column"),
        ("[[variant]]", "[[varant]]", "lock-invalid", ExitCode.USAGE, "varant"),
    ],
)
def test_a_damaged_lock_is_refused_with_its_code(
    tmp_path: Path, old: str, new: str, code: str, exit_code: ExitCode, says: str
) -> None:
    path = tmp_path / "x.lock.toml"
    text = render_lock(SMALL)
    changed = text.replace(old, new) if old == SHA else text.replace(old, new, 1)
    assert changed != text
    path.write_text(changed)
    with fails(code, exit_code) as caught:
        read_lock(path)
    assert says in caught.value.why


def test_a_lock_that_cannot_be_read_is_refused_and_a_missing_one_names_the_command(tmp_path: Path) -> None:
    with fails("lock-missing", ExitCode.USAGE) as caught:
        read_lock(tmp_path / "none.lock.toml")
    assert "envbuild lock create" in caught.value.hint
    path = tmp_path / "x.lock.toml"
    path.write_bytes(b'stack = "\xff"')
    with fails("lock-invalid"):
        read_lock(path)
    with path.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with fails("file-unreadable"):
        read_lock(path)


def test_patch_pins_are_part_of_the_digest_and_must_name_the_patches() -> None:
    plain = {"name": "a", "git": "https://example.org/a.git", "commit": "0" * 40, "tree": "1" * 40, "patches": ["fix"]}
    pin = {"name": "fix", "digest": "a" * 64, "least": 1, "most": 2}
    with_names, with_pins = (
        lock(variant(sources=(LockedSource.from_plain(plain | more),))) for more in ({}, {"patch_pins": [pin]})
    )
    assert with_names.variants[0].digest != with_pins.variants[0].digest
    assert parse_lock(render_lock(with_pins), "again") == with_pins
    assert "patch_pins" not in with_names.variants[0].contents()["sources"][0]
    with pytest.raises(ValidationError, match="patch_pins"):
        LockedSource.from_plain(plain | {"patch_pins": [pin | {"name": "other"}]})
