"""What all schedulers share: their programs, run where jobs are submitted, by argument lists only.

That is this machine, or the login node over SSH.
"""

from __future__ import annotations

import base64
import os
import posixpath
import re
import secrets
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from envbuild.errors import EnvbuildError
from envbuild.model.target import Connection, Target, login_connection
from envbuild.node import proc
from envbuild.node.proc import Finished
from envbuild.node.read_text import integer
from envbuild.schedule import script
from envbuild.schedule.job import Job, JobState, Phase, Pool, SchedulerUnavailableError
from envbuild.text import WITHOUT_CONTACT
from envbuild.transport import ssh

LIMIT = 16 * 1024 * 1024
# A busy server answers late; Slurm's own programs give up after MessageTimeout (10 s by default), and try again.
TIMEOUT = 60.0
# sbatch hands its own environment on to the job: of this shell, or of that of a login node, what a fresh login has is
# enough, and no token goes along. Slurm and PBS are configured by variables on some sites.
KEPT = (
    *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TZ", "KRB5CCNAME", "XDG_RUNTIME_DIR"),
    *("MODULEPATH", "MODULESHOME", "LMOD_CMD"),
    *("SLURM_CONF", "SLURM_CLUSTERS", "PBS_CONF_FILE", "PBS_SERVER", "PBS_DEFAULT"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
)


class Runner:
    """Runs programs where jobs are submitted: on this machine, or on a login node, by one SSH exchange for each."""

    def __init__(self, host: str = "localhost", connection: Connection | None = None) -> None:
        """`connection` says how a login node is reached (`kind: ssh`); None: it is this machine."""
        self.host, self.connection = host, connection

    def run(self, argv: Sequence[str], *, stdin: bytes | None = None, timeout: float = TIMEOUT) -> Finished:
        """Run one program with the environment of a fresh login, and return its result, whatever its exit code.

        `timeout` in seconds. Output of a login node's start-up files does no harm. Raises EnvbuildError with exit
        code 3 if the host cannot be reached.
        """
        if self.connection is None:
            env = {name: os.environ[name] for name in KEPT if name in os.environ}
            env["LC_ALL"] = "C.UTF-8"
            return proc.run(list(argv), timeout=timeout, env=env, stdin=stdin, limit=LIMIT)
        nonce = secrets.token_hex(16)
        sent = _script(argv, stdin, nonce).encode()
        return _finished(ssh.exchange(self.host, sent, self.connection, timeout, LIMIT), nonce)


_SCRIPT = """\
for name in {names}; do
  eval 'value=${{'$name'-}}'
  [ -z "$value" ] || set -- "$@" "$name=$value"
done
printf '\\nbegin %s\\n' {nonce}
{stdin} env -i "$@" LC_ALL=C.UTF-8 {command}
printf '\\nend %s %d\\n' {nonce} $?
"""


def _script(argv: Sequence[str], stdin: bytes | None, nonce: str) -> str:
    """The program for `/bin/sh -s` of a login node; stdin goes along as base64."""
    given = "</dev/null" if stdin is None else f"printf %s {base64.b64encode(stdin).decode()} | base64 -d |"
    return _SCRIPT.format(names=" ".join(KEPT), nonce=nonce, stdin=given, command=shlex.join(argv))


def _finished(done: Finished, nonce: str) -> Finished:
    """What the program of `_script` left, between the lines that the script printed around it."""
    _, mark, rest = done.out.partition(f"\nbegin {nonce}\n")
    body, ended, code = rest.rpartition(f"\nend {nonce} ")
    if not mark or not ended:
        output = done.out if not mark else rest
        return Finished(out=output, err=done.err, timed_out=done.timed_out, truncated=done.truncated)
    number = int(code.split()[0])
    return Finished(rc=number, out=body, err=done.err, missing=number == 127, truncated=done.truncated)


def submit_host(target: Target) -> Runner:
    """Where jobs of a target are submitted: its login node, or this machine."""
    login = target.connection.login
    return Runner() if login is None else Runner(login.host, login_connection(target))


class Scheduler(ABC):
    """The adapter of one cluster. `runner` runs its programs where jobs are submitted.

    `suffix`: ending of a script's file. `submits`, `shows` and `cancels`: the programs that begin, show and end a job.
    `carries`: the option that takes variables of the submitting shell along; empty where a job has all of them.
    `away`: their messages if no server answers, `unknown_job` what they say of a job that does not exist. `mine`:
    command that lists the user's jobs. `limits`: what a refused job may have exceeded.

    Of a script: `number` and `rank` are the shell's words for the job's id and a node's rank, `again` what a further
    run of one job adds to the id (empty where none is requeued, or its script cannot know how often), `digits` an
    arithmetic expression of the id, `hosts` a redirection that brings the names of the nodes, `count` how many they
    are, `opening` lines of its own with the name of the `{log}`. `runs`: a note and what starts a program on every
    `node`, `once` on the first, or the `text` of bash on every node.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]
    submits: ClassVar[tuple[str, ...]]
    carries: ClassVar[str] = ""
    shows: ClassVar[tuple[str, ...]]
    cancels: ClassVar[str]
    away: ClassVar[re.Pattern[str]]
    unknown_job: ClassVar[re.Pattern[str]]
    mine: ClassVar[str]
    limits: ClassVar[str]
    number: ClassVar[str]
    again: ClassVar[str] = ""
    digits: ClassVar[str]
    rank: ClassVar[str]
    hosts: ClassVar[str]
    count: ClassVar[str]
    opening: ClassVar[tuple[str, ...]]
    runs: ClassVar[Mapping[str, tuple[str, str]]]

    def __init__(self, runner: Runner) -> None:
        """Nothing is asked yet."""
        self.runner = runner

    @abstractmethod
    def pool(self, target: Target) -> Pool:
        """Where the jobs of a target get their nodes. Raises EnvbuildError if the scheduler does not know the place."""

    @abstractmethod
    def bad_nodes(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """Those of `nodes` that take no jobs now, with the reason: an epilog may drain a node after a job."""

    @staticmethod
    @abstractmethod
    def directives(job: Job, *, here: bool) -> list[str]:
        """What a job asks for; its log goes into its folder, or `here`, where it is submitted. Pure.

        Raises EnvbuildError `job-path-unusable` (exit 2).
        """

    @abstractmethod
    def parse(self, shown: str, number: str) -> JobState | None:
        """The state of a job in what `shows` printed; None when it is not there. Pure."""

    @abstractmethod
    def more_of(self, job: Job, number: str, state: JobState | None) -> JobState | None:
        """The state with what else is known of a job; None: what is known of one that nothing is shown of."""

    @classmethod
    def render(cls, job: Job, by_hand: str = "") -> str:
        """The file of a job; `by_hand`: a note to the person who submits it. Pure. Raises as `directives`."""
        log = script.log_name(job, "$JOB_ID")
        body = [
            *script.preamble(job, cls.number, cls.again, by_hand),
            *(line.format(log=log) for line in cls.opening),
            "",
        ]
        body += script.master(cls.hosts, cls.digits, cls.rank, cls.count.format(nodes=job.nodes))
        for step in job.steps:
            body += ["", *script.step_lines(step, cls.runs)]
        return "\n".join([*script.head(job, cls.directives(job, here=False), by_hand), *body, ""])

    @classmethod
    def submission(cls, secrets: Sequence[str], folder: str = "") -> str:
        """How a printed file is submitted: the job has the variables `secrets` from the shell that submits it.

        `folder`: made before.
        """
        carried = [cls.carries, ",".join(secrets)] if secrets and cls.carries else []
        command = " ".join((*(["mkdir -p", folder, "&&"] if folder else ()), cls.submits[0], *carried, "FILE"))
        everything = "The job then has all variables of your shell, tokens too; jobs that envbuild submits get few."
        return f"Submit it with `{command}`.{'' if cls.carries else f' {everything}'}"

    @classmethod
    def render_body(cls, job: Job, text: str, secrets: Sequence[str] = ()) -> str:
        """The file that runs the bash script `text` on the first node of a job; it prints where it was submitted.

        `secrets`: as of `submission`.
        """
        begins = script.head(job, cls.directives(job, here=True), f"\n{cls.submission(secrets)}")
        return "\n".join([*begins, *script.modules(job), text.removeprefix("#!/usr/bin/env bash\n")])

    def attempt(self, state: JobState) -> int:
        """Which run of its script a job is in, as the script counts it: a requeued one runs again."""
        return state.restarts if self.again else 0

    def poll(self, job: Job, number: str) -> JobState:
        """The state of a job; once it is forgotten, what is known otherwise, or its own status file says.

        Raises SchedulerUnavailableError if the scheduler does not answer now.
        """
        done = self.runner.run([*self.shows, number], timeout=TIMEOUT)
        # Where the connection broke or time was up, what came may be the beginning of an answer.
        state = self.parse(done.out, number) if done.ok else None
        if state is None and not self.unknown_job.search(done.err + done.out):
            raise SchedulerUnavailableError(failure_text(done))
        return self.more_of(job, number, state) or self.by_status_file(job, number)

    def submit(self, job: Job) -> str:
        """Submit it and return its number, without a server or cluster name.

        Raises EnvbuildError `job-refused`, `not-writable`, `scheduler-missing` (exit 7), `scheduler-unreachable` (3).
        """
        made = self.runner.run(["mkdir", "-p", "-m", "0700", "--", job.output])
        if not made.ok:
            raise not_writable(job.output, self.runner.host, made)
        done = self.runner.run(self.submits, stdin=self.render(job, "").encode(), timeout=TIMEOUT)
        # A site's plugin may print before it.
        match = re.search(r"^([0-9]+)(?:;\S*|\.\S+)?\s*\Z", done.out.strip(), re.MULTILINE)
        if done.ok and match:
            return match[1]
        raise self._refused(self.submits[0], done)

    def cancel(self, number: str) -> None:
        """End a job; a job that has ended is no error. Raises EnvbuildError `job-not-cancelled` (exit 9)."""
        done = self.runner.run([self.cancels, number], timeout=TIMEOUT)
        if not done.ok and not self.unknown_job.search(done.err):
            raise EnvbuildError(
                "job-not-cancelled",
                f"job {number} could not be cancelled",
                why=failure_text(done),
                hint=f"`{self.cancels} {number}` on {self.runner.host}",
            )

    def logs(self, job: Job, number: str, limit: int = 65536) -> str:
        """The end of the job's log, at most `limit` bytes; empty without a log."""
        path = posixpath.join(job.output, script.log_name(job, number))
        done = self.runner.run(["tail", "-c", str(limit), "--", path])
        return done.out if done.ok else ""

    def left(self, job: Job, number: str) -> int | None:
        """The exit code that its script wrote; None if it wrote none. Raises SchedulerUnavailableError if unknown."""
        done = self.runner.run(["cat", "--", posixpath.join(job.output, script.status_name(number))])
        if done.rc is None:
            raise SchedulerUnavailableError(f"{self.runner.host} does not answer")
        return integer(done.out.strip()) if done.ok else None

    def by_status_file(self, job: Job, number: str) -> JobState:
        """The state of a job that the scheduler has forgotten, from the status file of its script."""
        code = self.left(job, number)
        if code is not None:
            return JobState(Phase.DONE, exit=code, word=f"forgotten by {self.name}")
        return JobState(Phase.LOST, reason=f"{self.name} has forgotten it, and it left no status file", word="unknown")

    def asked(self, *command: str) -> str:
        """The output of a program. Raises EnvbuildError `scheduler-missing` (exit 7), `scheduler-unreachable` (3)."""
        done = self.runner.run(command, timeout=TIMEOUT)
        if done.missing or self._is_away(done):
            raise self._refused(command[0], done)
        return done.out

    def _is_away(self, done: Finished) -> bool:
        return done.timed_out or done.rc is None or self.away.search(done.err) is not None

    def _refused(self, program: str, done: Finished) -> EnvbuildError:
        host = self.runner.host
        if done.missing:
            return EnvbuildError(
                "scheduler-missing",
                f"there is no `{program}` on {host}",
                hint="run envbuild on a login node, or name one: `connection: {login: {host: ...}}`; "
                + WITHOUT_CONTACT,
            )
        if self._is_away(done):
            return EnvbuildError(
                "scheduler-unreachable",
                f"{self.name} does not answer on {host}",
                why=failure_text(done),
                hint=f"try `{program}` on that host; a login node elsewhere is `connection: {{login: {{host: ...}}}}`; "
                f"if a job was submitted, `{self.mine}` shows it; " + WITHOUT_CONTACT,
            )
        return EnvbuildError(
            "job-refused",
            f"{self.name} refused the job ({program} on {host})",
            why=failure_text(done),
            hint=self.limits,
        )


def not_writable(folder: str, host: str, done: Finished) -> EnvbuildError:
    """The error (exit 7) where a folder of jobs cannot be made or filled."""
    return EnvbuildError(
        "not-writable",
        f"{folder} cannot be written on {host}",
        why=failure_text(done),
        hint="the prefix must be writable where jobs are submitted, and the same folder on the nodes",
    )


def failure_text(done: Finished) -> str:
    """The end of a program's output, for people."""
    if done.timed_out:
        return "no answer in time"
    lines = [line.strip() for line in (done.err or done.out).splitlines() if line.strip()]
    return "; ".join(lines[-4:])[-500:] or f"exit {done.rc}"
