"""`strategy` through the real command: a script in the shape of Alpa's that runs out of memory above a size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_bench import REFERENCE, timed
from tests.e2e.world import Done, World
from tests.support.patience import with_deadline
from tests.support.programs import executable

# What this "machine" gives: more with larger microbatches, less with more stages, and no more than it has memory for.
CASE = """
import ast, os, sys, time
with open(sys.argv[2] + ".tsv", "x"):  # a trial that finds what another one has written is none
    pass
case = ast.literal_eval(sys.argv[1])
batch, dp, tmp, pp, count = case[1], case[7], case[8], case[11], case[12]
micro, what = batch // dp // count, os.environ.get("CASE", "")
if what == "slow":
    time.sleep(2)
if what == "crash":
    print("NCCL error: unhandled system error")
    sys.exit(1)
if micro > int(os.environ.get("LARGEST", "16")):
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 25.00 GiB")
    sys.exit(1)
print("Values: {'tflops': np.float64(%s), 'parameter_count': 1.3}" % (300 * micro / (micro + 1.0) / pp / tmp))
"""
# Every run of it holds 24 GiB on the second of two GPUs, and reserves 26.
TORCH = b"""
class cuda:
    is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 2)
    max_memory_allocated = staticmethod(lambda device: (device + 1) * 12 << 30)
    max_memory_reserved = staticmethod(lambda device: (device + 1) * 13 << 30)
"""
MODEL = {"name": "1.3B", "layers": 24, "hidden": 2048, "heads": 32, "sequence": 1024, "vocabulary": 51200}
BEST = {"gpus": 4, "model": "1.3B", "global_batch": 1024, "dp": 2, "tmp": 1, "pp": 2, "microbatches": 128,
        "tflops": 55.89, "best": True, "gpu": "V100-SXM2-16GB", "source": "the test"}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> World:
    return timed(tmp_path_factory.mktemp("strategy"), TORCH, CASE, REFERENCE | {"models": [MODEL], "cases": [BEST]})


ARGS = ("./timed.yaml", "--target", "local", "--gpus", "4", "--gpu", "H200")


def by_name(done: Done) -> dict[str, dict[str, Any]]:
    """The checks of the node by their names."""
    return {check["name"]: check for check in done.node["checks"]}


def test_the_search_beats_the_document_s_case_and_keeps_every_trial(built: World) -> None:
    done = built.run("strategy", *ARGS, "--json", rc=0)
    checks = by_name(done)
    trials = [check for name, check in checks.items() if name.startswith("trial ")]
    first = trials[0]["details"]
    assert (first["dp"], first["pp"], first["microbatches"]) == (2, 2, 128), "the document's case comes first"
    assert [t["status"] for t in trials[1:3]] == ["skipped", "skipped"], "microbatches of 64 and 32 do not fit"
    assert trials[1]["says"].startswith("out of memory: DP 4, TMP 1, PP 1, 4 microbatches of 64; estimated ")
    assert checks["strategy"]["details"]["settings"]["microbatches"] == "16"
    assert "DP 4, TMP 1, PP 1, 16 microbatches of 16, 282.4" in checks["strategy"]["says"]
    assert "2.35 times the document's best case" in checks["strategy"]["says"]
    run = built.runs / done.json["run"]
    assert "out of memory" in (run / "logs/trial-2.log").read_text()
    assert "16 microbatches of 16" in (run / "report.html").read_text()
    built.good("report", "verify", str(run))


def test_the_table_of_the_trials_and_the_command_of_the_best_are_printed(built: World) -> None:
    out = built.good("strategy", *ARGS, env={"LARGEST": "64"}).out
    assert "out-of-memory" not in out
    row = next(line.split() for line in out.splitlines() if line.split()[:5] == ["4", "1", "1", "4", "64"])
    assert row[-1] == "295.4"
    best = out.splitlines()[-1]
    assert best.startswith("the best: envbuild launch ./timed.yaml --target local --gpus-per-node 4 --set model=1.3B")
    command = best.removeprefix("the best: envbuild ").split()
    assert "295.38" in built.good(*command, env={"LARGEST": "64"}).out


@pytest.mark.slow
def test_the_budget_ends_the_search_and_says_so(built: World) -> None:
    budget, done = with_deadline(
        lambda budget: built.run("strategy", *ARGS, "--budget", f"{budget}s", "--json", env={"CASE": "slow"}),
        8,
        lambda done: done.rc == 0,
    )
    says = by_name(done)["strategy"]["says"]
    assert (done.rc, says.endswith(f"the budget of {budget} s is used up")) == (0, True), says


def test_a_trial_that_the_budget_cuts_off_is_no_failure_of_the_case(built: World) -> None:
    done = built.run("strategy", *ARGS, "--budget", "1s", "--json", env={"CASE": "slow"})
    checks = by_name(done)
    assert checks["trial 1"]["status"] == "skipped"
    assert (done.rc, "out of time" in checks["trial 1"]["says"], checks["strategy"]["status"]) == (1, True, "failed")


def test_where_every_run_fails_two_trials_are_enough(built: World) -> None:
    done = built.run("strategy", *ARGS, "--json", env={"CASE": "crash"})
    checks = by_name(done)
    assert (done.rc, sum(name.startswith("trial ") for name in checks)) == (1, 2)
    assert checks["trial 1"]["details"]["output"] == "NCCL error: unhandled system error"
    assert checks["strategy"]["says"] == "none of 2 trials told a figure; they failed, and not for memory"


def test_a_dry_run_ranks_and_runs_nothing(built: World) -> None:
    before = sorted(built.runs.iterdir()) if built.runs.exists() else []
    done = built.good("strategy", *ARGS, "--dry-run", "--json")
    assert [row["microbatches"] for row in done.json["cases"][:3]] == [4, 8, 16]
    assert done.json["published"] == [], "nothing is published for this GPU"
    assert (sorted(built.runs.iterdir()) if built.runs.exists() else []) == before
    shown = built.good("strategy", *ARGS[:-1], "V100-SXM2-16GB", "--dry-run").out
    assert "1 of 1 published best cases on this GPU are among the first three:" in shown
    assert "TFLOP/s estimated and" in shown and "of what was published" in shown


def test_what_cannot_be_searched_is_refused(built: World) -> None:
    built.refused(2, "strategy-gpu", "strategy", *ARGS, "--gpu", "H2OO")
    built.refused(7, "strategy-not-here", "strategy", *ARGS, "--gpus", "16")
    built.refused(2, "usage", "strategy", *ARGS, "--budget", "soon")


@pytest.mark.slow
def test_memory_is_measured_by_torch_and_by_nvidia_smi_and_stands_beside_the_estimate(
    built: World, tmp_path: Path
) -> None:
    tool = tmp_path / "nvidia-smi"
    rows = "printf '512, Disabled, 0, 345, 70.10\\n30720, Disabled, 47, 1980, 310.02\\n'"
    executable(tool, f'#!/bin/sh\ncase "$*" in *-lms*) {rows} ; sleep 60 ;; *) exit 9 ;; esac\n')
    path = f"{tmp_path}:{built.env['PATH']}"
    done = built.run("strategy", *ARGS, "--json", env={"PATH": path, "LARGEST": "64"}, rc=0)
    first = by_name(done)["trial 1"]
    names = [f"{what}_{unit}" for what in ("tensors", "reserved", "used") for unit in ("gib", "percent")]
    # Estimated: 13.3 GiB in tensors, 14.4 reserved, 16.8 used.
    assert [first["details"][name] for name in names] == [24.0, 55, 26.0, 56, 30.0, 56]
    says = "24.0 GiB in tensors (estimate 55 %), 26.0 GiB reserved (estimate 56 %), 30.0 GiB used (estimate 56 %)"
    says += "; GPUs 47 % busy at 1,980 MHz and 310 W"
    assert first["says"].endswith(f"13.3 GiB in tensors, 14.4 GiB reserved; measured {says}")
    table = built.good("strategy", *ARGS, env={"PATH": path, "LARGEST": "64"}).out
    row = next(line.split() for line in table.splitlines() if line.split()[:4] == ["2", "1", "2", "128"])
    assert row[5:12] == ["13.3", "24.0", "55", "14.4", "26.0", "56", "30.0"]
