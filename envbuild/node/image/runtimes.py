"""What this node says of containers: runtimes and whether they work, CDI, InfiniBand, limits, the image in use."""

from __future__ import annotations

import os
import re
import resource
from functools import partial

from envbuild.node import hashing, paths, proc
from envbuild.node.protocol import Json, has_fields
from envbuild.node.read_text import names, read, search_path, which

DEADLINE = 60.0
RECORD_VERSION = 1
# Whether it answers tells more than whether it is there. Podman says before its version how many ids a user has.
_ASK = {
    "podman": ["info", "--format", "{{range .Host.IDMappings.UIDMap}}{{.Size}} {{end}}{{.Version.Version}}"],
    "docker": ["version", "--format", "{{.Server.Version}}"],
    "apptainer": ["--version"],
    "enroot": ["version"],
    "pyxis": ["--help"],
}
_CDI = ("/etc/cdi", "/var/run/cdi")
_SYS_RESOURCE = 24


def look(stack: str, prefix: str) -> Json:
    """`runtimes`, `cdi`, `infiniband`, `memlock`, `raises_limits`, `root`; `record` of the stack's image.

    `present`: the runtime still has the image of the record; `launcher`: that file is as it was written.
    """
    folders = search_path()
    paths_of = {name: which(name, folders) for name in _ASK}
    # Before its fork Apptainer was called Singularity; the words are the same.
    paths_of["apptainer"] = paths_of["apptainer"] or which("singularity", folders)
    # pyxis is options of srun, which a plugin of Slurm adds.
    paths_of["pyxis"] = which("srun", folders)
    present_ones = [(name, path) for name, path in paths_of.items() if path]
    record = read_record(prefix, stack)
    calls = [partial(_runtime, name, path) for name, path in present_ones] + [partial(present, record)]
    *answers, is_there = proc.parallel(calls, timeout=DEADLINE + 10)
    runtimes = {name: answer for (name, _), answer in zip(present_ones, answers) if answer}  # noqa: B905 - Python 3.10
    return {
        "runtimes": runtimes,
        "cdi": cdi(),
        "infiniband": os.path.isdir("/dev/infiniband"),
        "memlock": memlock(),
        "raises_limits": raises_limits(),
        "root": os.geteuid() == 0,
        "record": record,
        "present": bool(is_there),
        "launcher": record is not None
        and hashing.digest_if_readable(record["launcher"]["path"]) == record["launcher"]["sha256"],
    }


def _runtime(name: str, path: str) -> Json:
    done = proc.run([path] + _ASK[name], timeout=DEADLINE)
    if name == "pyxis":
        return _pyxis(path, done)
    lines = (done.out if done.ok else done.err or done.out).strip().splitlines()
    last = lines[-1].strip()[-300:] if lines else ""
    why = "" if done.ok else last or f"no answer within {DEADLINE:.0f} s"
    if name == "podman" and done.ok and last.split()[:-1] == ["1"]:
        why = "this user has no subordinate ids (/etc/subuid, /etc/subgid), and images have files of several users"
    return {
        "path": path,
        "version": last.split()[-1] if done.ok and last else None,
        "works": bool(last) and not why,
        "why": why,
    }


def _pyxis(path: str, done: proc.Finished) -> Json:
    works = done.ok and "--container-image" in done.out and "--container-env" in done.out
    why = "srun does not know --container-image: its plugin is not in the Slurm of this node"
    if "--container-image" in done.out:
        why = "srun does not know --container-env: pyxis is older than 0.15"
    if not done.ok:
        why = (done.err or done.out).strip()[-300:] or f"no answer within {DEADLINE:.0f} s"
    return {"path": path, "version": None, "works": works, "why": "" if works else why}


def cdi(folders: tuple[str, ...] = _CDI) -> bool:
    """Whether a CDI specification names NVIDIA's devices."""
    files = (os.path.join(folder, name) for folder in folders for name in names(folder))
    return any("nvidia.com/gpu" in read(path, 65536) for path in files if path.endswith((".yaml", ".yml", ".json")))


def memlock() -> int:
    """The hard limit of locked memory in bytes, -1 without one."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    return -1 if limit == resource.RLIM_INFINITY else int(limit)


def raises_limits() -> bool:
    """Whether this process may raise its own hard limits (CAP_SYS_RESOURCE)."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", read("/proc/self/status"), re.MULTILINE)
    return match is not None and bool(int(match.group(1), 16) >> _SYS_RESOURCE & 1)


def record_path(prefix: str, stack: str) -> str:
    """Where the record of a stack's image is."""
    return os.path.join(prefix, "images", paths.checked_name(stack, "stack") + ".json")


def read_record(prefix: str, stack: str) -> Json | None:
    """The record, None where there is none or it is no record."""
    record = paths.read_json(record_path(prefix, stack)) or {}
    whole = has_fields(record, id=str, runtime=str, program=str, command=list, launcher=dict, name=str)
    return record if record.get("version") == RECORD_VERSION and whole else None


def present(record: Json | None) -> bool:
    """Whether the runtime of a record has its image; of a file only its size is compared here."""
    if record is None:
        return False
    file = record.get("file")
    if file:
        try:
            return bool(os.stat(file["path"]).st_size == file["bytes"])
        except OSError:
            return False
    called = record.get("called") or record["id"]
    return bool(image_id(record["program"], called) == called)


def has_containerd_store(program: str) -> bool:
    """Whether docker keeps its images in containerd's store (as new ones of 29 do): there an id is of the manifest."""
    done = proc.run([program, "info", "--format", "{{json .DriverStatus}}"], timeout=DEADLINE)
    return done.ok and "io.containerd.snapshotter" in done.out


def image_id(program: str, image: str) -> str | None:
    """The id (hex) that docker or podman has under a name or an id."""
    done = proc.run([program, "image", "inspect", "--format", "{{.Id}}", image], timeout=DEADLINE)
    lines = done.out.strip().splitlines()
    return lines[-1].replace("sha256:", "") if done.ok and lines else None
