"""`smoke --only`: what is run, what is said of the rest, and names that nothing has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuild.node.protocol import NodeError
from envbuild.node.smoke import only, smoke
from tests.node.smoke.subject import (
    BEGIN,
    GOOD_COPIES,
    GOOD_CUDA_COPIES,
    GOOD_GEMM,
    GOOD_RANK,
    GOOD_TRAINING,
    MACHINE,
    TIMED,
    Subject,
)  # fmt: skip
from tests.support.fails import fails
from tests.support.patience import PATIENCE

PROGRAMS = {
    "gemm": BEGIN + GOOD_GEMM + "c.done()\n",
    "copies": BEGIN + GOOD_COPIES + GOOD_CUDA_COPIES + "c.done()\n",
    "allreduce": BEGIN + GOOD_RANK + TIMED,
    "training": BEGIN + GOOD_TRAINING,
    "gpus": BEGIN + "c.facts({'gpus': 2})\nc.done()\n",
}

# Of the program `extensions`, in the place of all that needs torch.
STEPS = """
def steps(expected):
    return ["import a", "one", "two"], []

def _step(channel, step, cuda):
    channel.emit("ended", {"step": step, "compared": 1})
    return True

"""


def run(subject: Subject, *asked: str, cuda: bool = False, floors: dict[str, float] | None = None) -> list[Any]:
    items = ({**MACHINE, "floors": floors or {}}, {"name": "training", "deadline": PATIENCE})
    return subject.raw(*items, programs=PROGRAMS, cuda=cuda, only=asked)


@pytest.mark.parametrize(
    ("asked", "ran"),
    [
        (("machine/gemm",), ["smoke/machine/gemm"]),
        (("machine/copies", "training"), ["smoke/machine/copies", "smoke/training"]),
        (("machine",), ["smoke/machine/gemm", "smoke/machine/copies", "smoke/machine/all-reduce"]),
        (("nodes",), []),
    ],
)
def test_only_what_was_asked_for_runs_and_the_evidence_says_so(
    subject: Subject, asked: tuple[str, ...], ran: list[str]
) -> None:
    *checks, rest = run(subject, *asked)
    assert [check["name"] for check in checks] == ran
    assert {check["status"] for check in checks} <= {"passed"}
    assert (rest["name"], rest["status"], rest["level"]) == ("smoke/only", "skipped", "not-checked")
    assert rest["says"] == f"the rest of the smoke test, as only {', '.join(asked)} was asked for"
    assert rest["details"] == {"only": list(asked)}


def test_a_floor_of_a_check_that_was_not_asked_for_is_not_missed(subject: Subject) -> None:
    floors = {"all_reduce_busbw_gbps": 100.0, "gemm_cpu_float32_tflops": 0.5}
    check = run(subject, "machine/gemm", floors=floors)[0]
    assert check["status"] == "passed"
    assert [metric["floor"] for metric in check["metrics"] if "floor" in metric] == [0.5]
    assert run(subject, "machine", floors=floors)[2]["status"] == "failed"
    # An all-reduce alone asks for the number of GPUs.
    check = run(subject, "machine/all-reduce", cuda=True)[0]
    assert (check["status"], check["details"]["backend"], check["details"]["ranks"]) == ("passed", "nccl", 2)


def test_a_name_that_nothing_has_is_an_error_that_lists_the_names(subject: Subject) -> None:
    for name in ("machine/gem", "sound", "extensions/FusedAdam", "machin"):
        with fails("smoke-unknown") as error:
            run(subject, name)
        assert f"'{name}'" in error.value.what
    assert only.unknown(["extensions/FusedAdam", "extensions"], ["extensions"]) == []


def test_one_check_of_the_extensions_runs_alone_and_one_that_is_not_there_is_named(subject: Subject) -> None:
    text = (Path(smoke.__file__).parent / "programs" / "extensions.py").read_text()
    main = text[text.index("def main(") :].replace("torch.__version__", "2.0")
    program = "from typing import Any, Dict\nfrom .common import Channel\n" + STEPS + main

    def names(*asked: str) -> list[str]:
        found = subject.raw({"name": "extensions"}, programs={"extensions": program}, only=asked)
        return [check["name"] for check in found[:-1]]

    assert names("extensions/two") == ["smoke/extensions/two"]
    assert names("extensions/imports") == ["smoke/extensions/imports"]
    assert len(names("extensions")) == 3
    with pytest.raises(NodeError) as error:
        names("extensions/three")
    assert error.value.hint == "known: extensions/imports, extensions/one, extensions/two"
