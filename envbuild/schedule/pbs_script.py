"""A job as one readable qsub file. Pure.

The options follow PBS Professional's qsub(1B) and the guides of ALCF for Polaris; it was not run on a real PBS.
"""

from __future__ import annotations

import shlex

from envbuild.errors import EnvbuildError
from envbuild.schedule import pbs_nodes, script
from envbuild.schedule.job import Broadcast, Job, JobStep, JobText, clock_text

# PALS tells a rank its number as PALS_RANKID and PMI_RANK; Open MPI's mpiexec has a name of its own.
_RANK = '"${PALS_RANKID:-${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-0}}}"'


def render(job: Job) -> str:
    """The qsub file of a job. Raises EnvbuildError `job-path-unusable` (exit 2)."""
    # The job id is `123.server`, of an array `123[4].server`.
    body = script.preamble(job, '"${PBS_JOBID%%.*}"')
    body += [
        "",
        "# PBS puts the job's output into place only after it has ended.",
        f'exec >> "$output/{script.log_name(job, "$JOB_ID")}" 2>&1',
    ]
    body += ["", *script.master('< "$PBS_NODEFILE"', "${JOB_ID%%[!0-9]*}", _RANK, str(job.nodes))]
    for step in job.steps:
        if isinstance(step, JobText):
            # mpiexec ends all ranks when one fails.
            body += ["", *script.piece(step, mpiexec('"$NNODES"'))]
        elif not isinstance(step, Broadcast):  # PBS has no such thing
            body += ["", *_step(step)]
    return "\n".join([*script.head(job, [*_directives(job), f"#PBS -o {_path(job.output)}"]), *body, ""])


def render_body(job: Job, text: str) -> str:
    """The qsub file that runs the bash script `text` on the first node of a job; it prints where it was submitted."""
    return script.around(job, _directives(job), "qsub", text)


def _directives(job: Job) -> list[str]:
    gpus = {job.gres.name: job.gpus_per_node} if job.gres is not None else {}
    chunk = {"ncpus": job.cpus_per_node, **gpus, "mem": f"{job.memory_gib}gb" if job.memory_gib else None}
    # What the target's own words ask for stands.
    named = pbs_nodes.asks_for(job.constraints or "")
    select = [f"select={job.nodes}", *(f"{key}={value}" for key, value in chunk.items() if value and key not in named)]
    if job.constraints:
        select.append(job.constraints)
    # `excl` gives a vnode, and a host may be several.
    resources = [":".join(select), f"place=scatter{':exclhost' if job.whole_nodes else ''}"]
    if job.time_limit:
        resources.append(f"walltime={clock_text(job.time_limit)}")
    if job.filesystems:
        resources.append(f"filesystems={':'.join(job.filesystems)}")
    resources += job.resources
    # PBS allows 15 characters for a name in its older versions.
    # Without -S it is the user's login shell that reads the script, whatever its first line says.
    options = [f"-N {job.name[:15]}", "-S /bin/bash", *(f"-l {resource}" for resource in resources)]
    options += [f"-{letter} {value}" for letter, value in (("q", job.queue), ("A", job.account)) if value]
    # -V is never given: qstat then prints JSON that is none (openpbs issue 2541), and a login node's variables mislead.
    # -r n: PBS tells a script nothing of how often it ran, and the same command of envbuild submits a lost job again.
    return [f"#PBS {option}" for option in (*options, "-r n", "-j oe")]


def _path(folder: str) -> str:
    """PBS reads the rest of the line as a path and knows no quotes; `:` would part a host name from it."""
    if shlex.quote(folder) != folder or any(char in folder for char in ":^%"):
        raise EnvbuildError(
            "job-path-unusable",
            f"a PBS job cannot print into {folder!r}",
            why="its directives know no quotes",
            hint="choose another `prefix`",
        )
    return f"{folder}/"


def _step(step: JobStep) -> list[str]:
    if step.each == "node":
        told, count = "# Once on every node.", '"$NNODES"'
    else:
        told, count = "# Once, on the first node.", "1"
    return [told, f"{mpiexec(count)} \\", '  bash -c "$with_rank" step \\', f"  {script.words(step.argv)}"]


def mpiexec(count: str) -> str:
    """PALS's mpiexec for `count` processes (a word of the shell), one a node."""
    return f'mpiexec --envall -n {count} --ppn 1 --hostfile "$PBS_NODEFILE" --cpu-bind none'
