"""Debian trees as tar files, made by mmdebstrap once and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from tests.support.once import once

# The folders for programs that a plain user's PATH does not have.
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))
# What nobody reads there; trees are unpacked, packed and hashed many times.
_WITHOUT = (
    "/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/lib/*/gconv/*",
    "/usr/share/perl/*/Unicode/Collate/*", "/usr/lib/*/perl/*/auto/Encode/*", "/usr/lib/*/perl/*/CORE/*",
    "/usr/lib/gcc/*/*/lto1", "/usr/bin/*-lto-dump-*", "/usr/lib/*/lib?san.so*", "/usr/lib/python3*/config-*/*.a",
)  # fmt: skip


class UnavailableError(Exception):
    """What a test needs cannot be had here; the text says why."""


def debian_tarball(packages: Sequence[str], suite: str) -> Path:
    """Debian's smallest tree with these packages. Raises UnavailableError, usually as no mirror can be reached."""
    options = [*(f"--dpkgopt=path-exclude={path}" for path in _WITHOUT), f"--include={','.join(packages)}"]
    key = hashlib.sha256(" ".join((suite, *options)).encode()).hexdigest()[:12]
    tarball = platformdirs.user_cache_path("envbuild-tests") / f"{suite}-{key}.tar"
    return once(tarball, lambda path: _make(path, suite, options))


def _make(path: Path, suite: str, options: Sequence[str]) -> None:
    command = ["mmdebstrap", "--quiet", "--variant=minbase", *options, suite, str(path)]
    env = {**os.environ, "PATH": PATH}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=560, env=env)
    if done.returncode:
        raise UnavailableError(f"mmdebstrap failed: {done.stderr.strip()[-300:]}")
