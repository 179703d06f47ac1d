"""A real builder for tests: buildah with its own storage, and a Debian base that is made once and kept as a file."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.debian import PATH, UnavailableError, debian_tarball

BASE = "localhost/envbuild/test-base"
SUITE = "bookworm"
PYTHON = "3.11"  # of that suite
_PYTHON = ("python3",)
_COMPILER = ("python3", "python3-dev", "git", "gcc", "libc6-dev")


@dataclass(frozen=True)
class Storage:
    """Images of one test session; `env` is what a program needs to see them."""

    top: Path
    env: dict[str, str]

    def buildah(self, *args: str) -> str:
        """Run buildah on this storage; what it printed."""
        done = subprocess.run(
            ["buildah", *args], env={**os.environ, **self.env}, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()


@contextmanager
def storage_in(top: Path, *, compiler: bool = False) -> Iterator[Storage]:
    """A storage below `top` that has the base, where there is one; `compiler`: extensions can be built in the base."""
    try:
        yield _make_storage(top, _COMPILER if compiler else _PYTHON)
    except UnavailableError as error:
        pytest.skip(str(error))
    finally:
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((each for each in mounts if each.startswith(f"{top}/")), reverse=True):
            subprocess.run(["umount", mount], capture_output=True, check=False)
        shutil.rmtree(top, ignore_errors=True)


def _make_storage(top: Path, packages: tuple[str, ...]) -> Storage:
    missing = [name for name in ("buildah", "mmdebstrap", "unshare") if shutil.which(name, path=PATH) is None]
    if missing:
        raise UnavailableError(f"missing programs: {', '.join(missing)} (see tests/system-packages.txt)")
    if os.geteuid() != 0:
        raise UnavailableError("buildah needs root or subordinate user ids, and this is a plain user")
    tarball, said = debian_tarball(packages, SUITE), ""
    for driver in ("overlay", "vfs"):
        folder = top / driver
        folder.mkdir(parents=True)
        config = folder / "storage.conf"
        config.write_text(f'[storage]\ndriver = "{driver}"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n')
        storage = Storage(folder, {"CONTAINERS_STORAGE_CONF": str(config)})
        try:
            container = storage.buildah("from", "scratch")
            storage.buildah("add", "-q", container, str(tarball), "/")
            storage.buildah("commit", "-q", "--timestamp", "0", container, BASE)
            storage.buildah("rm", container)
        except AssertionError as error:
            said = str(error)
            continue
        return storage
    raise UnavailableError(f"buildah cannot keep images here: {said[-300:]}")
