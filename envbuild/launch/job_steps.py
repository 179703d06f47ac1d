"""A launch as the steps of a job: what only the job knows (first node, port, number) is left to it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from envbuild.launch.command import Place
from envbuild.launch.shell import command_text, file_lines
from envbuild.model.launch import Launch
from envbuild.schedule.job import JobText

# Words that stand for what the job fills in while the commands are made; nothing else looks like them.
_MASTER, _JOB = "first-node-of-the-job", "number-of-the-job"
_PORTS = (61001, 61002, 61013, 61024)
# What a piece of `bounded` says when it is ended.
LATE = "envbuild: ended at its deadline"
_GRACE = 10  # seconds between SIGTERM and SIGKILL


def job_steps(
    make: Callable[[Place], Launch],
    place: Place,
    activate: str | None,
    *,
    port: int | None = None,
    around: Callable[[Launch], Launch] | None = None,
) -> tuple[Launch, tuple[JobText, ...]]:
    """The launch, and the steps that carry it out in a job; `make` makes the commands for a place.

    `port`: the port that all nodes meet on instead of the job's own. `around`: makes of the launch, which stays what is
    told, what is carried out. Raises EnvbuildError as `make` does.
    """
    told = place.model_copy(update={"master": _MASTER, "job": _JOB})

    def steps(made: Launch, told_port: int | None) -> tuple[JobText, ...]:
        carried = around(made) if around else made
        return tuple(_filled(step, told_port) for step in steps_of(carried, place.output, activate))

    if port is not None:
        made = make(told.model_copy(update={"port": port}))
        return made, steps(made, None)
    for one, other in zip(_PORTS[::2], _PORTS[1::2], strict=True):
        # A number in a command is the port when it changes with the port.
        made = make(told.model_copy(update={"port": one}))
        first = steps(made, one)
        if first == steps(make(told.model_copy(update={"port": other})), other):
            return made, first
    raise ValueError("these numbers are in the command already: give --port")


def steps_of(made: Launch, output: str, activate: str | None) -> tuple[JobText, ...]:
    """Folder and files first; then one command on each node, or one on the first that starts the others itself."""
    files = [line for file in made.files for line in file_lines(file)]
    first = ["set -e", f"mkdir -p -- {shlex.quote(output)}", *files]
    steps = [JobText(text="\n".join(first) + "\n", each="batch")]
    if len(made.commands) == 1:
        steps.append(JobText(text=command_text(made.commands[0], activate), each="batch"))
    else:
        steps.append(JobText(text=_by_rank(made, activate)))
    return tuple(steps)


def bounded(step: JobText, seconds: float) -> JobText:
    """The same, ended after so many seconds: it then says `LATE` and ends with exit code 124."""
    lines = [
        f"SECONDS=0 code=0; timeout -k {_GRACE} {seconds:g} bash -c {shlex.quote(step.text)} || code=$?",
        f'[ "$code" = 0 ] || [ "$SECONDS" -lt {int(seconds)} ] || {{ echo {shlex.quote(LATE)}; code=124; }}',
        'exit "$code"',
    ]
    return step.model_copy(update={"text": "\n".join(lines) + "\n"})


def _by_rank(made: Launch, activate: str | None) -> str:
    cases = [f"{command.node or 0})\n{command_text(command, activate)};;\n" for command in made.commands]
    lines = ["{", 'case "$NODE_RANK" in', "".join(cases) + "esac"]
    # As `srun -l` does, so that one log tells who said what.
    return "\n".join([*lines, '} 2>&1 | sed -u "s/^/$NODE_RANK: /"', 'exit "${PIPESTATUS[0]}"']) + "\n"


def _filled(step: JobText, port: int | None) -> JobText:
    text = step.text.replace(_MASTER, "{MASTER_ADDR}").replace(_JOB, "{JOB_ID}")
    if port is not None:
        text = text.replace(str(port), "{MASTER_PORT}")
    return step.model_copy(update={"text": text})
