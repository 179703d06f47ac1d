"""A real builder for tests: buildah with its own storage, and a Debian base that is made once and kept as a file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.debian import PATH, UnavailableError, unpack_debian
from tests.support.once import once
from tests.support.programs import completed
from tests.support.served import free_port, listening

BASE = "localhost/envbuild/test-base"
SUITE = "bookworm"
PYTHON = "3.11"  # of that suite
_PYTHON = ("python3",)
# An image is packed, sent and hashed many times; nothing in it needs these.
_LEFT_OUT = (
    "usr/bin/*perl*", "usr/share/perl*", "usr/lib/*/perl*", "usr/lib/*/libperl*", "usr/share/zoneinfo", "usr/lib/apt",
    "usr/lib/*/libapt*", "usr/lib/gcc/*/*/lib?san.a", "usr/lib/*/libc.a", "usr/lib/*/libm-*.a", "usr/bin/scalar",
    "usr/bin/git-shell", "usr/lib/git-core/git-imap-send", "usr/lib/git-core/git-http-backend",
    "usr/lib/git-core/git-daemon", "usr/lib/git-core/git-shell", "usr/lib/openssh", "var/lib/dpkg/info",
    "var/cache/debconf", "usr/lib/python3*/pydoc_data", "usr/lib/python3*/test", "usr/bin/*-ld.gold", "usr/bin/*-dwp",
    "usr/bin/*gprofng*", "usr/lib/*/libgprofng*", "usr/lib/*/gprofng", "usr/lib/*/libubsan*",
    "usr/lib/gcc/*/*/libubsan.a", "usr/lib/gcc/*/*/lto-wrapper", "usr/lib/*/libmvec.a", "usr/lib/*/libpython3*.so*",
    "usr/lib/git-core/git-http-*", "usr/lib/git-core/git-sh-i18n--envsubst", "usr/lib/git-core/scalar",
)  # fmt: skip
_COMPILER = ("python3", "python3-dev", "git", "gcc", "libc6-dev")


@dataclass(frozen=True)
class Storage:
    """Images of one test module; `env` is what a program needs to see them."""

    run_folder: Path
    env: dict[str, str]

    def buildah(self, *args: str) -> str:
        """Run buildah on this storage; what it printed."""
        done = completed(["buildah", *args], env={**os.environ, **self.env}, timeout=280)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()

    def house(self, top: Path) -> Path:
        """A new folder in `top` for `--wheelhouse` with uv's wheel."""
        shutil.copytree(self.uv(), top / "house" / "tools", copy_function=os.link)
        (top / "house" / "wheels").mkdir()
        return top / "house"

    def uv(self) -> Path:
        """The folder with uv's wheel, which is fetched once a run of the tests."""
        return once(self.run_folder / "uv-wheel", _fetch_uv)


def _fetch_uv(folder: Path) -> None:
    _download(folder, "-r", str(Path(__file__).parents[2] / "lockfiles" / "uv.txt"))


def _download(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), *words]
    done = completed(command)
    if done.returncode:
        raise UnavailableError(f"{words[-1]} is not available here: {done.stderr[-200:]}")


def _add_pip(root: Path, folder: Path) -> None:
    """As the official images of Python have it."""
    _download(folder, "pip")
    (wheel,) = folder.glob("pip-*.whl")
    shutil.copy(wheel, root)
    for path in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        path.unlink()
    line = f"PYTHONPATH=/{wheel.name} python3 -m pip install -q --no-index --root-user-action ignore"
    subprocess.run(["chroot", str(root), "sh", "-c", f"{line} /{wheel.name}"], check=True, capture_output=True)
    (root / wheel.name).unlink()


def _keep_byte_code(root: Path) -> None:
    """The commit gives every file the time 0: byte code says so of its source, or each Python in an image compiles."""
    for path in root.glob("usr/**/*.pyc"):
        with path.open("r+b") as file:
            file.seek(8)
            file.write(bytes(4))


@contextmanager
def opened(top: Path, run_folder: Path, *, compiler: bool = False) -> Iterator[Storage]:
    """A storage in the folder `top` that sees the base, which is made once a run of the tests in `run_folder`.

    `compiler`: extensions can be built in the base. Raises UnavailableError.
    """
    kind, packages = ("compiler", _COMPILER) if compiler else ("python", _PYTHON)
    try:
        base = once(run_folder / f"base-{kind}", lambda path: _make_base(path, packages))
        more = f'[storage.options]\nadditionalimagestores = ["{base}/store"]\n'
        yield Storage(run_folder, _settings(top, (base / "driver").read_text(), more))
    finally:
        _unmount(top)
        shutil.rmtree(top, ignore_errors=True)


@contextmanager
def storage_in(top: Path, run_folder: Path, *, compiler: bool = False) -> Iterator[Storage]:
    """The same for tests, which are skipped where it cannot be had."""
    try:
        with opened(top, run_folder, compiler=compiler) as storage:
            yield storage
    except UnavailableError as error:
        pytest.skip(str(error))


def _settings(folder: Path, driver: str, more: str = "") -> dict[str, str]:
    config = folder / "storage.conf"
    places = f'graphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
    config.write_text(f'[storage]\ndriver = "{driver}"\n{places}{more}')
    return {"CONTAINERS_STORAGE_CONF": str(config)}


def _unmount(top: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(f"{top}/")), reverse=True):
        subprocess.run(["umount", mount], capture_output=True, check=False)


def _make_base(top: Path, packages: tuple[str, ...]) -> None:
    """The folder `store` with the base as its only image, and `driver`, which says how."""
    missing = [name for name in ("buildah", "mmdebstrap", "unshare") if shutil.which(name, path=PATH) is None]
    if missing:
        raise UnavailableError(f"missing programs: {', '.join(missing)} (see tests/system-packages.txt)")
    if os.geteuid() != 0:
        raise UnavailableError("buildah needs root or subordinate user ids, and this is a plain user")
    said = ""
    for driver in ("overlay", "vfs"):
        shutil.rmtree(top, ignore_errors=True)
        top.mkdir()
        storage = Storage(top, _settings(top, driver))
        try:
            container = storage.buildah("from", "scratch")
            root = storage.buildah("mount", container)
            unpack_debian(packages, SUITE, Path(root), _LEFT_OUT)
            _add_pip(Path(root), top / "pip")
            _keep_byte_code(Path(root))
            storage.buildah("umount", container)
            storage.buildah("commit", "-q", "--timestamp", "0", container, BASE)
            storage.buildah("rm", container)
        except AssertionError as error:
            said = str(error)
            continue
        finally:
            _unmount(top)
        (top / "driver").write_text(driver)
        return
    raise UnavailableError(f"buildah cannot keep images here: {said[-300:]}")


@contextmanager
def registry(top: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """A registry of images that keeps them in `top`: `host:port`."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not here (see tests/system-packages.txt)")
    config, port = top / "registry.yml", free_port(host)
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {top}/registry}}}}\nhttp: {{addr: '{host}:{port}'}}\n"
    )
    with listening([program, "serve", config], host, port):
        yield f"{host}:{port}"
