"""Debian trees: mmdebstrap makes one with every package that a test's tree may have; each tree is a part of it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import platformdirs

from tests.support.once import once
from tests.support.programs import completed

# The folders for programs that a plain user's PATH does not have.
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))
# What any tree may have. Packages are unpacked and set up once, as most of the time of a tree goes into that.
PACKAGES = (
    "bzip2", "ca-certificates", "gcc", "git", "iproute2", "libc6-dev", "openssh-server", "podman", "procps", "python3",
    "python3-dev", "python3-venv", "runc",
)  # fmt: skip
# What nobody reads there; trees are unpacked, packed and hashed many times.
_WITHOUT = (
    "/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/lib/*/gconv/*",
    "/usr/share/perl/*/Unicode/Collate/*", "/usr/lib/*/perl/*/auto/Encode/*", "/usr/lib/*/perl/*/CORE/*",
    "/usr/lib/gcc/*/*/lto1", "/usr/bin/*-lto-dump-*", "/usr/lib/*/lib?san.so*", "/usr/lib/python3*/config-*/*.a",
)  # fmt: skip
_MERGED = re.compile(r"^/(?=(?:bin|sbin|lib|lib32|lib64|libx32)(?:/|$))")


class UnavailableError(Exception):
    """What a test needs cannot be had here; the text says why."""


def unpack_debian(packages: Sequence[str], suite: str, folder: Path, leave_out: Iterable[str] = ()) -> None:
    """Unpack Debian's smallest tree with some of PACKAGES into `folder`, without files like `leave_out`.

    dpkg's own list names all of PACKAGES. Raises UnavailableError, usually as no mirror can be reached.
    """
    tarball = _everything(suite)
    patterns = ["dev/*", *(path.lstrip("/") for path in _WITHOUT), *leave_out]
    with tempfile.TemporaryDirectory() as text:
        top = Path(text)
        subprocess.run(["tar", "-xf", str(tarball), "-C", text, "./var/lib/dpkg"], check=True)
        (top / "left").write_text("".join(f".{path}\n" for path in _not_of(packages, top / "var/lib/dpkg")))
        left = ["--anchored", "--no-wildcards", f"--exclude-from={top / 'left'}"]
        left += ["--wildcards", *(f"--exclude=./{pattern}" for pattern in patterns)]
        subprocess.run(["tar", "-xf", str(tarball), "-C", str(folder), *left], check=True)


def _everything(suite: str) -> Path:
    """The tree with all PACKAGES as a tar file in the user's cache folder."""
    key = hashlib.sha256(" ".join((suite, *PACKAGES, *_WITHOUT)).encode()).hexdigest()[:12]
    return once(platformdirs.user_cache_path("envbuild-tests") / f"{suite}-{key}.tar", lambda path: _make(path, suite))


def _make(path: Path, suite: str) -> None:
    # Told after the essential packages were unpacked: before, mmdebstrap would send each through a filter in Python.
    settings = path.parent / "envbuild"
    settings.write_text("force-unsafe-io\n" + "".join(f"path-exclude={each}\n" for each in _WITHOUT))
    options = [f"--extract-hook=copy-in {settings} /etc/dpkg/dpkg.cfg.d", f"--include={','.join(PACKAGES)}"]
    command = ["mmdebstrap", "--quiet", "--variant=minbase", *options, suite, str(path)]
    env = {**os.environ, "PATH": PATH}
    done = completed(command, timeout=560, env=env)
    if done.returncode:
        raise UnavailableError(f"mmdebstrap failed: {done.stderr.strip()[-300:]}")


def _not_of(packages: Iterable[str], dpkg: Path) -> list[str]:
    """Files and folders that only packages have which neither Debian nor `packages` need."""
    needed, files = _needed(packages, (dpkg / "status").read_text()), {True: set[str](), False: set[str]()}
    for path in (dpkg / "info").glob("*.list"):
        owner = path.stem.partition(":")[0]
        files[owner in needed] |= {_MERGED.sub("/usr/", line) for line in path.read_text().splitlines()}
    return sorted(files[False] - files[True])


def _needed(packages: Iterable[str], status: str) -> set[str]:
    """These packages, the essential and required ones, apt, and what all of them depend on."""
    stanzas = [dict(re.findall(r"^([\w-]+): (.*)$", text, re.M)) for text in status.strip().split("\n\n")]
    found = {each["Package"]: each for each in stanzas}
    provider = {name: own for own, each in found.items() for name in _names(each.get("Provides", ""))}
    provider |= {name: name for name in found}
    always = {("Essential", "yes"), ("Priority", "required")}
    waiting, needed = (
        [*packages, "apt", *(own for own, each in found.items() if always & set(each.items()))],
        set[str](),
    )
    while waiting:
        own = waiting.pop()
        if own not in needed:
            needed.add(own)
            for field in ("Depends", "Pre-Depends"):
                for choice in filter(None, found[own].get(field, "").split(",")):
                    # Of several that would do the first that is there.
                    waiting += [provider[name] for name in _names(choice.replace("|", ",")) if name in provider][:1]
    return needed


def _names(text: str) -> list[str]:
    """The packages of a field: `a (>= 1), b:any` names a and b."""
    return re.findall(r"(?:^|,)\s*([a-z0-9][a-z0-9+.-]*)", text)
