"""What a run takes of GPUs: torch's peaks, written by every process when it ends, and what nvidia-smi saw."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from envbuild.launch.shell import file_lines
from envbuild.model.launch import Command, Launch
from envbuild.node.variables import VISIBLE
from envbuild.provision import gpu_use
from envbuild.provision.gpu_use import (
    Taken,
    ask_job,
    ask_used,
    compared,
    in_words,
    of_job,
    probed,
    together,
    used,
    watched,
    watched_in_job,
)
from tests.support.patience import alive, until
from tests.support.programs import executable

FAKE = """
class cuda:
    is_initialized = staticmethod(lambda: {used})
    device_count = staticmethod(lambda: 2)
    max_memory_allocated = staticmethod(lambda device: (3 << 30) - device)
    max_memory_reserved = staticmethod(lambda device: device << 32)
"""


def launched(**environment: str) -> Launch:
    command = Command(argv=("python3",), environment=environment, directory="/")
    return Launch.model_construct(commands=(command,))


def taken(folder: Path) -> Taken:
    """What is left in a folder, which is gone then."""
    asked = subprocess.run(["/bin/sh", "-s"], input=ask_used(str(folder)), stdout=-1, stderr=-1, check=True, text=True)
    assert not folder.exists()
    return used([asked.stdout])


def tool(folder: Path, script: str) -> Path:
    """A folder with an nvidia-smi."""
    path = executable(folder / "bin/nvidia-smi", f"#!/bin/sh\n{script}\n")
    return path.parent


def ended(folder: Path, code: str, *more: Path) -> None:
    """A Python process of a probed run; `more`: folders on its path."""
    made = probed(launched(PYTHONPATH=":".join(map(str, more))) if more else launched(), str(folder))
    subprocess.run(["bash", "-c", "\n".join(file_lines(made.files[-1]))], check=True)
    subprocess.run([sys.executable, "-c", code], env=made.commands[0].environment, check=True)


KILLED = "import json, os, signal, torch; json.dump = lambda peaks, file: os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("code", "initialized", "told"),
    [
        ("import torch", True, Taken(3.0, 4.0)),
        ("import torch", False, Taken()),
        ("print(1)", True, Taken()),
        (KILLED, True, Taken()),
    ],
    ids=["used a GPU", "used none", "without torch", "killed while it writes"],
)
def test_a_process_that_used_a_gpu_tells_the_fullest_one(
    tmp_path: Path, code: str, initialized: bool, told: Taken
) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path/torch.py").write_text(FAKE.format(used=initialized))
    killed = pytest.raises(subprocess.CalledProcessError, match="SIGKILL") if code == KILLED else nullcontext()
    with killed:
        ended(tmp_path / "peaks", code, tmp_path / "path")
    assert bool(list((tmp_path / "peaks").glob("*.json"))) == bool(told.tensors)
    assert taken(tmp_path / "peaks") == told


def test_the_sitecustomize_that_is_hidden_runs_as_well(tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path/sitecustomize.py").write_text("import builtins\nbuiltins.seen = __name__\n")
    ended(tmp_path / "peaks", "import builtins; assert builtins.seen == 'sitecustomize'", tmp_path / "path")


ROWS = [
    "512, Disabled, 0, 345, 70.10", "30720, Disabled, 96, 1980, 650.00", "[N/A], [N/A], 1, 2, 3.00",
    "15359, Disabled, 1, 345, 80.00", "15360, Disabled, 40, 1755, [Unknown Error]", "2048, [N/A], 1, 345, 80.00",
    "28000, Disabled, 50, [N/A], 640.00",
]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "seen"),
    [
        (ROWS, (30.0, 50, 1867.5, 645)),
        # Of instances of others too.
        ([*ROWS, "81000, Enabled, 9, 9, 9.00"], (30.0, 50, 1867.5, 645)),
        (["81000, Enabled, 9, 9, 9.00"], ()),
        # A line that was cut when its writer was ended.
        ([*ROWS, "81000, Ena"], (30.0, 50, 1867.5, 645)),
        (["512, Disabled, 96, 1980, 650.00"], ()),
        (["30720, Disabled, [N/A], [N/A], [Not Supported]"], (30.0,)),
    ],
)
def test_what_nvidia_smi_saw_is_of_whole_gpus_at_work_and_of_none_that_has_less_than_torch(
    tmp_path: Path, rows: list[str], seen: tuple[float, ...]
) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen/nvidia-smi.0").write_text("\n".join(rows) + "\n" * (not rows[-1].endswith("Ena")))
    for number, size in enumerate((1 << 30, 5 << 29)):  # the fullest rank counts
        (tmp_path / f"seen/{number}.json").write_text(json.dumps({"allocated": size, "reserved": (25 + number) << 30}))
    assert taken(tmp_path / "seen") == Taken(2.5, 26.0, *seen)


def test_a_host_tells_the_last_of_the_samples_with_most_memory_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_use, "_ROWS", 3)
    rows = ["4096, Disabled, 99, 1, 1.00", "30720, Disabled, 98, 2, 2.00", "30720, Disabled, 20, 3, 3.00"]
    (tmp_path / "told").mkdir()
    (tmp_path / "told/nvidia-smi.0").write_text("\n".join([*rows, "30720, Disabled, 10, 4, 4.00", "81000, Ena"]))
    assert taken(tmp_path / "told") == Taken(used=30.0, busy=20, mhz=3, watts=3)


@pytest.mark.parametrize(("devices", "words"), [(["2", "3"], " -i 2,3"), (["MIG-5c"], None), ([], None)])
def test_it_looks_at_the_gpus_of_the_run_alone_and_at_no_part_of_one(
    tmp_path: Path, devices: list[str], words: str | None
) -> None:
    path, seen = tool(tmp_path, 'echo "$@"; exec sleep 600'), tmp_path / "nvidia-smi.3"
    wait = f"\nuntil [ -s '{seen}' ]; do sleep 0.02; done; echo $!" * bool(words)
    script = watched(str(tmp_path), devices, 3) + wait
    env = {"PATH": f"{path}:/usr/bin:/bin"}
    done = subprocess.run(["/bin/sh", "-s"], input=script, env=env, stdout=-1, check=True, text=True)
    assert seen.exists() == bool(words)
    if words:
        assert seen.read_text().strip().endswith(words)
        until(lambda: not alive(int(done.stdout)))


@pytest.mark.parametrize(
    ("devices", "words"),
    [(None, "500"), ("", "500"), ("2,GPU-3", "500 -i 2,GPU-3"), ("MIG-5c", None), ("0,MIG-5", None)],
)
def test_in_a_job_it_looks_at_the_gpus_that_the_job_has(tmp_path: Path, devices: str | None, words: str | None) -> None:
    seen = tmp_path / "a b" / "nvidia-smi.3"
    path = tool(tmp_path, 'echo "$@"; case "$*" in *-lms*) exec sleep 600; esac')
    env = {"PATH": f"{path}:/usr/bin:/bin", "NODE_RANK": "3"} | ({VISIBLE: devices} if devices is not None else {})
    wait = f"until [ -s '{seen}' ]; do sleep 0.02; done; " if words else ""
    text = f"set -e\n{watched_in_job(str(seen.parent))}{wait}echo $!"
    done = subprocess.run(["bash", "-c", text], env=env, stdout=-1, check=True)
    assert seen.exists() == bool(words)
    if words:
        assert seen.read_text().strip().endswith(words)
        asked = [line for line in seen.with_name("others.3").read_text().splitlines() if "--query" in line]
        assert len(asked) == 2 and all(line.endswith(words.removeprefix("500")) for line in asked)
        until(lambda: not alive(int(done.stdout)))
    # Without the program the exit code of the job is that of its command.
    text = f"set -e\n{watched_in_job(str(tmp_path / 'none'))}sleep 0.1; (exit 7)"
    done = subprocess.run(["bash", "-c", text], env={"PATH": "/usr/bin:/bin"}, stderr=-1, check=False)
    assert (done.returncode, done.stderr) == (7, b"")


def test_a_job_tells_which_gpus_it_had_and_who_else_used_them_by_node(tmp_path: Path) -> None:
    assert of_job("") == (Taken(), [], [])
    (tmp_path / "others.0").write_text("node0\n")  # its driver did not answer
    for rank, pid, mig in ((1, 7, "Disabled"), (2, 0, "Enabled")):
        app, gpu = f"GPU-a, {pid}, 9, vi\n" * bool(pid), f"0, GPU-a, 9, 0, {mig}, NVIDIA H100 80GB HBM3"
        (tmp_path / f"others.{rank}").write_text(f"node{rank}\n{gpu}\n{gpu_use._NEXT}\n{app}")
    (tmp_path / "nvidia-smi.1").write_text("30720, Disabled, 96, 1980, 650.00\n")
    done = subprocess.run(["/bin/sh", "-c", ask_job(str(tmp_path))], stdout=-1, check=True, text=True)
    said = "GPU 0 is in use by other processes: pid 7 (vi, 9 MiB); figures may be lower than what it can do"
    names = ["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3 MIG"]
    assert of_job(done.stdout) == (Taken(used=30.0, busy=96, mhz=1980, watts=650), [f"node1: {said}"], names)


def test_of_several_runs_the_greatest_memory_is_told_and_the_median_of_all_else() -> None:
    runs = [Taken(1.0, None, 4.0, 40, 1980), Taken(2.0, None, 3.0, 50, 1755), Taken()]
    assert together(runs) == Taken(2.0, None, 4.0, 45, 1867.5)
    assert together([]) == together([Taken()]) == Taken()


@pytest.mark.parametrize(
    ("taken", "estimates", "words"),
    [
        (Taken(), (1.0, 1.0), ""),
        (Taken(used=9.0), (), "measured 9.0 GiB used"),
        (
            Taken(4.0, 5.0), (3 * 2.0**30, 6 * 2.0**30),
            "measured 4.0 GiB in tensors (estimate 75 %), 5.0 GiB reserved (estimate 120 %)",
        ),
        (
            Taken(used=9.0, busy=47, mhz=1867.5, watts=310), (),
            "measured 9.0 GiB used; GPUs 47 % busy at 1,868 MHz and 310 W",
        ),
        (Taken(busy=0, watts=310.4), (), "GPUs 0 % busy at 310 W"),
        (Taken(busy=99), (), "GPUs 99 % busy"),
        (Taken(mhz=1980), (), ""),
    ],
)  # fmt: skip
def test_what_was_measured_and_estimated_is_told_and_nothing_else(
    taken: Taken, estimates: tuple[float, ...], words: str
) -> None:
    assert in_words(compared(taken, *estimates)) == words
