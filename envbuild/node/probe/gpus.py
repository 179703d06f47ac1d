"""GPUs, driver and CUDA toolkits. nvidia-smi is asked first; /proc, /dev and PCI are further witnesses."""

import os
import re
from functools import partial

from envbuild.node import proc
from envbuild.node.probe import parse_nvidia
from envbuild.node.probe.compilers import versions
from envbuild.node.protocol import Json
from envbuild.node.read_text import names, read, which

SMI_DEADLINE = 10.0
SMI_LIMIT = 1 << 20  # bytes; a node of 16 GPUs prints some kilobytes
NVCC_DEADLINE = 10.0
_FORMAT = "--format=csv,noheader,nounits"


def gpu_facts(folders: "list[str]", deadline: float = SMI_DEADLINE, root: str = "/") -> Json:
    """`driver`, `gpus`, `gpus_physical`, `visible_devices` as in `NodeFacts`; `deadline` seconds for nvidia-smi.

    `root` is where `proc`, `dev` and `sys` are.
    """
    module = parse_nvidia.parse_proc_version(read(os.path.join(root, "proc/driver/nvidia/version")))
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
    query = [smi, "--query-gpu=" + ",".join(parse_nvidia.QUERY_FIELDS), _FORMAT]
    run = partial(proc.run, timeout=deadline, limit=SMI_LIMIT)
    both = proc.parallel([partial(run, argv) for argv in ([smi], query)])
    plain, answer = both[0] or proc.Finished(missing=True), both[1] or proc.Finished(missing=True)
    header = parse_nvidia.parse_header(plain.out)
    driver: Json = {"version": header["version"], "cuda_ceiling": header["cuda_ceiling"], "problem": None}
    fields = parse_nvidia.QUERY_FIELDS
    if parse_nvidia.query_is_too_new(answer.out + answer.err):
        fields = parse_nvidia.OLD_QUERY_FIELDS
        answer = run([smi, "--query-gpu=" + ",".join(fields), _FORMAT])
    gpus = parse_nvidia.parse_query(answer.out, fields)
    driver["problem"] = _problem(plain, deadline) or _problem(answer, deadline) or _unread(answer, gpus)
    for gpu in gpus:
        driver["version"] = driver["version"] or gpu["driver_version"]
        del gpu["driver_version"]
    if any(gpu["mig_enabled"] for gpu in gpus):
        listed = run([smi, "-L"])
        driver["problem"] = driver["problem"] or _problem(listed, deadline)
        instances = parse_nvidia.parse_list(listed.out)
        for gpu in gpus:
            gpu["mig"] = instances.get(gpu["index"], [])
    return driver, gpus


def _problem(answer: "proc.Finished", deadline: float) -> "str | None":
    if answer.timed_out:
        return "nvidia-smi did not answer within %g s" % deadline
    if answer.missing:
        return "nvidia-smi could not be started: %s" % answer.err[:200]
    if answer.truncated:
        return "nvidia-smi printed more than %d MiB and was ended" % (SMI_LIMIT >> 20)
    said = parse_nvidia.parse_problem(answer.out + "\n" + answer.err)
    if said or answer.rc == 0 or parse_nvidia.query_is_too_new(answer.out + answer.err):
        return said
    lines = (answer.out.strip() or answer.err.strip()).splitlines()
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


def nvcc_facts(folders: "list[str]", root: str = "/") -> "list[dict[str, str]]":
    """Every CUDA compiler of PATH, CUDA_HOME, CUDA_PATH and /usr/local/cuda*: real path and version."""
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    local = os.path.join(root, "usr/local")
    homes += [os.path.join(local, name) for name in names(local) if name.startswith("cuda")]
    places = folders + [os.path.join(home, "bin") for home in homes if home.startswith("/")]
    paths = []
    for place in places:
        path = os.path.realpath(os.path.join(place, "nvcc"))
        if path not in paths and os.path.isfile(path) and os.access(path, os.X_OK):
            paths.append(path)
    return versions(paths, parse_nvidia.parse_nvcc, NVCC_DEADLINE)
