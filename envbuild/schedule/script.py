"""The parts of a job script that do not depend on the scheduler: quoting, variables, files, `ensure`. Pure."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping

from envbuild.node.redact import secrets_of
from envbuild.schedule.job import Job, JobStep, JobText, Step
from envbuild.text import comment


def ensure_file(shared: str, stack: str) -> str:
    """The POSIX sh file that sees to a stack's environment on the node that runs it."""
    return posixpath.join(shared, "ensure", f"{stack}.sh")


def ensure_script(shared: str, stack: str, python: str, program: str) -> str:
    """That file: it sends the request beside it to the node program; both lie in the shared folder."""
    request = posixpath.join(shared, "ensure", f"{stack}.json")
    return "\n".join((
        "#!/bin/sh",
        f"# Written by envbuild: sees to the environment {stack} on the disk of this node. Where it is there and in",
        "# use, that takes well under a second; else it comes out of its pack. Every job begins with it:",
        f"#   /bin/sh {shlex.quote(ensure_file(shared, stack))}",
        f"exec {shlex.quote(python)} {shlex.quote(program)} ensure < {shlex.quote(request)}",
        "",
    ))  # fmt: skip


# Below the ports that Linux gives to outgoing connections (32768 and up), above the well-known ones.
PORT_BASE, PORT_RANGE = 10000, 20000
_KNOWN = re.compile(r"\{(MASTER_ADDR|MASTER_PORT|RUN_ID)\}")
# What a submitting shell may carry along and no job of ours should see.
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_PRELOAD", "BASH_ENV")


def log_name(job: Job, number: str) -> str:
    """The file in `job.output` that the job `number` prints into."""
    return f"{job.name}-{number}.log"


def status_name(number: str) -> str:
    """The file in `job.output` that holds the exit code of the script once it has ended."""
    return f"status-{number}"


def words(argv: Iterable[str]) -> str:
    """`argv` quoted for the script; what only the job knows is left to the shell."""
    return " ".join(_quote(word) for word in argv)


def _quote(text: str) -> str:
    parts = _KNOWN.split(text)
    if len(parts) == 1:
        return shlex.quote(text)
    out = [f'"${{{part}}}"' if index % 2 else shlex.quote(part) for index, part in enumerate(parts) if part]
    return "".join(out)


def head(job: Job, directives: Iterable[str], note: str = "") -> list[str]:
    """What the file begins with: bash, as a login shell where modules are loaded (a site makes `module` there)."""
    first = f"#!/bin/bash{' -l' if job.modules else ''}"
    notes = map(comment, f"{job.name}: {job.cost()}.{note}".splitlines())
    return [first, *notes, *directives, *(comment(f"warning: {text}") for text in job.warnings()), ""]


def modules(job: Job) -> list[str]:
    """`module use` and `module load`; before strict mode, which the programs of modules were not written for."""
    if job.modules is None:
        return []
    asked = [("use", folder) for folder in job.modules.use] + [("load", name) for name in job.modules.load]
    lines = [f"module {verb} {shlex.quote(what)} || exit 1" for verb, what in asked]
    return ["# What the site's programs need.", *lines, ""]


# The launcher's own exit code may be that of a node that was ended because another one had failed.
_NODE = 'bash -c "$1" run; code=$?; [ "$code" = 0 ] || (set -C; echo "$code" > "$JOB_ENDED") 2>/dev/null; exit "$code"'


def step_lines(step: Step, runs: Mapping[str, tuple[str, str]]) -> list[str]:
    """A program that is started and then knows its rank, or a piece of bash, which runs as a program of its own.

    `runs`: as of `Scheduler`. The job ends with the exit code of the first node on which a piece of bash fails.
    """
    if step.each == "batch":
        return ["# On the first node.", f"NODE_RANK=0 {words(('bash', '-c', step.text))}"]
    note, launcher = runs["text" if isinstance(step, JobText) else step.each]
    started = [f"{launcher} \\", '  bash -c "$with_rank" step \\']
    if isinstance(step, JobStep):
        return [note, *started, f"  {words(step.argv)}"]
    return [
        note,
        'export JOB_ENDED="$output/ended-$JOB_ID"',
        'rm -f -- "$JOB_ENDED"',
        *started,
        f"  {words(('bash', '-c', _NODE, 'node', step.text))} || {{",
        "    code=$?",
        '    [ ! -s "$JOB_ENDED" ] || code=$(cat "$JOB_ENDED")',
        '    exit "$code"',
        "  }",
    ]


def exports(variables: Mapping[str, str], *, printed: bool) -> list[str]:
    """The lines that set them.

    A script that is `printed` goes from hand to hand: it takes secrets from the shell, and ends where one is missing.
    """
    words = {name: shlex.quote(value) for name, value in variables.items()}
    for name in secrets_of(variables) if printed else ():
        words[name] = f'"${{{name}:?this script holds no secrets: export it first}}"'
    return [f"export {name}={word}" for name, word in sorted(words.items())]


# A line of the log, which has what each start of a job printed: of a measured run only the last counts.
AGAIN = "envbuild: the scheduler has started this job again"


def preamble(job: Job, number: str, again: str, by_hand: str) -> list[str]:
    """Modules, strict mode, the status file, variables.

    `number` is the shell's word for the job id, `again` what a further run of that job adds to it.

    A job that is submitted `by_hand` makes its folder, which `Scheduler.submit` makes for others.
    """
    lines = [
        *modules(job),
        "set -euo pipefail",
        f"unset {' '.join(FOREIGN)}",
        f"JOB_ID={number}",
        f'RUN_ID="$JOB_ID{again}"',
        *([f'[ "$RUN_ID" = "$JOB_ID" ] || echo {shlex.quote(AGAIN)}'] if again else []),
        f"output={shlex.quote(job.output)}",
        *(['mkdir -p -- "$output"'] if by_hand else []),
        "",
        "# Whoever asks later, when the scheduler has forgotten the job, finds here how it ended.",
        'status="$output/status-$JOB_ID"',
        'rm -f -- "$status"',
        "finish() {",
        "  local code=$?",
        "  trap - EXIT",
        '  printf \'%d\\n\' "$code" > "$status.new" && mv -f -- "$status.new" "$status"',
        '  exit "$code"',
        "}",
        "trap finish EXIT",
        "trap 'exit 143' TERM",
        "trap 'exit 130' INT",
    ]
    if job.variables:
        lines += ["", *exports(job.variables, printed=bool(by_hand))]
    return lines


def master(names: str, number: str, rank: str, nodes: str) -> list[str]:
    """Where the ranks of this job meet, and what tells a node which of them it is.

    `names` is a shell redirection that brings the names of the job's nodes, `number` an arithmetic expression of its
    number, `rank` and `nodes` shell words that a node has. A host may have two jobs, so the port comes from the number.
    """
    return [
        "# Where ranks meet: the first node of the job, and a port that follows from its number.",
        f"read -r MASTER_ADDR {names}",
        f"MASTER_PORT=$(({PORT_BASE} + {number} % {PORT_RANGE}))",
        f"NNODES={nodes}",
        "export MASTER_ADDR MASTER_PORT NNODES",
        f"with_rank='export NODE_RANK={rank}; exec \"$@\"'",
    ]
