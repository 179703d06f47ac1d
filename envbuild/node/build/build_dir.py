"""The canonical build path: a source is built under one name on every node, for compilers write paths into files."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator

from envbuild.node import identity, paths
from envbuild.node.packages import installed
from envbuild.node.protocol import log
from envbuild.node.read_text import names

CANONICAL = "/tmp/envbuild-build"  # noqa: S108 - used only when it is a private folder of ours
_ROOM = 4  # times the size of the tree that must be free, and a gigabyte
_OWNER = "owner.json"
_TRIES = 25
_UNOWNED = 3600.0  # seconds after which a folder without an owner is nobody's


@contextlib.contextmanager
def folder(name: str, size: int, elsewhere: str, top: str | None = None) -> Iterator[tuple[str, bool]]:
    """A private, empty folder for one build, removed at its end: the path, and whether it is the canonical one.

    `name` of the build, `size` of its tree in bytes; `elsewhere`: a private folder for when `top` is no good.
    """
    top = top or CANONICAL
    path, private = os.path.join(top, name), _private(top)
    if private:
        sweep(top)  # before its room is counted
    canonical = private and _has_room(top, size) and _claim(path)
    if not canonical:
        path = tempfile.mkdtemp(prefix=f"build-{name}-", dir=elsewhere)
    try:
        yield path, canonical
    finally:
        remove(path)


def _private(top: str) -> bool:
    """Whether `top` is a folder of ours that nobody else can write to; made when it is not there."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(top, 0o700)
        facts = os.lstat(top)
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022


def _has_room(top: str, size: int) -> bool:
    try:
        disk = os.statvfs(top)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize > size * _ROOM + 10**9


def sweep(top: str, kind: str = "") -> None:
    """Remove what dead builders left in `top`: our own folders, of a `kind` those whose names `tempfile` made of it.

    One of a living process is not touched, nor one of another machine or container, which may share the folder.
    """
    of_kind = re.compile(paths.temporary(kind))
    for path in [os.path.join(top, name) for name in names(top) if not kind or of_kind.fullmatch(name)]:
        with contextlib.suppress(OSError):  # another one sweeps too
            facts = os.lstat(path)
            if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and _left_behind(path):
                trash = f"{path}.trash-{os.getpid()}"
                os.rename(path, trash)  # only one of several can
                if _left_behind(trash):
                    remove(trash)
                else:
                    os.rename(trash, path)  # taken over and claimed anew since it was looked at


def sign(path: str) -> None:
    """Write into a new folder whose it is, for `sweep`."""
    paths.write_json(os.path.join(path, _OWNER), identity.here())


def remove(path: str) -> None:
    """Remove a folder, its owner file last: where this is killed, `sweep` still knows whose the rest was.

    Programs that were ended may write into it for a moment longer.
    """
    for _attempt in range(_TRIES):
        try:
            for name in names(path):
                if name != _OWNER:
                    paths.remove_tree(os.path.join(path, name))
            paths.remove_tree(path)
        except OSError as error:
            why = str(error)
            time.sleep(0.2)
        else:
            return
    log(f"the folder {path} was not removed: {why}")


def _claim(path: str) -> bool:
    """Make `path`, unless another builder has it."""
    try:
        os.mkdir(path, 0o700)
    except OSError:
        return False
    sign(path)
    return True


def _left_behind(path: str) -> bool:
    owner = paths.read_json(os.path.join(path, _OWNER))
    if owner is None:
        # It is written right after the folder is made.
        try:
            return time.time() - os.lstat(path).st_mtime > _UNOWNED
        except OSError:
            return False
    here = identity.here()
    rebooted = owner.get("host") == here["host"] and owner.get("boot_id") != here["boot_id"]
    return rebooted or (identity.same_machine(owner) and not identity.is_alive(owner))


def copy(tree: str, to: str) -> None:
    """A clean copy of a tree, links as links, every file dated 1980; raises OSError."""
    try:
        shutil.copytree(tree, to, symlinks=True)
    except shutil.Error as error:
        raise OSError(f"cannot copy {tree}: {str(error)[:500]}") from error
    set_dates(to)


def date_headers(environment: str) -> None:
    """Date the headers of an environment's packages 1980. Headers of a base keep their own.

    An interpreter hands its own path to compilers as the folder of headers, and nvcc writes both the folder, which is
    the same on every node, and the dates into device code (-lineinfo), where no option maps them.
    """
    for site in installed.site_packages(environment):
        for pattern in ("*/include", "*/*/include"):
            for headers in glob.glob(os.path.join(glob.escape(os.path.join(environment, site)), pattern)):
                set_dates(headers)


def set_dates(tree: str) -> None:
    """Date every file of a tree 1980: nvcc writes the dates of sources and headers into device code (-lineinfo)."""
    for at, _, files in os.walk(tree):
        for path in (os.path.join(at, name) for name in files):
            os.utime(path, (paths.EPOCH, paths.EPOCH), follow_symlinks=False)
