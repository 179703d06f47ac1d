"""Locks that a run which was ended while torch compiled has left."""

import subprocess
from pathlib import Path

import pytest

from envbuild.provision import own_run


def asked(**environment: str) -> list[str]:
    done = subprocess.run(["/bin/sh", "-s"], input=own_run.LOCKS, env=environment, stdout=-1, check=True, text=True)
    return own_run.locks_in_words(done.stdout)


@pytest.mark.parametrize(
    ("variable", "top"),
    [
        ("HOME", ".cache/torch_extensions/py312_cu130"),
        ("XDG_CACHE_HOME", "torch_extensions"),
        ("TORCH_EXTENSIONS_DIR", ""),
    ],
)
def test_a_lock_is_found_wherever_torch_compiles(tmp_path: Path, variable: str, top: str) -> None:
    folder = tmp_path / "a b" / top / "cpu_adam"
    folder.mkdir(parents=True)
    environment = {"HOME": str(tmp_path), variable: str(tmp_path / "a b")}
    (folder / "build.ninja").touch()
    assert asked(**environment) == []
    (folder / "lock").touch()
    (said,) = asked(**environment)
    assert said.startswith(f"1 lock of what torch compiles when it is first used: {folder}/lock; where nothing")


def test_where_nothing_was_compiled_nothing_is_said(tmp_path: Path) -> None:
    assert asked(HOME=str(tmp_path)) == asked() == own_run.locks_in_words("a line of a start-up file\n") == []
