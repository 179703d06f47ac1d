"""One run of a stack's own command, here or on nodes over SSH: its environment, its log, and why it failed."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from envbuild.errors import EnvbuildError, writing
from envbuild.hostlist import expand_hosts
from envbuild.launch.recipes import launch_data
from envbuild.launch.request import Place
from envbuild.launch.shell import steps_of
from envbuild.model.evidence import NodeEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.launch import Bench, Launch, Reference
from envbuild.model.stack import Stack
from envbuild.model.target import as_login
from envbuild.node import proc
from envbuild.node.paths import read_json
from envbuild.node.redact import redactor
from envbuild.node.smoke import gpu_state
from envbuild.node.smoke.training_log import read_line
from envbuild.node.variables import VISIBLE, visible_devices
from envbuild.provision import gpu_use
from envbuild.provision.contact.first_contact import DEADLINE
from envbuild.provision.environments import ask_in_use
from envbuild.provision.gpu_use import Taken, probed, used, watched
from envbuild.provision.run.context import Question, Work
from envbuild.provision.survey.ask import ask
from envbuild.resolve import health
from envbuild.resolve.request import physical_gpus, visible_gpus
from envbuild.text import few, last_lines, number, plural
from envbuild.transport import ssh
from envbuild.transport.processes import end_marked, end_orphans, find_marked, marker_value

# Below the cache newer ones have a folder for each Python and CUDA (torch/utils/cpp_extension.py).
LOCKS = """top=${TORCH_EXTENSIONS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/torch_extensions}
for lock in "$top"/*/lock "$top"/*/*/lock; do [ ! -e "$lock" ] || printf '%s\\n' "$lock"; done
"""


def locks_in_words(answer: str) -> list[str]:
    """A sentence about the locks that `/bin/sh` printed for `LOCKS`; none where it printed none."""
    locks = [line for line in answer.splitlines() if line.endswith("/lock")]
    if not locks:
        return []
    return [
        f"{plural(len(locks), 'lock')} of what torch compiles when it is first used: {few(locks)}; where nothing"
        " compiles it now, a run that was ended left it, and a run that needs it waits until it is removed"
    ]


# Every process of a run, and what watches it, has this variable.
MARKER = "ENVBUILD_BENCH_RUN"
_GRACE = 10.0
_POLL = 0.1
_LINE = 1 << 20  # bytes of a line that are read at once
_HERE = ["/bin/sh", "-s"]  # what takes the place of a session
# Where this machine cannot end it any more, a node does.
_SLACK = 60.0
_SCRIPT = """exec 2>&1
export {marker}
{watch}
timeout -k 10 {seconds:.0f} bash -c {text} </dev/null
"""
# SIGTERM, and SIGKILL after ten more looks, for all that has the marker. A program that is being started has no
# environment for a moment, nor an end of one (env_end, behind the name the 49th word of proc(5)'s stat): it is waited
# for, a second at most, and looked at again.
_END = """marked() {{ grep -lsz '^{marker}$' /proc/[0-9]*/environ | cut -d/ -f3; }}
starting() {{
  for process in $(grep -Lsz '' /proc/[0-9]*/environ); do
    process=${{process%/environ}}
    [ -e "$process/exe" ] || continue
    [ "$(sed 's/.*) //' "$process/stat" | cut -d' ' -f49)" != 0 ] || return 0
  done
  return 1
}}
left() {{
  marked
  looks=0
  while [ "$looks" -lt 20 ] && starting; do looks=$((looks + 1)); sleep 0.05; done
  # What starts itself again and again may have no variables at the moment of a look.
  for look in 1 2 3 4; do marked; done
}}
n=0
while ids=$(left | sort -u) && [ "$ids" ]; do
  n=$((n + 1)); [ "$n" -le 10 ] || {{ kill -KILL $ids; break; }}
  kill -TERM $ids; sleep 1
done 2>/dev/null
"""


@dataclass(slots=True)
class Log:
    """What a run printed, and why it failed (empty: it ended well).

    `facts`: of a node that a job ran it on; `gpus`: the names of those that the job had, where it says them.
    """

    path: Path
    failure: str = ""
    late: bool = False
    facts: NodeFacts | None = None
    gpus: tuple[str, ...] = ()
    taken: Taken = field(default_factory=Taken)


@dataclass(frozen=True, slots=True)
class OwnRun:
    """What to run: the launch, the file that activates its environment, its output folder, and the seconds it has.

    `hosts`: over SSH on these, in the order of their ranks; none: on this machine.
    """

    launch: Launch
    activate: str | None
    output: str
    deadline: float
    hosts: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """The hosts; the empty name is this machine."""
        return self.hosts or ("",)

    @property
    def gpus(self) -> str:
        """A folder for what the run takes of the GPUs."""
        return gpu_use.below(self.output)


def measured_by(stack: Stack) -> tuple[Reference, Bench]:
    """How the stack's own run is measured. Raises EnvbuildError `no-recipe` (exit 2) where it does not say."""
    reference, _ = launch_data(stack)
    if reference.bench is None:
        raise EnvbuildError(
            "no-recipe",
            f"the stack {stack.name} has no recipe for a measured run",
            why="its file has no `reference: bench:`",
            hint='add `bench: {log: "step {step} ... {tokens} tokens/s", metric: tokens, unit: tokens/s}` to its '
            "`reference:`, with a line as its run prints it",
        )
    return reference, reference.bench


def of_trial(work: Work, place: Place, number: int) -> Place:
    """Where a trial runs: in a folder of its own, as programs skip or go on with what an earlier run has left."""
    return place.below(f"{work.prepared.stack.name}-{work.run.id}-{number}")


def environments_in_use(work: Work) -> list[NodeEvidence]:
    """The environment that the run stands on, by its stamp, on every node; behind a scheduler, on the login host.

    It may be the evidence of a failure.
    """
    prepared = work.prepared._replace(target=as_login(work.prepared.target))
    quick = Question("verify", lambda variant, _: {"variant": variant.to_json_dict(), "deep": False}, DEADLINE)
    return ask_in_use(replace(work, prepared=prepared), quick)


def facts_of(work: Work, node: str = "localhost") -> NodeFacts | None:
    """Those of a node that is asked without a job, for the name of its GPUs."""
    if node not in work.survey.facts:
        ask([node], work.prepared, work.run, {"stack": work.prepared.stack.name}, work.survey)
    return work.survey.facts.get(node)


def refuse_without_gpus(work: Work, count: int) -> None:
    """Raise EnvbuildError `launch-does-not-fit` (exit 7) where a node shows fewer GPUs than the `count` of a CUDA run.

    A node that does not answer is reported where its environment is looked for.
    """
    prepared = work.prepared
    if not all(variant.uses_cuda for variant in prepared.lock.variants):
        return
    for node in expand_hosts(prepared.target.hosts):
        facts = facts_of(work, node)
        there = visible_gpus(facts) if facts is not None and health.health(facts).usable else 0
        if facts is not None and there < count:
            helps = health.what_shows_gpus(facts, count) if physical_gpus(facts) > there else ""
            raise EnvbuildError(
                "launch-does-not-fit",
                f"{node} has {plural(there, 'usable GPU')}, and {count} were asked for",
                why=facts.driver.problem or "",
                hint=f"--gpus-per-node {there}" if there else helps or "a target whose nodes have GPUs: `-t TARGET`",
            )


def shows(work: Work, measure: Bench, name: str) -> Callable[[str], None]:
    """What says the figure in a line of a run's log, where it has one."""

    def show(text: str) -> None:
        record = read_line(measure.log, text)
        if record is not None and measure.metric in record.values:
            work.journal.stage(f"{name}: {number(record.values[measure.metric])} {measure.unit}")

    return show


def _before(work: Work, asked: OwnRun) -> list[str]:
    """What others do on the GPUs of a run that is to start, and what it may wait for, a sentence each."""
    others = map(gpu_use.others, _glances(work, asked, gpu_use.ask_others(_devices(asked))))
    own = asked.launch.commands[0].environment.items()
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in own)
    locks = map(locks_in_words, _glances(work, asked, exports + LOCKS))
    rows = zip(asked.places, map(gpu_state.in_words, others), locks, strict=True)
    return [f"{host or 'localhost'}: {text}" for host, busy, locked in rows for text in (*busy, *locked)]


def _glances(work: Work, asked: OwnRun, script: str) -> list[str]:
    """What it prints here, or on each host, through connections that are open."""
    if not asked.hosts:
        return [proc.run(_HERE, timeout=_GRACE, env={**os.environ}, stdin=script.encode(), limit=_LINE).out]
    connection = work.prepared.target.connection
    calls = [partial(ssh.glance, host, script.encode(), connection, _GRACE, _LINE) for host in asked.hosts]
    return [answer or "" for answer in proc.parallel(calls)]


def _devices(asked: OwnRun) -> list[str]:
    """The GPUs of the ranks: of those that they see, by the variables that they get, as many as take part.

    Of hosts, whose own variables are not known here, by those of the command.
    """
    written = read_json(str(Path(asked.activate).with_name("variables.json"))) if asked.activate else None
    here = {} if asked.hosts else {**os.environ, **(written or {})}
    environment = {**here, **asked.launch.commands[0].environment}
    named, count = visible_devices(environment.get(VISIBLE)), asked.launch.gpus_per_node
    return [str(index) for index in range(count)] if named is None else named[:count]


def carry_out(work: Work, measure: Bench, asked: OwnRun, name: str) -> Log:
    """One run under a name: its log, and why it failed; ends at the deadline or when the run is cancelled."""
    log = Log(work.run.path / "logs" / f"{name.replace(' ', '-')}.log")
    asked = replace(asked, launch=probed(asked.launch, asked.gpus))
    show = shows(work, measure, name)
    # Launchers start their ranks in sessions of their own; what they inherit finds them all.
    end_orphans(MARKER)
    work.notes += [note for note in _before(work, asked) if note not in work.notes]
    marker = marker_value()
    codes: list[int | None] = [None] * len(asked.places)
    running: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []
    until = time.monotonic() + asked.deadline
    try:
        for process in _started(asked, work, marker):
            # Threads of their own: a run that hangs prints nothing.
            reader = threading.Thread(target=_copy, args=(process, log, show), daemon=True)
            running.append((process, reader))
            reader.start()
        while time.monotonic() < until and not (log.failure or work.settings.cancel()):
            codes = [process.poll() for process, _ in running]
            if None not in codes or any(codes):
                break
            time.sleep(_POLL)
    finally:
        proc.parallel([partial(_end_there, host, work, marker) for host in asked.hosts[: len(running)]])
        end_marked(MARKER, marker, grace=_GRACE)
        left = find_marked(MARKER, marker)
        for process, reader in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0 if left else None)
            reader.join(_GRACE)
    if work.settings.cancel():
        raise EnvbuildError(
            "interrupted",
            "the run was interrupted",
            why="its processes have ended on every node; the environment stays as it is",
            hint="the same command starts it again",
        )
    if left:
        log.failure = (
            f"processes that nothing ends are left, as where a driver hangs: {few([str(pid) for pid in left])}"
        )
    log.late = None in codes and not any(codes) and not log.failure
    failed = [
        f"{host}: " * bool(host) + f"it ended with exit code {code}"
        for host, code in zip(asked.places, codes, strict=True)
        if code
    ]
    log.failure = log.failure or (f"timed out after {asked.deadline:g} s" if log.late else "; ".join(failed))
    log.taken = used(_glances(work, asked, gpu_use.ask_used(asked.gpus)))
    return log


def _started(asked: OwnRun, work: Work, marker: str) -> Iterator[subprocess.Popen[bytes]]:
    """A shell here, or one on every host; each is told before the next is started."""
    text = "\n".join(step.text for step in steps_of(asked.launch, asked.output, asked.activate))
    if asked.hosts:
        sessions = [ssh.session(host, work.prepared.target.connection) for host in asked.hosts]
    else:
        sessions = [_HERE]
        with writing(asked.output):
            Path(asked.output).mkdir(parents=True, exist_ok=True)
    for rank, session in enumerate(sessions):
        ranked = shlex.quote(f"export NODE_RANK={rank}\n{text}")
        script = _SCRIPT.format(
            marker=f"{MARKER}={marker}", watch=watched(asked.gpus, _devices(asked), rank),
            seconds=asked.deadline + _SLACK, text=ranked,
        )  # fmt: skip
        yield _shell(session, script, marker)


def _shell(argv: list[str], script: str, marker: str) -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile() as source:
        source.write(script.encode())
        source.seek(0)
        return subprocess.Popen(
            argv,
            env={**os.environ, MARKER: marker},
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _end_there(host: str, work: Work, marker: str) -> None:
    """What is left of a run on a host; one that cannot be reached ends it by itself, soon after the deadline."""
    script = _END.format(marker=f"{MARKER}={marker}").encode()
    try:
        done = ssh.exchange(host, script, work.prepared.target.connection, 3 * _GRACE, _LINE)
        why = "" if done.rc == 0 else last_lines(done.err) or f"exit {done.rc}"
    except EnvbuildError as error:
        why = error.what
    if why:
        work.notes.append(f"{host}: what still runs there was not ended ({why}); its time limit ends it")


def _copy(process: subprocess.Popen[bytes], log: Log, show: Callable[[str], None]) -> None:
    """What a run prints into its log, redacted, until all that it started have closed their output.

    A log that cannot be written is the run's failure; its output is still read, so that it can end.
    """
    clean = redactor()
    assert process.stdout is not None  # noqa: S101 - it was made with a pipe
    lines = iter(partial(process.stdout.readline, _LINE), b"")
    try:
        with log.path.open("a", encoding="utf-8") as file:
            for line in lines:
                text = clean.text(line.decode("utf-8", "replace"))
                file.write(text)
                file.flush()
                show(text)
    except OSError as error:
        log.failure = f"its log cannot be written: {error}"
        for _ in lines:
            pass
