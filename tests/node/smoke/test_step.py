"""The item `step`: every way in which a training script can go wrong is a failure that says which.

The scripts are small ones without torch.
"""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuild.model.evidence import Check
from envbuild.node.smoke import smoke
from envbuild.node.smoke.step import fill, values_for
from tests.node.smoke.subject import Subject
from tests.support.files import write_file
from tests.support.need import need
from tests.support.patience import PATIENCE, with_deadline

HEAD = "import json, os, sys, time\nrank = int(os.environ.get('RANK', 0))\n"
LINE = (
    "def line(step, loss, of=4):\n"
    "    print(' iteration %8d/%8d | consumed samples: 8 | lm loss: %.6E | grad norm: 1.0 |' % (step, of, loss),"
    " flush=True)\n"
)
GOOD = "for step in range(1, 5):\n    if rank == 1: line(step, 6.0 - step / 10)\n"
PROGRAMS = {"gpus": "from .common import begin\n_, c = begin()\nc.facts({'gpus': 2})\nc.done()\n"}


def step_check(
    where: Path, tmp: Path, text: str, deadline: float = PATIENCE, programs: dict[str, str] = PROGRAMS, **more: Any
) -> Check:
    tree = where / "src" / "megatron"
    write_file(tree / "tools" / "train.py", HEAD + LINE + text)
    before = sorted(where.rglob("*"))
    step = {"source": "megatron", "script": "tools/train.py", "log": "megatron", "steps": 4, **more}
    item = {"name": "step", "deadline": deadline, "step": step}
    check = Subject(where, tmp).checks(item, programs=programs, cuda=True)[0]
    assert sorted(where.rglob("*")) == before, "nothing is written into the environment"
    return check


def test_ranks_words_files_data_and_variables_are_what_the_stack_says(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Much output around the losses hides none.
    text = "print('argument ' * 20000)\n" + GOOD + "print('checkpoint ' * 20000)\n" + (
        "told = json.load(open('ds.json'))\n"
        "assert told == {'batch': 4, 'zero': {'stage': 1}, 'name': 'of 2'}, told\n"
        "assert sys.argv[1:] == ['--tp', '2', '--data', os.getcwd() + '/data_text_document'], sys.argv\n"
        "assert sys.argv[0] == __file__ and __name__ == '__main__' and sys.path[0] == os.path.dirname(__file__)\n"
        "assert os.environ['MODE'] == 'small' and 'SLURM_PROCID' not in os.environ\n"
        "assert os.environ['WORLD_SIZE'] == '2' and os.environ['LOCAL_RANK'] == str(rank)\n"
        "assert os.path.getsize('data_text_document.bin') == 200 * 401 * 2\n"
        "assert len(json.load(open('gpt2-vocab.json'))) == 262\n"
    )  # fmt: skip
    monkeypatch.setenv("SLURM_PROCID", "3")
    check = step_check(
        environment, tmp_path, text, arguments=["--tp", "{tensor}", "--data", "{work}/data_text_document"],
        environment={"MODE": "small"}, data="gpt2",
        files={"ds.json": {"batch": "{batch}", "zero": {"stage": 1}, "name": "of {ranks}"}},
    )  # fmt: skip
    assert (check.name, check.status) == ("smoke/step", "passed"), check.details
    assert check.says == "tools/train.py: the loss fell from 5.9 to 5.6 in 4 steps on 2 ranks"
    assert check.details["losses"] == [5.9, 5.8, 5.7, 5.6]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def broken(x):\n    return x.shape[:2]\nif rank == 0: broken(None)\n",
         "rank 0 of 2: AttributeError: 'NoneType' object has no attribute 'shape' (tools/train.py:6)"),
        (GOOD + "if rank == 1: raise RuntimeError('late')\n", "rank 1 of 2: RuntimeError: late (tools/train.py:7)"),
        ("sys.exit(3)\n", "rank 0 of 2: the script ended with exit code 3 (tools/train.py:5)"),
        ("sys.exit('no data')\n", "rank 0 of 2: the script ended with exit code 1"),
        ("os._exit(0)\n", "rank 0 of 2: ended without saying that it was done during running train.py"),
        ("os.kill(os.getpid(), 11)\n", "rank 0 of 2: crashed with SIGSEGV during running train.py"),
        ("print('all is well')\n", "the loss was reported for 0 of 4 steps"),
        ("[line(n, 6.0) for n in range(1, 5)]\n", "the loss did not fall: 6 at first, 6 at last"),
    ],
)  # fmt: skip
def test_what_does_not_train_is_a_failure(environment: Path, tmp_path: Path, text: str, says: str) -> None:
    check = step_check(environment, tmp_path, text)
    assert check.status == "failed"
    assert check.says.startswith(says)
    assert "Error" not in says or "Traceback" in check.details["output"]


def test_a_hang_ends_at_its_deadline_with_the_last_line_of_every_rank(environment: Path, tmp_path: Path) -> None:
    text = "print('rank %d waits' % rank, flush=True)\ntime.sleep(600)\n"
    deadline, check = with_deadline(
        lambda deadline: step_check(environment, tmp_path, text, deadline),
        2,
        lambda found: found.details.get("last_lines") == ["rank 0 waits", "rank 1 waits"],
    )
    assert check.details["last_lines"] == ["rank 0 waits", "rank 1 waits"]
    wanted = f"rank 0 of 2: hung past its deadline of {deadline} s during running train.py; its last line: rank 0 waits"
    assert check.says.startswith(wanted)
    assert "train.py" in check.details["output"], "the stacks are there"


def test_ranks_of_mpi_start_under_mpiexec_and_share_one_output(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for mpiexec: it starts so many processes and gives them no input."""
    mpiexec = environment / "bin" / "mpiexec"
    mpiexec.write_text(
        f"#!{sys.executable}\nimport subprocess, sys\n"
        "assert sys.argv[1:3] == ['-n', '2'], sys.argv\n"
        "ranks = [subprocess.Popen(sys.argv[3:], stdin=subprocess.DEVNULL) for _ in range(2)]\n"
        "sys.exit(max(abs(rank.wait()) for rank in ranks))\n"
    )
    mpiexec.chmod(mpiexec.stat().st_mode | stat.S_IXUSR)
    text = "[line(n, 6.0 - n) for n in range(1, 5)]\n"
    check = step_check(environment, tmp_path, text, launcher="mpi")
    assert check.status == "passed", check.details
    assert check.details["ranks"] == 2
    lost = step_check(environment, tmp_path, text + "os._exit(0)\n", launcher="mpi")
    assert (
        lost.says
        == "2 ranks: ended without saying that it was done during running train.py; its last line: "
        + (lost.details["last_lines"][0])
    )
    mpiexec.unlink()
    monkeypatch.setenv("PATH", "/nowhere")
    alone = step_check(environment, tmp_path, text, launcher="mpi")
    assert alone.details["ranks"] == 1, "without mpiexec one rank, which needs none"


def test_without_a_gpu_it_is_said_loudly_and_without_a_visible_one_it_fails(
    environment: Path, tmp_path: Path, subject: Subject
) -> None:
    item = {"name": "step", "step": {"source": "none", "script": "none.py", "log": "megatron", "steps": 2}}
    (check,) = subject.checks(item)
    assert (check.name, check.status, check.level) == ("smoke/step", "skipped", "not-checked")
    assert check.says.startswith("no usable GPU here: the stack's own training script was not run")
    none = {"gpus": PROGRAMS["gpus"].replace("2", "0")}
    assert step_check(environment, tmp_path, GOOD, programs=none).says == "no GPU is visible"


DRIVER = "int cuInit(unsigned flags) { return 0; }\nint cuDeviceGetCount(int *count) { *count = 2; return 0; }\n"


def test_it_does_not_wait_until_torch_is_imported_for_others(environment: Path, tmp_path: Path) -> None:
    """On an H100 it began ten seconds late: to count the GPUs it wanted a copy of the process that imports torch."""
    need("cc")
    (tmp_path / "driver.c").write_text(DRIVER)
    driver, begun, met = (str(tmp_path / name) for name in ("driver.so", "begun", "met"))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", driver, str(tmp_path / "driver.c")], check=True)
    tree = environment / "src" / "early"
    tree.mkdir(parents=True)
    meet = "open({!r}, 'w')\nwhile not os.path.exists({!r}): time.sleep(0.01)\n"
    (tree / "train.py").write_text(HEAD + LINE + meet.format(begun, met) + "[line(n, 6.0 - n) for n in range(1, 5)]\n")
    counting = Path(smoke.__file__).parent / "programs" / "gpus.py"
    programs = {
        "worker": f"import os, time\nwhile not os.path.exists({begun!r}): time.sleep(0.01)\nopen({met!r}, 'w')\n",
        "gpus": counting.read_text().replace("libcuda.so.1", driver),
        "training": "",
    }
    step = {"source": "early", "script": "train.py", "log": "megatron", "steps": 4}
    items = [{"name": "training"}, {"name": "step", "deadline": PATIENCE, "step": step}]
    *_, check = Subject(environment, tmp_path).checks(*items, programs=programs, cuda=True)
    assert (check.name, check.status, check.details["ranks"]) == ("smoke/step", "passed", 2), check


def test_batches_fit_every_number_of_ranks_and_a_name_that_is_unknown_is_an_error() -> None:
    for ranks, tensor, data, batch in ((1, 1, 1, 4), (2, 2, 1, 4), (3, 1, 3, 12), (8, 2, 4, 16)):
        values = {"ranks": ranks, "tensor": tensor, "data": data, "batch": batch, "work": "/w"}
        assert values_for(ranks, "/w") == values
    assert fill({"a": ["{ranks}", "{work}/x", 1]}, {"ranks": 2, "work": "/w"}) == {"a": [2, "/w/x", 1]}
    for text in ("{other}", "a {none}"):
        with pytest.raises(KeyError):
            fill(text, {"none": None})
