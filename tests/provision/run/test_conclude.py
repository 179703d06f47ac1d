"""The end of a run: what its evidence says beside what the nodes answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.model.evidence import NodeEvidence
from envbuild.provision.run.conclude import write_evidence
from envbuild.provision.run.context import Settings, Work
from envbuild.provision.run.run_dir import RunDir
from envbuild.report.terminal import summary_lines
from tests.provision.survey.test_up_to_date import prepared


@pytest.mark.parametrize("verb", ["smoke", "provision"])
def test_a_gpu_of_a_node_that_is_slow_or_that_others_use_is_a_warning_of_the_run(tmp_path: Path, verb: str) -> None:
    told = "GPU 3 is slow: 252 TFLOP/s, 34 % of the others' 742"
    used = "GPU 3 is in use by other processes: pid 7 (python, 1,808 MiB); figures may be lower than what it can do"
    check = {"name": "smoke/machine/gemm", "status": "passed", "says": "right"}
    check["details"] = {"slow_gpus": [told], "gpus_in_use": [used]}
    training = {"name": "smoke/training", "status": "passed", "says": "right", "details": {"gpus_in_use": [used]}}
    node = NodeEvidence.from_plain({"node": "gpu1", "status": "ok", "exit": 0, "checks": [check, training]})
    run = RunDir.create(tmp_path / "runs")
    with run.open_journal() as journal:
        work = Work(prepared(prefix=str(tmp_path / "p")), Settings(tmp_path / "runs"), run, journal)
        evidence = write_evidence(work, verb, [node], warnings=("another",))
    assert (evidence.exit, evidence.warnings) == (0, ("another", f"gpu1: {used}", f"gpu1: {told}"))
    lines = [line for line, _ in summary_lines(evidence)]
    shown = [line for line in lines if line.startswith("  warning: gpu1")]
    assert shown == [f"  warning: gpu1: {used}", f"  warning: gpu1: {told}"]
    assert told in (run.path / "report.md").read_text()
