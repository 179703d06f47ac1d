"""The smoke programs with a real torch on the CPU, as they are and with one line broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuild.model.evidence import Check
from envbuild.node.smoke import smoke
from tests.node.torch_env import PYTHON, TORCH, torch_environment
from tests.support.patience import with_deadline

pytestmark = [pytest.mark.torch, pytest.mark.slow]
VARIANT = {
    "python": PYTHON,
    "torch": "2.13.0",
    "flavour": "cpu",
    "imports": ["torch", "torch.nn"],
    "packages": [{"name": "torch", "version": TORCH}],
}


def broken(program: str, line: str, instead: str) -> dict[str, str]:
    text = (Path(smoke.__file__).parent / "programs" / f"{program}.py").read_text()
    assert text.count(line) >= 1
    return {program: text.replace(line, instead)}


def checks(item: dict[str, Any], programs: dict[str, str]) -> list[dict[str, Any]]:
    spec = smoke.Spec(str(torch_environment()), VARIANT, False)
    return smoke.smoke_items(spec, [item], None, programs)


def test_all_items_pass_through_the_node_program_and_leave_no_trace(tmp_path: Path) -> None:
    environment = torch_environment()
    before = sum(1 for _ in environment.rglob("*"))
    names = ("sound", "machine", "training")
    items = [{"name": name, "deadline": 500.0} for name in names]
    args = {"environment": str(environment), "variant": VARIANT, "items": items, "cuda": False, "tmp": str(tmp_path)}
    request = {"protocol": 1, "verb": "smoke", "run": "r1", "prefix": str(tmp_path), "args": args}
    done = subprocess.run(
        [sys.executable, "-m", "envbuild.node", "smoke"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [Check.from_plain(check) for check in answer["result"]["checks"]]
    assert [check.name for check in found] == [
        "smoke/sound",
        "smoke/machine/gemm",
        "smoke/machine/all-reduce",
        "smoke/training",
    ]
    assert all(check.status == "passed" for check in found)
    assert found[3].details["first_step_seconds"] > 0
    assert found[3].metrics[0].n == 59
    assert found[2].metrics[0].n == 10
    assert sum(1 for _ in environment.rglob("*")) == before


def test_a_nan_loss_is_named_with_its_step() -> None:
    program = broken("training", "return float(loss.item())", "return float('nan') and loss.item() * float('nan')")
    check = checks({"name": "training", "deadline": 500}, program)[0]
    assert check["says"].startswith("the loss is nan at step 1")


def test_a_model_that_does_not_learn_fails() -> None:
    check = checks({"name": "training", "deadline": 500}, broken("training", "        self.optimizer.step()\n", ""))[0]
    assert check["status"] == "failed"
    assert check["says"].startswith("the loss did not fall")


def test_one_wrong_element_of_a_product_and_of_a_sum_is_found() -> None:
    programs = broken("gemm", "    rows, vector = expected", "    product[500, 700] += 1\n    rows, vector = expected")
    programs.update(
        broken(
            "allreduce",
            "            dist.all_reduce(data)\n",
            "            dist.all_reduce(data)\n            data[-1] += rank\n",
        )
    )
    gemm, reduce = checks({"name": "machine", "deadline": 500}, programs)
    assert gemm["says"].startswith("CPU float32 1024×1024: wrong result")
    assert reduce["says"].startswith(
        "all-reduce of 1 × float32: wrong sum in 1 of 1 elements, element 0 is 2.0 instead of 1.0"
    )


def test_a_rank_that_never_comes_is_a_hang_in_the_rendezvous() -> None:
    programs = broken(
        "allreduce",
        "    dist.init_process_group(",
        "    rank and __import__('time').sleep(600)\n    dist.init_process_group(",
    )

    def met(check: dict[str, Any]) -> bool:
        failures = check["details"]["failures"]
        return any("hung past its deadline" in text and "rendezvous of 2 ranks" in text for text in failures)

    # Half of it is for the import of torch.
    _, reduce = with_deadline(lambda deadline: checks({"name": "machine", "deadline": deadline}, programs)[1], 20, met)
    assert reduce["status"] == "failed"
    assert met(reduce)
