"""`envbuild launch --run`, and commands as bash runs them; the program is a stand-in that says how it was started."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError
from envbuild.launch.request import Place
from envbuild.launch.shell import LATE, bounded, command_text, job_steps
from envbuild.model.launch import Command, Endpoint
from envbuild.schedule.job import JobText
from tests.launch.support import ENVIRONMENT, place, started
from tests.support import forked
from tests.support.patience import PATIENCE
from tests.support.programs import completed, executable

SAYS = '#!/bin/sh\nprintf "%s\\n" "$GREETING" "$PWD" "$MEGATRONAPP_JOB" "$@" > "{log}"\n{more}\n'


def environment(top: Path, more: str = "exit 0", name: str = "python3") -> Path:
    """An environment with a stand-in for its Python, which starts torchrun, and the folder of its source."""
    built = top / "the env"
    for folder in ("bin", ".envbuild", "src/megatronapp/Megatron"):
        (built / folder).mkdir(parents=True)
    (built / ".envbuild" / "activate.sh").write_text("GREETING='hello'; export GREETING\nfalse\n")
    executable(built / "bin" / name, SAYS.format(log=top / "log", more=more))
    return built


def run(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return forked.run(["launch", *arguments], env={**os.environ, **(env or {})}, cwd=cwd, timeout=PATIENCE)


def test_the_command_of_one_node_runs_here_its_exit_code_is_the_answer_and_secrets_are_not_shown(
    tmp_path: Path,
) -> None:
    built = environment(tmp_path, more="exit 37")
    given = ("--gpus-per-node", "4", "--environment", str(built), "--output", str(tmp_path / "s3cret-of-mine"))
    done = run("megatronapp", *given, "--run", cwd=tmp_path, env={"DEPLOY_TOKEN": "s3cret-of-mine"})
    assert done.returncode == 37, done.stderr
    greeting, folder, _, *words = (tmp_path / "log").read_text().splitlines()
    assert (greeting, folder) == ("hello", str(built / "src/megatronapp/Megatron"))
    # By its module: an environment on a base that has torch has no script of that name.
    assert words[:4] == ["-m", "torch.distributed.run", "--nproc_per_node", "4"]
    assert "pretrain_gpt.py" in words
    assert (tmp_path / "s3cret-of-mine").is_dir(), "what is run is not redacted"
    assert "# megatronapp, profile" in done.stderr
    assert "***" in done.stderr and "s3cret-of-mine" not in done.stderr


def test_what_cannot_run_here_is_said(tmp_path: Path) -> None:
    given = ("megatronapp", "--gpus-per-node", "4", "--environment", str(tmp_path / "none"))
    done = run(*given, "--run", cwd=tmp_path)
    assert (done.returncode, "error[environment-unknown]" in done.stderr) == (1, True)
    assert "hint: build it: `envbuild provision megatronapp --target local`; or name the" in done.stderr
    done = run(*given, "--run", "--nodes", "2", "--master", "10.0.0.1", cwd=tmp_path)
    assert (done.returncode, "error[launch-parameter]" in done.stderr) == (2, True)
    for wrong in (("--submit", "--run"), ("--no-wait",), ("--submit", "--master", "x"), ("--submit", "--node", "1")):
        done = run(*given, *wrong, cwd=tmp_path)
        assert (done.returncode, "error[usage]" in done.stderr) == (2, True), wrong
    done = run(*given, "--submit", "--time-limit", "1h", "-t", "local", cwd=tmp_path)
    assert (done.returncode, "error[option-does-not-fit]" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("user", [None, "ada"])
def test_a_run_knows_its_user_where_no_login_set_it(tmp_path: Path, user: str | None) -> None:
    text = command_text(Command(argv=("bash", "-c", "echo $USER"), directory=str(tmp_path)), None, "")
    around = {"PATH": os.environ["PATH"]} | ({"USER": user} if user else {})
    done = completed(["bash", "-c", text], check=True, env=around)
    assert done.stdout.strip() == (user or getpass.getuser())


def test_a_worker_waits_until_the_master_listens_and_gives_up_without_starting(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        gate = Endpoint(address="127.0.0.1", port=listener.getsockname()[1], seconds=PATIENCE)
        command = Command(argv=("touch", str(log)), directory=str(tmp_path), wait_for=gate)
        done: list[int] = []
        text = command_text(command, None, "")
        worker = threading.Thread(
            target=lambda: done.append(subprocess.run(["bash", "-c", text], check=False).returncode)
        )
        worker.start()
        time.sleep(0.3)
        assert not log.exists(), "nobody listens yet"
        listener.listen()
        worker.join()
    assert done == [0]
    assert log.exists()
    log.unlink()
    closed = command.model_copy(update={"wait_for": gate.model_copy(update={"seconds": 1})})
    assert subprocess.run(["bash", "-c", command_text(closed, None, "")], check=False).returncode == 124
    assert not log.exists()


@pytest.mark.parametrize(("says", "code", "ended"), [("all done", 0, 0), ("nothing", 0, 1), ("all done", 3, 3)])
def test_where_the_exit_code_proves_nothing_the_log_has_to(tmp_path: Path, says: str, code: int, ended: int) -> None:
    argv = ("bash", "-c", f"echo {says}; exit {code}")
    text = command_text(Command(argv=argv, directory=str(tmp_path), ends="all done"), None, "")
    done = completed(["bash", "-c", text])
    assert done.returncode == ended
    assert says in done.stdout


@pytest.mark.parametrize(
    ("text", "seconds", "ended"),
    [
        ("sleep 60", 1, (124, True)),
        ("exit 124", 60, (124, False)),
        ("exit 3", 60, (3, False)),
        ("true", 60, (0, False)),
    ],
)
def test_a_step_that_its_deadline_ended_says_so_and_no_other_does(
    text: str, seconds: float, ended: tuple[int, bool]
) -> None:
    step = bounded(JobText(text=f"echo '{{RUN_ID}} $HOME'; {text}"), seconds)
    done = completed(["bash", "-c", step.text])
    assert (done.returncode, LATE in done.stdout) == ended
    assert done.stdout.startswith("{RUN_ID} $HOME\n")


def test_only_the_job_knows_its_first_node_its_port_and_its_number() -> None:
    place = Place(nodes=2, gpus_per_node=4, environment="/e", output="/o")
    made, steps = job_steps(lambda told: started("megatronapp", told), place, "/e/.envbuild/activate.sh")
    assert len(made.commands) == 2
    assert [step.each for step in steps] == ["batch", "node"]
    text = steps[-1].text
    assert "--master_addr {MASTER_ADDR} --master_port {MASTER_PORT}" in " ".join(text.replace("\\\n", " ").split())
    assert "MEGATRONAPP_JOB={RUN_ID}" in text
    assert "/dev/tcp/{MASTER_ADDR}/{MASTER_PORT}" in text
    own = job_steps(lambda told: started("megatronapp", told), place, None, port=7000)[1][-1].text
    assert "--master_port 7000" in " ".join(own.replace("\\\n", " ").split())
    assert "{MASTER_PORT}" not in own


def test_a_command_that_starts_every_node_itself_is_run_by_the_script_of_the_job() -> None:
    place = Place(nodes=2, gpus_per_node=8, environment="/e", output="/o")
    _, steps = job_steps(lambda told: started("megatron-deepspeed-slurm", told), place, None)
    assert [step.each for step in steps] == ["batch", "batch"]
    text = " ".join(steps[1].text.replace("\\\n", " ").split())
    assert "env SLURM_KILL_BAD_EXIT=1 SLURM_CPU_BIND=none srun -l --nodes 2" in text
    assert "ds_config.json" in steps[0].text


def test_without_slurm_every_node_starts_its_own_ranks() -> None:
    (command,) = (one := started("megatron-deepspeed-slurm", place(direct=True))).commands
    torchrun = (f"{ENVIRONMENT}/bin/python3", "-m", "torch.distributed.run")
    assert command.argv[:7] == (*torchrun, "--nproc_per_node", str(one.gpus_per_node), "--nnodes", "1")
    assert not {"SLURM_KILL_BAD_EXIT", "PET_NODE_RANK"} & set(command.environment)
    assert "slurm-gpus-given" in {deviation.finding for deviation in one.deviations}
    two = started("megatron-deepspeed-slurm", place(nodes=2, direct=True))
    assert [(each.node, each.argv[0]) for each in two.commands] == [(n, f"{ENVIRONMENT}/bin/python3") for n in (0, 1)]
    argv = two.commands[1].argv
    assert argv[argv.index("--master_addr") :][:4] == ("--master_addr", "10.0.0.1", "--master_port", "49152")
    assert [each.environment["PET_NODE_RANK"] for each in two.commands] == ["0", "1"]
    assert not any("srun" in deviation.does for deviation in two.deviations)
    with pytest.raises(EnvbuildError, match="this target has no Slurm"):
        started("megatron-deepspeed-slurm", place(direct=True, image="a.sqsh"))


# What metaseq does with --salloc at a8b78674 (launcher/slurm.py): srun prints into files, in a folder with a name of
# hyperparameters too, whose log must not be there yet, and the exit code is 0 whatever happens.
OPT_BASELINES = """#!/bin/bash
case " $* " in *" --salloc "*) ;; *) exit 2 ;; esac
while [ $# -gt 0 ]; do
  case $1 in --checkpoints-dir) dir=$2 ;; -p) prefix=$2 ;; -n) nodes=$2 ;; -g) gpus=$2 ;; esac
  shift
done
run="$dir/$prefix.bm_8m.dummy_lm.ngpu$((nodes * gpus))"
mkdir -p "$run"
[ ! -e "$run/train.log" ] || { echo "skip in progress run: $run"; exit 0; }
echo "commit 1" >> "$run/train.log"
echo "running command: srun"
srun --output "$run/train.log" --error "$run/train.stderr.9" --open-mode append train.py
exit 0
"""
SRUN = """#!/bin/bash
{ echo '| INFO | train_inner | {"wps": "210000"}'; %s; } >> "$2" 2>> "$4"
"""


@pytest.mark.parametrize(
    ("ending", "code", "shown", "given"),
    [
        ("echo 'done training in 9.0 seconds'", 0, "done training in 9.0 seconds", {}),
        ("echo 'CUDA out of memory' >&2", 1, "CUDA out of memory", {"checkpoints": "below it"}),
    ],
)
def test_what_srun_has_put_into_the_logs_of_opt_is_shown_and_proves_the_run(
    tmp_path: Path, ending: str, code: int, shown: str, given: dict[str, str]
) -> None:
    built = tmp_path / "the env"
    (built / "bin").mkdir(parents=True)
    for name, text in (("opt-baselines", OPT_BASELINES), ("srun", SRUN % ending)):
        executable(built / "bin" / name, text)
    (tmp_path / "out put").mkdir()
    where = place(2, environment=str(built), output=str(tmp_path / "out put"), job="9")
    (command,) = started("opt-175b", where, **given).commands

    def ran() -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{built}/bin:{os.environ['PATH']}"}
        words = ["bash", "-c", command_text(command, None, "")]
        return completed(words, env=env)

    first, again = ran(), ran()
    assert first.returncode == code, first.stderr
    assert '"wps": "210000"' in first.stdout and shown in first.stdout
    assert (again.returncode, shown in again.stdout) == (1, False), "it was skipped: what was there proves nothing"


def test_what_srun_puts_into_the_logs_of_opt_is_shown_while_it_runs(tmp_path: Path) -> None:
    built, go = tmp_path / "env", tmp_path / "go"
    (built / "bin").mkdir(parents=True)
    waits = f"echo -n 'done trai'; until [ -e {go} ]; do sleep 0.1; done; echo 'ning in 9.0 seconds'; echo -n end >&2"
    for name, text in (("opt-baselines", OPT_BASELINES), ("srun", SRUN % waits)):
        executable(built / "bin" / name, text)
    (command,) = started("opt-175b", place(2, environment=str(built), output=str(tmp_path), job="9")).commands
    env = {"PATH": f"{built}/bin:{os.environ['PATH']}"}
    with subprocess.Popen(
        ["bash", "-c", command_text(command, None, "")], env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        early = next(line for line in process.stdout if "wps" in line)
        assert process.poll() is None
        go.touch()
        rest = process.stdout.read()
    assert (process.returncode, early.count("done")) == (0, 0)
    assert rest == "done training in 9.0 seconds\nend", "each line once, and none in two pieces"
