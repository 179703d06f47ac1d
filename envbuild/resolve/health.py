"""Facts of nodes judged: what each means, whether CUDA stops, and what helps. Tables; pure.

One node: `CAUSES` (from nvidia-smi or the probe), `SIGNS` (what a GPU or port reports) and missing GPUs. Several nodes:
`SHARED`, what equal machines have in common, to find the one that differs. Plans, refusals and `doctor` read these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from envbuild.hostlist import fold_hosts
from envbuild.model.facts import GpuFacts, NodeFacts
from envbuild.node.read_text import integer
from envbuild.node.variables import VISIBLE, visible_devices
from envbuild.resolve.request import physical_gpus, visible_gpus
from envbuild.text import grouped, plural

_RESET = (
    "reset it as the node's administrator (`nvidia-smi --gpu-reset -i {gpu}` without a process on it) or reboot the "
    "node; where that does not last, have it replaced"
)
_LOAD = "load the module as the node's administrator (`modprobe nvidia`), or install a driver for this kernel"


class Fault(NamedTuple):
    """A fault of a node, and what helps; `stops`: no CUDA program starts; otherwise the smoke test decides."""

    what: str
    helps: str
    stops: bool = False

    def of(self, before: str = "", after: str = "", **names: str) -> Fault:
        """The same with its `{names}` filled in, and words around what it says."""
        return Fault(f"{before}{self.what.format(**names)}{after}", self.helps.format(**names), self.stops)


_GPU = r"GPU\s*(?:[0-9]{1,3}:\s+)?((?:[0-9a-f]{4,8}:)?[0-9a-f]{1,4}(?::[0-9a-f]{2}\.[0-9])?)"
# Texts of nvidia-smi or of the probe, and what they mean; the groups of a pattern are the GPU that a text names.
CAUSES = (
    (r"Driver/library version mismatch", Fault(
        "the driver's libraries are not those of the kernel module that is loaded",
        "reboot the node, or unload and load the module as its administrator (`rmmod nvidia_uvm nvidia_drm "
        "nvidia_modeset nvidia; modprobe nvidia`), and hold the driver's packages (`apt-mark hold`)", stops=True)),
    (r"infoROM is corrupted at " + _GPU, Fault(
        "the infoROM of GPU {gpu} is damaged, and CUDA may fail on it", "the smoke test decides; " + _RESET)),
    (r"(?:Unable to determine the device handle for|requires? reset).*?" + _GPU + "|" + _GPU +
     r".*?(?:is lost|requires? reset|fallen off the bus|Unknown Error|ERR!)",
     Fault("GPU {gpu} is lost: it does not answer", _RESET)),
    (r"couldn't communicate with the NVIDIA driver|Driver Not Loaded", Fault(
        "the NVIDIA kernel module is not loaded", _LOAD, stops=True)),
    (r"Insufficient Permissions", Fault(
        "this user may not open the GPUs' devices",
        "ask the administrator for access to /dev/nvidia* (a group, or the job's devices)", stops=True)),
    (r"blocked by the operating system", Fault(
        "the system withholds the GPUs from this session",
        "under WSL update Windows' NVIDIA driver and `wsl --update`; in a container start it with its GPUs "
        "(`--gpus all`, `--nv`)", stops=True)),
    (r"couldn't find libnvidia-ml|loading shared libraries", Fault(
        "the driver's libraries are missing",
        "install the driver's user libraries in the version of the kernel module; in a container start it with "
        "its GPUs (`--gpus all`, `--nv`)", stops=True)),
    (r"Failed to initialize NVML: Unknown Error", Fault(
        "the GPUs' devices were taken away from this session",
        "start the container or session again (a reload of systemd takes devices away); else reboot", stops=True)),
    (r"Failed to initialize NVML", Fault("the driver cannot be initialised", _LOAD, stops=True)),
    (r"No devices were found", Fault(
        "the driver finds none of the GPUs",
        "read `dmesg | grep -i xid` on the node; reset or reboot it, as its administrator")),
    (r"did not answer within", Fault(
        "the driver hangs", "read `dmesg | grep -i xid` on the node; reboot it, as its administrator")),
    (r"nvidia-smi is not there", Fault(
        "the node has a GPU or the kernel module, but no nvidia-smi",
        "install the driver's user programs in the version of the kernel module")),
    (r"", Fault("nvidia-smi reports a problem", "run `nvidia-smi` on the node; the smoke test decides")),
)  # fmt: skip


def _yes(value: str, _gpu: GpuFacts) -> bool:
    return value != "0" and (value.lower() in ("yes", "pending", "active") or (integer(value) or 0) > 0)


def _unlike(other: str) -> Callable[[str, GpuFacts], bool]:
    """Whether the value is another than that of a second field."""
    return lambda value, gpu: value != gpu.health.get(other, value)


def _is(*values: str) -> Callable[[str, GpuFacts], bool]:
    return lambda value, _gpu: value in values


# What nvidia-smi says of a GPU: the field, when its value is bad, and what that means.
SIGNS: tuple[tuple[str, Callable[[str, GpuFacts], bool], Fault], ...] = (
    ("ecc_errors", _yes, Fault("counts {value} uncorrected memory errors", _RESET)),
    ("remapped_rows.failure", _yes, Fault("has memory rows that could not be remapped", "have it replaced")),
    ("remapped_rows.pending", _yes, Fault("waits for a reset to remap memory rows", _RESET)),
    ("retired_pages.pending", _yes, Fault("waits for a reset to retire memory pages", _RESET)),
    ("gpu_recovery_action", lambda value, _gpu: value != "None", Fault("asks for its recovery: {value}", _RESET)),
    ("mig.mode.pending", _unlike("mig.mode.current"), Fault("waits for a reset to have MIG {value}", _RESET)),
    ("ecc.mode.pending", _unlike("ecc.mode.current"), Fault("waits for a reboot to have ECC {value}", _RESET)),
    ("nvlinks.active", _unlike("nvlinks"), Fault("has {value} active NVLinks, fewer than it could have", _RESET)),
    ("clocks_throttle_reasons.sw_thermal_slowdown", _yes, Fault(
        "is throttled because it is too hot", "look at its cooling")),
    ("clocks_throttle_reasons.hw_slowdown", _yes, Fault(
        "is throttled by its hardware (heat or power)", "look at its cooling and power supply")),
    ("pcie.link.width.current", _unlike("pcie.link.width.max"), Fault(
        "has {value} PCIe lanes, fewer than it could have", "have it reseated, or look at the slot")),
    ("compute_mode", _is("Prohibited"), Fault(
        "takes no process (compute mode Prohibited)", "`nvidia-smi -c DEFAULT`, as the node's administrator",
        stops=True)),
    ("fabric.state", _is("Not Started", "In Progress"), Fault(
        "is not joined to the others by NVLink yet",
        "start nvidia-fabricmanager on the node (CUDA fails with error 802 until then)")),
)  # fmt: skip
# What the system lets a process of a node with GPUs have: name, when that is bad, and what it means.
_LIMITS: tuple[tuple[str, Callable[[str, NodeFacts], bool], Fault], ...] = (
    ("memlock", lambda value, node: value != "unlimited" and any(nic.kind == "infiniband" for nic in node.nics), Fault(
        "a process may lock {value} of memory: NCCL cannot register its buffers with InfiniBand",
        "`ulimit -l unlimited` (limits.conf, `LimitMEMLOCK` of slurmd, `--ulimit memlock=-1` of a container)")),
    ("shm", lambda value, node: len(node.gpus) > 1 and (_mib(value) or _LEAST_SHM) < _LEAST_SHM, Fault(
        "the shared memory of /dev/shm is {value}: NCCL and the workers of data loaders need more",
        "start the container with `--shm-size=16g` or `--ipc=host`; else mount it larger, as the node's "
        "administrator")),
    ("clock", lambda _value, _node: True, Fault(
        "the clock is {value} that of this machine: certificates, jobs and times of files go by it",
        "start chronyd or ntpd, as the node's administrator")),
)  # fmt: skip


def _mib(value: str) -> int | None:
    match = re.fullmatch(r"([0-9]{1,12}) MiB", value)
    return int(match[1]) if match else None


_LEAST_SHM = 1024  # MiB; docker's default of 64 holds no NCCL of several GPUs
# What a port of InfiniBand is in before it carries traffic; one that is down may have no cable, so others decide.
_PORTS = {
    "init": Fault("has a cable and no subnet manager", "start one (opensm), or ask who runs the fabric"),
    "armed": Fault("is not activated by its subnet manager", "ask who runs the fabric"),
}


def driver_fault(facts: NodeFacts) -> Fault | None:
    """What the driver's problem means; None without a problem."""
    text = facts.driver.problem
    if text is None:
        return None
    fault, match = next((fault, match) for pattern, fault in CAUSES if (match := re.search(pattern, text, re.I)))
    return fault.of(after=f" ({text})", gpu=next((value for value in match.groups() if value), "N"))


def faults(facts: NodeFacts) -> tuple[Fault, ...]:
    """The faults that a node's driver, GPUs and ports report."""
    driver = driver_fault(facts)
    known = [driver] if driver else []
    for gpu in facts.gpus:
        values = {**gpu.health, "ecc_errors": str(gpu.ecc_errors or 0)}
        bus = gpu.pci_bus_id or str(gpu.index)
        for field, is_bad, fault in SIGNS:
            value = values.get(field)
            if value is not None and is_bad(value, gpu):
                known.append(fault.of(f"GPU {gpu.index} ({bus}) ", value=value, gpu=bus))
    for name, exceeds, fault in _LIMITS if facts.gpus else ():
        limit = facts.limits.get(name)
        if limit is not None and exceeds(limit, facts):
            known.append(fault.of(value=limit))
    for nic in facts.nics:
        if nic.state in _PORTS:
            known.append(_PORTS[nic.state].of(f"port {nic.name} is {nic.state}: it "))
    return tuple(known)


def missing_gpus(facts: NodeFacts, *, exclusive: bool) -> Fault | None:
    """GPUs that the node has and a process cannot see: outside of jobs, or in a job with the whole node or no GPU."""
    seen, physical = visible_gpus(facts), physical_gpus(facts)
    if seen >= physical or (seen and facts.scheduler.job and not exclusive):
        return None
    setting = "" if facts.visible_devices is None else f": {VISIBLE} is {facts.visible_devices!r}"
    return Fault(f"{seen} of {physical} GPUs visible{setting}", what_shows_gpus(facts))


def what_shows_gpus(facts: NodeFacts, count: int | None = None) -> str:
    """How to make hidden GPUs visible, by the cause that hides them; `count` of them are wanted."""
    fault = driver_fault(facts)
    if fault is not None:
        return fault.helps
    number = count or "N"
    if facts.scheduler.job and not (facts.gpus and visible_devices(facts.visible_devices) and not visible_gpus(facts)):
        have = "has no GPU" if not visible_gpus(facts) else f"has {visible_gpus(facts)}"
        ask = f"-l select=1:ngpus={number}" if facts.scheduler.kind == "pbs" else f"--gres=gpu:{number}"
        own = f"; in a target, `expects: {{gpus_per_node: {number}}}`"
        return f"this job {have}: ask for them (`{ask}`{own})"
    if facts.visible_devices is not None:
        return f"unset {VISIBLE}, which is {facts.visible_devices!r}"
    return "read `nvidia-smi -L` and `dmesg | grep -i xid` on the node; a container has to be given all GPUs"


class Health(NamedTuple):
    """What the facts of a node say of its GPUs: its faults, why no CUDA program can use one, and whether one can."""

    faults: tuple[Fault, ...]
    broken: Fault | None
    usable: bool


def health(facts: NodeFacts) -> Health:
    """Read once for all rules; nothing is `broken` on a node without a GPU."""
    known, broken = faults(facts), None
    if physical_gpus(facts) or facts.gpus:
        stopping = next((fault for fault in known if fault.stops), None)
        broken = stopping or (None if facts.gpus else driver_fault(facts))
    return Health(known, broken, visible_gpus(facts) > 0 and broken is None)


# What equal machines share


def _unique(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values))


def versions(programs: Iterable[Any]) -> str:
    """The versions of compilers or interpreters, each once, in order."""
    return _unique(sorted(program.version for program in programs))


def _of_gpus(field: str) -> Callable[[NodeFacts], str]:
    return lambda facts: _unique(gpu.health[field] for gpu in facts.gpus if field in gpu.health)


def _limit(name: str) -> Callable[[NodeFacts], str]:
    """A limit, sizes in whole GiB: they follow the memory, which differs by some megabytes."""

    def read(facts: NodeFacts) -> str:
        value = facts.limits.get(name, "")
        size = _mib(value)
        return value if size is None else f"about {round(size / 1024)} GiB"

    return read


def gpus_text(facts: NodeFacts) -> str:
    """`8 x NVIDIA A100`, `7 of 8 x …` if a process sees fewer than the node has; MIG instances with their number."""
    names = [gpu.name for gpu in facts.gpus]
    seen, physical = visible_gpus(facts), physical_gpus(facts)
    if not names:
        return f"0 of {physical} GPUs visible" if physical else "no GPU"
    counts = {name: names.count(name) for name in names}
    text = ", ".join(f"{count} x {name}" for name, count in counts.items())
    if seen < physical:
        text = f"{seen} of {physical} x {names[0]}" if len(counts) == 1 else f"{text} ({seen} of {physical} visible)"
    if any(gpu.mig_enabled for gpu in facts.gpus):
        text += f" with {plural(mig_instances(facts), 'MIG instance')}"
    return text


def mig_instances(facts: NodeFacts) -> int:
    """MIG instances that a process may use: all, or those that CUDA_VISIBLE_DEVICES names."""
    instances = [name.rpartition(" ")[2] for gpu in facts.gpus for name in gpu.mig]
    if facts.visible_devices is None or "MIG-" not in facts.visible_devices:
        return len(instances)
    return sum(entry.strip() in instances for entry in facts.visible_devices.split(","))


SHARED: tuple[tuple[str, Callable[[NodeFacts], str]], ...] = (
    ("product", lambda facts: facts.product),
    ("GPUs", gpus_text),
    ("GPU memory", lambda facts: _unique(f"{gpu.memory_mib} MiB" for gpu in facts.gpus)),
    ("MIG", lambda facts: _unique({None: "", False: "off", True: "on"}[gpu.mig_enabled] for gpu in facts.gpus)),
    *((name, _of_gpus(field)) for name, field in (
        ("ECC", "ecc.mode.current"), ("compute mode", "compute_mode"), ("power limit", "power.limit"),
        ("highest clock", "clocks.max.sm"), ("persistence mode", "persistence_mode"),
        ("NVLinks", "nvlinks"), ("PCIe generation", "pcie.link.gen.max"), ("GPU firmware", "vbios_version"),
    )),
    *((name, _limit(field)) for name, field in (
        ("locked memory", "memlock"), ("shared memory", "shm"), ("nvidia_peermem", "peermem"),
    )),
    ("file system of the prefix", lambda facts: facts.prefix.filesystem),
    ("driver", lambda facts: facts.driver.version or facts.driver.problem or ""),
    ("newest CUDA of the driver", lambda facts: facts.driver.cuda_ceiling or ""),
    ("system", lambda facts: f"{facts.os.id} {facts.os.version} {facts.os.arch}"),
    ("kernel", lambda facts: facts.os.kernel),
    ("libc", lambda facts: f"{facts.libc.kind} {facts.libc.version}"),
    ("CPUs", lambda facts: str(facts.cpus or "")),
    ("umask", lambda facts: facts.umask),
)  # fmt: skip
# What a brief probe does not read.
_ASKED: tuple[tuple[str, Callable[[NodeFacts], str]], ...] = (
    ("nvcc", lambda facts: versions(facts.nvcc)),
    ("compilers", lambda facts: versions(facts.compilers)),
    ("Pythons", lambda facts: versions(facts.pythons)),
)
_MEMORY_TOLERANCE = 0.05
_PORT = "port "


def shared(facts: NodeFacts, usual_memory: int) -> dict[str, str]:
    """What a node shares with equal ones, by name: `SHARED`, state and rate of every port, about its memory."""
    rows = {name: read(facts) for name, read in (*SHARED, *(() if facts.brief else _ASKED))}
    for nic in facts.nics:
        rows[_PORT + nic.name] = nic.state
        rows[f"rate of {nic.name}"] = f"{nic.rate_gbps:g} Gbit/s" if nic.rate_gbps else ""
    memory = facts.memory_bytes or 0
    if equal_memory(memory, usual_memory):
        memory = usual_memory
    return {**rows, "memory": f"{memory / 1e9:.0f} GB"}


def equal_memory(one: int, other: int) -> bool:
    """Whether two sizes of memory are equal: equal machines differ by some megabytes, a missing module by more."""
    return abs(one - other) <= _MEMORY_TOLERANCE * other


def odd_ones(fleet: Mapping[str, NodeFacts]) -> dict[str, list[str]]:
    """How nodes differ from the others with the same machine and GPUs: text -> their names."""
    odd: dict[str, list[str]] = {}
    kin = grouped(fleet, lambda node: (fleet[node].product, frozenset(gpu.name for gpu in fleet[node].gpus)))
    for nodes in kin.values():
        if len(nodes) == 1:
            continue
        memory = sorted(fleet[node].memory_bytes or 0 for node in nodes)[len(nodes) // 2]
        rows = {node: shared(fleet[node], memory) for node in nodes}
        if len(set(map(tuple, map(dict.items, rows.values())))) == 1:
            continue
        for name in dict.fromkeys(name for row in rows.values() for name in row):
            values: dict[str, list[str]] = {}
            for node, row in rows.items():
                if name in row or name.startswith(_PORT):
                    values.setdefault(row.get(name, "absent"), []).append(node)
            usual = max(values, key=lambda value: (len(values[value]), value in ("active", "up")))
            for value in values:
                if value != usual:
                    others = fold_hosts(values[usual])
                    text = f"{name} is {value or 'none'}, and {usual or 'none'} on {others}"
                    odd.setdefault(text, []).extend(values[value])
    return odd
