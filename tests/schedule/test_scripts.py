"""Job scripts, word for word, and as bash runs them. `ENVBUILD_WRITE_GOLDEN=1` writes the files anew."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.model.target import Modules
from envbuild.schedule.job import Gres, Job, JobStep, JobText
from envbuild.schedule.pbs import Pbs
from envbuild.schedule.slurm import Slurm
from tests.schedule.jobs import job, training
from tests.support.fails import fails
from tests.support.programs import completed, executable

GOLDEN = Path(__file__).parent / "golden"
POLARIS = {
    "gres": Gres(name="ngpus"), "gpus_per_node": 4, "gpus_on_node": 4, "cpus_per_node": 64, "memory_gib": 503,
    "queue": "debug", "constraints": "system=polaris", "output": "/eagle/p/me/jobs", "time_limit": 3600, "nodes": 2,
    "filesystems": ("home", "eagle"),
}  # fmt: skip
MODULES = Modules(use=("/soft/modulefiles",), load=("conda", "it's"))
BODY = "#!/usr/bin/env bash\nset -euo pipefail\necho built\n"
TEXTS = (
    JobText(text="set -e\nmkdir -p '/o'\n", each="batch"),
    JobText(text="run --at {MASTER_ADDR}:{MASTER_PORT} 'it''s $HOME'\n"),
)
CASES: dict[str, tuple[Callable[[Job], str], Job]] = {
    "slurm_probe": (Slurm.render, job(time_limit=300)),
    "slurm_training": (Slurm.render, training()),
    "slurm_launch": (Slurm.render, training(steps=TEXTS)),
    "pbs_launch": (Pbs.render, training(**POLARIS, steps=TEXTS)),
    "slurm_no_gres": (Slurm.render, training(gres=None, exclusive=False, constraints=None)),
    "slurm_shared": (Slurm.render, job(gpus_per_node=1, gres=Gres(), cpus_per_node=12, nodes=1)),
    "slurm_modules": (Slurm.render, job(modules=MODULES)),
    "pbs_modules": (Pbs.render, job(modules=MODULES, time_limit=600)),
    "pbs_body": (lambda asked: Pbs.render_body(asked, BODY), job(nodes=1, modules=MODULES, account="proj-1")),
    "slurm_body": (lambda asked: Slurm.render_body(asked, BODY), job(nodes=1)),
    "pbs_probe": (Pbs.render, job(time_limit=300)),
    "pbs_polaris": (Pbs.render, training(**POLARIS)),
    "pbs_ngpus": (Pbs.render, job(gpus_per_node=4, gres=Gres(name="ngpus"), queue="gpu")),
}


def test_a_job_that_may_not_be_requeued_and_a_quality_of_service_are_told_to_slurm() -> None:
    assert "#SBATCH --qos=high\n" in Slurm.render(job(qos="high"))
    for text in (Slurm.render(job(requeue=False)), Slurm.render_body(job(), BODY)):
        assert "#SBATCH --no-requeue\n" in text and "runs this job again" not in text


@pytest.mark.parametrize("name", CASES)
def test_the_script_is_the_recorded_one(name: str) -> None:
    render, asked = CASES[name]
    text = render(asked)
    path = GOLDEN / f"{name}.sh"
    if os.environ.get("ENVBUILD_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
    done = completed(["bash", "-n"], input=text)
    assert (done.returncode, done.stderr) == (0, "")
    assert "#PBS -V" not in text, "the variables of a login node stay there"


@pytest.mark.parametrize(
    ("render", "output"),
    [(Slurm.render, '/a"b'), *((Pbs.render, path) for path in ("/a b", "/a:b", "/a'b", "/a%b"))],
)
def test_a_folder_that_directives_cannot_name_is_refused(render: Callable[[Job], str], output: str) -> None:
    with fails("job-path-unusable", match="cannot write"):
        render(job(output=output))


def _run(text: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script with programs that print the arguments they got, one in brackets each."""
    tools = folder / "bin"
    tools.mkdir()
    for name in ("srun", "mpiexec"):
        executable(tools / name, '#!/bin/bash\nwhile [ "$1" != bash ]; do printf "[%s]" "$1"; shift; done\nexec "$@"\n')
    executable(tools / "scontrol", "#!/bin/sh\nprintf 'n1\\nn2\\n'\n")
    path = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(folder)}
    return completed(["bash", "-c", text], env={**path, **env})


def test_the_run_s_own_srun_takes_over_no_tasks_and_processors_of_the_job(tmp_path: Path) -> None:
    names = ("SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK")
    shown = JobText(text=f"env | grep -E '^({'|'.join(names)})=' || echo none\n", each="batch")
    batch = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    given = dict(zip(names, ("1", "64", "cpu=64"), strict=True))
    done = _run(Slurm.render(job(output=str(tmp_path), steps=(shown,))), tmp_path, **batch, **given)
    assert (done.returncode, done.stdout) == (0, "none\n"), done.stderr


HOSTILE = ("printf", "<%s>", "$(id)", "`id`", "it's", 'a"b', "a b", "{MASTER_ADDR}:{MASTER_PORT}", "{OTHER}", "\\")


def test_programs_of_a_slurm_job_get_their_arguments_as_they_are(tmp_path: Path) -> None:
    asked = job(steps=(JobStep(argv=HOSTILE),), output=str(tmp_path), variables={"GREETING": "it's $(id)"})
    env = {"SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_PROCID": "0"}
    done = _run(Slurm.render(asked), tmp_path, **env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("<$(id)><`id`><it's><a\"b><a b><n1:13456><{OTHER}><\\>")
    assert "[--ntasks-per-node=1]" in done.stdout
    assert (tmp_path / "status-123456").read_text() == "0\n"
    code = 'printf "%s|%s|%s|%s" "$GREETING" "${PYTHONPATH-none}" "$NODE_RANK" "$NNODES"'
    asked = asked.model_copy(update={"steps": (JobStep(argv=("bash", "-c", code)),)})
    shutil.rmtree(tmp_path / "bin")
    done = _run(Slurm.render(asked), tmp_path, PYTHONPATH="/evil", **{**env, "SLURM_PROCID": "1"})
    assert done.stdout.endswith("it's $(id)|none|1|2"), "variables reach the program, and foreign ones do not"


@pytest.mark.parametrize("code", [0, 3])
def test_a_pbs_job_leaves_log_and_status_in_its_folder(tmp_path: Path, code: int) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("x3001\nx3002\n")
    asked = job(steps=(JobStep(argv=("bash", "-c", f"echo at {{MASTER_ADDR}}; exit {code}")),), output=str(tmp_path))
    env = {"PBS_JOBID": "42.server-01", "PBS_NODEFILE": str(nodes), "PALS_RANKID": "0"}
    done = _run(Pbs.render(asked), tmp_path, **env)
    assert done.returncode == code
    assert (tmp_path / "status-42").read_text() == f"{code}\n"
    log = (tmp_path / "envbuild-probe-42.log").read_text()
    assert "[--ppn][1]" in log
    assert log.endswith("at x3001\n")


@pytest.mark.parametrize("render", [Slurm.render, Pbs.render])
def test_modules_are_loaded_before_anything_and_one_that_is_missing_ends_the_job(
    tmp_path: Path, render: Callable[[Job], str]
) -> None:
    asked = job(modules=MODULES, output=str(tmp_path), steps=(JobStep(argv=("bash", "-c", "echo ran")),))
    nodes = tmp_path / "nodes"
    nodes.write_text("n1\nn2\n")
    env = {
        "PBS_JOBID": "7.s", "PBS_NODEFILE": str(nodes), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_NUM_NODES": "2", "SLURM_PROCID": "0",
    }  # fmt: skip
    # What a site's profile gives a login shell, not written for strict mode.
    module = 'module() { echo "$1 $2 $unset" >> "$HOME/asked"; [ "$2" != "$MISSING" ]; }\n'
    assert _run(module + render(asked), tmp_path, MISSING="-", **env).returncode == 0
    assert (tmp_path / "asked").read_text() == "use /soft/modulefiles \nload conda \nload it's \n"
    shutil.rmtree(tmp_path / "bin")
    done = _run(module + render(asked), tmp_path, MISSING="conda", **env)
    assert (done.returncode, "ran" in done.stdout) == (1, False)


def test_what_a_target_itself_asks_pbs_for_is_asked_for_once() -> None:
    own = {**POLARIS, "constraints": "system=polaris:mem=400gb:ncpus=32"}
    asked = "#PBS -l select=2:ngpus=4:system=polaris:mem=400gb:ncpus=32\n"
    assert asked in Pbs.render(training(**own))
