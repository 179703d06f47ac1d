"""A launch as readable shell text, every word quoted; and as the steps of a job, which knows node, port and number."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence

from envbuild.launch.request import Place
from envbuild.model.launch import Command, Launch, LaunchFile
from envbuild.schedule.job import JobText
from envbuild.text import comment

WIDTH = 110
# Ends with the script, however that ends: then the pipe that it reads from is closed.
_SHOW = """\
declare -A had
since() {{ [ ! -f "$log" ] || tail -c "+$((${{had[$log]:-0}} + 1))" -- "$log"; }}
show() {{
  {each}
    lines=$(since | wc -l)
    since | head -n "$lines"
    had[$log]=$((${{had[$log]:-0}} + $(since | head -n "$lines" | wc -c)))
  done
}}
show > /dev/null
exec 3> >(while show; read -rt 2 _; [ $? -gt 128 ]; do :; done; show; {each} since; done)"""
# The gate is bash's own; nothing has to be installed for it.
_GATE = "until (exec 3<>/dev/tcp/{address}/{port}) 2>/dev/null; do sleep 1; done"
# Words that stand for what the job fills in while the commands are made; nothing else looks like them.
_MASTER, _JOB = "FIRST-NODE-OF-THE-JOB", "NUMBER-OF-THE-JOB"
_PORTS = (61001, 61002, 61013, 61024)
_NAMES = "`envbuild help NAME` explains a name"
# What a piece of `bounded` says when it is ended.
LATE = "envbuild: ended at its deadline"
_GRACE = 10  # seconds between SIGTERM and SIGKILL


def render(launch: Launch, output: str, activate: str | None = None) -> str:
    """The text: what was decided as comments, then files and commands by node.

    `activate` is a file that is read first, in every shell that runs a command. The folder `output` is made.
    """
    lines = [*head(launch), ""]
    for file in launch.files:
        lines += [*file_lines(file), ""]
    many = len(launch.commands) > 1
    for command in launch.commands:
        lines += [comment(f"on node {command.node}")] if many else []
        lines += [*_command(command, activate, output), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def head(launch: Launch) -> Iterator[str]:
    """Decisions and defaults, as comments."""
    yield comment(
        f"{launch.stack}, profile {launch.profile}: {launch.model} on {launch.nodes} x {launch.gpus_per_node} GPUs"
    )
    if launch.degrees:
        yield comment(_degrees(launch))
    for default in launch.defaults:
        yield comment(f"default: {default.name}={default.value}" + (f" ({default.why})" if default.why else ""))
    for deviation in launch.deviations:
        yield comment(f"{deviation.finding}: {deviation.does}")
    if launch.degrees or launch.deviations:
        yield comment(_NAMES)
    for note in launch.notes:
        yield comment(f"note: {note}")


def summary(launch: Launch) -> list[str]:
    """What the file of a job does not show: model, GPUs, parallel degrees, and the notes."""
    where = f"{launch.model} on {launch.nodes} x {launch.gpus_per_node} GPUs"
    degrees = f"{_degrees(launch)} ({_NAMES})" if launch.degrees else ""
    return [": ".join(filter(None, (where, degrees))), *(f"note: {note}" for note in launch.notes)]


def _degrees(launch: Launch) -> str:
    return ", ".join(f"{name} {value}" for name, value in launch.degrees.items())


def file_lines(file: LaunchFile) -> Iterator[str]:
    """The shell lines that write one file."""
    mark = "END"
    while mark in file.text.splitlines():
        mark += "_"
    yield f"mkdir -p {shlex.quote(file.path.rsplit('/', 1)[0] or '/')}"
    yield f"cat > {shlex.quote(file.path)} <<'{mark}'"
    yield file.text.rstrip("\n")
    yield mark


def command_text(command: Command, activate: str | None, output: str) -> str:
    """One command as a script of its own: what fails before it ends the script, whose exit code is the command's.

    Where the exit code of a program proves nothing, its log has to have the line that does. A command in the folder
    `output` makes that folder.
    """
    # metaseq's launcher asks for it; a login sets it, a service or container often does not.
    first = ['export USER="${USER:-$(id -un)}"', *([f". {shlex.quote(activate)}"] if activate else [])]
    lines = [*first, "set -e", *_showing_logs(command, output)]
    if command.ends:
        proof = shlex.quote(command.ends)
        complaint = shlex.quote(f"the run did not say {command.ends!r}")
        lines = ["said=$(mktemp)", "(", *lines, ') 2>&1 | tee "$said"', "code=${PIPESTATUS[0]}"]
        lines += [f'grep -qF -- {proof} "$said" || {{ echo {complaint} >&2; [ "$code" != 0 ] || code=1; }}']
        lines += ['rm -f -- "$said"', 'exit "$code"']
    return "\n".join(lines) + "\n"


def _showing_logs(command: Command, output: str) -> Iterator[str]:
    """The command, and meanwhile what it adds to its logs, in whole lines: another run may have left them."""
    *lines, last = _command(command, None, output)
    if command.logs is not None:
        loop = f"for log in {'*'.join(map(shlex.quote, command.logs.split('*')))}; do"
        yield f"cd {shlex.quote(command.directory)}"
        yield _SHOW.format(each=loop)
        # What the command starts may outlive it, and must not keep the pipe open.
        last += " 3>&-"
    yield from (*lines, last)


def _command(command: Command, activate: str | None, output: str) -> Iterator[str]:
    if activate:
        yield f". {shlex.quote(activate)}"
    if command.wait_for:
        gate = command.wait_for
        loop = _GATE.format(address=gate.address, port=gate.port)
        yield f"timeout {gate.seconds} bash -c {shlex.quote(loop)}"
    folder = shlex.quote(command.directory)
    # A folder for output may not be there yet; a source of an environment is, once that is built.
    yield f"mkdir -p {folder} && cd {folder}" if command.directory == output else f"cd {folder}"
    words = ["env", *(f"{name}={value}" for name, value in command.environment.items())] if command.environment else []
    yield from folded([*words, *command.argv])


def folded(words: Sequence[str]) -> list[str]:
    """The words as lines that a shell joins again; a new line begins at an option rather than at its value."""
    lines, line = [], ""
    for index, word in enumerate(words):
        quoted = shlex.quote(word)
        value = words[index + 1] if index + 1 < len(words) and not words[index + 1].startswith("-") else ""
        room = WIDTH - len(quoted) - (len(shlex.quote(value)) + 1 if word.startswith("-") and value else 0)
        if line and len(line) + 1 > room:
            lines.append(line + " \\")
            line = "    " + quoted
        else:
            line = f"{line} {quoted}" if line else quoted
    return [*lines, line]


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
    in_job = place.model_copy(update={"master": _MASTER, "job": _JOB})

    def steps(made: Launch, told_port: int | None) -> tuple[JobText, ...]:
        carried = around(made) if around else made
        return tuple(_filled(step, told_port) for step in steps_of(carried, place.output, activate))

    if port is not None:
        made = make(in_job.model_copy(update={"port": port}))
        return made, steps(made, None)
    for one, other in zip(_PORTS[::2], _PORTS[1::2], strict=True):
        # A number in a command is the port when it changes with the port.
        made = make(in_job.model_copy(update={"port": one}))
        first = steps(made, one)
        if first == steps(make(in_job.model_copy(update={"port": other})), other):
            return made, first
    raise ValueError("these numbers are in the command already: give --port")


def steps_of(made: Launch, output: str, activate: str | None) -> tuple[JobText, ...]:
    """Folder and files first; then one command on each node, or one on the first that starts the others itself."""
    files = [line for file in made.files for line in file_lines(file)]
    first = ["set -e", f"mkdir -p -- {shlex.quote(output)}", *files]
    steps = [JobText(text="\n".join(first) + "\n", each="batch")]
    if len(made.commands) == 1:
        steps.append(JobText(text=command_text(made.commands[0], activate, output), each="batch"))
    else:
        steps.append(JobText(text=_by_rank(made, activate, output)))
    return tuple(steps)


def bounded(step: JobText, seconds: float) -> JobText:
    """The same command with a time limit in seconds; then it prints `LATE` and exits with 124."""
    lines = [
        f"SECONDS=0 code=0; timeout -k {_GRACE} {seconds:g} bash -c {shlex.quote(step.text)} || code=$?",
        f'[ "$code" = 0 ] || [ "$SECONDS" -lt {int(seconds)} ] || {{ echo {shlex.quote(LATE)}; code=124; }}',
        'exit "$code"',
    ]
    return step.model_copy(update={"text": "\n".join(lines) + "\n"})


def _by_rank(made: Launch, activate: str | None, output: str) -> str:
    cases = [f"{command.node or 0})\n{command_text(command, activate, output)};;\n" for command in made.commands]
    lines = ["{", 'case "$NODE_RANK" in', "".join(cases) + "esac"]
    # As `srun -l` does, so that one log tells who said what.
    return "\n".join([*lines, '} 2>&1 | sed -u "s/^/$NODE_RANK: /"', 'exit "${PIPESTATUS[0]}"']) + "\n"


def _filled(step: JobText, port: int | None) -> JobText:
    text = step.text.replace(_MASTER, "{MASTER_ADDR}").replace(_JOB, "{RUN_ID}")
    if port is not None:
        text = text.replace(str(port), "{MASTER_PORT}")
    return step.model_copy(update={"text": text})
