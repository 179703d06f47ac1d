"""Slurm: jobs through sbatch, scontrol, sacct and scancel, as of 20.11 and later."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from envbuild.errors import EnvbuildError
from envbuild.hostlist import expand_hosts
from envbuild.model.target import Target
from envbuild.node.read_text import integer
from envbuild.schedule import script
from envbuild.schedule.cluster import TIMEOUT, Scheduler
from envbuild.schedule.job import Failure, Gres, Job, JobState, Phase, Share

_PHASES = {
    word: phase
    for phase, words in {
        Phase.PENDING: "PENDING REQUEUED REQUEUE_HOLD REQUEUE_FED SPECIAL_EXIT RESV_DEL_HOLD",
        Phase.CONFIGURING: "CONFIGURING",
        Phase.RUNNING: "RUNNING SUSPENDED STOPPED RESIZING SIGNALING",
        Phase.COMPLETING: "COMPLETING STAGE_OUT",
        Phase.DONE: "COMPLETED FAILED",
    }.items()
    for word in words.split()
}
# The failures have the names of Slurm's states, except LAUNCH, which has its own message.
_FAILURES = {**Failure.__members__, "REVOKED": Failure.CANCELLED}
# slurmd's way to say that the batch script could not be started, usually for want of its output folder.
_LAUNCH_SIGNAL = 53
_GRES = re.compile(r"\A(?P<name>[^:()]+)(?::(?P<type>[^:()]+))?(?::no_consume)?:(?P<count>[0-9]{1,15})(?:\(.*\))?\Z")
# States of `sinfo` whose nodes get no job, so that nobody should wait for them.
_OUT = ("drain", "down", "fail", "maint", "inval", "error", "reserved")
_BAD_NODE = re.compile(r"drain|down|fail|error|no_respond|not_resp|inval|\*", re.IGNORECASE)


def parse_job(text: str) -> JobState | None:
    """`scontrol show job --oneliner ID`; None when there is no job in it."""
    # The first of each key: JobName is a plain word, and what users wrote freely comes later.
    fields: dict[str, str] = {}
    for key, value in re.findall(r"(?:\A|\s)([A-Za-z/:]+)=(\S*)", text):
        fields.setdefault(key, value)
    if not fields.get("JobState"):
        return None
    reason = fields.get("Reason", "")
    return _state(
        fields["JobState"],
        fields.get("ExitCode", ""),
        "" if reason in ("None", "(null)") else reason.replace("_", " "),
        fields.get("NodeList", ""),
        integer(fields.get("Restarts")) or 0,
    )


def parse_sacct(text: str) -> JobState | None:
    """`sacct -X -n -P -j ID -o State,ExitCode,NodeList,Reason`: the last line that says anything, None without one."""
    for line in reversed(text.splitlines()):
        cells = line.split("|")
        if len(cells) >= 3 and cells[0].strip():
            reason = cells[3].strip() if len(cells) > 3 else ""
            return _state(cells[0], cells[1], "" if reason == "None" else reason, cells[2], 0)
    return None


def _state(word: str, code: str, reason: str, nodes: str, restarts: int) -> JobState:
    # `CANCELLED by 1000` in sacct, `PENDING` and the like everywhere.
    name = word.split()[0].rstrip("+")
    number, _, signal = code.partition(":")
    status, by = (integer(part) or 0 for part in (number, signal))
    failure = _FAILURES.get(name)
    if name == "FAILED" and by == _LAUNCH_SIGNAL:
        failure = Failure.LAUNCH
    phase = Phase.FAILED if failure else _PHASES.get(name, Phase.RUNNING)
    ended = phase in (Phase.DONE, Phase.FAILED)
    return JobState(
        phase=phase,
        reason=reason,
        exit=(128 + by if by else status) if ended else None,
        failure=failure,
        nodes=node_names(nodes),
        restarts=restarts,
        word=word,
    )


def node_names(text: str) -> tuple[str, ...]:
    """`gpu[1-4]` as names; nothing for what stands for nothing."""
    if text in ("", "(null)", "None", "None assigned", "n/a"):
        return ()
    return tuple(expand_hosts([text]))


@dataclass(frozen=True)
class Partition:
    """What Slurm says of a partition: nodes in all, by state, and its GPUs (name and type, how many a node).

    Slurm hides nodes of a cloud that are powered down (unless the site says `PrivateData=cloud`): they count in
    `nodes`, and nothing is said of their GPUs. `knows_gpus`: the cluster has GPUs as GRES at all. `kinds`: processors
    and GPUs of nodes that have both, each kind once; none where the site itself says how many come with a GPU.
    `asked`: False for what is only printed, so that no scheduler was asked.
    """

    name: str | None
    nodes: int
    states: Mapping[str, int]
    gpus: Mapping[tuple[str, str | None], int]
    knows_gpus: bool = False
    kinds: frozenset[tuple[int, int]] = frozenset()
    asked: bool = True

    @property
    def label(self) -> str:
        """`the partition gpu`."""
        return f"the partition {self.name}" if self.name else "the default partition"

    def queue(self, nodes: int, seconds: int) -> str | None:
        """The partition itself, for any job."""
        return self.name

    def share(self, gpus: int, *, exclusive: bool) -> Share:
        """The processors that go with so many GPUs of a node, the least of the nodes that fit: else a job has one.

        Whole nodes come with all of theirs.
        """
        parts = [cpus * gpus // on_node for cpus, on_node in self.kinds if on_node >= gpus and not exclusive]
        return Share(min(parts, default=0) or None)

    def in_service(self) -> int:
        """Its nodes that take jobs. Raises EnvbuildError `partition-out-of-service` (exit 75)."""
        out = sum(n for state, n in self.states.items() if any(word in state.lower() for word in _OUT))
        if self.nodes <= out:
            raise EnvbuildError(
                "partition-out-of-service",
                f"no node of {self.label} takes jobs",
                why=", ".join(f"{count} {state}" for state, count in sorted(self.states.items())),
                hint="`sinfo -R` says why; name another partition, or wait",
            )
        return self.nodes - out

    def most(self) -> int | None:
        """The nodes in service: a job for more would wait for ever. None where nobody was asked of any."""
        return self.in_service() if self.asked else None

    @property
    def hidden(self) -> int:
        """Nodes that are powered down and not shown."""
        return max(0, self.nodes - sum(self.states.values()))

    def gres(self) -> Gres | None:
        """How a job requests GPUs; with a type only if all GPUs have one. None: it cannot."""
        if not self.gpus:
            return Gres(name="gpu") if self.hidden and self.knows_gpus else None
        types = {kind for _, kind in self.gpus}
        (only,) = types if len(types) == 1 and not self.hidden else (None,)
        return Gres(name="gpu", type=only)

    @property
    def gpus_per_node(self) -> int:
        """The most GPUs of a node; 0 if Slurm knows of none."""
        return max(self.gpus.values(), default=0)


PARTITION_FORMAT = "%R|%D|%T|%G|%c"


def parse_partition(name: str, partition: str, nodes: str, config: str) -> Partition | None:
    """The partition in `scontrol show partition --oneliner NAME`; None when it is not there.

    `nodes` is `sinfo -h -p NAME -o PARTITION_FORMAT` (without processors too), `config` is `scontrol show config`.
    """
    total = re.search(r"(?:\A|\s)TotalNodes=([0-9]{1,15})(?![0-9])", partition)
    if total is None:
        return None
    states: dict[str, int] = {}
    gpus: dict[tuple[str, str | None], int] = {}
    kinds: set[tuple[int, int]] = set()
    for line in nodes.splitlines():
        cells = line.split("|")
        if len(cells) < 4 or not integer(cells[1]):
            continue
        states[cells[2]] = states.get(cells[2], 0) + int(cells[1])
        of_node = [(key, count) for key, count in parse_gres(cells[3]) if key[0] == "gpu"]
        for key, count in of_node:
            gpus[key] = max(gpus.get(key, 0), count)
        if of_node and cells[4:] and integer(cells[4]) is not None:
            kinds.add((_for_jobs(int(cells[4]), partition), sum(count for _, count in of_node)))
    types = re.search(r"^GresTypes\s*=\s*(\S+)", config, re.MULTILINE)
    knows = types is not None and "gpu" in types[1].split(",")
    if "DefCpuPerGPU=" in partition + config:
        kinds.clear()
    return Partition(name, int(total[1]), states, gpus, knows, frozenset(kinds))


def _for_jobs(cpus: int, partition: str) -> int:
    """How many of a node's processors a job can ask for: a site keeps some for itself (CoreSpecCount, which the
    partition's TRES leaves out since 22.05) or for other partitions (MaxCPUsPerNode); a job for more is refused.
    """
    numbers = dict(
        re.findall(r"(?:\A|\s)(TotalCPUs|TRES|MaxCPUsPerNode)=(?:cpu=)?([1-9][0-9]{0,14})(?![0-9])", partition)
    )
    if "TRES" in numbers and "TotalCPUs" in numbers:
        cpus = cpus * int(numbers["TRES"]) // int(numbers["TotalCPUs"])
    return min(cpus, int(numbers.get("MaxCPUsPerNode", cpus)))


def parse_gres(text: str) -> Iterable[tuple[tuple[str, str | None], int]]:
    """`gpu:a100:8(S:0-1),nic:2` as ((name, type), count); sockets in parentheses hold commas of their own."""
    for part in re.split(r",(?![^()]*\))", text.strip()):
        match = _GRES.match(part.removeprefix("gres:").removeprefix("gres/"))
        if match:
            yield (match["name"], match["type"]), int(match["count"])


NODE_FORMAT = "%N|%T|%E"


def parse_bad_nodes(text: str) -> dict[str, str]:
    """`sinfo -h -N -n NODES -o NODE_FORMAT`: nodes that take no jobs, with state and reason."""
    reasons: dict[str, str] = {}
    for line in text.splitlines():
        name, _, rest = line.partition("|")
        state, _, reason = rest.partition("|")
        if name and _BAD_NODE.search(state):
            reasons[name] = f"{state}: {reason}" if reason not in ("", "none") else state
    return reasons


_EVERYWHERE = '--nodes="$NNODES" --ntasks="$NNODES" --ntasks-per-node=1'
_STEP = "--kill-on-bad-exit=0 --wait=0 --cpu-bind=none"


def time_text(seconds: int) -> str:
    """`D-HH:MM:SS`, or `HH:MM:SS` for less than a day."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def _plain(value: str) -> str:
    """sbatch reads `&`, `|`, parentheses and the like as they are inside quotes."""
    return f'"{value}"' if any(char in value for char in "&|()*[]") else value


def _path(path: str, folder: str) -> str:
    """A path in a directive: quoted where it has spaces; `%` is doubled in the folder, `%j` is the job id."""
    if any(char in path for char in '"\\#'):
        raise EnvbuildError(
            "job-path-unusable",
            f"a Slurm job cannot write its log to {path!r}",
            why="sbatch has no way to write a double quote, a backslash or # in a directive",
            hint="choose another `prefix`",
        )
    path = folder.replace("%", "%%") + path[len(folder) :]
    return f'"{path}"' if shlex.quote(path) != path else path


class Slurm(Scheduler):
    """The programs of one cluster of Slurm."""

    name, suffix, submits, cancels = "Slurm", "sbatch", ("sbatch", "--parsable"), "scancel"
    shows = ("scontrol", "show", "job", "--oneliner")
    away = re.compile(
        r"unable to contact slurm controller|socket timed out|connection refused|slurm backup controller"
        r"|zero bytes were|could not establish a configuration source",
        re.IGNORECASE,
    )
    unknown_job = re.compile(r"invalid job id", re.IGNORECASE)
    mine = "squeue --me"
    limits = "the partition's limits: `scontrol show partition`; account, time and nodes are in the target file"
    number, digits, rank = '"$SLURM_JOB_ID"', "SLURM_JOB_ID", '"$SLURM_PROCID"'
    again = "${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}"
    hosts, count = '< <(scontrol show hostnames "$SLURM_JOB_NODELIST")', '"$SLURM_JOB_NUM_NODES"'
    opening = (
        "# An srun of the run itself: tasks and their processors are as it says, not the job's one task a node.",
        "unset SLURM_NTASKS_PER_NODE SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK",
    )
    runs: ClassVar = {
        "node": ("# Once on every node; a node that fails does not stop the others.", f"srun {_EVERYWHERE} {_STEP}"),
        "once": ("# Once, on the first node.", f"srun --nodes=1 --ntasks=1 --relative=0 {_STEP}"),
        "text": (
            "# Once on every node; the first that fails ends all.",
            f"srun {_EVERYWHERE} --kill-on-bad-exit=1 --wait=0 --cpu-bind=none",
        ),
    }

    @staticmethod
    def directives(job: Job, *, here: bool) -> list[str]:
        """Its options for sbatch. Raises EnvbuildError `job-path-unusable` (exit 2)."""
        options = [f"--job-name={job.name}", f"--nodes={job.nodes}", "--ntasks-per-node=1"]
        if job.whole_nodes:
            # Exclusive nodes come with all processors, but with the default share of memory.
            options += ["--exclusive", "--mem=0"]
        elif job.cpus_per_node:
            options.append(f"--cpus-per-task={job.cpus_per_node}")
        if job.gpus_per_node and job.gres is not None:
            options.append(f"--gres={':'.join(filter(None, (job.gres.name, job.gres.type, str(job.gpus_per_node))))}")
        if job.time_limit:
            options.append(f"--time={time_text(job.time_limit)}")
        named = {"partition": job.queue, "account": job.account, "qos": job.qos, "constraint": job.constraints}
        options += [f"--{name}={_plain(value)}" for name, value in named.items() if value]
        if here:
            # Its script builds from the start only; what a first run left ends a second one.
            return [f"#SBATCH {option}" for option in (*options, "--no-requeue", "--output=%x-%j.log")]
        # The second run of a requeued job writes below the first.
        log = _path(f"{job.output}/{script.log_name(job, '%j')}", job.output)
        more = ["--open-mode=append", f"--output={log}", f"--chdir={_path(job.output, '')}"]
        again = (
            "# If a node fails, Slurm runs this job again, from its start; `scheduler: {requeue: false}` prevents it.",
            "#SBATCH --requeue",
        )
        requeue = again if job.requeue else ("#SBATCH --no-requeue",)
        return [*(f"#SBATCH {option}" for option in options), *requeue, *(f"#SBATCH {option}" for option in more)]

    def parse(self, shown: str, number: str) -> JobState | None:
        """What slurmctld says."""
        return parse_job(shown)

    def more_of(self, job: Job, number: str, state: JobState | None) -> JobState | None:
        """Of a job that failed, what accounting knows of its steps; of one that is forgotten, all that it knows."""
        asked = ("-n", "-P", "-j", number, "-o")
        if state is None:
            done = self.runner.run(["sacct", "-X", *asked, "State,ExitCode,NodeList,Reason"], timeout=TIMEOUT)
            state = parse_sacct(done.out) if done.ok else None
            # Accounting lags: it may still say that a job runs which slurmctld has forgotten already.
            return state if state is not None and state.ended else None
        if state.phase is not Phase.DONE or state.good:
            return state
        # One of its steps may have been killed for memory.
        killed = "OUT_OF_MEMORY" in self.runner.run(["sacct", *asked, "State"], timeout=TIMEOUT).out.split()
        return replace(state, phase=Phase.FAILED, failure=Failure.OUT_OF_MEMORY) if killed else state

    def pool(self, target: Target) -> Partition:
        """The partition that a target's hosts, or else its queue, name. Raises EnvbuildError as `partition` does."""
        assert target.partition is not None  # noqa: S101 - see provision/survey/hosts.py
        return self.partition(target.partition)

    def partition(self, name: str) -> Partition:
        """What a partition has. Raises EnvbuildError `partition-unknown` (exit 2), `scheduler-unreachable` (exit 3)."""
        shown = self.asked("scontrol", "show", "partition", "--oneliner", name)
        nodes = self.asked("sinfo", "-h", "-p", name, "-o", PARTITION_FORMAT)
        config = self.asked("scontrol", "show", "config")
        partition = parse_partition(name, shown, nodes, config)
        if partition is None or not partition.nodes:
            others = sorted(set(self.asked("sinfo", "-h", "-o", "%R").split()))
            raise EnvbuildError(
                "partition-unknown",
                f"there is no partition {name} on this cluster"
                if partition is None
                else f"partition {name} has no nodes",
                why=f"`sinfo` on {self.runner.host} lists: {', '.join(others) or 'nothing'}",
                hint="name one of them: `hosts: {slurm: NAME}`; FUTURE nodes appear only once autoscaling is on",
            )
        return partition

    def bad_nodes(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """Those of `nodes` that take no jobs now, with the reason: an epilog may have drained them after ours."""
        if not nodes:
            return {}
        command = ["sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", NODE_FORMAT]
        return parse_bad_nodes(self.runner.run(command, timeout=TIMEOUT).out)
