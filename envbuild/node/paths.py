"""Where things lie under a prefix, and the few ways in which files are written and removed there."""

import contextlib
import errno
import glob
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator

from envbuild.node.protocol import Json, NodeError
from envbuild.node.read_text import first, opened, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

META = ".envbuild"
EPOCH = 315532800  # 1980-01-01 in seconds since 1970, the earliest date that a zip archive can hold
BASE_PTH = "_envbuild_base.pth"  # in site-packages, the link to a base that is itself a virtual environment
_LARGEST_JSON = 256 << 20
_FULL = re.compile(r"(?i)no space left on device|disk quota exceeded|\bos error (28|122)\b")
_NAME = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._+-]{0,200}\Z")
_ADDED = re.compile(r"""addsitedir\(['"](.+)['"]\)$""", re.MULTILINE)
_ON_SYSTEM = re.compile(r"^include-system-site-packages *= *true$", re.MULTILINE | re.IGNORECASE)
_HOME = re.compile(r"^home *= *(/.*?) *$", re.MULTILINE)


def envs_dir(prefix: str) -> str:
    """The folder that holds every environment of `prefix`."""
    return os.path.join(prefix, "envs")


def delivered(prefix: str, variant_digest: str) -> str:
    """The folder in which the controller's files for a variant lie until the environment is stamped."""
    return os.path.join(prefix, "store", variant_digest[:12])


def outputs(prefix: str, stack: str, source: str) -> str:
    """The folder for what runs of `stack` write in the folders that `source` calls its outputs; no verb deletes it."""
    return os.path.join(prefix, "outputs", checked_name(stack, "stack"), checked_name(source, "source name"))


def current_link(prefix: str, stack: str) -> str:
    """The link that names the environment in use for `stack`."""
    return os.path.join(prefix, "current", checked_name(stack, "stack"))


def modulefile(prefix: str, stack: str) -> str:
    """The modulefile of `stack`."""
    return os.path.join(prefix, "modulefiles", "envbuild", checked_name(stack, "stack"))


def meta(environment: str, name: str) -> str:
    """A file of envbuild's own inside an environment, for example its stamp."""
    return os.path.join(environment, META, name)


def base_programs(environment: str) -> "list[str]":
    """The folders of the programs that come with the packages of the environment's base, such as `ninja`."""
    config = read(os.path.join(environment, "pyvenv.cfg"))
    links = glob.glob(os.path.join(glob.escape(environment), "lib", "python*", "site-packages", BASE_PTH))
    # <base>/lib/python3.12/site-packages
    programs = [
        os.path.normpath(os.path.join(site, "../../../bin")) for path in links for site in _ADDED.findall(read(path))
    ]
    programs += _HOME.findall(config) if _ON_SYSTEM.search(config) else []
    # Where the system's own pip writes; /usr/bin is on every PATH.
    return list(dict.fromkeys("/usr/local/bin" if folder == "/usr/bin" else folder for folder in programs))


def search_path(environment: str, path: "str | None") -> str:
    """PATH in an environment, for a caller who has `path`: its own programs first, those of its base last.

    Last, as a base may hold compilers and an MPI as well, and what a caller or a module chose stays so.
    """
    return os.pathsep.join([os.path.join(environment, "bin"), path or os.defpath, *base_programs(environment)])


def temporary(kinds: str) -> str:
    """A regular expression for the names that `tempfile` makes of `kinds` (one too), and `discard` of them.

    Only what is called so is removed by its name: files of a user may lie beside it.
    """
    return r"(?:%s)-[a-z0-9_]{8}(?:\.trash-[0-9]+)*" % kinds


def is_name(text: str) -> bool:
    """Whether it is a plain file name, which no shell or terminal reads as more than that."""
    return _NAME.match(text) is not None


def checked_name(text: object, what: str) -> str:
    """`text` when it is a plain file name; raises NodeError `request-invalid`."""
    if not isinstance(text, str) or not is_name(text):
        raise NodeError("request-invalid", "`%s` is not a plain name: %r" % (what, str(text)[:100]))
    return text


def checked_environment(prefix: str, path: object) -> str:
    """`path` when it names an environment directly under `<prefix>/envs`; raises NodeError `request-invalid`.

    Nothing else is ever built, moved or deleted, so a wrong request cannot reach a folder of the user.
    """
    if not isinstance(path, str) or not path.startswith("/"):
        raise NodeError("request-invalid", "`environment` must be an absolute path")
    parent, name = os.path.split(os.path.normpath(path))
    if os.path.realpath(parent) != os.path.realpath(envs_dir(prefix)) or not is_name(name):
        raise NodeError(
            "request-invalid", "%s is not an environment of this prefix" % path, why="environments lie in %s" % parent
        )
    return os.path.join(envs_dir(prefix), name)


def make_dirs(prefix: str, *names: str) -> None:
    """Create `prefix` and folders in it, with `set_umask`; raises NodeError `not-writable` (exit 7)."""
    import tempfile

    set_umask(prefix)
    try:
        for name in ("",) + names:
            os.makedirs(os.path.join(prefix, name), exist_ok=True)
        handle, probe = tempfile.mkstemp(prefix=".envbuild-", dir=prefix)
        os.close(handle)
        os.unlink(probe)
    except OSError as error:
        raise not_writable(error, prefix) from error
    set_umask(prefix)


def not_writable(error: OSError, folder: str) -> NodeError:
    """The error of a folder that could not be written: that of a full disk, else `not-writable` (exit 7)."""
    return os_error(error, folder) or NodeError(
        "not-writable",
        "cannot write to %s" % folder,
        why=str(error),
        hint="choose another prefix (--prefix; `tmp`, `cache` of the target), or have its permissions changed",
    )


@contextlib.contextmanager
def coded_errors(where: str) -> "Iterator[None]":
    """Give an OSError of the body its coded form where it has one, see `os_error`."""
    try:
        yield
    except OSError as error:
        raise os_error(error, where) or error from error


def os_error(error: OSError, where: str) -> "NodeError | None":
    """The coded form of a full disk or quota, or of one that takes no writes; None for every other error."""
    if error.errno == errno.EROFS:
        return NodeError(
            "not-writable",
            "the file system of %s is read-only" % where,
            why=str(error),
            hint="a disk error can cause this; make the file system writable, then run the same command again",
        )
    return no_room(error, where)


def no_room(error: OSError, where: str) -> "NodeError | None":
    """The coded form of a full disk or quota, None for every other error."""
    return full_disk(where, str(error)) if error.errno in (errno.ENOSPC, errno.EDQUOT) else None


def says_full(message: str) -> bool:
    """Whether what a program printed speaks of a full disk or quota."""
    return _FULL.search(message) is not None


def refuse_full(message: str, where: str, why: str) -> None:
    """Raise the error of a full disk or quota at `where` when a program says in `message` that there is one."""
    if says_full(message):
        raise full_disk(where, why)


def check_room(folder: str, prefix: str, size: int, inodes: int) -> None:
    """Raise NodeError `disk-full` (exit 75) where `folder` has not so many bytes and inodes left."""
    facts = os.statvfs(folder)
    free, short = facts.f_bavail * facts.f_frsize, []
    if free < size:
        short.append("%d MB are free, about %d MB are needed" % (free // 10**6, size // 10**6))
    if facts.f_files > 0 and facts.f_favail < inodes:
        short.append("%d inodes are free, about %d are needed" % (facts.f_favail, inodes))
    if short:
        raise NodeError(
            "disk-full",
            "not enough room under %s" % prefix,
            why="; ".join(short),
            hint="remove old environments (`envbuild env remove NAME --yes`), or choose another prefix",
        )


def full_disk(where: str, why: str) -> NodeError:
    """`disk-full` (exit 75): of bytes or, where those are left at `where`, of inodes."""
    try:
        facts = os.statvfs(existing_parent(where))
        # Who failed has often cleaned up by now, so there may be a few again: the scarcer of the two is the reason.
        scarce = facts.f_favail < 1000 and facts.f_favail * facts.f_blocks < facts.f_bavail * facts.f_files
        inodes = facts.f_files > 0 and (facts.f_favail == 0 or scarce)
    except OSError:
        inodes = False
    return NodeError(
        "disk-full",
        "no %s left at %s" % ("inodes are" if inodes else "space is", where),
        why=why,
        hint="remove old environments or runs (`envbuild store clean`), or choose another prefix, cache or tmp folder",
    )


def existing_parent(path: str) -> str:
    """The nearest path upwards that exists; a dangling link counts as existing, because it is in the way."""
    while path != os.path.dirname(path) and not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def set_umask(prefix: str) -> None:
    """Files are readable for all, whatever the caller's umask; a setgid prefix keeps them writable for its group."""
    shared = os.path.isdir(prefix) and os.stat(prefix).st_mode & stat.S_ISGID
    os.umask(0o002 if shared else 0o022)


def umask() -> int:
    """The umask of this process. /proc is asked first: umask(2) would change it for a moment, for all threads."""
    digits = first(r"(?m)^Umask:\s*([0-7]+)", read("/proc/self/status"))
    if digits:
        return int(digits, 8)
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def write_whole(path: str, data: "bytes | Iterable[bytes]", mode: int = 0o666) -> None:
    """Write `data` beside `path`, fsync, rename, fsync the folder; a reader sees the old or the new file.

    `data`: at once or, where there is much of it, in parts. `mode`: its permissions, before the umask. Raises OSError.
    """
    import tempfile

    folder = os.path.dirname(path) or "."
    handle, temporary = tempfile.mkstemp(prefix=".tmp-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.writelines([data] if isinstance(data, bytes) else data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, mode & ~umask())
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    sync_dir(folder)


def write_atomic(path: str, data: bytes, mode: int = 0o666) -> None:
    """`write_whole`, its folder made when missing; raises NodeError, as `os_error` has it, where the disk is full."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with coded_errors(path):
        write_whole(path, data, mode)


def write_json(path: str, data: object) -> None:
    """`data` as JSON with sorted keys, written by `write_atomic`."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    write_atomic(path, text.encode("ascii") + b"\n")


def read_json(path: str) -> "Json | None":
    """The JSON object in `path`, None where there is none or it cannot be parsed."""
    try:
        with opened(path) as stream:
            data = json.loads(stream.read(_LARGEST_JSON).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def sync_dir(folder: str) -> None:
    """Make renames in `folder` durable where the file system can."""
    with contextlib.suppress(OSError):
        sync_folder(folder)


def sync_folder(folder: str) -> None:
    """Make renames in `folder` durable; raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def size_of(path: str) -> int:
    """Bytes of a file, or of all files in a folder; links are not followed, and what is gone meanwhile has none."""
    if os.path.isdir(path) and not os.path.islink(path):
        return sum(size_of(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def switch_link(link: str, target: str) -> bool:
    """Point `link` at `target` by one rename; True when it pointed elsewhere before.

    Raises NodeError `link-blocked` (1) where something else has the name.
    """
    if os.path.islink(link) and os.readlink(link) == target:
        return False
    folder = os.path.dirname(link)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, ".%s.%d" % (os.path.basename(link), os.getpid()))
    if os.path.lexists(temporary):
        os.unlink(temporary)
    os.symlink(target, temporary)
    try:
        os.rename(temporary, link)
    except IsADirectoryError:
        os.unlink(temporary)
        raise NodeError(
            "link-blocked",
            "%s is a folder, and envbuild needs a link of this name" % link,
            hint="move the folder away, then run the same command again",
        ) from None
    sync_dir(folder)
    return True


def remove_tree(path: str) -> None:
    """Delete a folder, also where something in it was made read-only, or what else lies there; raises OSError."""
    import shutil

    def unlock(function: "Any", name: str, _info: "Any") -> None:
        if not os.path.lexists(name):
            return
        os.chmod(os.path.dirname(name), 0o700)
        if function in (os.rmdir, os.unlink, os.remove):
            function(name)
        else:
            os.chmod(name, 0o700)
            shutil.rmtree(name)

    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, onerror=unlock)
    elif os.path.lexists(path):
        os.unlink(path)


def discard(path: str) -> None:
    """Rename a folder to a name that is never used, then delete it: a kill in between leaves no half environment."""
    trash = "%s.trash-%d" % (path, os.getpid())
    remove_tree(trash)
    if os.path.lexists(path):
        os.rename(path, trash)
    remove_tree(trash)
