"""Space, inodes, quota and mount flags where something will be written. Nothing is written to find out."""

import os
import re
import stat

from envbuild.node import paths, proc, trust
from envbuild.node.protocol import Json
from envbuild.node.read_text import read, which

TYPE_CHECKING = False
if TYPE_CHECKING:
    Quotas = dict[str, dict[str, int | None]]

QUOTA_DEADLINE = 3.0
_OCTAL = re.compile(r"\\([0-7]{3})")


def quotas(folders: "list[str]") -> "Quotas":
    """The user's quota by file system, empty where there is none or no `quota` tool."""
    tool = which("quota", folders)
    if tool is None:
        return {}
    return parse_quota(proc.run([tool, "-w", "-p"], timeout=QUOTA_DEADLINE).out)


def disk_facts(path: str, quota: "Quotas", mountinfo: "str | None" = None) -> Json:
    """`DiskFacts` of absolute `path`: bytes and inodes free for this user, with `quota` (see `quotas`) counted in.

    `quota_bytes` and `quota_inodes` are the limits themselves. `reason` says why it cannot be written to.
    """
    parent = paths.existing_parent(path)
    real = os.path.realpath(parent)
    mounts = parse_mountinfo(read("/proc/self/mountinfo") if mountinfo is None else mountinfo)
    mount = mount_of(real, mounts) or {"filesystem": "", "source": "", "options": set(), "point": "/"}
    reason = _reason(parent, mount["options"]) or _open_to_all(path)
    fact = {
        "path": path,
        "filesystem": mount["filesystem"],
        "writable": reason is None,
        "noexec": "noexec" in mount["options"],
        "reason": reason,
    }
    try:
        numbers = os.statvfs(real)
    except OSError as error:
        fact.update(writable=False, reason=reason or "%s: %s" % (parent, error.strerror))
        return fact
    limits = quota.get(mount["source"]) or quota.get(mount["point"]) or {}
    fact["free_bytes"] = _least(numbers.f_bavail * numbers.f_frsize, limits.get("bytes_left"))
    fact["total_bytes"] = numbers.f_blocks * numbers.f_frsize
    if numbers.f_files:  # some file systems (btrfs, many network ones) do not count inodes
        fact["free_inodes"] = _least(numbers.f_favail, limits.get("inodes_left"))
        fact["total_inodes"] = numbers.f_files
    fact["quota_bytes"] = limits.get("bytes")
    fact["quota_inodes"] = limits.get("inodes")
    return fact


def _above(path: str) -> "list[str]":
    """`path` and all folders above it, as it is written and as links lead; the uppermost first."""
    folders = set()
    for folder in (path, os.path.realpath(path)):
        while folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)
    return sorted(folders)


def _open_to_all(path: str) -> "str | None":
    """Where everybody can put and replace files, programs that were there before are not ours to run."""
    for folder in _above(path) + [os.path.join(path, "tools"), os.path.join(path, "envs")]:
        try:
            mode = os.stat(folder).st_mode
        except OSError:
            continue
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return "everybody can change what is in %s (mode %o)" % (folder, stat.S_IMODE(mode))
    return None


def foreign_owner(path: str) -> "str | None":
    """What to say of the first folder at or above `path` that belongs to neither us nor root; None without one."""
    for folder in _above(path):
        try:
            owner = os.stat(folder).st_uid
        except OSError:
            continue
        if owner not in trust.ours():
            return "%s belongs to user id %d, who can replace what is run from %s" % (folder, owner, path)
    return None


def _least(free: int, left: "int | None") -> int:
    return free if left is None else min(free, left)


def _reason(parent: str, options: "set[str]") -> "str | None":
    if not os.path.exists(parent):
        return "%s is a link that leads nowhere" % parent
    if not os.path.isdir(parent):
        return "%s is not a folder" % parent
    if "ro" in options:
        return "the file system of %s is mounted read-only" % parent
    if not os.access(parent, os.W_OK | os.X_OK):
        return "%s is not writable for this user" % parent
    return None


def parse_mountinfo(text: str) -> "list[Json]":
    """`/proc/self/mountinfo` -> `point`, `filesystem`, `source` and `options` (set) of each mount, in order."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 3:
            continue
        options = set(fields[5].split(",")) | set(rest[2].split(","))
        mount = {"point": _unescape(fields[4]), "filesystem": rest[0], "source": _unescape(rest[1]), "options": options}
        mounts.append(mount)
    return mounts


def mount_of(path: str, mounts: "list[Json]") -> "Json | None":
    """The mount that `path` (absolute, without links) is on: the longest mount point, the last one mounted there."""
    on = [mount for mount in mounts if (path + "/").startswith(mount["point"].rstrip("/") + "/")]
    return max(reversed(on), key=lambda mount: len(mount["point"].rstrip("/")), default=None)


def parse_quota(text: str) -> "dict[str, dict[str, int | None]]":
    """`quota -w -p` -> file system -> `bytes_left`, `bytes`, `inodes_left`, `inodes` (None: no limit).

    Columns: file system, blocks of 1 KiB, soft and hard limit, grace, then files, soft, hard, grace. An asterisk
    marks a limit that is exceeded.
    """
    quotas = {}
    for line in text.splitlines():
        cells = line.split()
        numbers = [cell.rstrip("*") for cell in cells[1:]]
        if len(cells) < 8 or not all(re.match(r"[0-9]{1,15}\Z", number) for number in numbers[:3] + numbers[4:7]):
            continue
        blocks, soft, hard = (int(number) * 1024 for number in numbers[:3])
        files, files_soft, files_hard = (int(number) for number in numbers[4:7])
        limit, files_limit = hard or soft, files_hard or files_soft
        quotas[cells[0]] = {
            "bytes": limit or None,
            "bytes_left": max(0, limit - blocks) if limit else None,
            "inodes": files_limit or None,
            "inodes_left": max(0, files_limit - files) if files_limit else None,
        }
    return quotas


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes of blanks in paths."""
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), text)
