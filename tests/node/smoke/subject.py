"""A smoke test whose programs are small stand-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envbuild.model.evidence import Check
from envbuild.node.smoke import smoke
from tests.support.patience import PATIENCE

BEGIN = "import os, signal, sys, time\nfrom .common import begin\nargs, c = begin()\n"
GOOD_TRAINING = (
    "c.facts({'loss_first': 4.4121, 'loss_last': 0.030663, 'steps_done': 9})\n"
    "c.metric('training_tokens_per_second', 'token/s', [10.0, 30.0, 20.0])\nc.done()\n"
)
GOOD_GEMM = (
    "c.metric('gemm_cpu_float32_tflops', 'TFLOP/s', [1.0])\nc.metric('gemm_cpu_float64_tflops', 'TFLOP/s', [1.0])\n"
)
GOOD_RANK = "c.facts({k: args[k] for k in ('rank', 'world', 'backend')})\n"
TIMED = "c.facts({'timed': [[1048576, [0.1, 0.1]], [1000000000, [0.5, 0.25]]]})\nc.done()\n"
GOOD_COPIES = "c.metric('copy_cpu_gbps', 'GB/s', [1.0])\n"
GOOD_CUDA_COPIES = "".join(
    f"c.metric('copy_{name}gbps', 'GB/s', [1.0])\n" for name in ("host_to_device_", "device_to_host_", "device_")
)
MACHINE = {"name": "machine", "deadline": PATIENCE}


class Subject:
    """An environment that is tested; nothing of a test is left behind."""

    def __init__(self, where: Path, tmp: Path) -> None:
        self.where, self.scratch = where, tmp / "scratch"

    def raw(self, *items: dict[str, Any], programs: dict[str, str] | None = None, **spec: Any) -> list[dict[str, Any]]:
        """The checks of these items, by these stand-ins; `spec`: what differs from a bare environment without GPUs."""
        made = smoke.Spec(str(self.where), **{"variant": {}, "cuda": False, **spec})
        try:
            return smoke.smoke_items(made, list(items), str(self.scratch), programs)
        finally:
            assert not self.scratch.exists() or list(self.scratch.iterdir()) == [], "the scratch folder is removed"

    def checks(self, *items: dict[str, Any], **more: Any) -> list[Check]:
        """The same, as the model has them."""
        return [Check.from_plain(check) for check in self.raw(*items, **more)]

    def training(self, text: str, deadline: float = PATIENCE, **more: Any) -> Check:
        item = {"name": "training", "deadline": deadline, **more}
        return self.checks(item, programs={"training": BEGIN + text})[0]

    def machine(self, rank: str, gemm: str = GOOD_GEMM + "c.done()\n", **more: Any) -> list[Check]:
        """The checks of products and of the all-reduce; copies are good."""
        copies = GOOD_CUDA_COPIES if more.get("cuda") else GOOD_COPIES
        programs = {"gemm": BEGIN + gemm, "copies": BEGIN + copies + "c.done()\n", "allreduce": BEGIN + rank}
        found = self.checks(MACHINE, programs=programs, **more)
        assert [check.name for check in found if check.status == "passed"].count("smoke/machine/copies") == 1
        return [check for check in found if check.name != "smoke/machine/copies"]

    def reduced(self, floors: dict[str, float], facts: str = "") -> list[Check]:
        """The checks from that of the all-reduce on, with sums of 1 and 953 MiB and these other facts of its ranks."""
        programs = {"gemm": GOOD_GEMM + "c.done()\n", "copies": GOOD_COPIES + "c.done()\n"}
        programs["allreduce"] = GOOD_RANK + facts + TIMED
        item = {**MACHINE, "floors": floors}
        return self.checks(item, programs={name: BEGIN + text for name, text in programs.items()})[2:]
