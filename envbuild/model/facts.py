"""Facts: what a probe read on one node. The node program produces this JSON (`envbuild/node/facts.py`).

A missing tool is a fact (`None` or an empty tuple), never an error.
"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import ConfigDict

from envbuild.model.common import NodeName, Public, StrictModel
from envbuild.model.lock import digest_here
from envbuild.node.probe.inventory import parse
from envbuild.node.variables import VISIBLE
from envbuild.text import visible_data


class _Fact(StrictModel):
    """Facts come from JSON, where there are no tuples; unknown keys of a newer node program are refused."""

    model_config = ConfigDict(extra="forbid", strict=False, frozen=True)


class OsFacts(_Fact):
    """Operating system: `id` and `version` from os-release, kernel release, machine architecture."""

    id: Public[str] = ""
    version: Public[str] = ""
    kernel: Public[str] = ""
    arch: Public[str] = ""


class LibcFacts(_Fact):
    """`kind` is glibc or musl; `version` as `2.36`."""

    kind: Public[str] = ""
    version: Public[str] = ""


class CpuFacts(_Fact):
    """The first processor: its vendor and the instruction sets it has, as the kernel names them in one line.

    `part` is Arm's number of the core. Empty where they were not read.
    """

    vendor: Public[str] = ""
    features: Public[str] = ""
    part: Public[str] = ""


class PythonFacts(_Fact):
    """One interpreter: real path, full version, whether it belongs to a virtual environment, its site packages.

    `openssl`: the version that its ssl module is linked with; None: another library or none. `libstdcxx`: whether the
    loader finds libstdc++.so.6; None: not asked. `also`: other paths by which the probe found it.
    """

    path: str
    version: Public[str]
    implementation: Public[str] = "cpython"
    virtual: bool = False
    packages: dict[str, str] | None = None
    openssl: str | None = None
    libstdcxx: bool | None = None
    also: tuple[str, ...] = ()


class GpuFacts(_Fact):
    """One GPU as nvidia-smi names it. Memory in MiB; `compute_capability` as `9.0`; `mig` is the instance list.

    `health`: modes, limits and repairs under nvidia-smi's names, without those that the driver does not know.
    """

    index: Public[int]
    name: Public[str]
    uuid: str = ""
    memory_mib: Public[int | None] = None
    compute_capability: Public[str | None] = None
    pci_bus_id: str | None = None
    mig_enabled: Public[bool | None] = None
    mig: tuple[str, ...] = ()
    ecc_errors: int | None = None
    health: dict[str, str] = {}

    @property
    def device_name(self) -> str:
        """The name, marked if MIG divides the GPU: a process then gets a part of it."""
        return f"{self.name} MIG" if self.mig_enabled else self.name


class DriverFacts(_Fact):
    """NVIDIA driver; `cuda_ceiling` is the newest CUDA that it supports. `problem` says why it cannot be read."""

    version: Public[str | None] = None
    cuda_ceiling: Public[str | None] = None
    problem: str | None = None


class NvccFacts(_Fact):
    """One CUDA toolkit compiler."""

    path: str
    version: Public[str]


class CompilerFacts(_Fact):
    """One host compiler."""

    path: str
    version: Public[str]


class NicFacts(_Fact):
    """One network interface; `kind` is ethernet or infiniband, `rate_gbps` where sysfs says it."""

    name: str
    kind: Public[str] = "ethernet"
    state: Public[str] = ""
    rate_gbps: Public[float | None] = None
    addresses: tuple[str, ...] = ()


class DiskFacts(_Fact):
    """Space on the file system of the prefix: free bytes and inodes for this user, with the quota if it can be read.

    `writable` is None where nobody asked the node about this folder.
    """

    path: str
    filesystem: Public[str] = ""
    free_bytes: Public[int | None] = None
    total_bytes: Public[int | None] = None
    free_inodes: Public[int | None] = None
    total_inodes: Public[int | None] = None
    quota_bytes: int | None = None
    quota_inodes: int | None = None
    writable: bool | None = False
    noexec: bool = False
    reason: str | None = None


class SchedulerFacts(_Fact):
    """`kind` is none, slurm or pbs; `job` is the job id when inside one."""

    kind: Public[str] = "none"
    version: Public[str | None] = None
    job: str | None = None


class TreeFacts(_Fact):
    """A working tree of the user on the node: `problem` says why it is unusable, `unknown` why git reports nothing.

    `changed`: files that differ from the commit; `untracked`: those that are not in git; `names`: up to three of both.
    """

    path: str
    commit: str | None = None
    branch: str | None = None
    changed: int | None = None
    untracked: int | None = None
    names: tuple[str, ...] = ()
    problem: str = ""
    unknown: str = ""


class StampFacts(_Fact):
    """One environment under the prefix; `stamp` is its stamp file, None if it is half built.

    `checks`: the fast checks of the environment in use, if the probe was asked to verify it.
    """

    path: str
    stack: str | None = None
    profile: str | None = None
    variant_digest: str | None = None
    root: str | None = None
    current: bool = False
    stamp: dict[str, Any] | None = None
    checks: tuple[dict[str, Any], ...] = ()

    @property
    def here(self) -> str:
        """The digest of its variant on this machine (`digest_here`)."""
        return digest_here(self.variant_digest or "", (self.stamp or {}).get("trees") or ())

    @property
    def generation(self) -> int:
        """How often it was built: 1 for the first; see `node/probe/inventory.py`."""
        return parse(self.path)[1]


# What nodes of one class may differ in.
_OF_ONE_NODE: dict[str, Any] = {
    **dict.fromkeys(("node", "hostname", "probed_at", "prefix", "shared", "tmp", "environments", "toolchain"), True),
    **dict.fromkeys(("busy", "files_found", "reachable", "trees", "warnings", "nics", "user", "home"), True),
    **dict.fromkeys(("scheduler", "cpu", "limits"), True),
    "gpus": {"__all__": {"uuid", "pci_bus_id", "ecc_errors", "mig", "health"}},
}


class NodeFacts(_Fact):
    """Everything that a probe read on one node, at one time (`probed_at`, UTC, RFC 3339).

    `files_found`: wanted file name -> path in a find-links folder of the node's pip configuration. `system_packages`:
    wanted package of Debian -> whether dpkg has it, empty without dpkg. `reachable`: name of an index, or address of a
    git source -> a TCP connection to its host (or to the proxy) succeeded. `trees`: the state of each source that is a
    working tree. `busy`: the lease of the process that changes the prefix. `product`: the machine's name from its
    firmware, if known. `brief`: the probe read a part only, so a missing value means nothing. `shared`: the folder that
    the node shares with the login node if the prefix is on the node's own disk; it comes from the target. `limits`:
    limits of a process of the session (`node/probe/system.py`), and `clock` if it is not this machine's.
    """

    @classmethod
    def from_plain(cls, data: Any) -> Self:
        """Facts from a node's answer, with invisible characters of its texts escaped."""
        return super().from_plain(visible_data(data))

    protocol: Public[int]
    node: NodeName
    brief: Public[bool] = False
    hostname: str
    user: str
    home: str = ""
    probed_at: Public[str]
    os: Public[OsFacts]
    libc: Public[LibcFacts]
    product: Public[str] = ""
    cpu: Public[CpuFacts] = CpuFacts()
    cpus: Public[int | None] = None
    memory_bytes: Public[int | None] = None
    pythons: Public[tuple[PythonFacts, ...]] = ()
    compilers: Public[tuple[CompilerFacts, ...]] = ()
    nvcc: Public[tuple[NvccFacts, ...]] = ()
    driver: Public[DriverFacts] = DriverFacts()
    gpus: Public[tuple[GpuFacts, ...]] = ()
    gpus_physical: Public[int | None] = None
    visible_devices: str | None = None
    nics: Public[tuple[NicFacts, ...]] = ()
    prefix: Public[DiskFacts]
    shared: str = ""
    tmp: DiskFacts | None = None
    scheduler: Public[SchedulerFacts] = SchedulerFacts()
    tools: dict[str, str | None] = {}
    modules: str | None = None
    containers: tuple[str, ...] = ()
    umask: str = ""
    limits: dict[str, str] = {}
    environments: tuple[StampFacts, ...] = ()
    toolchain: tuple[str, ...] = ()
    files_found: dict[str, str] = {}
    system_packages: dict[str, bool] = {}
    reachable: dict[str, bool] = {}
    trees: dict[str, TreeFacts] = {}
    busy: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def stage_prefix(self) -> str:
        """The folder for tools, deliveries and built wheels: the shared folder, else the prefix."""
        return self.shared or self.prefix.path

    def filled(self, template: str) -> str:
        """A path of a target with `{user}` and `{home}` filled in; only the node knows `{data}`."""
        return template.replace("{user}", self.user).replace("{home}", self.home)

    def shown(self, variables: Mapping[str, Any]) -> Self:
        """The node as a process with these variables sees it: the GPUs that one of them selects."""
        return self.model_copy(update={"visible_devices": variables.get(VISIBLE, self.visible_devices)})

    def hardware(self) -> dict[str, Any]:
        """Driver and GPU names: what an environment was chosen for, kept in its stamp."""
        return {"driver": self.driver.version, "gpus": [gpu.name for gpu in self.gpus]}

    def class_key(self) -> dict[str, Any]:
        """The facts that define a node class: all but names, times, free space and stamps."""
        return self.model_dump(mode="json", exclude=_OF_ONE_NODE)
