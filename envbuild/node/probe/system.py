"""Operating system, libc, CPUs, memory, network interfaces, scheduler, modules and containers.

What reads a text of the system or of a tool is a pure function, `parse_...`, that never raises.
"""

import contextlib
import os
import re
import resource

from envbuild.node import proc
from envbuild.node.protocol import Json
from envbuild.node.read_text import first, names, read, which

DEADLINE = 5.0
CONTAINERS = ("apptainer", "singularity", "podman", "docker", "buildah", "enroot", "nerdctl", "shifter", "ch-run")
# Interfaces that belong to containers and virtual machines say nothing about the node.
VIRTUAL_NIC = re.compile(r"(lo|veth|docker|br-|virbr|cni|flannel|cali|tap|tun|dummy|ifb|sit|gre|ip6tnl)")
_SIOCGIFADDR = 0x8915
# Kind, variable of a job, client, and what that says as itself: its version.
_SCHEDULERS = (
    ("slurm", "SLURM_JOB_ID", "sinfo", r"slurm(?:-wlm)? ([0-9][0-9A-Za-z.\-]*)"),
    ("pbs", "PBS_JOBID", "qstat", r"pbs_version = (\S+)"),
)


def os_facts() -> "dict[str, str]":
    """`OsFacts`."""
    release = parse_os_release(read("/etc/os-release") or read("/usr/lib/os-release"))
    kernel = os.uname()
    return {
        "id": release.get("ID", ""),
        "version": release.get("VERSION_ID", ""),
        "kernel": kernel.release,
        "arch": kernel.machine,
    }


def glibc() -> str:
    """`glibc 2.36` as the C library of this interpreter says it; empty for another one."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""


def debian_packages(wanted: "list[str]", root: str = "/") -> "dict[str, bool]":
    """Wanted package of Debian -> whether dpkg has it; empty where there is no dpkg."""
    files = names(os.path.join(root, "var/lib/dpkg/info"))
    have = {name[:-5].partition(":")[0] for name in files if name.endswith(".list")}
    return {name: name in have for name in wanted} if have else {}


def libc_facts(folders: "list[str]") -> "dict[str, str]":
    """`LibcFacts`; `ldd` decides where confstr is mute (a Python built against musl, or a musl node)."""
    kind, _, version = glibc().partition(" ")
    if kind == "glibc" and version:
        return {"kind": kind, "version": version}
    ldd = which("ldd", folders)
    answer = proc.run([ldd, "--version"], timeout=DEADLINE) if ldd else proc.Finished()
    libc = parse_ldd(answer.out + answer.err)
    if libc:
        return libc
    musl = any(name.startswith("ld-musl-") for name in names("/lib"))
    return {"kind": "musl" if musl else "", "version": ""}


def product(root: str = "/") -> str:
    """What the firmware calls this machine (`p4d.24xlarge`, `PowerEdge XE9680`); empty where it does not say."""
    return read(os.path.join(root, "sys/class/dmi/id/product_name")).strip()[:100]


def limit_facts() -> "dict[str, str]":
    """What the system lets a process of this session have: memory that it may lock, its share of /dev/shm, modules."""
    limits = {}
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    limits["memlock"] = "unlimited" if locked == resource.RLIM_INFINITY else "%d KiB" % (locked >> 10)
    with contextlib.suppress(OSError):
        shm = os.statvfs("/dev/shm")  # noqa: S108 - nothing is written there
        limits["shm"] = "%d MiB" % (shm.f_frsize * shm.f_blocks >> 20)
    loaded = [line.partition(" ")[0] for line in read("/proc/modules").splitlines()]
    if "nvidia" in loaded:
        limits["peermem"] = "loaded" if {"nvidia_peermem", "nv_peer_mem"}.intersection(loaded) else "not loaded"
    return limits


def cpu_count(root: str = "/") -> int:
    """CPUs that this process may use: affinity, then the cgroup's quota (rounded up)."""
    count = float(len(os.sched_getaffinity(0)))
    paths = parse_cgroup_paths(read(os.path.join(root, "proc/self/cgroup")))
    base = os.path.join(root, "sys/fs/cgroup")
    for folder in _upwards(base, paths.get("")) + _upwards(os.path.join(base, "unified"), paths.get("")):
        count = min(count, parse_cpu_max(read(os.path.join(folder, "cpu.max"))) or count)
    for folder in _upwards(os.path.join(base, "cpu"), paths.get("cpu")):
        quota, period = (read(os.path.join(folder, "cpu.cfs_%s_us" % name)).strip() for name in ("quota", "period"))
        count = min(count, parse_cpu_max("%s %s" % (quota, period)) or count)
    return max(1, int(-(-count // 1)))


def cpu_facts() -> "dict[str, str]":
    """`CpuFacts` of the first processor."""
    first = read("/proc/cpuinfo", 65536).partition("\n\n")[0]
    rows = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    return {
        "vendor": rows.get("vendor_id") or rows.get("CPU implementer") or "",
        "features": rows.get("flags") or rows.get("Features") or "",
        "part": rows.get("CPU part") or "",
    }


def memory_bytes(root: str = "/") -> "int | None":
    """Memory in bytes: the machine's, or the cgroup's limit where that is less."""
    total = first(r"(?m)^MemTotal:\s+([0-9]{1,15}) kB", read(os.path.join(root, "proc/meminfo")))
    sizes = [int(total) * 1024] if total else []
    paths = parse_cgroup_paths(read(os.path.join(root, "proc/self/cgroup")))
    base = os.path.join(root, "sys/fs/cgroup")
    places = [os.path.join(folder, "memory.max") for folder in _upwards(base, paths.get(""))]
    v1 = _upwards(os.path.join(base, "memory"), paths.get("memory"))
    places += [os.path.join(folder, "memory.limit_in_bytes") for folder in v1]
    for place in places:
        text = read(place).strip()
        if re.match(r"[0-9]{1,19}\Z", text):
            sizes.append(int(text))
    return min(filter(None, sizes), default=None)


def _upwards(base: str, path: "str | None") -> "list[str]":
    """The cgroup's folder and its parents; a container may see only `base` itself."""
    if path is None:
        return []
    parts = [part for part in path.split("/") if part and part != ".."]
    return [os.path.join(base, *parts[:count]) for count in range(len(parts), -1, -1)]


def nic_facts(root: str = "/") -> "list[Json]":
    """`NicFacts` of Ethernet interfaces and InfiniBand ports, from sysfs."""
    folder = os.path.join(root, "sys/class/net")
    nics = []
    for name in names(folder):
        if VIRTUAL_NIC.match(name) or not os.path.isdir(os.path.join(folder, name)):
            continue
        speed = read(os.path.join(folder, name, "speed")).strip()
        infiniband = read(os.path.join(folder, name, "type")).strip() == "32"
        fact: Json = {
            "name": name,
            "kind": "infiniband" if infiniband else "ethernet",
            "state": read(os.path.join(folder, name, "operstate")).strip(),
            "addresses": addresses(name, root),
        }
        if re.match(r"[1-9][0-9]{0,8}\Z", speed):
            fact["rate_gbps"] = int(speed) / 1000.0
        nics.append(fact)
    return nics + _infiniband(root)


def addresses(name: str, root: str = "/") -> "list[str]":
    """Addresses of a network interface: the first of IPv4, and those of IPv6 that are not for this link alone."""
    import fcntl
    import socket

    result = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with contextlib.suppress(OSError):  # the interface has no IPv4 address
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, name.encode()[:15].ljust(256, b"\0"))
            result.append(socket.inet_ntoa(answer[20:24]))
    for line in read(os.path.join(root, "proc/net/if_inet6")).splitlines():
        cells = line.split()
        if len(cells) == 6 and cells[5] == name and cells[3] == "00":  # 00: global scope
            with contextlib.suppress(OSError, ValueError):  # no IPv6 in this Python, or not an address
                result.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(cells[0])))
    return result


def _infiniband(root: str) -> "list[Json]":
    folder = os.path.join(root, "sys/class/infiniband")
    nics = []
    for device in names(folder):
        for port in names(os.path.join(folder, device, "ports")):
            place = os.path.join(folder, device, "ports", port)
            link = read(os.path.join(place, "link_layer")).strip()
            fact: Json = {
                "name": device if port == "1" else "%s/%s" % (device, port),
                "kind": "infiniband" if link == "InfiniBand" else "ethernet",
                "state": read(os.path.join(place, "state")).strip().partition(": ")[2].lower(),
            }
            # 200 Gb/sec (4X HDR)
            rate = first(r"\A\s*([0-9]{1,6}(?:\.[0-9]+)?) Gb/sec", read(os.path.join(place, "rate")))
            if rate:
                fact["rate_gbps"] = float(rate)
            nics.append(fact)
    return nics


def scheduler_facts(folders: "list[str]") -> Json:
    """`SchedulerFacts`: the job we are in, else the scheduler whose client is there and answers as itself."""
    for kind, job, tool, pattern in _SCHEDULERS:
        path = which(tool, folders)
        inside = os.environ.get(job)
        if not path and not inside:
            continue
        answer = proc.run([path, "--version"], timeout=DEADLINE) if path else proc.Finished()
        version = first(pattern, answer.out + answer.err)
        # Other batch systems have a `qstat` too.
        if inside or version or kind == "slurm":
            return {"kind": kind, "version": version, "job": inside}
    return {"kind": "none", "version": None, "job": None}


def modules_system() -> "str | None":
    """`lmod 8.7.3`, `tcl 5.2.0` or None; a non-login shell knows it by its files only."""
    if os.environ.get("LMOD_VERSION"):
        return "lmod " + os.environ["LMOD_VERSION"]
    files = os.environ.get("MODULESHOME", "")
    files += read("/etc/profile.d/modules.sh", 65536) + read("/etc/profile.d/lmod.sh", 65536)
    lmod = os.environ.get("LMOD_CMD") or any(map(os.path.exists, ("/usr/share/lmod", "/opt/ohpc/admin/lmod")))
    if lmod or "lmod" in files.lower():
        return "lmod"
    return "tcl" if files else None


def parse_os_release(text: str) -> "dict[str, str]":
    """os-release(5) -> its keys; values unquoted."""
    fields = {}
    for line in text.splitlines():
        name, separator, value = line.strip().partition("=")
        if not separator or name.startswith("#"):
            continue
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = re.sub(r"\\([\"$`\\])", r"\1", value[1:-1])
        fields[name.strip()] = value
    return fields


def parse_ldd(text: str) -> "dict[str, str] | None":
    """`ldd --version` (both streams) -> `kind` and `version`; musl prints it on stderr, in two lines."""
    musl = first(r"musl libc[^\n]*\n\s*Version ([0-9][0-9.]*)", text)
    if musl:
        return {"kind": "musl", "version": musl.rstrip(".")}
    version = first(r"\Aldd \([^\n]*\) ([0-9]+\.[0-9]+)", text)
    return {"kind": "glibc", "version": version} if version else None


def parse_cgroup_paths(text: str) -> "dict[str, str]":
    """`/proc/self/cgroup` -> controller -> path; the unified hierarchy is under the empty name."""
    by_controller = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                by_controller[controller] = parts[2]
    return by_controller


def parse_cpu_max(text: str) -> "float | None":
    """cgroup v2 `cpu.max` (`400000 100000` or `max 100000`) -> number of CPUs, None without a limit."""
    match = re.match(r"\s*([0-9]{1,15}) ([0-9]{1,15})", text)
    return int(match.group(1)) / int(match.group(2)) if match and int(match.group(2)) else None
