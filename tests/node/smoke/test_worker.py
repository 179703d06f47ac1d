"""Programs take turns in one process of each rank, which has torch imported and is started again after a crash."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import identity
from envbuild.node.build import build_dir
from tests.node.smoke.subject import BEGIN, GOOD_COPIES, GOOD_GEMM, GOOD_RANK, GOOD_TRAINING, MACHINE, TIMED, Subject
from tests.support.patience import PATIENCE, until
from tests.support.programs import completed

ITEMS = [MACHINE, {"name": "training", "deadline": PATIENCE}]
PROGRAMS = {
    "gemm": "import torch\n" + BEGIN + GOOD_GEMM + "c.done()\n",
    "copies": "import torch\n" + BEGIN + GOOD_COPIES + "c.done()\n",
    "allreduce": "import torch\n" + BEGIN + GOOD_RANK + TIMED,
    "training": "import torch\n" + BEGIN + GOOD_TRAINING,
}
COUNTED = "import os\nwith open({log!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
# As much of torch as a worker asks.
FAKE = """
class cuda:
    is_initialized = staticmethod(lambda: False)
get_num_threads = lambda: 1
set_num_threads = lambda number: None
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "imports"


def with_torch(tmp: Path, log: Path, torch: str) -> Path:
    """An environment whose torch says in `log` which process imports it."""
    path = tmp / "env"
    venv.create(path, with_pip=False, symlinks=True)
    site = next(path.glob("lib/python*/site-packages"))
    (site / "torch.py").write_text(COUNTED.format(log=str(log)) + torch)
    return path


def run(tmp: Path, where: Path, **programs: str) -> list[dict[str, Any]]:
    return Subject(where, tmp).raw(*ITEMS, programs={**PROGRAMS, **programs})


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 11)", "raise RuntimeError('broken')", "os._exit(3)"])
def test_after_a_program_that_ends_badly_the_others_get_a_new_worker(tmp_path: Path, log: Path, end: str) -> None:
    where = with_torch(tmp_path, log, FAKE)
    gemm, *others = run(tmp_path, where, gemm=f"import os, torch\n{BEGIN}print('words of gemm')\n{end}\n")
    assert gemm["status"] == "failed"
    assert "words of gemm" in gemm["details"]["output"]
    assert [check["status"] for check in others] == ["passed"] * 3
    assert len(log.read_text().split()) == 3


def test_torch_is_imported_once_for_each_rank_and_each_program_has_its_own_output(tmp_path: Path, log: Path) -> None:
    where = with_torch(tmp_path, log, FAKE)
    assert [check["status"] for check in run(tmp_path, where)] == ["passed"] * 4
    assert len(log.read_text().split()) == 2
    copies = "import torch\n" + BEGIN + "print('words of copies')\nraise SystemExit('no copy')\n"
    gemm = PROGRAMS["gemm"].replace(BEGIN, BEGIN + "print('words of gemm')\n")
    output = run(tmp_path, where, gemm=gemm, copies=copies)[1]["details"]["output"]
    assert "words of copies" in output and "no copy" in output and "words of gemm" not in output


def test_a_step_that_lost_its_gpu_is_followed_by_one_in_a_new_worker(tmp_path: Path, log: Path) -> None:
    where = with_torch(tmp_path, log, FAKE)
    text = BEGIN + (
        "import os, torch\nc.facts({'steps': ['a', 'b']})\ntodo = args['todo'] or ['a', 'b']\n"
        "c.emit('begun', {'step': todo[0]})\nc.emit('ended', {'step': todo[0], 'api': str(os.getpid())})\n"
        "c.emit('again', {}) if todo[1:] else None\nc.done()\n"
    )
    item = {"name": "extensions", "deadline": PATIENCE}
    _, first, second = Subject(where, tmp_path).raw(item, programs={"extensions": text})
    assert (first["name"], second["name"]) == ("smoke/extensions/a", "smoke/extensions/b")
    assert first["details"]["api"] != second["details"]["api"]


@pytest.mark.parametrize(
    ("torch", "says"),
    [
        ("import signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "program crashed with SIGSEGV during start-up"),
        ("raise ImportError('libcudart.so.13 is missing')\n", "ImportError: libcudart.so.13 is missing"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_told_by_each_program(
    tmp_path: Path, log: Path, torch: str, says: str
) -> None:
    gemm, _, _, training = run(tmp_path, with_torch(tmp_path, log, torch))
    assert says in str(gemm["says"]) and says in str(training["says"])


def test_with_gpus_what_measures_no_speed_runs_at_once_and_no_error_is_lost(subject: Subject, tmp_path: Path) -> None:
    meet = "import os\nopen({own!r}, 'w').close()\nwhile not os.path.exists({other!r}):\n    time.sleep(0.01)\n"
    places = [str(tmp_path / name) for name in ("one", "two")]
    programs = {
        "imports": BEGIN + meet.format(own=places[0], other=places[1]) + "c.done()\n",
        "extensions": BEGIN + meet.format(own=places[1], other=places[0]) + "c.facts({'steps': []})\nc.done()\n",
    }
    items = [{"name": name, "deadline": PATIENCE} for name in ("sound", "extensions")]
    sound, extensions, *_ = subject.raw(*items, programs=programs, cuda=True)
    assert (sound["name"], sound["status"]) == ("smoke/sound", "passed")
    assert extensions["name"] == "smoke/extensions/imports"
    assert extensions["says"] == "no compiled extension that is known here is installed"
    with pytest.raises(ValueError, match="soon"):
        subject.raw({"name": "sound", "deadline": "soon"}, cuda=True)


def test_nothing_is_started_after_the_end_and_the_folder_goes(environment: Path, tmp_path: Path) -> None:
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
    words = [sys.executable, "-c", code, str(environment), str(tmp_path / "scratch"), str(marks)]
    done = completed(words, timeout=PATIENCE)
    assert "KeyboardInterrupt" in done.stderr
    assert list((tmp_path / "scratch").iterdir()) == []
    assert len(list(marks.iterdir())) == 1


def test_what_a_program_left_running_writes_into_the_folder_no_more(subject: Subject) -> None:
    writes = (
        "import os, sys, time\nuntil = time.monotonic() + 600\nwhile time.monotonic() < until:\n"
        "    os.makedirs(f'{sys.argv[1]}/late/{time.monotonic()}')\n"
    )
    text = (
        f"{BEGIN}import subprocess\nargv = [sys.executable, '-c', {writes!r}, os.path.dirname(os.environ['TMPDIR'])]\n"
        "subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "while not os.path.exists(argv[-1] + '/late'):\n    time.sleep(0.01)\nc.done()\n"
    )
    (check, *_) = subject.raw({"name": "sound", "deadline": PATIENCE}, programs={"imports": text})
    assert check["status"] == "passed", check


def test_after_kill_9_the_program_ends_too_and_the_folder_has_its_owner(environment: Path, tmp_path: Path) -> None:
    mark, top = tmp_path / "mark", tmp_path / "scratch"
    text = f"import os, time\nopen({str(mark)!r}, 'w').write(f'{{os.getpid()}}\\n')\ntime.sleep(600)\n"
    code = (
        "import sys\nfrom envbuild.node.smoke import smoke\nspec = smoke.Spec(sys.argv[1], {'imports': ['a']}, False)\n"
        f"smoke.smoke_items(spec, [{{'name': 'sound', 'deadline': 500}}], sys.argv[2], {{'imports': {text!r}}})\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(environment), str(top)]) as node:
        until(lambda: mark.exists() and mark.read_text().endswith("\n"))
        node.kill()
    until(lambda: not identity.is_alive({"pid": int(mark.read_text())}))
    build_dir.sweep(str(top), "smoke")
    assert list(top.iterdir()) == []
