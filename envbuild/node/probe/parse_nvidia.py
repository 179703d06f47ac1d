"""What nvidia-smi, nvcc and the NVIDIA kernel module print, as data. Pure functions that never raise."""

import re

from envbuild.node.protocol import Json
from envbuild.node.read_text import integer

# In the order asked; a driver older than a field answers for the whole query with an error.
QUERY_FIELDS: "tuple[str, ...]" = (
    "index",
    "name",
    "uuid",
    "memory.total",
    "pci.bus_id",
    "driver_version",
    "compute_cap",
    "mig.mode.current",
    "ecc.errors.uncorrected.volatile.total",
)
OLD_QUERY_FIELDS = QUERY_FIELDS[:5]

_VERSION = r"([0-9]+(?:\.[0-9]+)+)"
_DRIVER = re.compile(r"(?:Driver|KMD) Version\s*:\s*" + _VERSION)
_CEILING = re.compile(r"CUDA (?:UMD )?Version\s*:\s*" + _VERSION)
_LIST_GPU = re.compile(r"GPU ([0-9]{1,6}): (.*) \(UUID: ([^)]*)\)")
_LIST_MIG = re.compile(r"\s{1,40}MIG (.{1,80}?)\s{1,40}Device\s{1,40}([0-9]{1,6}): \(UUID: ([^)]*)\)")
_PROC = re.compile(r"NVRM version:.*?\s" + _VERSION + r"\s")
_NVCC = re.compile(r"release ([0-9]+\.[0-9]+), V([0-9]+(?:\.[0-9]+)+)")
_PROBLEMS = (
    "NVIDIA-SMI has failed",
    "Failed to initialize NVML",
    "No devices were found",
    "Unable to determine the device handle",
    "NVIDIA-SMI couldn't find libnvidia-ml",
    "Failed to properly shut down NVML",
)


def _value(text: str) -> "str | None":
    """A field, None for what nvidia-smi prints when it has no value."""
    text = text.strip()
    missing = not text or text.startswith(
        ("[N/A", "N/A", "[Not Supported", "[Unknown", "[GPU ", "ERR", "[Insufficient")
    )
    return None if missing else text


def parse_query(text: str, fields: "tuple[str, ...]" = QUERY_FIELDS) -> "list[Json]":
    """`--query-gpu=FIELDS --format=csv,noheader,nounits` -> GPUs in the shape of `GpuFacts`, plus `driver_version`.

    A line that does not have every field is left out (nvidia-smi mixes messages about sick GPUs in).
    """
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(fields):
            continue
        row = {name: _value(cell) for name, cell in zip(fields, cells)}  # noqa: B905 - strict= is of Python 3.10
        index = integer(row.get("index"))
        if index is None:
            continue
        gpus.append(_gpu(index, row))
    return gpus


def _gpu(index: int, row: "dict[str, str | None]") -> Json:
    mig = row.get("mig.mode.current")
    return {
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


def parse_header(text: str) -> "dict[str, str | None]":
    """Plain or `-q` output -> `version` of the driver and `cuda_ceiling`, the newest CUDA that it supports."""
    driver = _DRIVER.search(text)
    ceiling = _CEILING.search(text)
    return {"version": driver.group(1) if driver else None, "cuda_ceiling": ceiling.group(1) if ceiling else None}


def parse_list(text: str) -> "dict[int, list[str]]":
    """`nvidia-smi -L` -> GPU index -> its MIG instances as `3g.40gb MIG-<uuid>`."""
    found: dict[int, list[str]] = {}
    index = None
    for line in text.splitlines():
        gpu = _LIST_GPU.match(line)
        if gpu:
            index = int(gpu.group(1))
            found[index] = []
            continue
        instance = _LIST_MIG.match(line)
        if instance and index is not None:
            found[index].append("%s %s" % (instance.group(1).strip(), instance.group(3)))
    return found


def parse_problem(text: str) -> "str | None":
    """The line of nvidia-smi that says why the driver cannot be asked, with the library version where it is named."""
    lines = [line.strip() for line in text.splitlines()]
    for number, line in enumerate(lines):
        if line.startswith(_PROBLEMS):
            extra = [other for other in lines[number + 1 :] if other.startswith("NVML library version")]
            return "; ".join([line] + extra[:1])[:400]
    return None


def query_is_too_new(text: str) -> bool:
    """The driver does not know one of the fields asked for."""
    return "is not a valid field to query" in text


def parse_proc_version(text: str) -> "str | None":
    """`/proc/driver/nvidia/version` -> version of the loaded kernel module."""
    found = _PROC.search(text.replace("\n", " \n"))
    return found.group(1) if found else None


def parse_nvcc(text: str) -> "str | None":
    """`nvcc --version` -> `11.4.48`; the patch level is in the `V` part."""
    found = _NVCC.search(text)
    return found.group(2) if found else None
