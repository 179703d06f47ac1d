"""A target: where an environment is built, as its YAML file says it; its `container:` section says it of images."""

import posixpath
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

from envbuild.model.common import (
    AbsPath,
    EnvName,
    HostName,
    Name,
    Port,
    RefusedError,
    StrictModel,
    Text,
    fits,
    not_none,
    settable,
    text_of,
)
from envbuild.model.stack import BaseKind, EnvironmentValue
from envbuild.text import as_times

RuntimeName = Literal["podman", "docker", "apptainer", "enroot", "pyxis"]
_PATH = re.compile(r"(?:/[A-Za-z0-9._+-]+)+")
_OF_PARTITION = "a job of Slurm runs on the nodes of a partition: write `hosts: {slurm: PARTITION}`"
NODE_FILE = "nodefile"  # `hosts: {pbs: nodefile}`: the nodes that the job gets
_UNFILLED = re.compile(r"\$\{?[A-Za-z_]|<[\w-]+>")  # what a shell or a reader would fill in
# What they would fill in -> our placeholder for it.
_MEANT = {r"^~(?=/|$)|\$(?:HOME\b|\{HOME\})": "{home}", r"\$(?:USER\b|\{USER\})|<(?:your-)?user(?:name)?>": "{user}"}
_LOADS = re.compile(r"^(?:module\s+(?:load|add)|ml)\s+")  # what a shell has before the names of modules
_PLACEHOLDERS = re.compile(r"\{[^{}]*\}")

_PROXY = re.compile(r"(https?|ftp|all|no)_proxy\Z", re.IGNORECASE)


def _pinned(value: str) -> str:
    if not re.fullmatch(r"[^@]+@sha256:[0-9a-f]{64}", value):
        raise ValueError("must end with the digest, as NAME@sha256:<64 hex>; a tag is what its registry gives today")
    name, _, digest = value.partition("@")
    return f"{without_tag(name)}@{digest}"


def without_tag(name: str) -> str:
    """The name of an image for a digest to follow: Apptainer and enroot refuse a tag and a digest at once."""
    above, slash, last = name.rpartition("/")
    return f"{above}{slash}{last.partition(':')[0]}"


def module_names(text: str) -> list[str]:
    """The modules that a text names, parted by blanks or commas, also behind `module load`."""
    return _LOADS.sub("", text.strip()).replace(",", " ").split()


def _module(value: str) -> str:
    words = module_names(not_option(value))
    if words != [value]:
        listed = ", ".join(words)
        raise RefusedError("a module has no blank in its name", instead=f"[{listed}]" if words[1:] else listed)
    if value.startswith(("/", "~", "{", "$")):
        raise ValueError(
            "must be a module's name, as cuda/11.6: `use` is for folders of modulefiles, and a CUDA toolkit in "
            "/usr/local/cuda* is found without a module"
        )
    return value


def _mount(value: str) -> str:
    parts = value.split(":")
    paths = parts[:-1] if len(parts) == 3 and parts[-1] in ("ro", "rw") else parts
    if len(paths) > 2 or not all(path.startswith("/") and ".." not in path.split("/") for path in paths):
        raise ValueError("must be /from, /from:/to or /from:/to:ro")
    if "," in value:
        raise ValueError("must not hold a comma")
    return value


def not_option(value: str) -> str:
    """A value that no program reads as an option."""
    if not value or value.startswith("-"):
        raise ValueError("must not be empty or start with '-'")
    return value


def scheduler_word(value: str) -> str:
    """A word of a directive line (`#SBATCH`, `#PBS`), where schedulers read quotes by rules of their own."""
    if not re.fullmatch(r"[A-Za-z0-9_.,:@+=/\[\]&|()*-]+", not_option(value)):
        raise ValueError("must have letters, digits and `_.,:@+=/[]&|()*-` alone")
    return value


def _requested(value: str) -> str:
    """The same, or what a template leaves open: `<your-partition>`."""
    if value.endswith("*"):
        raise ValueError(f"write {value.rstrip('*')}: with the * `sinfo` marks the default partition")
    return value if re.fullmatch(r"<[\w-]+>", value) else scheduler_word(not_none(value))


def program_path(value: str) -> str:
    """A path of a program without characters that a shell or a Dockerfile interprets."""
    if not _PATH.fullmatch(value) or ".." in value.split("/"):
        raise ValueError("must be an absolute path of letters, digits and ._+-")
    return value


def _path_problem(value: str) -> str:
    """Why it is no absolute path that may begin with, and hold, the placeholders of `Target`; empty if it is one."""
    unknown = set(_PLACEHOLDERS.findall(value)) - {"{user}", "{home}", "{data}"}
    if unknown or "{{" in value or "}}" in value or _UNFILLED.search(value):
        name = re.search(r"\$\{?(?!HOME\b|USER\b)([A-Za-z_]\w*)", value)
        filled = f"; write what `echo ${name[1]}` prints there" if name else ""
        return f"only the placeholders {{user}}, {{home}} and {{data}} can be used{filled}"
    if not value.startswith(("/", "{home}", "{data}")):
        return "must be absolute, or begin with {home} or {data}"
    if ".." in value.split("/"):
        return "must not hold '..'"
    if ":" in value:
        return "must not hold ':', which parts the folders in PATH"
    return "" if value.strip("/.") else "must be a folder below /"


def _prefix_problem(value: str) -> str:
    """Why it is no path of a folder for envbuild alone; empty if it is one."""
    alone = posixpath.normpath(value) not in ("{home}", "{data}")
    return _path_problem(value) or ("" if alone else "must be a folder for envbuild alone")


def with_placeholders(path: str) -> str:
    """A path with our placeholders for what a shell calls the home and the user: `~/x` is `{home}/x`."""
    for pattern, placeholder in _MEANT.items():
        path = re.sub(pattern, placeholder, path)
    return path


def _template(problem: Callable[[str], str]) -> AfterValidator:
    """Refuses a path that has a problem, with the path to write where one with our placeholders has none."""

    def check(value: str) -> str:
        if says := problem(value):
            filled = with_placeholders(value)
            meant = next((path for path in (filled, posixpath.normpath(f"{filled}/envbuild")) if not problem(path)), "")
            raise RefusedError(says, instead=f'"{meant}"' if meant else "")
        return value

    return AfterValidator(check)


def _host(value: str) -> str:
    not_none(not_option(value))
    if "{{" in value or any(c.isspace() for c in value):
        raise ValueError("a host holds no spaces and no '{{'")
    if not re.fullmatch(r"(?:[^\[\]]|\[[^\[\]]+\])+", value):
        raise ValueError("must have its brackets in pairs, as gpu[01-04]")
    if value.count(":") == 1:
        host, _, port = value.partition(":")
        own = f"for one host of several `connection: {{hosts: {{{host}: {{port: {port}}}}}}}`"
        raise ValueError(f"a host has no port; write {host} here, and `connection: {{port: {port}}}` ({own})")
    return value


_WORD = "must be a name of an image or a registry: letters, digits and ._/:@-"
Word = Annotated[Text, fits("[A-Za-z0-9][A-Za-z0-9._/:@-]*", _WORD)]
ProgramPath = Annotated[Text, AfterValidator(program_path)]
Here = Annotated[Text, Field(pattern=r"^(/|~/)")]
Mount = Annotated[Text, AfterValidator(_mount)]
Device = Annotated[Text, fits("/dev/[^:]*", "must be a path below /dev", "..")]
PathTemplate = Annotated[Text, _template(_path_problem)]
PrefixTemplate = Annotated[Text, _template(_prefix_problem)]
Requested = Annotated[Text, AfterValidator(_requested)]
Partition = Annotated[Requested, fits(r"[A-Za-z0-9_.,-]+|<[\w-]+>", _OF_PARTITION)]
ModuleName = Annotated[Text, AfterValidator(_module)]
FileText = Annotated[Text, AfterValidator(not_option)]
Host = Annotated[Text, AfterValidator(_host)]
_DURATION = r"^[1-9][0-9]{0,5}[smh]$"
Duration = Annotated[str, Field(pattern=_DURATION), text_of(_DURATION, "must be a time: 90s, 40m or 2h", as_times)]


class ContainerSettings(StrictModel):
    """How images reach the nodes of a target and run there.

    `runtime`: the program that runs images; `auto` takes one that the node has. `image`: nodes pull this image; nothing
    is built. `registry`: a built image is pushed to this repository, and nodes pull it by digest; without one, envbuild
    sends a file over SSH. `insecure`: the registry has no TLS. `base`, `runtime_image`, `fetch_image`, `python`,
    `glibc`, `wheelhouse`, `gitconfig` and `builder`: as the options of `image build`. `ipc`: `host` (default) shares
    the node's /dev/shm. `shm_size`: the size of an own /dev/shm (`16g`). `gpus`: `auto` gives GPUs to a container if
    the node has some. `devices`: besides those of InfiniBand. `mounts`: `/from:/to:ro`. `options`: passed to the
    runtime unchanged.
    """

    runtime: Literal["auto", RuntimeName] = "auto"
    image: Annotated[Word, AfterValidator(_pinned)] | None = None
    registry: Word | None = None
    insecure: bool = False
    builder: Literal["buildah", "podman", "docker"] | None = None
    base: Word | None = None
    runtime_image: Word | None = None
    fetch_image: Word | None = None
    python: ProgramPath | None = None
    glibc: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")] | None = None
    wheelhouse: tuple[Here, ...] = ()
    gitconfig: Here | None = None
    ipc: Literal["host", "private"] | None = None
    shm_size: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,5}[mg]$")] | None = None
    gpus: Literal["auto", "all", "none"] = "auto"
    devices: tuple[Device, ...] = ()
    mounts: tuple[Mount, ...] = ()
    options: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _one_kind_of_memory(self) -> Self:
        if self.shm_size is not None and self.ipc == "host":
            raise ValueError("`shm_size` and `ipc: host` exclude each other: the node's own /dev/shm has its own size")
        if self.image is not None and self.registry is not None:
            raise ValueError("`image` is pulled and `registry` is pushed to: say one of them")
        return self


class HostSource(StrictModel):
    """Where the host names come from if the target does not list them; exactly one of these.

    `slurm`: all nodes of a partition (`sinfo` lists the names). `pbs`: the node file of the job (`nodefile`), or the
    path of one. `inventory`: an Ansible inventory. `command`: an argument list of a program that prints host names.
    """

    slurm: Partition | None = None
    pbs: FileText | None = None
    inventory: FileText | None = None
    command: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _only_one(self) -> Self:
        if len(self.given) != 1:
            raise ValueError("exactly one of slurm, pbs, inventory and command names the hosts")
        return self

    @property
    def given(self) -> dict[str, str]:
        """The source as text: `{"slurm": "hpc"}`."""
        fields = {"slurm": self.slurm, "pbs": self.pbs, "inventory": self.inventory}
        if self.command is not None:
            fields["command"] = " ".join(self.command)
        return {key: value for key, value in fields.items() if value is not None}


# Told apart by their form, so that a mistake is reported for the one that was meant.
Hosts = Annotated[
    Annotated[tuple[Host, ...], Tag("list")] | Annotated[HostSource, Tag("source")],
    Discriminator(lambda value: "source" if isinstance(value, dict | HostSource) else "list"),
]


class Login(StrictModel):
    """The host from which jobs are submitted (default: the machine where envbuild runs).

    `host`: its name for ssh. `user`, `port`: as ssh says without them.
    """

    host: HostName
    user: Name | None = None
    port: Port | None = None


class HostAddress(StrictModel):
    """How to reach one host that differs from the connection of the target.

    `address`: its name or IP address for ssh. `user`, `port`: as in `connection` without them.
    """

    address: HostName | None = None
    user: Name | None = None
    port: Port | None = None


class Connection(StrictModel):
    """How nodes are reached.

    `kind`: `local` is this machine, `ssh` is as `ssh HOST` with the user's configuration, and `job` is a job of the
    scheduler. Such a job, submitted from `login`, runs the node program on every node. `login`: the host from which
    jobs are submitted, as `{host: login1, user: me}`, or `null` for the machine where envbuild runs. `user`, `port`,
    `identity`: who logs in, where, and with which key file; as ssh says without them. `known_hosts`: host keys are
    compared with this file instead of the user's and the system's. They are always compared. `config`: this ssh
    configuration only, instead of the user's and the system's. `connect_timeout`: seconds for one connection. `hosts`:
    exceptions by host name, as `{gpu07: {port: 2222}}`.
    """

    kind: Literal["local", "ssh", "job"] = "local"
    login: Login | None = None
    user: Name | None = None
    port: Port | None = None
    identity: FileText | None = None
    known_hosts: FileText | None = None
    config: FileText | None = None
    connect_timeout: Annotated[float, Field(gt=0, le=3600)] = 15.0
    hosts: dict[HostName, HostAddress] = {}

    def reaches(self, host: str) -> tuple[str, str | None, int | None]:
        """Address, user and port for one host."""
        own = self.hosts.get(host, HostAddress())
        return own.address or host, own.user or self.user, own.port or self.port


class QueueLimits(StrictModel):
    """One queue of a site, and the jobs that it takes.

    `name`: as `qstat -Q` prints it. `min_nodes`, `max_nodes`: how many nodes a job of this queue has. `time_limit`: how
    long a job of this queue may run.
    """

    name: Requested
    min_nodes: Annotated[int, Field(ge=1, le=20000)] = 1
    max_nodes: Annotated[int, Field(ge=1, le=20000)] | None = None
    time_limit: Duration | None = None


class Modules(StrictModel):
    """Environment modules that a job's script loads first.

    `use`: folders of modulefiles, for `module use`. `load`: names for `module load`, in order (`module avail` lists
    those of a site; a CUDA toolkit in /usr/local/cuda* needs none).
    """

    use: tuple[AbsPath, ...] = ()
    load: tuple[ModuleName, ...] = ()


class Scheduler(StrictModel):
    """The scheduler of the nodes, and what a job requests.

    `kind`: `slurm`, `pbs`, or `none` without a scheduler. `nodes`: how many (without it all that `hosts` names, so
    `init` writes 1). `exclusive`: a job gets whole nodes, which no other job uses. `account`: the account or project
    that jobs are charged to (`sacctmgr show assoc user=$USER` lists those of Slurm). `cpus_per_node`: processors on
    each node, unless Slurm gives whole nodes (default: the share of its GPUs; of whole nodes all). `start_deadline`:
    how long a job may wait (`30m`), in the queue and for nodes that start, before envbuild cancels it. `time_limit`:
    how long it may run (`40m`, `2h`). `constraints`: features of nodes (Slurm's `--constraint`), or resources that PBS
    selects by. `qos`: Slurm's, for sites that require one. `filesystems`: for PBS sites that require them. `resources`:
    further resources of a PBS job (`singularity_fakeroot=true`). `queue`: of PBS (`qstat -Q` lists the names); the
    partition of Slurm stands in `hosts`. `queues`: of a PBS site, if `queue` is not set: a job goes to the first that
    accepts it, as `[{name: debug, max_nodes: 2}, {name: prod}]`. `modules`: every job loads them, as `{load:
    [cuda/11.6]}`. `requeue`: Slurm runs a job again, from its start and at its cost, if a node failed or another job
    took its place (default: true; never a printed build script). PBS never runs a job of envbuild again.
    """

    kind: Literal["none", "slurm", "pbs"] = "none"
    nodes: Annotated[int, Field(ge=1, le=20000)] | None = None
    exclusive: bool = False
    cpus_per_node: Annotated[int, Field(ge=1, le=4096)] | None = None
    account: Requested | None = None
    queue: Requested | None = None
    queues: tuple[QueueLimits, ...] = ()
    qos: Requested | None = None
    constraints: Requested | None = None
    start_deadline: Duration | None = None
    time_limit: Duration | None = None
    filesystems: tuple[Name, ...] = ()
    resources: tuple[FileText, ...] = ()
    modules: Modules | None = None
    requeue: bool | None = None

    @property
    def limits(self) -> tuple[QueueLimits, ...]:
        """The queues of a PBS site that a job may go to: `queue` alone if it is set."""
        return (QueueLimits(name=self.queue),) if self.queue else self.queues

    @property
    def starts_tasks(self) -> bool:
        """Whether it starts a job's tasks on nodes given by name itself (srun); else the stack's own launcher does."""
        return self.kind == "slurm"


class Expectation(StrictModel):
    """The hardware that a target declares; plan and report warn about differences.

    `gpu`: the model of the nodes' GPUs, in full or in part (`A100-SXM4-80GB`, `H100`). `gpus_per_node`: how many GPUs a
    node has; jobs, `bench` and `launch` ask for so many. `driver`: versions of the GPU driver (`>=470`). `peer_access`:
    whether GPUs of one node reach each other's memory; false where its absence is not a fault.
    """

    gpu: Text | None = None
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] | None = None
    driver: Text | None = None
    peer_access: bool | None = None

    @model_validator(mode="after")
    def _a_model_has_gpus(self) -> Self:
        if self.gpu and self.gpus_per_node == 0:
            says = f"`gpus_per_node: 0` and `gpu: {self.gpu}` contradict each other"
            raise RefusedError(says, "gpus_per_node", "gpu")
        return self


_ONE_TASK = "nothing for it: a job has one task a node, and the stack's launcher starts a rank a GPU"
_CHOSEN = "nothing for it: Slurm chooses the nodes; `constraints: FEATURE` narrows them"
_GPUS = "`expects: {gpus_per_node: 8}`, also for jobs"
_TIME = "`scheduler: {time_limit: 2h}`"
_PARTITION = "`hosts: {slurm: NAME}`"
MODULE = "`scheduler: {modules: {load: [NAME]}}`"
_BY_JOB = "`connection: {kind: job}`"
JOB = "`connection: {kind: job, login: {host: …}}`"


def _kind(part: object) -> str:
    """The `kind:` of a part of a target file, before the part is validated; empty where it has none."""
    return str(part.get("kind", "")) if isinstance(part, dict) else ""


class Target(StrictModel):
    """One target file, with its `extends:` resolved.

    `name`: of this target; the only required key beside `extends`. `summary`: one line for `target list`. `extends`: a
    shipped target or a file; what this file does not say is as there. `stack`: what is built if the command names no
    stack. `profile`: which profile of the stack. `hosts`: a list of nodes, as `["gpu[01-04]", gpu07]`, or a source of
    names, as `{slurm: PARTITION}`. `connection`: how nodes are reached, as `{kind: ssh, user: me}`, or `{kind: job,
    login: {host: login1}}` for jobs. `scheduler`: what asks for jobs, and how, as `{kind: slurm, account: lab, nodes:
    1, time_limit: 2h}`. `engine`: what makes environments: uv (`venv`), conda, or a container image. `base`: build on
    such a base only, as `none` or `module`. `base_python`: the Python of that base. `interpreter`: the Python of
    environments without a base. `prefix`: the folder for environments, tools and wheels; it may contain `{user}`,
    `{home}` and `{data}` (XDG data directory), which the node fills in. `shared`: a folder that the login node and all
    nodes of a job see; jobs, tools and bundles are there if `placement: node-local` puts the prefix on each node's own
    disk. `container`: how an image reaches the nodes and runs there, as `{runtime: apptainer}`. `placement`: whether
    all nodes see one prefix (`shared`), each has its own (`node-local`), or an image holds the environment (`image`).
    `privilege`: `none`; envbuild never becomes root, and `sudo` is refused. `delivery`: who fetches packages and
    sources: the node, the controller, or (`auto`) the controller if only it can. `cache`: a folder where uv keeps
    unpacked packages for the next build (default: none). `tmp`: the folder for build files, best on each node's own
    disk (default: `<prefix>/tmp`). `store`: the wheel store (default `<prefix>/store/wheels`; nodes may share it).
    `build_jobs`: how many compile jobs run at once (default: from cores and memory). `environment`: variables for
    builds, tests and every use of the environment, as `{NCCL_SOCKET_IFNAME: eth0}`. `expects`: the hardware, as `{gpu:
    A100-SXM4-80GB, gpus_per_node: 8}`; what differs is a warning. `floors`: least values of figures that the smoke test
    measures, as `{all_reduce_8192_mib_busbw_gbps: 228}`. `smoke_nodes`: how many nodes take part in the joint smoke
    test, the first ones (default: all; 0: no such test). Images with pyxis without Slurm jobs, and a Slurm partition
    over SSH, can be planned but not provisioned.
    """

    hints: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("connection: slurm", "connection.kind: slurm"), f"{_BY_JOB}, and the partition as {_PARTITION}"
        ),
        **dict.fromkeys(("connection: pbs", "connection.kind: pbs"), f"{_BY_JOB} and `hosts: {{pbs: {NODE_FILE}}}`"),
        "engine: uv": "`engine: venv`",
        "connection.host": f"`hosts: [NAME]` for nodes that take SSH; jobs of Slurm or PBS need {JOB}",
        "scheduler": "`extends: slurm` or `extends: pbs`",
        "time": _TIME,
        "walltime": _TIME,
        "python": "`interpreter: PATH`, or `python:` in the profile of the stack",
        "module": MODULE,
        "partition": _PARTITION,
        "queue": f"{_PARTITION} for Slurm, `scheduler: {{queue: NAME}}` for PBS",
        "conda": "`engine: conda`",
        "key": "`connection: {identity: FILE}`",
        "gpus": _GPUS,
        "gres": _GPUS,
        "ngpus": _GPUS,
        "gpus_per_node": _GPUS,
        "ntasks": _ONE_TASK,
        "ntasks_per_node": _ONE_TASK,
        "mem": "nothing for it: of whole nodes (`exclusive: true`) a job has all memory",
        "exclude": _CHOSEN,
        "nodelist": _CHOSEN,
    }

    name: Name
    summary: Text = ""
    extends: Text | None = None
    stack: Text | None = None
    profile: Text | None = None  # as with `stack`, who looks it up names the nearest
    hosts: Hosts = ("localhost",)
    connection: Connection = Connection()
    scheduler: Scheduler = Scheduler()
    engine: Literal["venv", "conda", "container"] = "venv"
    base: BaseKind | None = None
    base_python: FileText | None = None
    interpreter: FileText | None = None
    prefix: PrefixTemplate
    shared: PrefixTemplate | None = None
    container: ContainerSettings | None = None
    placement: Literal["shared", "node-local", "image"] = "node-local"
    privilege: Literal["none", "sudo"] = "none"
    delivery: Literal["auto", "node", "controller"] = "auto"
    cache: PathTemplate | None = None
    tmp: PathTemplate | None = None
    store: PathTemplate | None = None
    build_jobs: Annotated[int, Field(ge=1, le=4096)] | None = None
    environment: dict[EnvName, EnvironmentValue] = {}
    expects: Expectation = Expectation()
    floors: dict[Name, float] = {}
    smoke_nodes: Annotated[int, Field(ge=0, le=20000)] | None = None

    @classmethod
    def meant(cls, key: str, value: str, data: Any) -> str:
        """One name as `hosts` is the partition of a job of Slurm; a prefix is what a shipped target has."""
        if key == "login" and "@" in value:
            user, _, host = value.rpartition(" ")[2].rpartition("@")
            return f"{{host: {host}, user: {user}}}"
        if key == "prefix" and "extends" not in data:
            named = data.get("hosts", "local")
            kind = next((kind for kind in ("slurm", "pbs") if kind in named), named if named == "local" else "ssh")
            return f"`extends: {kind}`, which has the other keys, or `prefix: FOLDER`"
        if key in ("load", "modules"):
            listed = f"[{', '.join(module_names(value))}]"
            return listed if key == "load" else f"{{load: {listed}}}"
        by = _kind(data.get("scheduler")) if key == "hosts" and _kind(data.get("connection")) == "job" else ""
        partition = "PARTITION" if re.search(r"[\[\]\s]", value) else value
        return {"slurm": f"{{slurm: {partition}}}", "pbs": f"{{pbs: {NODE_FILE}}}"}.get(by, "")

    @property
    def installer(self) -> Literal["venv", "conda"]:
        """The engine of the lock's variants that fit: what makes an environment, on a node or inside an image."""
        return "venv" if self.engine == "container" else self.engine

    @property
    def node_floors(self) -> dict[str, float]:
        """The floors that one node is measured against; `multi_node_...` takes several nodes at once."""
        return {name: least for name, least in self.floors.items() if not name.startswith("multi_node_")}

    @property
    def partition(self) -> str | None:
        """The partition of Slurm whose nodes are meant: that which gives the hosts, else the scheduler's queue."""
        named = self.hosts.slurm if isinstance(self.hosts, HostSource) else None
        return named or self.scheduler.queue

    @property
    def joint_floors(self) -> dict[str, float]:
        """The floors of the joint smoke test."""
        return {name: least for name, least in self.floors.items() if name.startswith("multi_node_")}

    @field_validator("environment")
    @classmethod
    def _sets_nothing_that_chooses_code(cls, value: dict[str, EnvironmentValue]) -> dict[str, EnvironmentValue]:
        for name in value:
            settable(name, site=True)
        folders = value.get("LD_LIBRARY_PATH", "/")
        if isinstance(folders, str) and not all(folder.startswith("/") for folder in folders.split(":")):
            raise ValueError("LD_LIBRARY_PATH must hold absolute folders alone")
        return value

    @field_validator("smoke_nodes")
    @classmethod
    def _one_node_meets_nobody(cls, value: int | None) -> int | None:
        if value == 1:
            raise ValueError("a joint smoke test needs two nodes at least; 0 leaves it out")
        return value

    @model_validator(mode="after")
    def _hosts_fit_the_connection(self) -> Self:
        if self.connection.kind == "local" and self.hosts != ("localhost",):
            named = self.hosts.given if isinstance(self.hosts, HostSource) else {}
            kind = next((kind for kind in ("slurm", "pbs") if kind in named), "ssh")
            says = f"a target with `connection: local` has one host, localhost; for these write `extends: {kind}`"
            raise RefusedError(says, "hosts", "connection")
        if self.connection.login and self.connection.kind != "job":
            says = f"`login` has no effect with `connection: {{kind: {self.connection.kind}}}`; jobs need {JOB}"
            raise RefusedError(says, "connection", "hosts")
        if not self.hosts:
            raise RefusedError("`hosts` is empty", "hosts")
        return self

    @model_validator(mode="after")
    def _the_scheduler_fits(self) -> Self:
        kind, hosts = self.scheduler.kind, self.hosts
        if self.connection.kind == "job" and kind == "none":
            says = "connection: job needs a scheduler: write `extends: slurm` or `extends: pbs`"
            raise RefusedError(says, "scheduler", "connection")
        if isinstance(hosts, HostSource) and (hosts.slurm or hosts.pbs) and kind not in hosts.given:
            named = next(iter(hosts.given))
            says = f"hosts from {named} need `scheduler: {{kind: {named}}}`; for jobs write `extends: {named}`"
            raise RefusedError(says, "hosts", "scheduler")
        asked = self.scheduler
        if kind == "slurm" and (asked.queue or asked.queues or asked.resources or asked.filesystems):
            says = "queue, queues, resources and filesystems are of PBS; Slurm has `hosts: {slurm: PARTITION}`"
            raise RefusedError(says, "scheduler", "hosts")
        if kind == "slurm" and asked.exclusive and asked.cpus_per_node:
            says = "cpus_per_node has no effect with `exclusive: true`: a job has all processors of its nodes"
            raise RefusedError(says, "scheduler")
        if kind == "pbs" and asked.qos:
            raise RefusedError("qos is of Slurm; PBS has `scheduler: {queue: NAME}`", "scheduler")
        if kind == "pbs" and asked.requeue:
            says = (
                "`requeue` is of Slurm. PBS does not tell a job that it runs again, and answers of two runs would mix. "
                "After a lost job type the same command again"
            )
            raise RefusedError(says, "scheduler")
        return self

    @model_validator(mode="after")
    def _a_job_says_where_it_runs(self) -> Self:
        if self.connection.kind != "job":
            return self
        kind, given = self.scheduler.kind, self.hosts.given if isinstance(self.hosts, HostSource) else {}
        about = ("hosts", "connection", "scheduler")
        if kind == "slurm" and not given.get("slurm"):
            raise RefusedError(_OF_PARTITION, *about)
        if kind == "pbs" and given.get("pbs") != NODE_FILE:
            raise RefusedError("a job of PBS runs on the nodes that it gets: write `hosts: {pbs: nodefile}`", *about)
        return self

    @model_validator(mode="after")
    def _placement_fits_the_engine(self) -> Self:
        if self.placement == "image" and self.engine != "container":
            raise RefusedError("placement: image needs engine: container", "placement", "engine")
        return self


def proxies(variables: Mapping[str, object]) -> dict[str, str]:
    """Those of the variables that programs need to get out of a compute node."""
    return {name: value for name, value in variables.items() if _PROXY.match(name) and isinstance(value, str)}


def login_connection(target: Target) -> Connection | None:
    """How to reach the login node of a target; None if jobs are submitted from this machine."""
    login = target.connection.login
    if login is None:
        return None
    named = {"user": login.user or target.connection.user, "port": login.port or target.connection.port}
    return target.connection.model_copy(update={"kind": "ssh", **named})


def as_login(target: Target) -> Target:
    """The login node of a job target whose nodes share a prefix, as a target; any other target unchanged.

    If each node has its own disk, the prefix of the login node is the shared folder.
    """
    if target.connection.kind != "job":
        return target
    login = target.connection.login
    connection = login_connection(target) or Connection(kind="local")
    seen = target.shared if target.placement == "node-local" and target.shared else target.prefix
    hosts = ("localhost" if login is None else login.host,)
    return target.model_copy(update={"connection": connection, "hosts": hosts, "prefix": seen})
