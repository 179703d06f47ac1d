"""What later jobs begin with where environments lie on the disks of nodes: shell texts for people to read. Pure."""

from __future__ import annotations

import posixpath
import shlex


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


def task_prolog(shared: str, prefix: str, stack: str) -> str:
    """A TaskProlog of Slurm that ensures the environment and gives every task its variables."""
    activate = shlex.quote(posixpath.join(prefix, "current", stack, ".envbuild", "activate.sh"))
    name = r"\([A-Za-z_][A-Za-z0-9_]*\)"
    return "\n".join((
        "#!/bin/sh",
        f"# A TaskProlog of Slurm: every task begins with the environment {stack} on its node's disk.",
        "# In a job of your own:   srun --task-prolog=THIS-FILE PROGRAM (an executable file with an absolute path)",
        "# For a whole cluster:    TaskProlog=THIS-FILE in slurm.conf",
        "# A task that cannot have the environment ends here, and prints why.",
        f"if ! said=$(/bin/sh {shlex.quote(ensure_file(shared, stack))} 2>&1 > /dev/null); then",
        "  printf '%s\\n' \"$said\" | sed 's/^/print /'",
        "  exit 1",
        "fi",
        f". {activate}",
        "# Slurm reads these lines and sets the variables for the task.",
        "echo unset PYTHONHOME",
        "echo unset PYTHONPATH",
        f"sed -n -e 's/^export {name}=.*/\\1/p' -e 's/^if .*; then export {name}=.*/\\1/p' {activate} |",
        "while read -r name; do",
        '  eval "value=\\${$name-}"',
        '  if [ -n "$value" ]; then printf \'export %s=%s\\n\' "$name" "$value"; fi',
        "done",
        "",
    ))  # fmt: skip


def pbs_preamble(shared: str, prefix: str, stack: str) -> str:
    """The first lines of a PBS job script that ensure the environment on every node and set its variables."""
    activate = shlex.quote(posixpath.join(prefix, "current", stack, ".envbuild", "activate.sh"))
    return "\n".join((
        f"# First lines of a PBS job: the environment {stack} on the disk of every node, and its variables.",
        'nodes=$(sort -u "$PBS_NODEFILE" | wc -l)',
        'mpiexec --envall -n "$nodes" --ppn 1 --hostfile "$PBS_NODEFILE" --cpu-bind none \\',
        f"  /bin/sh {shlex.quote(ensure_file(shared, stack))} > /dev/null || exit 75",
        f". {activate}",
        "",
    ))  # fmt: skip
