"""A real builder for tests: buildah with its own storage, and a Debian base that is made once and kept as a file."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

BASE = "localhost/envbuild/test-base"
SUITE = "bookworm"
PYTHON = "3.11"  # of that suite
_PACKAGES = "python3,python3-dev,git,gcc,libc6-dev"
_SEARCHED = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))


class UnavailableError(Exception):
    """Images cannot be built here; the text says why."""


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


def base_tarball() -> Path:
    """Debian with Python and a C compiler as a tar file, kept in the user's cache. Raises UnavailableError."""
    tarball = platformdirs.user_cache_path("envbuild-tests") / f"image-{SUITE}-{_PACKAGES.replace(',', '-')}.tar"
    if tarball.exists():
        return tarball
    tarball.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tarball.parent) as folder:
        half = Path(folder, "base.tar")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}", SUITE, str(half)]
        env = {**os.environ, "PATH": _SEARCHED}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, env=env)
        if done.returncode:
            raise UnavailableError(f"mmdebstrap failed: {done.stderr.strip()[-300:]}")
        half.replace(tarball)
    return tarball


def make_storage(top: Path) -> Storage:
    """A storage below `top` that has the base. Raises UnavailableError."""
    missing = [name for name in ("buildah", "mmdebstrap", "unshare") if shutil.which(name, path=_SEARCHED) is None]
    if missing:
        raise UnavailableError(f"missing programs: {', '.join(missing)} (see tests/system-packages.txt)")
    if os.geteuid() != 0:
        raise UnavailableError("buildah needs root or subordinate user ids, and this is a plain user")
    said = ""
    for driver in ("overlay", "vfs"):
        folder = top / driver
        folder.mkdir(parents=True)
        config = folder / "storage.conf"
        config.write_text(f'[storage]\ndriver = "{driver}"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n')
        storage = Storage(folder, {"CONTAINERS_STORAGE_CONF": str(config)})
        try:
            container = storage.buildah("from", "scratch")
            storage.buildah("add", "-q", container, str(base_tarball()), "/")
            storage.buildah("commit", "-q", "--timestamp", "0", container, BASE)
            storage.buildah("rm", container)
        except AssertionError as error:
            said = str(error)
            continue
        return storage
    raise UnavailableError(f"buildah cannot keep images here: {said[-300:]}")
