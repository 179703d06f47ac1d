"""Programs are copies of one process that has imported torch, or get a process of their own where that does not go."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from envbuild.node.smoke import smoke
from tests.node.smoke.test_faults import BEGIN, GOOD_COPIES, GOOD_GEMM, GOOD_RANK, GOOD_TRAINING, TIMED
from tests.support.patience import PATIENCE, with_deadline

ITEMS = [{"name": "machine", "deadline": PATIENCE}, {"name": "training", "deadline": PATIENCE}]
PROGRAMS = {
    "gemm": "import torch\n" + BEGIN + GOOD_GEMM + "c.done()\n",
    "copies": "import torch\n" + BEGIN + GOOD_COPIES + "c.done()\n",
    "allreduce": "import torch\n" + BEGIN + GOOD_RANK + TIMED,
    "training": "import torch\n" + BEGIN + GOOD_TRAINING,
}
COUNTED = "import os\nwith open({log!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
# What torch says in a copy, and in the process itself.
STANDS = """
import os
here = os.getpid()
class cuda:
    _is_in_bad_fork = staticmethod(lambda: {spoiled} and os.getpid() != here)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "imports"


def environment(tmp: Path, log: Path, torch: str) -> Path:
    """An environment whose torch says in `log` which process imports it."""
    path = tmp / "env"
    venv.create(path, with_pip=False, symlinks=True)
    site = next(path.glob("lib/python*/site-packages"))
    (site / "torch.py").write_text(COUNTED.format(log=str(log)) + torch)
    return path


def run(tmp: Path, where: Path) -> list[dict[str, object]]:
    return smoke.smoke_items(smoke.Spec(str(where), {}, False), ITEMS, str(tmp / "scratch"), PROGRAMS)


def test_torch_is_imported_once_for_all_programs(tmp_path: Path, log: Path) -> None:
    where = environment(tmp_path, log, STANDS.format(spoiled=False))
    assert [check["status"] for check in run(tmp_path, where)] == ["passed"] * 4
    assert len(log.read_text().split()) == 1


def test_a_context_that_a_fork_would_break_gives_each_program_its_own_process(tmp_path: Path, log: Path) -> None:
    where = environment(tmp_path, log, STANDS.format(spoiled=True))
    assert [check["status"] for check in run(tmp_path, where)] == ["passed"] * 4
    assert len(set(log.read_text().split())) == 1 + 5, "itself, GEMM, copies, two ranks, training"


def test_a_torch_that_crashes_is_told_by_each_program(tmp_path: Path, log: Path) -> None:
    where = environment(tmp_path, log, "import signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    gemm, _, _, training = run(tmp_path, where)
    assert str(gemm["says"]).startswith("the GEMM program crashed with SIGSEGV during start-up")
    assert str(training["says"]).startswith("the training program crashed with SIGSEGV during start-up")


def test_a_torch_that_fails_is_told_in_its_own_words(tmp_path: Path, log: Path) -> None:
    where = environment(tmp_path, log, "raise ImportError('libcudart.so.13 is missing')\n")
    assert "ImportError: libcudart.so.13 is missing" in str(run(tmp_path, where)[2]["says"])


def test_with_gpus_what_measures_no_speed_runs_at_once(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    meet = "import os\nopen({own!r}, 'w').close()\nwhile not os.path.exists({other!r}):\n    time.sleep(0.01)\n"
    places = [str(tmp_path / name) for name in ("one", "two")]
    programs = {
        "imports": BEGIN + meet.format(own=places[0], other=places[1]) + "c.done()\n",
        "extensions": BEGIN + meet.format(own=places[1], other=places[0]) + "c.facts({'steps': []})\nc.done()\n",
    }
    items = [{"name": name, "deadline": PATIENCE} for name in ("sound", "extensions")]
    checks = smoke.smoke_items(smoke.Spec(str(tmp_path / "env"), {}, True), items, str(tmp_path / "scratch"), programs)
    by_name = {check["name"]: check for check in checks}
    assert by_name["smoke/sound"]["status"] == "passed"
    assert by_name["smoke/extensions/imports"]["says"] == "no compiled extension that is known here is installed"
    assert [check["name"] for check in checks][:2] == ["smoke/sound", "smoke/extensions/imports"]


def test_an_error_of_one_of_them_is_not_lost(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    items = [{"name": "sound", "deadline": "soon"}]
    with pytest.raises(ValueError, match="soon"):
        smoke.smoke_items(smoke.Spec(str(tmp_path / "env"), {}, True), items, str(tmp_path / "scratch"))
    assert list((tmp_path / "scratch").iterdir()) == []


def test_an_import_that_takes_too_long_costs_half_of_the_time_and_no_more(tmp_path: Path, log: Path) -> None:
    name = "str(sys.modules['__main__'].__spec__)"
    slow = f"import sys, time\nif 'envbuild_smoke.template' in {name}:\n    time.sleep(600)\n"
    where = environment(tmp_path, log, slow)
    spec = smoke.Spec(str(where), {}, False)

    def statuses(deadline: float) -> list[object]:
        items = [{"name": "training", "deadline": deadline}] * 2
        return [check["status"] for check in smoke.smoke_items(spec, items, str(tmp_path / "scratch"), PROGRAMS)]

    passed = ["passed"] * 2
    assert with_deadline(statuses, 6, lambda found: found == passed)[1] == passed


def test_nothing_is_started_after_the_end_and_the_folder_goes(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    marks = tmp_path / "marks"
    marks.mkdir()
    programs = {"imports": f"import os, time\nopen({str(marks)!r} + '/' + str(os.getpid()), 'w')\ntime.sleep(600)\n"}
    code = (
        "import os, signal, sys, threading, time\nfrom envbuild.node.smoke import smoke\n"
        # A background job of a shell without job control ignores SIGINT, and so would its children.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def stop():\n"
        "    while not os.listdir(sys.argv[3]):\n        time.sleep(0.02)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=stop, daemon=True).start()\n"
        "spec = smoke.Spec(sys.argv[1], {'imports': ['a', 'b']}, True)\n"
        f"smoke.smoke_items(spec, [{{'name': 'sound', 'deadline': 500}}], sys.argv[2], {programs!r})\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "env"), str(tmp_path / "scratch"), str(marks)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert "KeyboardInterrupt" in done.stderr
    assert list((tmp_path / "scratch").iterdir()) == []
    assert len(list(marks.iterdir())) == 1
