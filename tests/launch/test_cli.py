"""`envbuild launch` from the outside."""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path

import click
import pytest

from envbuild.cli.choose import absolute
from envbuild.cli.launch_cmd import asked_of, bench, launch
from envbuild.errors import EnvbuildError
from envbuild.launch.request import Place
from envbuild.schedule.cluster import Runner
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.programs import executable


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert launch.main(args=list(arguments), standalone_mode=False) == 0
    return capsys.readouterr().out


def test_text_says_what_was_not_said_and_ends_in_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "opt-175b", "-t", "azure-nd96", "--environment", "/e", "--output", "/src/o")
    assert out.startswith("# opt-175b, profile exact: 125m on 1 x 8 GPUs\n")
    assert "# default: prefix=test-125m" in out
    assert "# opt-t-and-n: " in out and "\n# `envbuild help NAME` explains a name\n" in out
    assert ". /e/.envbuild/activate.sh\nmkdir -p /src/o && cd /src/o\n/e/bin/opt-baselines --model-size 125m" in out


def test_json_is_the_launch_itself(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--nodes", "2", "--gpus-per-node", "4", "--master", "10.0.0.1", "--set", "addresses=10.1.0.1,10.1.0.2"]
    data = json.loads(run(capsys, "megatronapp", *arguments, "--json"))
    assert [command["node"] for command in data["launch"]["commands"]] == [0, 1]
    assert data["launch"]["commands"][1]["wait_for"] == {"address": "10.0.0.1", "port": 6000, "seconds": 600}
    assert data["launch"]["degrees"]["chunks"] == 2
    assert data["activate"].endswith("/.envbuild/activate.sh")


def test_one_node_of_several(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--nodes", "2", "--gpus-per-node", "4", "--master", "10.0.0.1"]
    out = run(capsys, "megatronapp", *arguments, "--node", "1")
    assert "--node_rank 1" in out and "--node_rank 0" not in out
    with fails("launch-parameter"):
        run(capsys, "megatronapp", *arguments, "--node", "2")


def test_gpus_of_a_node_are_the_targets_unless_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "on 1 x 4 GPUs" in run(capsys, "megatron-deepspeed-alcf", "-t", "polaris")
    assert "on 1 x 2 GPUs" in run(capsys, "megatron-deepspeed-alcf", "-t", "polaris", "--gpus-per-node", "2")
    with fails("launch-does-not-fit") as caught:
        run(capsys, "megatron-deepspeed-alcf", "-t", "local")
    assert "`expects: {gpus_per_node: N}` in the target, or `--gpus-per-node N`" in str(caught.value.as_dict())


def test_an_image_brings_its_own_programs(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "megatron-deepspeed-slurm", "-t", "slurm-pyxis", "--image", "nvcr.io/nvidia/pytorch:22.02-py3")
    assert "activate.sh" not in out
    assert "--container-image nvcr.io/nvidia/pytorch:22.02-py3" in out
    # Where lines are broken depends on the folder that the test runs in.
    assert " deepspeed /" in " ".join(out.replace("\\\n", " ").split())


def test_d87_bench_prints_what_a_trial_runs_and_runs_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["opt-175b", "-t", "local", "--profile", "ported-cu130", "--gpus-per-node", "8", "--dry-run"]
    assert bench.main(args=words, standalone_mode=False) == 0
    out = capsys.readouterr().out
    assert "/bin/opt-baselines --model-size 125m --benchmark" in out and f"cd {tmp_path}/bench" in out
    assert bench.main(args=[*words, "--json"], standalone_mode=False) == 0
    assert json.loads(capsys.readouterr().out)["unit"] == "words/s"
    assert list(tmp_path.iterdir()) == []


def test_bench_prints_its_job_and_launch_its_commands_where_no_scheduler_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "run", None)
    words = ["opt-175b", "-t", "azure-nd96"]
    assert bench.main(args=[*words, "--dry-run"], standalone_mode=False) == 0
    out, err = capsys.readouterr()
    top = f"/shared/home/{getpass.getuser()}/envbuild"  # the target names no other
    for line in (
        "#SBATCH --partition=hpc",
        "#SBATCH --gres=gpu:8",
        f"cd {top}/launches/opt-175b-",
        f". {top}/current/",
        "\n# bench-opt-175b: ",
    ):
        assert line in out
    assert "the scheduler was not asked" in err
    assert "no build of the profile exact on a GPU is known, only of `ported-cu130` (" in err, "as `plan` says"
    assert "125m on 1 x 8 GPUs: tensor 2, data 4" in err and "cannot be compared" not in err
    assert "measures wps in words/s of the run below; claimed: 200000 words/s, one Standard_ND96amsr_A100_v4" in err
    with pytest.raises(EnvbuildError, match=r"30b on 8 GPUs takes 4\.198 h at least, and has 1 h"):
        bench.main(args=[*words, "--set", "model_size=30b", "--gpus-per-node", "8", "--dry-run"], standalone_mode=False)
    monkeypatch.setattr(sys, "argv", ["envbuild", "launch", *words, "--nodes", "4"])
    out = run(capsys, *words)
    assert "not for this one; as a job of envbuild: `envbuild launch opt-175b -t azure-nd96 --nodes 4 --submit`" in out
    assert f"cd {top}/launches\n" in out
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert "not for this host" not in run(capsys, *words)


def test_a_job_of_pbs_that_is_only_printed_names_gpus_and_queue_as_pbs_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Runner, "run", None)
    mine = tmp_path / "mine.yaml"
    mine.write_text("{name: mine, extends: polaris, scheduler: {account: lab}}\n")
    words = ["megatron-deepspeed-alcf", "-t", str(mine), "--trials", "3", "--dry-run"]
    assert bench.main(args=words, standalone_mode=False) == 0
    out, err = capsys.readouterr()
    folder = out.partition("\noutput=")[2].partition("\n")[0]
    assert (
        " GPU-hours (4 GPUs a node), whole nodes, account lab. 3 trials, a job each: at most 24 GPU-hours.\n"
        f"# Submit it with `mkdir -p {folder} && qsub" in out
    )
    read = f"megatron-deepspeed-alcf --target {mine} --profile module-2025-09-25 --nodes 2 --gpus-per-node 4"
    log = f"{folder}/bench-megatron-deepspeed-alcf-NUMBER.log"
    assert f"\n# For a report of it: `envbuild bench {read} --log {log}`.\n" in out
    finished = tmp_path / "NUMBER.log"
    finished.write_text("nothing\n")
    assert bench.main(args=[*read.split(), "--log", str(finished)], standalone_mode=False) == 1, "it is only read"
    assert "nothing ran here, a log was read; " in capsys.readouterr().err
    assert f"\n# {{home}} is {Path.home()}, of this machine: " in out
    assert 'mkdir -p -- "$output"\n' in out.partition("exec >> ")[0]
    mine.write_text(mine.read_text().replace("}}", "}, prefix: /p}"))
    assert "#PBS -l select=2:ncpus=64:ngpus=4:system=polaris\n" in out and "#PBS -q debug\n" in out
    for line in (
        "GPT13B on 2 x 4 GPUs: tensor 8, ",
        "expect that it cannot be read: `envbuild data",
        "LAUNCHER=mpirun`",
        "not the document's values: MODEL_SIZE_KEY GPT13B, not GPT25B; SEQ_LEN 2048, not 4096; USE_FLASH_ATTN_V2",
    ):
        assert line in " ".join(err.split())
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert launch.main(args=["-t", str(mine), "--print-script"], standalone_mode=False) == 0
    printed, error = capsys.readouterr()
    assert "#PBS -l select=2:ncpus=64:ngpus=4:system=polaris\n" in printed, "no STACK, and no scheduler"
    assert "# Submit it with `mkdir -p /p/jobs/" in printed and "{home}" not in printed
    assert "there is no `qstat` on localhost; the scheduler was not asked: " in error
    assert "tensor 8, " in error and "expect that it cannot be read" in error
    with fails("launch-does-not-fit", match="8 GPUs a node were asked for, and .* has 4"):
        launch.main(args=["-t", str(mine), "--print-script", "--gpus-per-node", "8"], standalone_mode=False)
    assert "a job of the target has 2 nodes, this is for 1\n" in run(capsys, "-t", str(mine))


def test_for_hosts_over_ssh_the_folder_of_the_run_is_below_their_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "megatron-alpa", "-t", "aws-p3-16xlarge", "--profile", "exact")
    assert "/home/ubuntu/efs/envbuild/launches/" in out and str(Path.cwd()) not in out


def test_parameters_are_listed_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "megatron-deepspeed-alcf", "--parameters")
    assert "MODEL_SIZE_KEY" in out and "(default: GPT13B)" in out


@pytest.mark.parametrize(
    ("texts", "says"), [(["x"], "KEY=VALUE"), (["=1"], "KEY=VALUE"), (["trials=1", "trials=2"], "twice")]
)
def test_a_setting_is_a_key_and_a_value_once(capsys: pytest.CaptureFixture[str], texts: list[str], says: str) -> None:
    with pytest.raises(click.UsageError, match=says):
        run(capsys, "opt-175b", "--gpus-per-node", "8", *(word for text in texts for word in ("--set", text)))


@pytest.mark.parametrize(("option", "value"), [("--master", "-x"), ("--job", "a b"), ("--image", "-x")])
def test_what_could_be_read_as_an_option_is_refused(
    capsys: pytest.CaptureFixture[str], option: str, value: str, tmp_path: Path
) -> None:
    with fails("launch-parameter"):
        run(capsys, "opt-175b", "--gpus-per-node", "8", "--output", str(tmp_path), f"{option}={value}")


def test_a_folder_of_a_job_is_an_absolute_path_without_detours() -> None:
    for path in ("out", "/a/../b"):
        with pytest.raises(click.UsageError, match="--output"):
            asked_of({"output": path})
    asked = Place(nodes=1, gpus_per_node=1, environment="/e", output="/o/")
    assert (asked.below("run").output, asked.below("run").data) == ("/o/run", "/o/")


def test_a_folder_here_may_be_written_as_a_shell_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("sub")
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("HOME", str(tmp_path))
    told = [absolute(path) for path in ("../out", "~/out", ".", "../link")]
    assert told == [f"{tmp_path}/out", f"{tmp_path}/out", f"{tmp_path}/sub", f"{tmp_path}/link"]


def test_a_launch_that_one_node_cannot_hold_names_the_nodes_of_the_target(tmp_path: Path) -> None:
    text = "name: mine\nextends: azure-nd96\nscheduler: {nodes: 24}\n"
    words = ["opt-175b", "-t", str(write_file(tmp_path / "mine.yaml", text)), "--set"]
    with fails("launch-does-not-fit") as caught:
        launch.main(args=[*words, "model_size=175b"], standalone_mode=False)
    assert caught.value.why.endswith("; without --nodes it is for one node, and the target has 24")
    with fails("launch-parameter") as caught:
        launch.main(args=[*words, "model_size=5b"], standalone_mode=False)
    assert "--nodes" not in caught.value.why


def test_a_job_is_printed_where_slurm_does_not_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    executable(tmp_path / "bin" / "scontrol", "#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    mine = write_file(tmp_path / "mine.yaml", "name: mine\nextends: azure-nd96\nconnection: {login: null}\n")
    words = ["opt-175b", "-t", str(mine), "--print-script"]
    assert launch.main(args=words, standalone_mode=False) == 0
    out, err = capsys.readouterr()
    assert "#SBATCH --partition=hpc" in out and "the scheduler was not asked: " in err
    assert "(`bench --log`) says *not comparable*: nobody saw its GPUs" in out


@pytest.mark.parametrize(
    ("size", "limit", "says"), [("13b", "2h", "takes 4.501 h"), ("30b", "12h", ""), ("30b", "2h", None)]
)
def test_a_job_that_is_too_short_for_its_run_is_a_warning_or_refused_as_of_bench(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, size: str, limit: str, says: str | None
) -> None:
    mine = write_file(tmp_path / "mine.yaml", "name: mine\nextends: azure-nd96\nconnection: {login: null}\n")
    words = ["opt-175b", "-t", str(mine), "--set", f"model_size={size}", "--time-limit", limit]
    if says is None:
        with fails("launch-does-not-fit", match="takes 4.198 h at least"):
            launch.main(args=[*words, "--submit", "--print-script"], standalone_mode=False)
        return
    assert launch.main(args=[*words, "--submit", "--print-script"], standalone_mode=False) == 0
    err = capsys.readouterr().err
    assert says in err and (says or "at 40% of their peak" not in err)
