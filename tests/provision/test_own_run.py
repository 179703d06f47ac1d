"""One run of a stack's own command: its log, and what is left of a search whose owner was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.errors import EnvbuildError
from envbuild.model.facts import GpuFacts
from envbuild.model.launch import Command, Launch
from envbuild.model.target import Connection
from envbuild.node import paths
from envbuild.node.env import activation_files
from envbuild.node.proc import Finished
from envbuild.node.variables import VISIBLE
from envbuild.provision import own_run
from envbuild.provision.gpu_use import Taken
from envbuild.provision.own_run import Log, OwnRun
from envbuild.provision.survey.ask import rules
from envbuild.report.claimed import NO_GPU, Gpus, gpus_of
from envbuild.transport.processes import end_marked
from tests.provision.survey.test_up_to_date import facts
from tests.support.fails import fails
from tests.support.need import need
from tests.support.patience import PATIENCE
from tests.support.programs import executable

ONE = Launch.model_construct(commands=(Command(argv=("true",), directory="/"),), gpus_per_node=2)


TOLD: Any = SimpleNamespace(log="alpa", metric="tflops")


@pytest.fixture
def work(tmp_path: Path) -> Any:
    """A run with a folder for its logs."""
    (tmp_path / "logs").mkdir()
    settings = SimpleNamespace(cancel=lambda: False)
    return SimpleNamespace(run=SimpleNamespace(path=tmp_path), settings=settings, notes=[])


@pytest.fixture
def begin(work: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Log]:
    """Carry out what the shell is told, here."""

    def run(text: str, name: str = "bench 1", output: str = f"{work.run.path}/out", seconds: float = 60.0) -> Log:
        monkeypatch.setattr(own_run, "steps_of", lambda *_: [SimpleNamespace(text=text)])
        return own_run.carry_out(work, TOLD, OwnRun(ONE, None, output, seconds), name)

    return run


def test_a_line_without_an_end_is_written_in_pieces(begin: Callable[..., Log], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_run, "_LINE", 1000)
    log = begin("printf %05000d 0")
    assert (log.failure, log.path.read_text()) == ("", "0" * 5000)


def test_a_run_whose_log_cannot_be_written_is_ended_and_is_not_late(tmp_path: Path, begin: Callable[..., Log]) -> None:
    (tmp_path / "logs/trial-1.log").symlink_to("/dev/full")
    log = begin("yes", "trial 1")
    assert (log.failure, log.late) == ("its log cannot be written: [Errno 28] No space left on device", False)


@pytest.mark.slow
def test_ranks_that_nothing_ends_are_named_and_not_waited_for(
    begin: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    started, marks, shell = [], [], own_run._shell

    def kept(argv: list[str], script: str, marker: str) -> subprocess.Popen[bytes]:
        marks.append(marker)
        started.append(shell(argv, script, marker))
        return started[-1]

    monkeypatch.setattr(own_run, "_shell", kept)
    monkeypatch.setattr(own_run, "end_marked", lambda *_, **__: None)
    try:
        log = begin("exec sleep 600 >/dev/null 2>&1", seconds=0.3)
    finally:
        end_marked(own_run.MARKER, marks[0], grace=0)
    said = f"processes that nothing ends are left, as where a driver hangs: {started[0].pid}"
    assert (log.failure.partition(", ")[2].startswith(said.partition(", ")[2]), log.late) == (True, False), log.failure


def test_a_folder_for_its_output_that_cannot_be_made_is_said(begin: Callable[..., Log]) -> None:
    with fails("output-unwritable") as caught:
        begin("true", output="/dev/null/out")
    assert caught.value.what == "/dev/null/out cannot be written"


def on_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sessions: dict[str, list[str]], lost: str = ""
) -> tuple[Any, OwnRun, list[str]]:
    """A run that never ends on hosts whose shells are here; those that are told to end it (`lost` cannot be)."""
    asked: list[str] = []

    def exchange(host: str, *_: Any) -> Finished:
        asked.append(host)
        if host == lost:
            raise EnvbuildError("node-unreachable", f"{host} does not answer")
        return Finished(0)

    monkeypatch.setattr(own_run, "steps_of", lambda *_: [SimpleNamespace(text="exec sleep 600")])
    monkeypatch.setattr(own_run.ssh, "session", lambda host, _: sessions[host])
    monkeypatch.setattr(own_run.ssh, "exchange", exchange)
    monkeypatch.setattr(own_run.ssh, "glance", lambda *_: "")
    target = SimpleNamespace(connection=Connection(kind="ssh"))
    work = SimpleNamespace(
        run=SimpleNamespace(path=tmp_path), settings=SimpleNamespace(cancel=lambda: False), notes=[],
        prepared=SimpleNamespace(target=target),
    )  # fmt: skip
    return work, OwnRun(ONE, None, str(tmp_path / "out"), 600.0, tuple(sessions)), asked


USED = ["0, GPU-a, 1810, 100, Disabled, NVIDIA A", "1, GPU-b, 4, 0, Disabled, NVIDIA A"]
PROCESSES = ["GPU-a, 23104, 1808, /home/a/bin/python"]
TOLD_USED = (
    "GPU 0 is in use by other processes: pid 23104 (python, 1,808 MiB); figures may be lower than what it can do"
)


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that is found here and by a shell, and keeps what it is asked."""
    path = tmp_path / "bin/nvidia-smi"
    path.parent.mkdir()
    rows = {"compute-apps": PROCESSES, "query-gpu": USED}
    cases = "".join(f"*{key}*) echo '{chr(10).join(lines)}';;\n" for key, lines in rows.items())
    executable(path, f'#!/bin/sh\necho "$@" >> {tmp_path}/words\ncase "$*" in\n{cases}esac\n')
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    return tmp_path / "words"


def test_who_else_uses_the_gpus_of_a_run_is_told_before_it_starts_and_once(
    work: Any, begin: Callable[..., Log], monkeypatch: pytest.MonkeyPatch, nvidia_smi: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    for number in (1, 2):
        begin("true", f"bench {number}")
    assert work.notes == [f"localhost: {TOLD_USED}"]
    assert nvidia_smi.read_text().count("-i 4,5\n") >= 4


@pytest.mark.parametrize("hosts", [{}, {"a": ["/bin/sh", "-s"]}])
def test_a_lock_that_an_ended_run_has_left_is_told(
    tmp_path: Path, work: Any, monkeypatch: pytest.MonkeyPatch, hosts: dict[str, list[str]]
) -> None:
    """Every run that compiles waits for it."""
    lock = tmp_path / "cpu_adam/lock"
    lock.parent.mkdir()
    lock.touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    asked = OwnRun(ONE, None, str(tmp_path / "out"), 60.0)
    if hosts:
        work, asked, _ = on_hosts(tmp_path, monkeypatch, hosts)
    monkeypatch.setattr(own_run, "steps_of", lambda *_: [SimpleNamespace(text="true")])

    def glance(_: str, script: bytes, *__: Any) -> str:
        return subprocess.run(["/bin/sh", "-s"], input=script, stdout=-1, check=False).stdout.decode()

    monkeypatch.setattr(own_run.ssh, "glance", glance)
    own_run.carry_out(work, TOLD, asked, "bench 1")
    (told,) = [note for note in work.notes if "torch compiles" in note]
    assert told.startswith(f"{'a' if hosts else 'localhost'}: 1 lock of what") and str(lock) in told


def test_hosts_are_asked_the_same_through_open_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvidia_smi: Path
) -> None:
    work, asked, _ = on_hosts(tmp_path, monkeypatch, {"a": SHELL, "b": SHELL})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")  # of this machine

    def glance(host: str, script: bytes, *_: Any) -> str:
        return subprocess.run(["/bin/sh", "-s"], input=script, stdout=-1, check=True).stdout.decode() * (host == "b")

    monkeypatch.setattr(own_run.ssh, "glance", glance)
    own_run.carry_out(work, TOLD, asked, "bench 1")
    assert work.notes[0] == f"b: {TOLD_USED}"
    assert "-i 0,1\n" in nvidia_smi.read_text()


@pytest.mark.parametrize("shared", [True, False])
def test_of_hosts_the_peaks_of_torch_and_what_nvidia_smi_saw_are_read_when_the_run_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvidia_smi: Path, shared: bool
) -> None:
    """Where no folder is shared, what the second host is told has other paths."""
    (tmp_path / "logs").mkdir()
    folders = {"a": tmp_path / "out", "b": tmp_path / ("out" if shared else "other")}
    shells = {
        host: ["/bin/sh", "-c", f"sed 's#{tmp_path}/out#{folder}#g' | /bin/sh -s"] for host, folder in folders.items()
    }
    steps_of = own_run.steps_of
    work, asked, _ = on_hosts(tmp_path, monkeypatch, shells)
    monkeypatch.setattr(own_run, "steps_of", steps_of)
    (tmp_path / "torch.py").write_text(
        "size = 0\nclass cuda:\n is_initialized = device_count = staticmethod(lambda: 1)\n"
        " max_memory_allocated = max_memory_reserved = staticmethod(lambda _: size << 30)\n"
    )
    (tmp_path / "bin/nvidia-smi").write_text(
        f'#!/bin/sh\necho "$@" >> {nvidia_smi}\n'
        "echo 81000, Enabled, 9, 9, 9.00; echo 4096, Disabled, 50, 1980, 300.00; exec sleep 600\n"
    )

    def glance(host: str, script: bytes, *_: Any) -> str:
        asks = b".json" in script
        return subprocess.run(shells[host], input=script, stdout=-1, check=True).stdout.decode() if asks else ""

    monkeypatch.setattr(own_run.ssh, "glance", glance)
    run = Command(argv=(sys.executable, "-c", RANK), environment={"PYTHONPATH": str(tmp_path)}, directory=str(tmp_path))
    log = own_run.carry_out(work, TOLD, replace(asked, launch=ONE.model_copy(update={"commands": (run,)})), "bench 1")
    assert (log.failure, log.taken) == ("", Taken(2.0, 2.0, 4.0, 50, 1980, 300))
    assert all(folder.exists() and not list(folder.iterdir()) for folder in folders.values())
    watching = [line for line in nvidia_smi.read_text().splitlines() if "-lms" in line]
    assert len(watching) == 2 and all(line.endswith("-i 0,1") for line in watching)


# A rank that uses one GiB more than that of the host before, and ends once nvidia-smi has been heard.
RANK = """import os, pathlib, time, torch
number = int(os.environ["NODE_RANK"])
seen = pathlib.Path(os.environ["PYTHONPATH"].split(":")[0]) / f"nvidia-smi.{number}"
while not (seen.exists() and seen.read_text().count("Disabled")):
    time.sleep(0.05)
torch.size = number + 1
"""


SHELL = ["/bin/sh", "-s"]


def test_of_hosts_whose_log_cannot_be_opened_that_is_said_and_who_could_not_be_told_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, asked, ended = on_hosts(tmp_path, monkeypatch, {"a": SHELL, "b": SHELL}, lost="b")
    log = own_run.carry_out(work, TOLD, asked, "bench 1")
    assert (log.failure[:29], log.late) == ("its log cannot be written: [E", False)
    assert (sorted(ended), len(work.notes)) == (["a", "b"], 1)
    assert "b: what still runs there was not ended (b does not answer)" in work.notes[0]


def test_a_host_that_cannot_be_started_ends_those_that_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    work, asked, ended = on_hosts(tmp_path, monkeypatch, {"a": SHELL, "b": ["/no/program"], "c": SHELL})
    started, shell = [], own_run._shell
    monkeypatch.setattr(own_run, "_shell", lambda *args: started.append(shell(*args)) or started[-1])
    with pytest.raises(FileNotFoundError):
        own_run.carry_out(work, TOLD, asked, "bench 1")
    assert [process.poll() is None for process in started] == [False]
    assert ended == ["a"]


# While a host's shell waits for the first time the process gets its environment; the second time it goes.
SLEEP = """#!/bin/sh
[ ! -s {process}/environ ] || exec rm -r {process}
printf 'A=1\\0{marker}\\0' >{process}/environ
"""


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("program", [True, False])
def test_a_hosts_shell_ends_what_was_just_being_started_and_waits_for_nothing_else(
    tmp_path: Path, shell: str, program: bool
) -> None:
    need(shell)
    marker = f"{own_run.MARKER}=mine"
    with subprocess.Popen(["sleep", "600"]) as victim:
        process = tmp_path / "proc" / str(victim.pid)
        process.mkdir(parents=True)
        (process / "environ").touch()
        (process / "stat").write_text(f"{victim.pid} (a (b) c) S " + " ".join(["7"] * 47 + ["0", "0"]))
        if program:
            (process / "exe").symlink_to("/bin/sh")
        executable(tmp_path / "sleep", SLEEP.format(marker=marker, process=process))
        script = own_run._END.format(marker=marker).replace("/proc/", f"{tmp_path}/proc/")
        script = script.replace("-f3", f"-f{len(process.parts)}")
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        subprocess.run([shell], input=script.encode(), env=env, check=True, timeout=PATIENCE)
        try:
            if program:
                victim.wait(PATIENCE)
        finally:
            victim.kill()
    assert victim.returncode == -(signal.SIGTERM if program else signal.SIGKILL)


def test_a_host_asks_a_process_once_a_look_to_end_so_that_its_clean_up_is_not_interrupted(tmp_path: Path) -> None:
    # A second SIGTERM on the heels of the first interrupts a program that cleans up.
    told = tmp_path / "told"
    executable(tmp_path / "kill", f'#!/bin/sh\necho "$*" >> {told}\nexec /bin/kill "$@"\n')
    marker = f"{own_run.MARKER}=once-{tmp_path.name}"
    started = subprocess.Popen(
        ["sleep", "60"], env={"PATH": os.environ["PATH"], own_run.MARKER: marker.partition("=")[2]}
    )
    try:
        script = own_run._END.format(marker=marker).replace("kill -", f"{tmp_path}/kill -")
        subprocess.run(["/bin/sh"], input=script.encode(), check=True, timeout=PATIENCE)
        assert started.wait(PATIENCE) == -signal.SIGTERM
        assert told.read_text().splitlines() == [f"-TERM {started.pid}"]
    finally:
        started.kill()


def test_a_hosts_shell_ends_what_starts_itself_again_and_again(tmp_path: Path) -> None:
    again = executable(tmp_path / "again", '#!/bin/sh\nexec "$0"\n')
    for number in range(5):
        marker = f"{own_run.MARKER}_TEST={number}"
        environment = {f"{own_run.MARKER}_TEST": f"{number}", "PATH": os.environ["PATH"]}
        with subprocess.Popen([str(again)], env=environment) as started:
            subprocess.run(["bash"], input=own_run._END.format(marker=marker).encode(), check=True, timeout=PATIENCE)
            assert started.wait(PATIENCE) in (-signal.SIGTERM, -signal.SIGKILL)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["NVIDIA H200"] * 2, Gpus("NVIDIA H200", 2, "H200-SXM-141GB", 989.0)),
        # Which of them ran is not known.
        (["NVIDIA H200", "NVIDIA L4"], Gpus("NVIDIA H200", 2, "H200-SXM-141GB", 989.0, firm=False)),
        # Its peak was not verified.
        (["NVIDIA H100 PCIe"], Gpus("NVIDIA H100 PCIe", 2, "H100-PCIE-80GB", 756.0, firm=False)),
        (["Acme X1"], Gpus("Acme X1", 2)),
        ([], Gpus(None, 2, NO_GPU)),
    ],
)
def test_a_peak_refuses_a_figure_where_it_was_verified_and_all_gpus_have_it(names: list[str], told: Gpus) -> None:
    there = tuple(GpuFacts(index=index, name=name) for index, name in enumerate(names))
    assert gpus_of(facts().model_copy(update={"gpus": there}), 2, rules()) == told
    assert gpus_of(None, 2, rules()) == Gpus(None, 2)


@pytest.mark.parametrize(
    ("here", "written", "own", "devices"),
    [
        (None, {}, {}, ["0", "1"]),
        ("2,3,5", {}, {}, ["2", "3"]),
        ("2,3,5", {VISIBLE: "6,GPU-1f"}, {}, ["6", "GPU-1f"]),
        ("2,3,5", {VISIBLE: "6"}, {VISIBLE: "7,-1,4"}, ["7"]),
        ("", {}, {}, []),
    ],
)
def test_the_gpus_of_a_run_are_the_first_that_its_ranks_see(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    here: str | None,
    written: dict[str, str],
    own: dict[str, str],
    devices: list[str],
) -> None:
    monkeypatch.setenv(VISIBLE, here) if here is not None else monkeypatch.delenv(VISIBLE, raising=False)
    activation_files.write(str(tmp_path), "stack", written)
    (command,) = ONE.commands
    launch = ONE.model_copy(update={"commands": (command.model_copy(update={"environment": own}),)})
    assert own_run._devices(OwnRun(launch, paths.meta(str(tmp_path), "activate.sh"), "/out", 60.0)) == devices


def test_a_lock_is_found_wherever_torch_compiles(tmp_path: Path) -> None:
    def asked(**environment: str) -> list[str]:
        done = subprocess.run(["/bin/sh", "-s"], input=own_run.LOCKS, env=environment, stdout=-1, check=True, text=True)
        return own_run.locks_in_words(done.stdout)

    assert asked(HOME=str(tmp_path)) == asked() == own_run.locks_in_words("a line of a start-up file\n") == []
    tops = {"HOME": ".cache/torch_extensions/py312_cu130", "XDG_CACHE_HOME": "torch_extensions"}
    for variable, top in {**tops, "TORCH_EXTENSIONS_DIR": ""}.items():
        folder = tmp_path / variable / "a b" / top / "cpu_adam"
        folder.mkdir(parents=True)
        environment = {"HOME": str(tmp_path), variable: str(tmp_path / variable / "a b")}
        (folder / "build.ninja").touch()
        assert asked(**environment) == []
        (folder / "lock").touch()
        (says,) = asked(**environment)
        assert says.startswith(f"1 lock of what torch compiles when it is first used: {folder}/lock; where nothing")
