"""What ordinary system files and tools print, as data. Pure functions: text in, data out, never raising."""

import re

from envbuild.node.protocol import Json

_VERSION = re.compile(r"(?<![0-9A-Za-z.])v?([0-9]+(?:\.[0-9]+)+[0-9A-Za-z.+-]*)")
_OCTAL = re.compile(r"\\([0-7]{3})")


def parse_os_release(text: str) -> "dict[str, str]":
    """os-release(5) -> its keys; values unquoted."""
    found = {}
    for line in text.splitlines():
        name, separator, value = line.strip().partition("=")
        if not separator or name.startswith("#"):
            continue
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = re.sub(r"\\([\"$`\\])", r"\1", value[1:-1])
        found[name.strip()] = value
    return found


def parse_ldd(text: str) -> "dict[str, str] | None":
    """`ldd --version` (both streams) -> `kind` and `version`; musl prints it on stderr, in two lines."""
    musl = re.search(r"musl libc[^\n]*\n\s*Version ([0-9][0-9.]*)", text)
    if musl:
        return {"kind": "musl", "version": musl.group(1).rstrip(".")}
    glibc = re.match(r"ldd \([^\n]*\) ([0-9]+\.[0-9]+)", text)
    return {"kind": "glibc", "version": glibc.group(1)} if glibc else None


def parse_compiler(text: str) -> "str | None":
    """First line of `gcc --version` -> version; the vendor's own version in parentheses is not it."""
    lines = text.splitlines()
    if not lines:
        return None
    bare = re.sub(r"\([^()]*\)", " ", re.sub(r"\([^()]*\)", " ", lines[0]))
    found = re.search(r"(?:^|\s)([0-9]+(?:\.[0-9]+){1,3})", bare)
    return found.group(1) if found else None


def parse_tool(text: str) -> "str | None":
    """The first thing in the first lines of a tool's `--version` that looks like a version."""
    for line in text.splitlines()[:3]:
        found = _VERSION.search(line)
        if found:
            return found.group(1).rstrip(".,;-+")
    return None


def parse_scheduler_version(kind: str, text: str) -> "str | None":
    """`sinfo --version` (slurm) or `qstat --version` (pbs) -> version; None when it is another program's answer."""
    patterns = {"slurm": r"slurm(?:-wlm)? ([0-9][0-9A-Za-z.\-]*)", "pbs": r"pbs_version = (\S+)"}
    found = re.search(patterns[kind], text)
    return found.group(1) if found else None


def parse_meminfo(text: str) -> "int | None":
    """`/proc/meminfo` -> total memory in bytes."""
    found = re.search(r"^MemTotal:\s+([0-9]{1,15}) kB", text, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


def parse_mountinfo(text: str) -> "list[Json]":
    """`/proc/self/mountinfo` -> `point`, `filesystem`, `source` and `options` (set) of each mount, in order."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 3:
            continue
        options = set(fields[5].split(",")) | set(rest[2].split(","))
        mount = {"point": unescape(fields[4]), "filesystem": rest[0], "source": unescape(rest[1]), "options": options}
        mounts.append(mount)
    return mounts


def unescape(text: str) -> str:
    """Undo the kernel's octal escapes of blanks in paths."""
    return _OCTAL.sub(lambda found: chr(int(found.group(1), 8)), text)


def mount_of(path: str, mounts: "list[Json]") -> "Json | None":
    """The mount that `path` (absolute, without links) is on: the longest mount point, the last one mounted there."""
    on = [mount for mount in mounts if (path + "/").startswith(mount["point"].rstrip("/") + "/")]
    return max(reversed(on), key=lambda mount: len(mount["point"].rstrip("/")), default=None)


def parse_quota(text: str) -> "dict[str, dict[str, int | None]]":
    """`quota -w -p` -> file system -> `bytes_left`, `bytes`, `inodes_left`, `inodes` (None: no limit).

    Columns: file system, blocks of 1 KiB, soft and hard limit, grace, then files, soft, hard, grace. An asterisk
    marks a limit that is exceeded.
    """
    found = {}
    for line in text.splitlines():
        cells = line.split()
        numbers = [cell.rstrip("*") for cell in cells[1:]]
        if len(cells) < 8 or not all(re.match(r"[0-9]{1,15}\Z", number) for number in numbers[:3] + numbers[4:7]):
            continue
        blocks, soft, hard = (int(number) * 1024 for number in numbers[:3])
        files, files_soft, files_hard = (int(number) for number in numbers[4:7])
        limit, files_limit = hard or soft, files_hard or files_soft
        found[cells[0]] = {
            "bytes": limit or None,
            "bytes_left": max(0, limit - blocks) if limit else None,
            "inodes": files_limit or None,
            "inodes_left": max(0, files_limit - files) if files_limit else None,
        }
    return found


def parse_infiniband_rate(text: str) -> "float | None":
    """`200 Gb/sec (4X HDR)` -> 200.0."""
    found = re.match(r"\s*([0-9]{1,6}(?:\.[0-9]+)?) Gb/sec", text)
    return float(found.group(1)) if found else None


def parse_cgroup_paths(text: str) -> "dict[str, str]":
    """`/proc/self/cgroup` -> controller -> path; the unified hierarchy is under the empty name."""
    found = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                found[controller] = parts[2]
    return found


def parse_cpu_max(text: str) -> "float | None":
    """cgroup v2 `cpu.max` (`400000 100000` or `max 100000`) -> number of CPUs, None without a limit."""
    found = re.match(r"\s*([0-9]{1,15}) ([0-9]{1,15})", text)
    return int(found.group(1)) / int(found.group(2)) if found and int(found.group(2)) else None
