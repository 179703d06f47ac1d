"""How an image is run on a node: the runtime, its argument list and what is against it. Pure: facts in, words out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.target import ContainerSettings
from envbuild.node.variables import CHOOSING

# What is tried where the target names none, best first.
ORDER = ("podman", "docker", "apptainer", "enroot")
NEEDS = {
    "podman": "podman: 4.0 or newer, root or subordinate ids for the user",
    "docker": "docker: its daemon, and leave to use it",
    "apptainer": "apptainer: 1.0 or newer, setuid or user namespaces",
    "enroot": "enroot: user namespaces, squashfs-tools, squashfuse and fuse-overlayfs",
    "pyxis": "pyxis: 0.15 or newer in the Slurm of the nodes (an administrator adds spank_pyxis.so to plugstack.conf, "
    "and `srun --help` names --container-image), and enroot, which it runs",
}
# One process of a step beside the one that asks for it, on this node and with all that the job has there.
PYXIS_STEP = ("--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpu-bind=none")
CDI = "nvidia.com/gpu=all"
# The node program puts the name of its node in the place of this word, and who calls in that of the other.
NODE = "{node}"
CALLER = "{caller}"
# What says by itself what is below the image, or that nothing can be written.
_LAYERS = ("--overlay", "--underlay", "--writable", "-o", "-w")


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """What a node says of containers (verb `container`, action `look`).

    `runtimes`: name to `version`, `works` and `why` it does not. `cdi`: a specification of NVIDIA's devices is there.
    `memlock` in bytes, -1 without a limit; `raises_limits`: this user may raise it; `root`: it is root.
    """

    runtimes: Mapping[str, Mapping[str, Any]]
    cdi: bool = False
    infiniband: bool = False
    memlock: int = -1
    raises_limits: bool = False
    root: bool = False
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """A runtime and the options of its `run`; `warnings` say what is not as training usually wants it."""

    runtime: str
    program: str
    options: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def command(self, image: str) -> list[str]:
        """The argument list that a command is appended to; `image` is an id, or the path of a file."""
        if self.runtime == "apptainer":
            return [self.program, "exec", *self.options, image]
        if self.runtime == "enroot":
            return [self.program, "start", *self.options, image]
        if self.runtime == "pyxis":
            words = [*PYXIS_STEP, "--nodelist", NODE, *self.options, "--container-image", image]
            return [self.program, *words]
        return [self.program, "run", "--rm", "--interactive", "--pull=never", "--network=host", *self.options, image]


def runs_in_jobs_alone(settings: ContainerSettings | None) -> bool:
    """Whether no node, the login host among them, starts an image of this target outside of jobs."""
    return settings is not None and settings.runtime == "pyxis"


def choose(node: str, settings: ContainerSettings, facts: ContainerFacts) -> Chosen:
    """The runtime of a node and its options. Raises EnvbuildError `container-no-runtime`, `container-no-gpu-access`,
    `container-option` (exit 7).
    """  # fmt: skip
    runtime = _runtime(node, settings, facts)
    program = facts.runtimes[runtime]
    gpus = settings.gpus == "all" or (settings.gpus == "auto" and facts.gpus > 0)
    warnings: list[str] = []
    if runtime in ("podman", "docker"):
        options = _like_docker(node, runtime, settings, facts, gpus, warnings)
    else:
        _refuse_memory(node, runtime, settings)
        _note_memlock(facts, warnings, f"{runtime} keeps the limits of the shell it is started from")
        options = {"apptainer": _apptainer, "enroot": _enroot, "pyxis": _pyxis}[runtime](settings, gpus)
    return Chosen(runtime, str(program.get("path") or runtime), (*options, *settings.options), tuple(warnings))


def _runtime(node: str, settings: ContainerSettings, facts: ContainerFacts) -> str:
    wanted = ORDER if settings.runtime == "auto" else (settings.runtime,)
    against = []
    for name in wanted:
        program = facts.runtimes.get(name)
        if program is None:
            against.append(f"{name} is not there" + (": it is a part of srun" if name == "pyxis" else ""))
        elif not program.get("works"):
            against.append(f"{name} does not work: {program.get('why') or 'no reason given'}")
        elif name == "pyxis" and not (facts.runtimes.get("enroot") or {}).get("works"):
            against.append("pyxis runs enroot, which is not there or does not work")
        else:
            return name
    raise EnvbuildError(
        "container-no-runtime",
        f"{node}: no usable container runtime (engine container: no)",
        why="; ".join(against),
        hint="one of these has to work there: " + "; ".join(NEEDS[name] for name in wanted),
        details={"node": node},
    )


def _like_docker(
    node: str, runtime: str, settings: ContainerSettings, facts: ContainerFacts, gpus: bool, warnings: list[str]
) -> list[str]:
    """The options that docker and podman share, and how each is given GPUs."""
    options = [f"--shm-size={settings.shm_size}"] if settings.shm_size else []
    if settings.shm_size is None and settings.ipc != "private":
        options.append("--ipc=host")
    if runtime == "docker" or facts.raises_limits or facts.memlock == -1:
        options.append("--ulimit=memlock=-1:-1")
    else:
        _note_memlock(facts, warnings, "this user may not raise it")
    if gpus and runtime == "podman":
        if not facts.cdi:
            raise EnvbuildError(
                "container-no-gpu-access",
                f"{node}: podman cannot give GPUs to a container",
                why="there is no CDI specification of NVIDIA's devices in /etc/cdi or /var/run/cdi",
                hint="ask an administrator to run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`; "
                "or write `gpus: none` or another `runtime` in `container:`",
                details={"node": node},
            )
        options.append(f"--device={CDI}")
    elif gpus:
        options.append("--gpus=all")
    devices = [*(["/dev/infiniband"] if facts.infiniband else []), *settings.devices]
    options += [f"--device={device}" for device in dict.fromkeys(devices)]
    if settings.mounts:
        # Mounted folders are the caller's, whom podman knows as root inside unless it is told.
        options += [*(["--userns=keep-id"] if runtime == "podman" and not facts.root else []), f"--user={CALLER}"]
    return options + [f"--volume={mount if ':' in mount else f'{mount}:{mount}'}" for mount in settings.mounts]


def _note_memlock(facts: ContainerFacts, warnings: list[str], why: str) -> None:
    if facts.memlock != -1:
        text = f"locked memory stays limited to {facts.memlock >> 10} KiB in containers: {why}"
        warnings.append(text + ("; InfiniBand needs more" if facts.infiniband else ""))


def _refuse_memory(node: str, runtime: str, settings: ContainerSettings) -> None:
    asked = [f"shm_size: {settings.shm_size}"] if settings.shm_size else []
    asked += ["ipc: private"] if settings.ipc == "private" else []
    asked += [f"devices: {', '.join(settings.devices)}"] if settings.devices else []
    if asked:
        raise EnvbuildError(
            "container-option",
            f"{node}: {runtime} does not support what the target says: {'; '.join(asked)}",
            why=f"{runtime} shares /dev and /dev/shm with the node",
            hint="remove the option, or write `runtime: podman` or `runtime: docker`",
            details={"node": node},
        )


def _apptainer(settings: ContainerSettings, gpus: bool) -> list[str]:
    options = ["--cleanenv", "--no-home", *(["--nv"] if gpus else [])]
    # A SIF is mounted read-only, and programs write into their sources and caches when they start.
    options += [] if any(option.startswith(_LAYERS) for option in settings.options) else ["--writable-tmpfs"]
    return options + [word for mount in settings.mounts for word in ("--bind", mount)]


def _enroot(settings: ContainerSettings, gpus: bool) -> list[str]:
    options = ["--rw", *([] if gpus else ["--env", "NVIDIA_VISIBLE_DEVICES=void"])]
    return options + [word for mount in settings.mounts for word in ("--mount", _fstab(mount))]


# enroot's hook for GPUs reads the variable of the image; pyxis puts that of the step in its place where it is named.
_NO_GPUS = ("--export=ALL,NVIDIA_VISIBLE_DEVICES=void", "--container-env=NVIDIA_VISIBLE_DEVICES")


def _fstab(mount: str) -> str:
    """`/from:/to:ro` as enroot writes it: fields of fstab with colons."""
    parts = mount.split(":")
    to = parts[1] if len(parts) > 1 else parts[0]
    return ":".join([parts[0], to, "none", "x-create=auto,bind," + (parts[2] if len(parts) == 3 else "rw")])


def _pyxis(settings: ContainerSettings, gpus: bool) -> list[str]:
    """The options of srun beside `--container-image` (the path of a `.sqsh` file that all nodes of the job see).

    What the site has as default is said, so that an image runs alike everywhere.
    """
    mounts = ",".join(mount if ":" in mount else f"{mount}:{mount}" for mount in settings.mounts)
    options = ["--no-container-mount-home", "--no-container-entrypoint", "--no-container-remap-root",
               "--container-writable"]  # fmt: skip
    mounted = [f"--container-mounts={mounts}"] if mounts else []
    return [*([] if gpus else _NO_GPUS), *options, *mounted]


# Lines of sh that put the GPUs of the caller before the command that goes in.
SAME_GPUS = tuple(f'[ -z "${{{name}+x}}" ] || set -- env "{name}=${name}" "$@"' for name in CHOOSING)


def launcher(stack: str, command: list[str]) -> str:
    """The text of `<prefix>/bin/<stack>`: its arguments are the command that runs inside.

    A terminal is asked for where there is one; only podman and docker have to be told.
    """
    lines = [
        "#!/bin/sh",
        f"# Runs a command in the image of {stack}; written by envbuild, do not edit.",
        '[ "$#" -gt 0 ] || set -- python',
    ]
    if NODE in command:
        return _launcher_of_step(stack, lines, command)
    lines += ["# The GPUs that the caller was given: runtimes take no variable of the caller with them.", *SAME_GPUS]
    if "--interactive" in command:
        at = command.index("--interactive")
        terminal = [*command[: at + 1], "--tty", *command[at + 1 :]]
        lines.append(f'if [ -t 0 ] && [ -t 1 ]; then exec {_joined(terminal)} "$@"; fi')
    return "\n".join([*lines, f'exec {_joined(command)} "$@"', ""])


def _joined(command: list[str]) -> str:
    return shlex.join(command).replace(shlex.quote(f"--user={CALLER}"), '--user="$(id -u):$(id -g)"')


def _launcher_of_step(stack: str, lines: list[str], command: list[str]) -> str:
    """One process on the node where it is called, as with the other runtimes; it needs a job around it."""
    at = command.index(NODE)
    before, after = shlex.join(command[: at - 1]), shlex.join(command[at + 1 :])
    where = '${SLURMD_NODENAME:+"--nodelist=$SLURMD_NODENAME"}'
    message = shlex.quote(f"{stack}: pyxis runs in jobs of Slurm alone; call this inside of one (sbatch, salloc, srun)")
    return "\n".join(
        [
            *lines,
            f'[ -n "${{SLURM_JOB_ID:-}}" ] || {{ echo {message} >&2; exit {int(ExitCode.REFUSED)}; }}',
            "unset SLURM_LABELIO  # of the srun around it, which labels what this one prints",
            "pty=",
            "if [ -t 0 ] && [ -t 1 ]; then pty=--pty; fi",
            f'exec {before} $pty {where} {after} "$@"',
            "",
        ]
    )
