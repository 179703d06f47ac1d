"""A real Slurm on this machine: munged, slurmctld and one slurmd a node, with files for GPUs.

Each node has its own host name, address (a network namespace on a bridge, without a route out) and disk; the rest of
the file system and the processes are this machine's. slurmctld runs here, and jobs are submitted here. Everything lies
below one temporary folder and ends with `Cluster.close`. Needs root and Debian's Slurm.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.fleet.nodes import connect, ip, new_bridge
from tests.support.debian import PATH, UnavailableError
from tests.support.need import why_no_namespaces
from tests.support.programs import completed, executable

__all__ = ["GPUS", "NODES", "Cluster", "UnavailableError", "why_not"]

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "srun", "ip", "unshare")
GPUS = 8
NODES = 4
# The plugin of pyxis (spank_pyxis.so), built for this machine's Slurm; else it is looked for beside Slurm's own.
PYXIS = "ENVBUILD_TEST_PYXIS"
_PORT = 6818

# `gpu`, `hpc` (without a limit of time) and `low` share nodes, and what runs in the first two preempts; `bare` has no
# GPUs that Slurm knows of; the nodes of `cloud` are powered up by a program that starts their slurmd.
_CONF = """\
ClusterName=probe
SlurmctldHost={host}({gateway})
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={top}/munge/sock
CryptoType=crypto/munge
StateSaveLocation={top}/state
SlurmdSpoolDir={top}/spool-%n
SlurmdPidFile={top}/slurmd-%n.pid
SlurmctldPidFile={top}/slurmctld.pid
SlurmdLogFile={top}/log/slurmd-%n.log
SlurmctldLogFile={top}/log/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
MpiDefault=none
ReturnToService=1
KillWait=2
MessageTimeout=5
InactiveLimit=0
SlurmdParameters=config_overrides
SwitchType=switch/none
GresTypes=gpu
Epilog={top}/epilog
SlurmctldParameters=cloud_dns,idle_on_node_suspend,power_save_interval=1,power_save_min_interval=0
ResumeProgram={top}/resume
SuspendProgram={top}/suspend
ResumeTimeout=60
SuspendTimeout=5
SuspendTime=3600
SuspendExcNodes=gpu[1-{nodes}],bare1
TreeWidth=65533
NodeName=DEFAULT CPUs=8 RealMemory=2000
{lines}
PartitionName=gpu Nodes=gpu[1-{nodes}] Default=YES MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=hpc Nodes=gpu[1-{nodes}] State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=gpu[1-{nodes}] MaxTime=60 State=UP PriorityTier=1 PreemptMode=CANCEL
PartitionName=bare Nodes=bare1 MaxTime=60 State=UP
PartitionName=cloud Nodes=cloud1 MaxTime=60 State=UP
"""
_RESUME = """\
#!/bin/sh
# slurmctld calls it with a list of hosts; {delay} s stand for a machine that boots (-b: so it says).
exec </dev/null >> {top}/log/cloud1.out 2>&1
(sleep {delay}; exec setsid {top}/boot cloud1 -b) &
"""
# Starts the slurmd of a node in namespaces of its own: boot NAME [OPTIONS OF SLURMD]
_BOOT = """\
#!/bin/sh
PATH={path} exec ip netns exec {space}-$1 unshare --mount --uts {top}/inside "$@"
"""
# A health check after every job, as sites have one.
_EPILOG = """\
#!/bin/sh
PATH={path} SLURM_CONF={conf}
export PATH SLURM_CONF
name=$(hostname)
[ ! -e {top}/unhealthy-$name ] || scontrol update nodename=$name state=drain reason="$(cat {top}/unhealthy-$name)"
"""
_INSIDE = """\
#!/bin/sh
set -e
name=$1
shift
mount --make-rprivate /
mount --bind {top}/disks/$name {top}/local
mount --bind {top}/hosts /etc/hosts
if [ -e {top}/hidden-$name ]; then
  while IFS= read -r path; do mount --bind /dev/null "$path"; done < {top}/hidden-$name
fi
hostname "$name"
exec slurmd -D -N "$name" -f {conf} "$@"
"""


def why_not() -> str | None:
    """Why a Slurm cannot be started on this machine, or None."""
    if os.geteuid() != 0:
        return "slurmctld and slurmd are started as root"
    return why_no_namespaces(PROGRAMS, PATH, "--mount", "--uts", "--net")


def pyxis_plugin() -> Path | None:
    """The plugin of pyxis for this machine's Slurm, None where there is none."""
    named = [Path(os.environ[PYXIS])] if os.environ.get(PYXIS) else []
    libraries = [Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib"), *Path("/usr/lib").glob("*-linux-gnu")]
    beside = [path for library in libraries for path in library.glob("slurm*/spank_pyxis.so")]
    return next((path for path in (*named, *beside) if path.exists()), None)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Cluster:
    """One running cluster. `env` is what its programs need; `shared` a folder that all of its nodes see.

    `local` is a folder that each node has on a disk of its own, and `gateway` this machine's address to the nodes.
    """

    def __init__(self) -> None:
        """Start it and wait until its nodes are idle. Raises UnavailableError with the logs' ends."""
        self.number, self.gateway = new_bridge()
        self.top = Path(tempfile.mkdtemp(prefix="envbuild-slurm-"))
        self.shared = self.top / "shared"
        self.conf = self.top / "slurm.conf"
        self.env = {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.conf)}
        # What lies below `local` on a node is on the node's own disk; this machine sees it below `disks/<node>`.
        self.local = self.top / "local"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._write()
            self._start("munged", self._munged())
            self._await((self.top / "munge" / "sock").exists, "munged made no socket")
            self.start_controller()
            for name in self.names:
                self.start_node(name)
            self._await(self.idle, "nodes did not become idle")
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> list[str]:
        """The nodes that are there from the beginning."""
        return [*(f"gpu{index}" for index in range(1, NODES + 1)), "bare1"]

    def disk(self, name: str) -> Path:
        """What a node has below `local`, seen from here."""
        return self.top / "disks" / name

    def address(self, name: str) -> str:
        """Where the node has its slurmd."""
        return f"10.77.{self.number}.{11 + [*self.names, 'cloud1'].index(name)}"

    def _write(self) -> None:
        for folder in ("munge", "state", "log", "dev", "shared", "local"):
            (self.top / folder).mkdir()
        everyone = [*self.names, "cloud1"]
        for name in everyone:
            (self.top / f"spool-{name}").mkdir()
            self.disk(name).mkdir(parents=True)
            connect(f"{self._space}-{name}", f"{self._space}{name}", self.number, self.address(name))
        key = self.top / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        host = socket.gethostname().partition(".")[0]
        lines = [f"NodeName={name} NodeAddr={self.address(name)} Port={_PORT} {self._kind(name)}" for name in everyone]
        values = {
            "host": host, "gateway": self.gateway, "top": self.top, "nodes": NODES, "port": _free_port(),
            "lines": "\n".join(lines),
        }  # fmt: skip
        self.conf.write_text(_CONF.format(**values))
        known = {host: self.gateway, **{name: self.address(name) for name in everyone}}
        (self.top / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in known.items())
        )
        for index in range(GPUS):
            # What a GPU file is: a character device. These are clones of /dev/null.
            os.mknod(self.top / "dev" / f"nvidia{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        devices = f"{self.top}/dev/nvidia[0-{GPUS - 1}]"
        (self.top / "gres.conf").write_text(
            f"NodeName=gpu[1-{NODES}] Name=gpu Type=a100 File={devices}\n"
            f"NodeName=cloud1 Name=gpu Type=a100 File={self.top}/dev/nvidia[0-1]\n"
        )
        (self.top / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        plugin = pyxis_plugin()
        if plugin is not None:
            line = f"required {plugin} runtime_path={self.top}/pyxis\n"
            (self.top / "plugstack.conf").write_text(line)
        executable(self.top / "boot", _BOOT.format(top=self.top, path=PATH, space=self._space))
        executable(self.top / "inside", _INSIDE.format(top=self.top, conf=self.conf))
        self.boot_takes(1.0)
        executable(self.top / "epilog", _EPILOG.format(top=self.top, path=PATH, conf=self.conf))
        executable(self.top / "suspend", f"#!/bin/sh\nkill $(cat {self.top}/slurmd-cloud1.pid)\n")

    def _kind(self, name: str) -> str:
        if name == "cloud1":
            return "State=CLOUD Gres=gpu:a100:2"
        return "State=UNKNOWN" if name == "bare1" else f"State=UNKNOWN Gres=gpu:a100:{GPUS}"

    @property
    def _space(self) -> str:
        return f"ebs{self.number}"

    def boot_takes(self, seconds: float) -> None:
        """How long the nodes of `cloud` take to come up."""
        executable(self.top / "resume", _RESUME.format(top=self.top, delay=seconds))

    def _munged(self) -> list[str]:
        folder = self.top / "munge"
        places = {"key-file": "key", "socket": "sock", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        return ["munged", "-F", "-f", *(f"--{option}={folder / name}" for option, name in places.items())]

    def start_controller(self) -> None:
        """Start slurmctld, with the state that it saved."""
        self._start("slurmctld", ["slurmctld", "-D", "-f", str(self.conf)])

    def stop(self, name: str) -> None:
        """End one daemon (`slurmctld`, or a node by its name) and wait for it."""
        process = self._processes.pop(name)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node."""
        self._start(name, [str(self.top / "boot"), name])

    def hide_python(self, *names: str) -> None:
        """These nodes have no Python, until `show_python`: each is covered in the node's own mounts."""
        home = Path.home()
        folders = [Path(text) for text in (*PATH.split(os.pathsep), "/usr/bin", "/usr/local/bin") if text]
        folders += [*home.glob(".pyenv/versions/*/bin"), *home.glob(".local/share/uv/python/*/bin")]
        folders += Path("/opt").glob("*/bin")
        found = {path.resolve() for folder in folders for path in folder.glob("python3*") if path.is_file()}
        found |= {path.resolve() for path in [Path("/usr/libexec/platform-python")] if path.exists()}
        self.hide(found, *names)

    def hide(self, files: Iterable[Path], *names: str) -> None:
        """These nodes do not have these files of the machine, until `show_python`."""
        for name in names:
            (self.top / f"hidden-{name}").write_text("".join(f"{path}\n" for path in sorted(files)))
            self._restart(name)

    def show_python(self) -> None:
        """All nodes have it again."""
        for path in self.top.glob("hidden-*"):
            path.unlink()
            self._restart(path.name.partition("-")[2])

    def _restart(self, name: str) -> None:
        self.stop(name)
        self.start_node(name)
        self.reset()

    def fails_its_health_check(self, name: str, reason: str) -> None:
        """The site's epilog drains this node after its next job."""
        (self.top / f"unhealthy-{name}").write_text(reason)

    def pull_the_plug(self, name: str) -> None:
        """End everything that runs on a node at once; slurmctld is told before, as a site's watchdog would.

        Nothing says goodbye: srun would tell the job's script of a closed connection before slurmctld knows.
        """
        process = self._processes.pop(name)
        pids = completed(["ip", "netns", "pids", f"{self._space}-{name}"], check=True, env=self.env)
        every = [int(pid) for pid in pids.stdout.split()]
        _signal(every, signal.SIGSTOP)
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=pulled the plug")
        _signal(every, signal.SIGKILL)
        process.wait(10)

    def _start(self, name: str, command: Sequence[str]) -> None:
        with (self.top / "log" / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def run(self, *argv: str, check: bool = True, timeout: float = 120) -> str:
        """What one of Slurm's programs prints."""
        done = completed(argv, env=self.env, timeout=timeout)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def states(self) -> dict[str, str]:
        """State by node."""
        lines = self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).splitlines()
        return dict(line.split(None, 1) for line in lines if " " in line)

    def idle(self) -> bool:
        """Whether all nodes but those of `cloud` wait for jobs."""
        states = self.states()
        return all(states.get(name) == "idle" for name in self.names)

    def power_down(self) -> None:
        """Make sure that the node of `cloud` has to be started for the next job."""
        if "cloud1" in self.states():
            self.run("scontrol", "update", "nodename=cloud1", "state=power_down_force", "reason=test")
            self._await(lambda: "cloud1" not in self.states(), "the cloud node did not go away")

    def reset(self) -> None:
        """End all jobs, bring drained nodes back."""
        self.run("scancel", "--user=root", check=False)
        for name in self.names:
            (self.top / f"unhealthy-{name}").unlink(missing_ok=True)
            if name not in self._processes:
                self.start_node(name)
            if self.states().get(name) not in ("idle", "allocated", "mixed", "completing"):
                self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        self._await(self.idle, "nodes did not become idle again")

    def _await(self, done: object, what: str, seconds: float = 120.0) -> None:
        assert callable(done)
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                ends = [path.read_text(errors="replace")[-600:] for path in sorted((self.top / "log").iterdir())]
                raise UnavailableError(f"{what}\n" + "\n".join(ends))
            time.sleep(0.2)

    def close(self) -> None:
        """End everything and remove it."""
        with contextlib.suppress(Exception):
            self.run("scancel", "--user=root", check=False)
        for process in reversed(list(self._processes.values())):
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        self._end_what_is_left()
        for name in (*self.names, "cloud1"):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", f"{self._space}-{name}")
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("link", "del", f"{self._space}{name}")
        ip("link", "del", f"ebr{self.number}")
        shutil.rmtree(self.top, ignore_errors=True)

    def _end_what_is_left(self) -> None:
        """slurmds that ResumeProgram started and slurmstepds: those whose command line names our folder."""
        needle = str(self.top).encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if needle in (entry / "cmdline").read_bytes() or needle in (entry / "environ").read_bytes():
                        os.kill(int(entry.name), signal.SIGKILL)


def _free_port() -> int:
    """A port that nobody uses here, below those of outgoing connections."""
    for port in range(21000 + os.getpid() % 500 * 10, 32000):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise UnavailableError("no free port")
