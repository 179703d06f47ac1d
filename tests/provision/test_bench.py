"""`bench` as a job, without one: what of its log is measured, and whose GPUs are named. Real jobs: tests/slurm."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.catalog.loader import load_target
from envbuild.errors import EnvbuildError
from envbuild.model.evidence import Check
from envbuild.model.facts import GpuFacts
from envbuild.model.target import Expectation, Scheduler
from envbuild.provision import bench
from envbuild.provision.bench import Trial
from envbuild.provision.gpu_use import Taken
from envbuild.provision.jobs import site as jobs_site
from envbuild.provision.jobs.survey import facts_file, write_facts
from envbuild.provision.own_run import Log
from envbuild.provision.run.context import Settings, Work
from envbuild.provision.run.run_dir import RunDir
from envbuild.report.pictures import pictures
from envbuild.schedule.job import Job, JobState, JobStep, Phase
from envbuild.schedule.script import AGAIN, log_name
from envbuild.text import last_lines
from tests.launch.support import place, stack, started
from tests.provision.jobs.test_parts import site
from tests.provision.survey.test_up_to_date import facts, prepared
from tests.report.samples import evidence, node
from tests.support.files import write_file

LINE = "Values: {'tflops': np.float64(56.0), 'parameter_count': 1.3}\n"


def checked(log: Log) -> Check:
    """What `bench` says of one run of Alpa's case on four GPUs."""
    reference = stack("megatron-alpa").reference
    assert reference is not None and reference.bench is not None
    launch = started("megatron-alpa", place(gpus=4), "ported")
    return bench._check(reference, reference.bench, [Trial(launch, lambda _: log)], None, log.path.parent)


@pytest.mark.parametrize(("limit", "status"), [(100, "failed"), (10_000, "passed")])
def test_a_job_s_log_that_is_not_all_here_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, status: str
) -> None:
    monkeypatch.setattr(jobs_site, "LOG_LIMIT", limit)
    job = Job(name="launch-x", steps=(JobStep(argv=("true",)),), output=str(tmp_path / "out"))
    write_file(tmp_path / "out" / log_name(job, "7"), "starting\n" * 20 + LINE * 3)
    work: Any = SimpleNamespace(run=SimpleNamespace(path=tmp_path))
    jobs_site.finish(work, site({"idle": 1}), job, "7", JobState(Phase.DONE, exit=0), good=True)
    check = checked(Log(tmp_path / log_name(job, "7")))
    assert check.status == status
    assert check.says.startswith(f"run 1: {jobs_site.CUT}") == (status == "failed")


def test_of_a_requeued_job_s_log_the_last_start_is_measured(tmp_path: Path) -> None:
    write_file(tmp_path / "log", f"{LINE.replace('56', '9') * 2}0: ValueError: no\n{AGAIN}\n{LINE * 3}")
    check = checked(Log(tmp_path / "log"))
    assert check.status == "passed"
    assert {metric.median for metric in check.metrics} == {56.0}


def test_what_a_run_took_of_the_gpus_stands_beside_the_estimate(tmp_path: Path) -> None:
    path = tmp_path / "bench.log"
    path.write_text(LINE * 3)
    check = checked(Log(path, taken=Taken(tensors=13.6, used=15.2)))
    assert check.details["estimated_tensors_gib"] == 13.3
    assert (check.details["tensors_percent"], check.details["used_gib"]) == (98, 15.2)
    said = "measured 13.6 GiB in tensors (estimate 98 %), 15.2 GiB used (estimate 111 %)"
    assert check.says.endswith(f"; {said}")


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (("n3", "n2"), "reproduced"),
        (("n1",), "not comparable: other GPU (H200-SXM-141GB"),
        (("n3",), "not comparable: the GPU that it ran on is not known"),
        ((), "not comparable: the GPU that it ran on is not known"),
    ],
)
def test_a_job_s_figure_is_compared_by_the_gpus_of_a_node_that_it_ran_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: Sequence[str], why: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "log").write_text(LINE * 3)
    ended = JobState(Phase.DONE, exit=0, nodes=tuple(nodes)), tmp_path / "log", 0
    monkeypatch.setattr(bench, "end_of_job", lambda *_: ended)
    cluster = {"prefix": "/p", "hosts": {"slurm": "gpu"}, "connection": {"kind": "job"}}
    ready, where = prepared(**cluster, scheduler={"kind": "slurm"}), site({"idle": 1})
    have = {"n1": "NVIDIA H200", "n2": "Tesla V100-SXM2-16GB"}
    known = {
        node: facts(node=node).model_copy(update={"gpus": (GpuFacts(index=0, name=name),)})
        for node, name in have.items()
    }
    write_facts(facts_file(ready.target, where.login), known)
    job = Job(name="launch-x", steps=(JobStep(argv=("true",)),), output=str(tmp_path / "out"))
    told: Any = None
    run = RunDir.create(tmp_path / "runs")
    with run.open_journal() as journal:
        work = Work(Settings(tmp_path / "runs"), run, journal, prepared=ready)
        log = bench._in_job(work, told, where, job, str(tmp_path / "out"), 60.0, "bench 1")
    assert checked(log).says.startswith(why)


def test_which_gpus_a_job_had_is_what_it_says_whatever_was_known_of_its_node(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LINE * 3)
    other = facts().model_copy(update={"gpus": (GpuFacts(index=0, name="NVIDIA H200"),)})
    volta = "Tesla V100-SXM2-16GB"
    comparison = checked(Log(tmp_path / "log", facts=other, gpus=(volta,) * 4)).comparison
    assert comparison is not None and (comparison.gpu, comparison.verdict) == (volta, "reproduced")
    (tmp_path / "log").write_text(LINE.replace("56.0", "132.0") * 3)
    assert checked(Log(tmp_path / "log", gpus=(volta,) * 4)).status == "failed", "above its peak"
    assert checked(Log(tmp_path / "log", gpus=(volta, "NVIDIA H200"))).status == "passed", "of two kinds"


def test_a_figure_above_the_peak_of_the_gpu_that_ran_it_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LINE.replace("56.0", "132.0") * 3)
    volta = facts().model_copy(update={"gpus": (GpuFacts(index=0, name="Tesla V100-SXM2-16GB"),)})
    assert checked(Log(tmp_path / "log")).status == "passed", "the GPU is not known"
    check = checked(Log(tmp_path / "log", facts=volta))
    assert (check.status, check.details["values"]) == ("failed", [132.0] * 3)
    assert check.says.startswith("run 1: 132 TFLOP/s per GPU is more than the peak of Tesla V100-SXM2-16GB, 125")


def test_a_run_that_crashed_says_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("starting\nbash: line 29: srun: command not found\n")
    check = checked(Log(tmp_path / "log", failure="it ended with exit code 127"))
    assert check.says == "run 1: it ended with exit code 127: bash: line 29: srun: command not found"
    (tmp_path / "ranks").write_text(
        "0: meeting\n1: no address of node2\nsrun: error: node2: task 1: Exited\nTerminated\n"
    )
    ranked = checked(Log(tmp_path / "ranks", failure="node2: it ended with exit code 1"))
    assert ranked.says == "run 1: node2: it ended with exit code 1: 1: no address of node2", (
        "of a rank, where one is named"
    )
    late = checked(Log(tmp_path / "log", failure="timed out after 30 s", late=True))
    told = "run 1: timed out after 30 s; until then "
    assert late.says == f"{told}no figure after its warm-up", "its last line says nothing of why"


def test_a_run_that_its_deadline_ended_says_what_was_measured_until_then_and_that_it_is_no_result(
    tmp_path: Path,
) -> None:
    figures = "".join(LINE.replace("56.0", figure) for figure in ("54.0", "57.0", "56.0"))
    (tmp_path / "log").write_text(f"starting\n{figures}rank 3 waits\n")
    check = checked(Log(tmp_path / "log", failure="timed out after 30 s", late=True))
    told = "3 figures after its warm-up, median 56 TFLOP/s per GPU: not a result"
    assert (check.status, check.says) == ("failed", f"run 1: timed out after 30 s; until then {told}")
    assert check.details["failures"] == [check.says] and not check.metrics and check.comparison is None
    assert check.details["output"].endswith("rank 3 waits")
    (tmp_path / "long").write_text("".join(f"12:00:{second:02} at work\n" for second in range(30)) + "\n")
    check = checked(Log(tmp_path / "long", failure="timed out after 30 s", late=True))
    assert check.details["output"].splitlines() == [f"12:00:{second:02} at work" for second in range(18, 30)]


TORCHRUN = """[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered
W1123 08:00:00.1 7 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 9 closing signal SIGTERM
E1123 08:00:00.2 7 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 1 (pid: 8)
Traceback (most recent call last):
  File "/env/bin/torchrun", line 6, in <module>
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-23_08:00:00
  exitcode  : 1 (pid: 8)
  traceback : To enable traceback see: the pages of torch
============================================================
"""
CANCELLED = """srun: error: node2: tasks 0,2-3: Exited with exit code 1
srun: Terminating StepId=7.0
0: slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-23T08:00:00 ***
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
srun: error: node1: task 1: Terminated
srun: error: node3: task 4: Killed
srun: Force Terminated StepId=7.0
bash: line 3:   812 Terminated              sh -c 'run'
Terminated
"""
# As a torchrun on another node ends with the srun: lines of a real one, paths shortened.
ENDED_WITH_IT = """srun: error: gpu2: task 1: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=5.0
0: slurmstepd-gpu1: error: *** STEP 5.0 ON gpu1 CANCELLED AT 2026-11-24T05:12:03 ***
0: W1124 05:12:03.128 20 torch/agent/server/api.py:753] Received 15 death signal, shutting down workers
0: W1124 05:12:03.131 20 torch/multiprocessing/api.py:1028] Sending process 21 closing signal SIGTERM
0: Traceback (most recent call last):
0:     raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
0: torch.distributed.elastic.multiprocessing.api.SignalException: Process 20995 got signal: 15
srun: error: gpu1: task 0: Exited with exit code 1
"""
HYDRA = """[proxy:0@node1] Sending upstream hdr.cmd = CMD_STDERR
[rank0]:[W1123 17:15:01.350622882 ProcessGroupNCCL.cpp:1575] Warning: destroy_process_group() was not called
[proxy:0@node1] got pmi command from downstream 0-0:
    cmd=finalize
[mpiexec@node1] Sending PMI command:
    cmd=finalize_ack rc=0
[proxy:0@node1] removed file /tmp/hydra_hwloc_xmlfile_ZEdSR0
"""
# As of a DeepSpeedCPUAdam that could not be compiled: the end of a real run, paths shortened.
IGNORED = """[rank0]: RuntimeError: Unable to JIT load the cpu_adam op due to ninja not being installed.
[proxy:0@node1] Sending upstream hdr.cmd = CMD_STDERR
Exception ignored in: <function DeepSpeedCPUAdam.__del__ at 0x7feb530860c0>
Traceback (most recent call last):
  File "/env/deepspeed/ops/adam/cpu_adam.py", line 99, in __del__
[proxy:0@node1] Sending upstream hdr.cmd = CMD_STDERR
    self.ds_opt_adam.destroy_adam(self.opt_id)
AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'
"""
# As DeepSpeed's launcher ends its ranks; the command is longer.
DEEPSPEED = """[rank0]: FileNotFoundError: [Errno 2] No such file or directory: '/data/gpt2-vocab.json'
[2026-11-25 15:27:59,123] [INFO] [launch.py:351:sigkill_handler] Killing subprocess 812
[2026-11-25 15:27:59,124] [INFO] [launch.py:351:sigkill_handler] Killing subprocess 813
[2026-11-25 15:27:59,456] [ERROR] [launch.py:357:sigkill_handler] ['/env/bin/python', '-u'] exits with return code = 1
"""
MEMORY = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."
TIME = "slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-23T08:00:00 DUE TO TIME LIMIT ***"


@pytest.mark.parametrize(
    ("log", "last"),
    [
        (f"1: iteration 5 loss 3\n{MEMORY}\n", MEMORY),
        (
            f"1: iteration 5 loss 3\n{MEMORY}\nsrun: error: node2: task 1: Out Of Memory\n{CANCELLED}",
            "srun: error: node2: task 1: Out Of Memory",
        ),
        ("0: iteration 4 loss 3\nRuntimeError: CUDA error: out of memory\n", "RuntimeError: CUDA error: out of memory"),
        (f"0: iteration 4 loss 3\n{TIME}\n{CANCELLED}", TIME),
        (f"0: ValueError: no\n{CANCELLED}", "0: ValueError: no"),
        (f"1: ValueError: no\n1: /a place/train.py FAILED\n{ENDED_WITH_IT}", "1: ValueError: no"),
        (f"1: ValueError: no\n0: step 3\n{ENDED_WITH_IT}", "1: ValueError: no"),
        (f"1: ValueError: no\na warning of no rank\n{ENDED_WITH_IT}", "a warning of no rank"),
        (f"[rank0]: AttributeError: no sizes\n{HYDRA}", "[rank0]: AttributeError: no sizes"),
        (f"{IGNORED}{HYDRA}", IGNORED.splitlines()[0]),
        (TORCHRUN, TORCHRUN.splitlines()[0]),
        (DEEPSPEED, DEEPSPEED.splitlines()[0]),
        ("".join(f"0: {line}\n" for line in TORCHRUN.splitlines()) + CANCELLED, f"0: {TORCHRUN.splitlines()[0]}"),
        ("Terminated\n", "Terminated"),
        (f"0: step 3\nTerminated: loss is NaN\n{CANCELLED}", "Terminated: loss is NaN"),
        (f"0: step 3\ncheck FAILED\n{CANCELLED}", "check FAILED"),
    ],
)
def test_the_last_line_of_a_failed_run_is_its_cause_and_not_that_it_ended(tmp_path: Path, log: str, last: str) -> None:
    (tmp_path / "log").write_text(log)
    says = checked(Log(tmp_path / "log", failure="it ended with exit code 1")).says
    assert says == f"run 1: it ended with exit code 1: {last_lines(last)}"


@pytest.mark.parametrize(
    ("before", "ranks"),
    [
        ("{node}: ", 2),
        ("[default{rank}]:", 4),
        ("[rank{rank}]: ", 4),
        ("[{rank}] ", 4),
        ("{node}: [default{rank}]:", 8),
    ],
)
def test_of_a_run_that_hung_the_last_line_of_every_rank_that_names_itself_is_told(
    tmp_path: Path, before: str, ranks: int
) -> None:
    lines = [
        f"{before.format(node=node, rank=rank)}step {step} of rank {rank} on node {node}"
        for step in (1, 2)
        for node in (0, 1)
        for rank in range(4)
    ]
    noise = ["a line of no rank"] * 20
    (tmp_path / "log").write_text("\n".join([*lines, *noise, "[0]:", CANCELLED]))
    check = checked(Log(tmp_path / "log", failure="timed out after 30 s", late=True))
    told = [line for line in check.details["output"].splitlines() if " of rank " in line]
    assert len(told) == ranks and all("step 2 " in line for line in told), told


def test_the_course_of_the_loss_is_in_the_evidence_and_drawn_in_the_report(tmp_path: Path) -> None:
    rows = [{"loss": f"{9 - step:g}", "wps": f"{1000 * step:g}", "num_updates": str(step)} for step in range(1, 7)]
    lines = [f"2026-11-24 05:00:00 | INFO | train_inner | {json.dumps(row)}\n" for row in rows]
    (tmp_path / "log").write_text("".join(lines))
    reference = stack("opt-175b").reference
    assert reference is not None and reference.bench is not None
    trial = Trial(started("opt-175b", place(gpus=8)), lambda _: Log(tmp_path / "log"))
    check = bench._check(reference, reference.bench, [trial], None, tmp_path)
    assert (check.status, check.details["losses"]) == ("passed", [8.0, 7.0, 6.0, 5.0, 4.0, 3.0])
    assert "the loss went from 8 to 3 in 6 steps" in check.says
    *_, drawn = pictures(evidence(node(checks=[check.to_json_dict()])))
    assert (drawn.id, "went from 8 to 3 in 6 steps" in drawn.says) == ("loss-bench", True)


@pytest.mark.parametrize(
    ("nodes", "gpus", "expects", "options"),
    [
        (2, 8, "A100-SXM4-80GB", "--nodes 1"),
        (1, 4, None, "--gpus-per-node 8"),
        (2, 4, "A100-SXM4-80GB", "--nodes 1 --gpus-per-node 8"),
        (1, 8, "A100-SXM4-80GB", ""),
        (2, 8, "H100 PCIe", "not comparable"),
        (1, 8, "A100 80GB PCIe", "not comparable"),
    ],
)
def test_a_run_on_other_gpus_or_nodes_than_the_claim_names_those_of_the_claim(
    nodes: int, gpus: int, expects: str | None, options: str
) -> None:
    opt = stack("opt-175b")
    assert opt.reference and opt.reference.bench
    where = load_target("azure-nd96").target.model_copy(update={"expects": Expectation(gpu=expects)})
    ran = started("opt-175b", place(nodes, gpus, gpu="H200"), model_size="125m")
    asked = (opt.reference, opt.reference.bench, ran, None)
    against = bench.doubts(where, *asked, 3600.0)
    says = "the claim is for A100-SXM4-80GB: on other GPUs the verdict is *not comparable*"
    says = says if options == "not comparable" else f"`{options}` can"
    assert [text.rpartition("; ")[2] for text in against] == ([says] if options else [])
    short = where.model_copy(update={"scheduler": where.scheduler.model_copy(update={"time_limit": "30m"})})
    for at, deadline, run, job in ((where, 18000.0, 5, "2:00"), (where, 7200.0, 2, "2:00"), (short, 3600.0, 1, "0:30")):
        (longer,) = (text for text in bench.doubts(at, *asked, deadline) if text not in against)
        assert (
            longer
            == f"a run may take {run}:00:00 (`--run-timeout`), and its job {job}:00 (`time_limit` of the target): "
            "a job that ends first has no figure, so let the run end ten minutes before its job"
        )


def test_the_claim_of_a_run_is_that_for_the_gpus_which_the_target_expects() -> None:
    alpa = stack("megatron-alpa")
    assert alpa.reference and alpa.reference.bench
    ran = started("megatron-alpa", place(1, 8), profile="ported", model="2.6B")
    for gpu, value in (("H200", 271.0), ("V100-SXM2-16GB", 50.44), (None, 50.44)):
        where = load_target("slurm", template=True).target.model_copy(update={"expects": Expectation(gpu=gpu)})
        claim = bench.claim_expected(where, alpa.reference, alpa.reference.bench, ran, None)
        assert claim is not None and claim.value == value
        assert not bench.doubts(where, alpa.reference, alpa.reference.bench, ran, None, 3600.0)


@pytest.mark.parametrize(
    ("model", "expects", "limit", "deadline", "needs"),
    [
        ("125m", "A100-SXM4-80GB", "2h", 3600.0, ""),
        (
            "30b",
            "A100-SXM4-80GB",
            "2h",
            86400.0,
            "30b on 8 GPUs takes 4.198 h at least, and has 2 h (`time_limit` of the target)",
        ),
        ("30b", "A100-SXM4-80GB", "2h", 3600.0, "30b on 8 GPUs takes 4.198 h at least, and has 1 h (`--run-timeout`)"),
        ("30b", "A100-SXM4-80GB", None, 3600.0, "30b on 8 GPUs takes 4.198 h at least, and has 1 h (`--run-timeout`)"),
        ("30b", "A100-SXM4-80GB", None, 86400.0, ""),
        ("6.7b", "A100-SXM4-80GB", None, 3600.0, "6.7b has 1 h, and takes 1.166 h with its GPUs at 40% of their peak"),
        ("30b", "H100 PCIe", None, 3600.0, ""),  # its peak is not verified
        ("30b", None, None, 3600.0, ""),
    ],
)
def test_a_run_that_cannot_end_in_its_time_is_refused_before_it_begins_where_the_peak_is_known(
    model: str, expects: str | None, limit: str | None, deadline: float, needs: str
) -> None:
    opt = stack("opt-175b")
    assert opt.reference and opt.reference.bench
    ran = started("opt-175b", place(1, 8, gpu="H200"), model_size=model)
    where = load_target("azure-nd96").target.model_copy(
        update={"expects": Expectation(gpu=expects), "scheduler": Scheduler(kind="slurm", time_limit=limit)}
    )
    asked = (where, opt.reference, opt.reference.bench, ran, None, deadline)
    if " at least" not in needs:
        assert bench.refuse_too_long(*asked).partition(":")[0] == needs
        return
    with pytest.raises(EnvbuildError) as caught:
        bench.refuse_too_long(*asked)
    assert (caught.value.code, caught.value.what) == ("launch-does-not-fit", needs)
    own, site = "`--run-timeout 11h`", "`time_limit: 12h` under `scheduler:` of the target"
    cure = " and ".join(
        [own] * (deadline != 39600 and (deadline < 39600 or limit is not None)) + [site] * (limit is not None)
    )
    assert caught.value.hint.partition("; ")[0] == f"give it {cure}", "what is long enough is not asked for again"
