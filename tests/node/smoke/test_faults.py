"""Every way in which a smoke program can go wrong is a failure that says which; programs are small stand-ins."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import protocol
from envbuild.node.smoke import machine as machine_item
from envbuild.node.smoke import smoke
from envbuild.node.smoke.runner import Outcome, causes_first, last_words, read_events
from tests.node.smoke.subject import (
    BEGIN,
    GOOD_GEMM,
    GOOD_RANK,
    GOOD_TRAINING,
    MACHINE,
    TIMED,
    Subject,
)  # fmt: skip
from tests.support.fails import fails
from tests.support.patience import PATIENCE, alive, text_of, until, with_deadline
from tests.support.programs import completed


def test_a_good_program_passes_with_its_median_and_spread_and_facts_that_are_no_numbers(subject: Subject) -> None:
    check = subject.training("c.facts({'eager_loss': [9.2, float('nan')], 'peak': float('inf')})\n" + GOOD_TRAINING)
    assert check.status == "passed"
    assert check.says == "the loss fell from 4.412 to 0.03066 in 9 steps"
    metric = check.metrics[0]
    assert (metric.n, metric.median, metric.least, metric.greatest) == (3, 20.0, 10.0, 30.0)
    assert (check.details["eager_loss"], check.details["peak"]) == ([9.2, "NaN"], "Infinity")
    protocol.encode({"checks": [check.to_json_dict()]})


def test_a_hang_is_killed_at_the_deadline_with_a_stack(subject: Subject) -> None:
    text = "c.stage('step 2')\ntime.sleep(600)\n"
    deadline, check = with_deadline(
        lambda deadline: subject.training(text, deadline), 1, lambda found: "step 2" in found.says
    )
    assert check.says.startswith(f"the training program hung past its deadline of {deadline} s during step 2")
    assert "training.py" in check.details["output"]


def test_a_child_of_a_hanging_program_is_killed_with_it(subject: Subject, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    text = (
        "import subprocess\np = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(p.pid))\ntime.sleep(600)\n"
    )
    _, check = with_deadline(lambda deadline: subject.training(text, deadline), 2, lambda _: bool(text_of(pid_file)))
    assert "hung" in check.says
    until(lambda: not alive(pid_file.read_text()))


OUT_OF_MEMORY = "error = RuntimeError('CUDA error: out of memory\\nFor debugging pass X=1\\nCompile with `Y`.')\n"
BY_RANK = """
import traceback
def hook(*raised):
    for line in "".join(traceback.format_exception(*raised)).splitlines():
        print("[rank0]: " + line, file=sys.stderr)
sys.excepthook = hook
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("c.facts({'loss_first': 4., 'loss_last': .1, 'steps_done': 9})\nc.done()\n",
         "the metric training_tokens_per_second was not reported"),
        (GOOD_TRAINING.replace("30.0", "float('nan')"), "training_tokens_per_second is not a finite number"),
        ("c.emit('metric', dict(name='training_tokens_per_second', unit='x', n=1, median=float('inf'), least=1,"
         " greatest=1))\nc.done()\n", "the metric training_tokens_per_second is not a finite number"),
        ("c.stage('step 3 of 9')\nos.kill(os.getpid(), signal.SIGSEGV)\n",
         "the training program crashed with SIGSEGV during step 3 of 9"),
        ("sys.exit(3)\n", "the training program ended with exit code 3 during start-up"),
        # much output neither blocks nor is kept
        ("sys.stdout.write('x' * 5_000_000 + '\\n')\nsys.exit('last words')\n",
         "exit code 1 during start-up: last words"),
        ("raise ImportError('libcudart.so.11.0')\n", "ImportError: libcudart.so.11.0"),
        # as torch says it, and with a rank before each line once a process group is there
        (f"{OUT_OF_MEMORY}raise error\n", "during start-up: RuntimeError: CUDA error: out of memory"),
        (f"{OUT_OF_MEMORY}{BY_RANK}raise error\n", "during start-up: RuntimeError: CUDA error: out of memory"),
        (GOOD_TRAINING.replace("c.done()", ""), "ended without saying that it was done"),
        ("c.failure('the loss is nan at step 3')\nc.done()\n", "the loss is nan at step 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)\n", "SIGKILL (the kernel does this when memory runs out)"),
    ],
)  # fmt: skip
def test_an_irregular_end_is_a_failure_that_says_how(subject: Subject, text: str, says: str) -> None:
    check = subject.training(text)
    assert check.status == "failed"
    assert says in check.says
    assert "SIGSEGV" not in text or "Segmentation fault" in check.details["output"]
    assert len(check.details.get("output", "")) <= 6000


HALF_MADE = """
class Half:
    def __init__(self):
        raise error
    def __del__(self):
        self.made.end()
Half()
"""


def test_what_python_ignored_in_a_half_made_object_is_not_what_was_raised() -> None:
    done = completed([sys.executable, "-c", OUT_OF_MEMORY + HALF_MADE])
    assert done.stderr.splitlines()[-1] == "AttributeError: 'Half' object has no attribute 'made'"
    assert last_words(done.stderr, raised=True) == "RuntimeError: CUDA error: out of memory"


def test_that_numpy_is_not_there_is_not_the_last_word_of_a_program_and_other_warnings_are(subject: Subject) -> None:
    """As torch says it at its import, in an environment that has no numpy on purpose."""
    warns = "import warnings\nwarnings.warn({!r} + ': No module named (Triggered internally)')\nos._exit(1)\n"
    for message, shown in (("Failed to initialize NumPy", False), ("Failed to initialize CUDA", True)):
        text = BEGIN + warns.format(message)
        (check,) = subject.checks({"name": "training"}, programs={"training": text})
        assert check.status == "failed"
        assert ("warnings.warn" in check.says) == shown, check.says


def test_floors_are_compared_by_name_and_end_in_exit_6(subject: Subject) -> None:
    missed = subject.training(GOOD_TRAINING, floors={"training_tokens_per_second": 25})
    assert missed.says == "training_tokens_per_second is 20 token/s, below its floor 25"
    assert missed.metrics[0].floor == 25
    nearly = subject.training(GOOD_TRAINING, floors={"training_tokens_per_second": 20.0004})
    assert nearly.says == "training_tokens_per_second is 20 token/s, below its floor 20.0004"
    assert smoke.summary([missed.to_json_dict()])["exit"] == 6
    met = subject.training(GOOD_TRAINING, floors={"training_tokens_per_second": 20})
    assert met.status == "passed"
    unknown = subject.training(GOOD_TRAINING, floors={"words_per_second": 20})
    assert unknown.says == "the floor words_per_second has no metric of that name"
    assert smoke.summary([missed.to_json_dict(), unknown.to_json_dict()])["exit"] == 1


def test_all_reduce_takes_the_slowest_rank(subject: Subject) -> None:
    slow = "args['rank'] and c.facts({'timed': [[1048576, [0.1, 0.2]], [1000000000, [1.0, 0.1]]]})\nc.done()\n"
    gemm, reduce = subject.machine(GOOD_RANK + TIMED.replace("c.done()\n", "") + slow)
    assert (gemm.status, reduce.status) == ("passed", "passed")
    assert [metric.name for metric in reduce.metrics] == [
        "all_reduce_1_mib_busbw_gbps",
        "all_reduce_953_mib_busbw_gbps",
    ]
    assert (reduce.metrics[1].least, reduce.metrics[1].greatest) == (1.0, 4.0)
    assert math.isclose(reduce.metrics[0].least, 2**20 / 0.2 / 1e9)
    assert reduce.details["bytes"] == 1000000000


@pytest.mark.parametrize(("gpu", "told"), [("NVIDIA H200", True), ("NVIDIA H200 MIG 1g.18gb", False), ("Acme", False)])
def test_a_sum_stands_beside_what_the_links_give(gpu: str, told: bool, subject: Subject) -> None:
    programs = {"gpus": BEGIN + "c.facts({'gpus': 2})\nc.done()\n"}
    programs["allreduce"] = BEGIN + GOOD_RANK + f"c.facts({{'gpu': {gpu!r}}})\n" + TIMED
    more: Any = {"cuda": True, "only": ("machine/all-reduce",), "links": {"NVIDIA H200": 4.0}}
    reduce = subject.checks(MACHINE, programs=programs, **more)[0]
    assert reduce.status == "passed", reduce.says
    assert reduce.says.endswith("; 3 GB/s are 75 % of NVLink's 4 one way") == told
    assert (reduce.details.get("nvlink_gbps") == 4.0) == told


@pytest.mark.parametrize(
    ("name", "rate", "says"),
    [
        ("NVIDIA H200", 1e9, "GPU 1: 1,000,000,000 TFLOP/s cannot be, the peak of NVIDIA H200 is 989"),
        ("NVIDIA H200", 1050.0, "matrix products equal their float64 reference on CPU and GPUs"),
        ("Acme", 1e9, "matrix products equal their float64 reference on CPU and GPUs"),
    ],
)
def test_more_than_a_gpu_can_compute_is_a_failure(name: str, rate: float, says: str, subject: Subject) -> None:
    facts = {"gpus": 2, "gpu_names": [name, name], "gpu0_bf16_tflops": 900.0, "gpu1_bf16_tflops": rate}
    rates = "".join(f"c.metric('gemm_cuda_{kind}_tflops', 'TFLOP/s', [50.0])\n" for kind in ("float32", "bf16"))
    programs = {"gemm": BEGIN + GOOD_GEMM + rates + f"c.facts({facts})\nc.done()\n"}
    more: Any = {"cuda": True, "only": ("machine/gemm",), "peaks": {"NVIDIA H200": 989.0}}
    check = subject.checks(MACHINE, programs=programs, **more)[0]
    assert check.says == says
    assert ("slow_gpus" in check.details) == (name == "Acme")


NO_MEMORY = "c.facts({'left_out': [[8 << 30, 'a GPU has memory for 2048 MiB at most']]})\n"
NO_TIME = "c.facts({'too_slow': [[2 << 30, 12.5], [8 << 30, 50.0]]})\n"


ONE, MEASURED, LARGEST, ANY = (f"all_reduce_{size}busbw_gbps" for size in ("1_mib_", "953_mib_", "8192_mib_", ""))
WITHOUT = f"{LARGEST} was not measured: a GPU has memory for 2048 MiB at most"
WOULD = {LARGEST: "measured at 953 MiB, 8192 MiB would have taken 50 s",
         ANY: "measured at 953 MiB, 2048 MiB would have taken 12.5 s"}  # fmt: skip
BELOW = f"{MEASURED} is 3 GB/s, below its floor"
# Floors, facts of the ranks, status and last words of each check, the floor of the largest sum, and the exit code.
FLOORS: dict[str, tuple[dict[str, float], str, list[tuple[str, str]], float | None, int]] = {
    "a size that does not fit is not checked": (
        {LARGEST: 100.0}, NO_MEMORY, [("passed", ""), ("skipped", WITHOUT)], None, 0,
    ),
    "one of another size is": (
        {LARGEST: 100.0, ONE: 100.0}, NO_MEMORY,
        [("failed", f"{ONE} is 0.01049 GB/s, below its floor 100"), ("skipped", WITHOUT)], None, 6,
    ),
    "one that nothing has": (
        {"all_reduce_3_mib_busbw_gbps": 1.0}, NO_MEMORY,
        [("failed", "the floor all_reduce_3_mib_busbw_gbps has no metric of that name")], None, 1,
    ),
    # That it would take too long is what a broken link looks like.
    "one that would take too long is judged by the largest measured": (
        {LARGEST: 228.0}, NO_TIME, [("failed", f"{BELOW} 228; {WOULD[LARGEST]}")], 228.0, 6,
    ),
    "one that would take too long is held": (
        {LARGEST: 2.0}, NO_TIME, [("passed", f"floor 2 of {LARGEST}: {WOULD[LARGEST]}")], 2.0, 0,
    ),
    "one without a size that would take too long": (
        {ANY: 228.0}, NO_TIME, [("failed", f"{BELOW} 228; {WOULD[ANY]}")], 228.0, 6,
    ),
    "one without a size that is held": ({ANY: 2.0}, NO_TIME, [("passed", f"floor 2 of {ANY}: {WOULD[ANY]}")], 2.0, 0),
    "the higher of two that one size judges": ({MEASURED: 300.0, LARGEST: 2.0}, NO_TIME, [("failed", "")], 300.0, 6),
    "one without a size": ({ANY: 5.0}, "", [("failed", f"{BELOW} 5")], 5.0, 6),
    "one without a size where another does not fit": ({ANY: 5.0}, NO_MEMORY, [("failed", f"{BELOW} 5")], 5.0, 6),
}  # fmt: skip


@pytest.mark.parametrize(("floors", "facts", "wanted", "judged", "code"), FLOORS.values(), ids=FLOORS)
def test_a_floor_of_an_all_reduce_is_judged_by_its_size(
    subject: Subject,
    floors: dict[str, float],
    facts: str,
    wanted: list[tuple[str, str]],
    judged: float | None,
    code: int,
) -> None:
    checks = subject.reduced(floors, facts)
    assert [check.status for check in checks] == [status for status, _ in wanted]
    assert all(check.says.endswith(says) for check, (_, says) in zip(checks, wanted, strict=True)), checks
    assert [(check.name, check.level) for check in checks[1:]] == [("smoke/floors", "not-checked")] * (len(wanted) - 1)
    assert checks[0].metrics[-1].floor == judged, "no other size is compared with it"
    assert smoke.summary([check.to_json_dict() for check in checks])["exit"] == code


@pytest.mark.parametrize(
    ("rank", "failure"),
    [
        (
            GOOD_RANK + "args['rank'] == 1 and c.failure('wrong sum in 1 of 1000 elements')\n" + TIMED,
            "wrong sum in 1 of 1000 elements",
        ),
        ("if args['rank']: c.done(); sys.exit()\n" + GOOD_RANK + TIMED, "2 ranks were asked for and 1 took part: [0]"),
        ("args['world'] = 1\n" + GOOD_RANK + TIMED, "rank 0 says it is one of 1 ranks with gloo"),
        (
            GOOD_RANK + "c.facts({'timed': [[1048576, []]]})\nc.done()\n",
            "the bus bandwidth of the all-reduce was not reported by every rank",
        ),
    ],
    ids=["a wrong sum, however fast", "a rank that is not there", "a rank of another world", "a rank without times"],
)
def test_a_rank_that_is_wrong_fails_the_all_reduce(subject: Subject, rank: str, failure: str) -> None:
    reduce = subject.machine(rank)[1]
    assert reduce.status == "failed"
    assert failure in reduce.details["failures"]


def test_a_cause_is_told_before_what_it_did_to_others(subject: Subject) -> None:
    started = time.monotonic()
    text = "c.stage('rendezvous')\nif args['rank']: os.kill(os.getpid(), signal.SIGBUS)\ntime.sleep(600)\n"
    failures = subject.machine(text)[1].details["failures"]
    assert time.monotonic() - started < PATIENCE, "a rank that dies stops the others before the deadline"
    assert failures[0] == "rank 1 of 2 crashed with SIGBUS during rendezvous"
    assert failures[1].startswith("rank 0 of 2 was stopped")
    # As seen with gloo on an H100: its own time-out ends the other rank just before the check's deadline.
    waited, stopped, hung = (Outcome() for _ in range(3))
    waited.returncode, stopped.stopped, hung.timed_out = 1, True, True
    assert [rank for rank, _ in causes_first([stopped, waited, hung])] == [2, 1, 0]


@pytest.mark.parametrize(("count", "backend", "ranks"), [(1, "gloo", 2), (4, "nccl", 4)])
def test_cuda_demands_its_metrics_and_each_of_several_gpus_is_a_rank(
    subject: Subject, count: int, backend: str, ranks: int
) -> None:
    products = GOOD_GEMM + f"c.facts({{'gpus': {count}}})\nc.done()\n"
    gemm, reduce = subject.machine(GOOD_RANK + TIMED, gemm=products, cuda=True)
    missing = "the metric gemm_cuda_bf16_tflops or gemm_cuda_fp16_tflops was not reported"
    assert missing in gemm.details["failures"]
    assert (reduce.status, reduce.details["backend"], reduce.details["ranks"]) == ("passed", backend, ranks)
    assert ("NCCL needs a GPU for each rank and only one is visible" in reduce.says) == (count == 1)
    assert math.isclose(reduce.metrics[-1].greatest, 2 * (ranks - 1) / ranks * 1.0 / 0.25)
    gemm, reduce = subject.machine(GOOD_RANK + TIMED, gemm="sys.exit(1)\n", cuda=True)
    assert gemm.status == reduce.status == "failed"
    assert reduce.says.startswith("the number of GPUs is not known")


def test_the_stack_variables_arrive_and_those_of_python_and_tf32_do_not(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")  # as NVIDIA's images have it
    text = (
        "assert 'TORCH_ALLOW_TF32_CUBLAS_OVERRIDE' not in os.environ\n"
        "assert os.environ['NCCL_DEBUG'] == '$(id) \"x\"', os.environ\nassert 'NOT_THERE' not in os.environ\n"
        "assert os.environ['THERE'] == '/'\nassert 'PYTHONPATH' not in os.environ\nassert sys.flags.isolated\n"
        "assert os.environ['PYTHONPYCACHEPREFIX'] == sys.pycache_prefix\n"
    )
    variables = {
        "NCCL_DEBUG": '$(id) "x"',
        "NOT_THERE": {"path": "/does/not/exist", "if": "exists"},
        "THERE": {"path": "/", "if": "exists"},
    }
    programs = {"training": BEGIN + text + GOOD_TRAINING}
    check = subject.checks({"name": "training"}, programs=programs, variant={"environment": variables})[0]
    assert check.status == "passed", check.details


def test_a_folder_that_is_no_environment_is_a_coded_error(tmp_path: Path) -> None:
    with fails("environment-missing", 1):
        smoke.run({"args": {"environment": str(tmp_path), "variant": {}, "items": []}})


def test_torn_and_foreign_lines_in_the_event_file_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b'{"kind": "stage", "what": "a"}\n[1]\n\xff\xfe\n{"kind": "met')
    assert read_events(str(path)) == [{"kind": "stage", "what": "a"}]
    assert read_events(os.fspath(tmp_path / "absent")) == []


RATES = {0: 742.0, 1: 756.0, 2: 751.0, 3: 740.0}


def gpus(rates: dict[int, float], names: list[str] | None = None) -> str:
    """The facts of a GEMM program on these GPUs."""
    told: dict[str, Any] = {f"gpu{index}_bf16_tflops": rate for index, rate in rates.items()}
    told |= {"gpus": len(rates), "gpu_names": names or ["NVIDIA H200"] * len(rates)}
    metrics = ("gemm_cuda_bf16_tflops", "gemm_cuda_float32_tflops")
    return (
        GOOD_GEMM
        + "".join(f"c.metric({name!r}, 'TFLOP/s', [1.0])\n" for name in metrics)
        + f"c.facts({told})\nc.done()\n"
    )


def test_one_slow_gpu_of_four_is_told_with_its_number_and_refuses_nothing_alone(subject: Subject) -> None:
    slow = gpus({**RATES, 2: 412.0})
    check = subject.machine(GOOD_RANK + TIMED, gemm=slow, cuda=True)[0]
    told = "GPU 2 is slow: 412 TFLOP/s, 56 % of the others' 742"
    assert (check.status, check.details["slow_gpus"]) == ("passed", [told])
    assert check.says == "matrix products equal their float64 reference on CPU and GPUs"
    good = subject.machine(GOOD_RANK + TIMED, gemm=gpus(RATES), cuda=True)[0]
    assert (good.status, good.details["gpu_state"]) == ("passed", [])


def test_products_that_fail_on_a_full_gpu_say_that_it_was_full_before_what_cublas_says(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"index": 0, "memory_used_mib": 81012.0, "memory_total_mib": 81559.0}
    monkeypatch.setattr(machine_item.gpu_state, "sampled", lambda *_: contextlib.nullcontext([row]))
    fails = "raise RuntimeError('CUDA error: CUBLAS_STATUS_ALLOC_FAILED')\n"
    check = subject.machine(GOOD_RANK + TIMED, gemm=fails, cuda=True)[0]
    assert check.details["failures"][0] == "GPU 0 was full: nvidia-smi saw 81,012 of 81,559 MiB in use"
    assert "CUBLAS_STATUS_ALLOC_FAILED" in check.details["failures"][1]
    good = subject.machine(GOOD_RANK + TIMED, gemm=gpus(RATES), cuda=True)[0]
    assert good.status == "passed"


def test_a_slow_gpu_is_compared_with_its_own_kind_and_of_two_the_slower_one_is_named() -> None:
    kinds = ["NVIDIA A100", "NVIDIA A100", "NVIDIA T4"]
    facts = {"gpu_names": kinds, "gpu0_fp16_tflops": 250.0, "gpu1_fp16_tflops": 120.0, "gpu2_fp16_tflops": 40.0}
    # As nvidia-smi numbers them, which torch need not.
    state = [{"uuid": "GPU-b", "sm_mhz": 345.0, "throttle": ["hardware thermal slowdown"]}, {"uuid": "GPU-a"}, {}]
    told = "GPU 1 is slow: 120 TFLOP/s, 48 % of the others' 250"
    facts |= {"gpu_state": state, "gpu_uuids": {"0": "GPU-a", "1": "GPU-b"}}
    assert machine_item.slow_gpus(facts) == [f"{told} at 345 MHz, hardware thermal slowdown"]
    assert machine_item.slow_gpus({**facts, "gpu_uuids": {}}) == [told]


def used_by_others(monkeypatch: pytest.MonkeyPatch, *answers: list[dict[str, Any]]) -> None:
    """What nvidia-smi would say of other processes, each time that it is asked."""
    each = iter(answers)
    monkeypatch.setattr(machine_item.gpu_state, "in_use", lambda _: next(each))


HOW = "in use by other processes: pid 23104 (python, 1,808 MiB)"
ROWS: list[dict[str, Any]] = [{"index": index, "uuid": f"GPU-{index}", "how": HOW} for index in (0, 1)]


def test_that_others_use_the_gpus_stands_beside_every_figure_and_is_the_reason_of_a_missed_floor(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    used_by_others(monkeypatch, ROWS)
    item = {"name": "machine", "deadline": PATIENCE, "floors": {"gemm_cuda_bf16_tflops": 605.0}}
    programs = {"gemm": BEGIN + gpus(RATES)}
    gemm, copies, _ = subject.checks(item, programs=programs, cuda=True)
    told = [f"GPU {index} is {HOW}; figures may be lower than what it can do" for index in (0, 1)]
    assert gemm.details["gpus_in_use"] == told and "gpus_in_use" not in copies.details, "it has no figure"
    assert gemm.says == (
        f"gemm_cuda_bf16_tflops is 1 TFLOP/s on GPU 3, below its floor 605; {told[0]}; and 1 more GPU in use too"
    )


def test_others_that_came_after_the_first_look_are_told_of_a_slow_gpu(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    used_by_others(monkeypatch, [], ROWS[:1])
    uuids = "c.facts({'gpu_uuids': {'2': 'GPU-0'}})\n"
    slow = gpus({**RATES, 2: 412.0}).replace("c.done()", f"{uuids}c.done()")
    check = subject.machine(GOOD_RANK + TIMED, gemm=slow, cuda=True)[0]
    assert check.details["slow_gpus"] == [f"GPU 2 is slow: 412 TFLOP/s, 56 % of the others' 742, it is {HOW}"]
    assert len(check.details["gpus_in_use"]) == 1


@pytest.mark.parametrize("only", ["gemm", "all-reduce"])
@pytest.mark.parametrize(
    ("seen", "says"), [(3, "torch sees 3 of 4 GPUs that the target is to have"), (0, "torch sees no GPU")]
)
def test_gpus_that_the_target_is_to_have_and_torch_does_not_see_are_told(
    subject: Subject, only: str, seen: int, says: str
) -> None:
    programs = {"gpus": BEGIN + f"c.facts({{'gpus': {seen}}})\nc.done()\n", "allreduce": BEGIN + GOOD_RANK + TIMED}
    none = "" if seen else "c.failure('torch sees no GPU')\n"
    programs["gemm"] = BEGIN + none + gpus({index: RATES[index] for index in range(seen)})
    check = subject.checks(MACHINE, programs=programs, cuda=True, gpus=4, only=(f"machine/{only}",))[0]
    assert (check.status, check.details["failures"][0]) == ("failed", says)
