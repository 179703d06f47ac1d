"""GPUs, driver and CUDA toolkits. nvidia-smi is asked first; /proc, /dev and PCI are further witnesses.

What reads a text that a tool has printed is a pure function, `parse_...`, that never raises.
"""

import os
import re
from collections.abc import Callable
from functools import partial

from envbuild.node import proc
from envbuild.node.protocol import Json
from envbuild.node.read_text import first, integer, names, read, which

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SMI_DEADLINE = 10.0
SMI_LIMIT = 1 << 20  # bytes; a node of 16 GPUs prints some kilobytes
NVCC_DEADLINE = 10.0
_MOST_UNKNOWN = 5  # how often the driver may refuse a field; it names one a time
_FORMAT = "--format=csv,noheader,nounits"
# In the order asked; a driver older than a field answers for the whole query with an error that names it.
QUERY_FIELDS = tuple(
    "index name uuid memory.total pci.bus_id driver_version compute_cap mig.mode.current"
    " ecc.errors.uncorrected.volatile.total".split()
)
# Asked by themselves, as many drivers do not know all of them.
HEALTH_FIELDS = tuple(
    "pci.bus_id compute_mode persistence_mode ecc.mode.current power.limit clocks.max.sm pcie.link.width.current"
    " pcie.link.width.max retired_pages.pending clocks_throttle_reasons.hw_slowdown remapped_rows.pending"
    " remapped_rows.failure fabric.state".split()
)
REPAIR_FIELDS = tuple(
    "pci.bus_id ecc.mode.pending mig.mode.current mig.mode.pending gpu_recovery_action vbios_version"
    " pcie.link.gen.max clocks_throttle_reasons.sw_thermal_slowdown".split()
)

_VERSION = r"([0-9]+(?:\.[0-9]+)+)"
# The driver, and the newest CUDA that it supports, in plain or `-q` output; the loaded kernel module in
# /proc/driver/nvidia/version; the patch level of nvcc, which stands in its `V` part.
DRIVER = re.compile(r"(?:Driver|KMD) Version\s*:\s*" + _VERSION)
CEILING = re.compile(r"CUDA (?:UMD )?Version\s*:\s*" + _VERSION)
_LIST_GPU = re.compile(r"GPU ([0-9]{1,6}): (.*) \(UUID: ([^)]*)\)")
_LIST_MIG = re.compile(r"\s{1,40}MIG (.{1,80}?)\s{1,40}Device\s{1,40}([0-9]{1,6}): \(UUID: ([^)]*)\)")
_LINK = re.compile(r"\s{1,40}Link [0-9]{1,3}: (.{1,40})")
MODULE = re.compile(r"NVRM version:.*?\s" + _VERSION + r"(?=\s|\Z)")
NVCC = re.compile(r"release [0-9]+\.[0-9]+, V" + _VERSION)
# The field that a driver says it does not know.
_UNKNOWN_FIELD = re.compile(r'Field "([a-z_.]{1,80})" is not a valid field')
_NO_VALUE = ("[N/A", "N/A", "[Not Supported", "[Unknown", "[GPU ", "ERR", "[Insufficient")
# What stands in the cells of a GPU that does not answer.
_SICK = ("[Unknown Error]", "[GPU requires reset]", "[GPU is lost]", "ERR!")
_PROBLEMS = (
    "NVIDIA-SMI has failed",
    "Failed to initialize NVML",
    "No devices were found",
    "Unable to determine the device handle",
    "NVIDIA-SMI couldn't find libnvidia-ml",
    "Failed to properly shut down NVML",
)


def gpu_facts(folders: "list[str]", deadline: float = SMI_DEADLINE, root: str = "/") -> Json:
    """`driver`, `gpus`, `gpus_physical`, `visible_devices` as in `NodeFacts`; `deadline` seconds for nvidia-smi.

    `root` is where `proc`, `dev` and `sys` are.
    """
    module = first(MODULE, read(os.path.join(root, "proc/driver/nvidia/version")))
    physical = _physical(root)
    smi = which("nvidia-smi", folders)
    if smi is None:
        problem = "nvidia-smi is not there, but the kernel module or a GPU is" if module or physical else None
        driver = {"version": module, "cuda_ceiling": None, "problem": problem}
        gpus: list[Json] = []
    else:
        driver, gpus = _ask(smi, deadline)
        driver["version"] = driver["version"] or module
    return {
        "driver": driver,
        "gpus": gpus,
        "gpus_physical": max(physical, len(gpus)),
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def _ask(smi: str, deadline: float) -> "tuple[Json, list[Json]]":
    run = partial(proc.run, timeout=deadline, limit=SMI_LIMIT)
    asked: list[Callable[[], Any]] = [partial(run, [smi]), partial(run, [smi, "nvlink", "-s"])]
    asked += [partial(_query, smi, run, fields) for fields in (QUERY_FIELDS, HEALTH_FIELDS, REPAIR_FIELDS)]
    plain, linked, query, *health = proc.parallel(asked)
    plain, (answer, fields) = plain or proc.Finished(missing=True), query or (proc.Finished(missing=True), QUERY_FIELDS)
    driver: Json = {"version": first(DRIVER, plain.out), "cuda_ceiling": first(CEILING, plain.out)}
    gpus = parse_query(answer.out, fields)
    problem = _problem(plain, deadline) or _problem(answer, deadline) or _unread(answer, gpus)
    driver["problem"] = parse_sick(answer.out, fields) or problem
    nvlinks = parse_nvlinks(linked.out) if linked else {}
    # PCI bus id -> what the GPU says of modes, limits and repairs
    parts = [parse_health(part[0].out, part[1]) for part in health if part]
    for gpu in gpus:
        gpu["health"] = dict(nvlinks.get(gpu["index"], {}))
        for part in parts:
            gpu["health"].update(part.get(gpu["pci_bus_id"], {}))
        driver["version"] = driver["version"] or gpu["driver_version"]
        del gpu["driver_version"]
    if any(gpu["mig_enabled"] for gpu in gpus):
        listed = run([smi, "-L"])
        driver["problem"] = driver["problem"] or _problem(listed, deadline)
        instances = parse_list(listed.out)
        for gpu in gpus:
            gpu["mig"] = instances.get(gpu["index"], [])
    return driver, gpus


def _query(
    smi: str, run: "Callable[[list[str]], proc.Finished]", fields: "tuple[str, ...]"
) -> "tuple[proc.Finished, tuple[str, ...]]":
    """The answer of nvidia-smi, and those of the fields that its driver knows."""
    for _ in range(_MOST_UNKNOWN):
        answer = run([smi, "--query-gpu=" + ",".join(fields), _FORMAT])
        unknown = first(_UNKNOWN_FIELD, answer.out + answer.err)
        if unknown not in fields:
            break
        fields = tuple(field for field in fields if field != unknown)
    return answer, fields


def _problem(answer: "proc.Finished", deadline: float) -> "str | None":
    if answer.timed_out:
        return "nvidia-smi did not answer within %g s" % deadline
    if answer.missing:
        return "nvidia-smi could not be started: %s" % answer.err[:200]
    if answer.truncated:
        return "nvidia-smi printed more than %d MiB and was ended" % (SMI_LIMIT >> 20)
    words = parse_problem(answer.out + "\n" + answer.err)
    if words or answer.rc == 0:
        return words
    text = answer.out.rstrip() + "\n" + answer.err.rstrip()
    # Neither its table nor a row of an answer says why.
    lines = [line for line in text.splitlines() if line and not re.match(r"[|+]|[0-9]+, ", line)]
    return "nvidia-smi ended with %s: %s" % (answer.rc, lines[-1][:200] if lines else "no output")


def _unread(answer: "proc.Finished", gpus: "list[Json]") -> "str | None":
    """What is wrong with an answer that came in time and with 0, and that no GPU can be read from."""
    text = answer.out.strip()
    if gpus or not text:
        return None
    if "\ufffd" in text:  # what stands for bytes that are no UTF-8
        return "nvidia-smi printed bytes that are no text: %r" % text[:80]
    return "nvidia-smi named no GPU in its answer: %r" % text[:80]


def _physical(root: str) -> int:
    """GPUs in this machine, also those that a job or a container may not use: the most that any witness sees."""
    devices = [name for name in names(os.path.join(root, "dev")) if re.match(r"nvidia[0-9]+\Z", name)]
    pci = 0
    folder = os.path.join(root, "sys/bus/pci/devices")
    for name in names(folder):
        if read(os.path.join(folder, name, "vendor")).strip() == "0x10de":
            pci += read(os.path.join(folder, name, "class")).startswith(("0x0300", "0x0302"))
    return max(len(names(os.path.join(root, "proc/driver/nvidia/gpus"))), len(devices), pci)


def nvcc_facts(folders: "list[str]") -> "list[dict[str, str]]":
    """Every CUDA compiler of PATH, CUDA_HOME, CUDA_PATH and /usr/local/cuda*: real path and version."""
    from envbuild.node.probe.programs import versions  # a brief probe needs none of it

    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    local = "/usr/local"
    homes += [os.path.join(local, name) for name in names(local) if name.startswith("cuda")]
    places = folders + [os.path.join(home, "bin") for home in homes if home.startswith("/")]
    paths = []
    for place in places:
        path = os.path.realpath(os.path.join(place, "nvcc"))
        if path not in paths and os.path.isfile(path) and os.access(path, os.X_OK):
            paths.append(path)
    return versions(paths, partial(first, NVCC), NVCC_DEADLINE)


def _value(text: str) -> "str | None":
    """A field, None for what nvidia-smi prints when it has no value."""
    text = text.strip()
    return None if not text or text.startswith(_NO_VALUE) else text


def parse_query(text: str, fields: "tuple[str, ...]" = QUERY_FIELDS) -> "list[Json]":
    """`--query-gpu=FIELDS --format=csv,noheader,nounits` -> GPUs in the shape of `GpuFacts`, plus `driver_version`.

    A line that does not have every field is left out (nvidia-smi mixes messages about sick GPUs in).
    """
    gpus = []
    for cells in _rows(text, fields):
        row = {name: _value(cell) for name, cell in zip(fields, cells)}  # noqa: B905 - strict= is of Python 3.10
        index, mig = integer(row.get("index")), row.get("mig.mode.current")
        if index is None:
            continue
        gpu = {
            "index": index,
            "name": row.get("name") or "",
            "uuid": row.get("uuid") or "",
            "memory_mib": integer(row.get("memory.total")),
            "compute_capability": row.get("compute_cap"),
            "pci_bus_id": row.get("pci.bus_id"),
            "mig_enabled": None if mig is None else mig == "Enabled",
            "ecc_errors": integer(row.get("ecc.errors.uncorrected.volatile.total")),
            "driver_version": row.get("driver_version"),
        }
        gpus.append(gpu)
    return gpus


def _rows(text: str, fields: "tuple[str, ...]") -> "list[list[str]]":
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [cells for cells in rows if len(cells) == len(fields)]


def parse_health(text: str, fields: "tuple[str, ...]") -> "dict[str, dict[str, str]]":
    """The same query for fields of health, the bus id first -> PCI bus id -> field -> value, what has none left out."""
    by_gpu: dict[str, dict[str, str]] = {}
    for row in _rows(text, fields):
        cells = [_value(cell) for cell in row]
        if cells[0] is not None:
            by_gpu[cells[0]] = {name: cell[:80] for name, cell in zip(fields[1:], cells[1:]) if cell is not None}  # noqa: B905
    return by_gpu


def parse_nvlinks(text: str) -> "dict[int, dict[str, str]]":
    """`nvidia-smi nvlink -s` -> GPU index -> how many of its links there are, and how many of them are active."""
    by_gpu: dict[int, list[str]] = {}
    for line in text.splitlines():
        gpu, link = _LIST_GPU.match(line), _LINK.match(line)
        if gpu:
            links = by_gpu.setdefault(int(gpu[1]), [])
        elif link and by_gpu:
            links.append(link[1])
    return {
        index: {"nvlinks": str(len(links)), "nvlinks.active": str(sum("inactive" not in link for link in links))}
        for index, links in by_gpu.items()
        if links
    }


def parse_sick(text: str, fields: "tuple[str, ...]" = QUERY_FIELDS) -> "str | None":
    """The GPU whose row says that it does not answer, as nvidia-smi would say it in a line of its own."""
    place = fields.index("pci.bus_id")
    for cells in _rows(text, fields):
        sick = next((cell for cell in cells if cell in _SICK), None)
        if sick is not None:
            return "GPU %s: %s" % (cells[place][:40], sick.strip("[]"))
    return None


def parse_list(text: str) -> "dict[int, list[str]]":
    """`nvidia-smi -L` -> GPU index -> its MIG instances as `3g.40gb MIG-<uuid>`."""
    by_gpu: dict[int, list[str]] = {}
    index = None
    for line in text.splitlines():
        gpu = _LIST_GPU.match(line)
        if gpu:
            index = int(gpu.group(1))
            by_gpu[index] = []
            continue
        instance = _LIST_MIG.match(line)
        if instance and index is not None:
            by_gpu[index].append("%s %s" % (instance.group(1).strip(), instance.group(3)))
    return by_gpu


def parse_problem(text: str) -> "str | None":
    """The line of nvidia-smi that says why the driver cannot be asked, with the library version where it is named."""
    lines = [line.strip() for line in text.splitlines()]
    for number, line in enumerate(lines):
        if line.startswith(_PROBLEMS):
            extra = [other for other in lines[number + 1 :] if other.startswith("NVML library version")]
            return "; ".join([line] + extra[:1])[:400]
    return None
