"""What comes back from jobs and is told of them: answers of nodes, logs, GPUs, how they ended."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.node.proc import Finished
from envbuild.provision.contact.first_contact import node_request
from envbuild.provision.gpu_use import Taken
from envbuild.provision.jobs import answers, launch
from envbuild.provision.jobs.answers import _answers, answer_of, collect, first_death
from envbuild.provision.jobs.asked import Asked
from envbuild.provision.jobs.launch import _bounded, _Follow, make_jobs
from envbuild.provision.jobs.site import JobSite, place
from envbuild.schedule.cluster import Runner
from envbuild.schedule.job import Job, JobState, JobStep, Phase, job_error
from envbuild.schedule.script import log_name
from tests.launch.support import stack
from tests.provision.jobs.test_parts import site
from tests.support.fails import fails
from tests.support.files import write_file

RUN = Path(__file__).parents[3] / "envbuild" / "provision" / "jobs" / "job_run.sh"
MEMORY = Path("/sys/fs/cgroup/memory")
FAILED = job_error("7", JobState(Phase.DONE, exit=137, word="FAILED"))


def test_small_files_arrive_for_this_user_alone_and_come_back_by_node_of_the_last_run(tmp_path: Path) -> None:
    folder = tmp_path / "it's a folder"
    place(Runner(), str(folder), {"run.sh": b"\x00\xff", "answers-0/n 1/probe.json": b"\x00answer\n"})
    assert (folder / "run.sh").read_bytes() == b"\x00\xff"
    assert folder.stat().st_mode & 0o777 == 0o700
    write_file(folder / "answers-0" / "n2" / "smoke.new", b"")
    for strange in ("answers-old/n1/probe.json", "answers-0/n\n3/probe.json"):
        write_file(folder / strange, "not of a job")
    assert collect(Runner(), str(folder)) == {"n 1": {"probe.json": b"\x00answer\n"}, "n2": {"smoke.new": b""}}
    assert collect(Runner(), str(tmp_path / "nowhere")) == {}
    with fails("not-writable"):
        place(Runner(), str(folder / "run.sh" / "folder"), {"a": b""})
    for name in ("answers-2", "answers-10"):
        write_file(folder / name / "n1" / "probe.json", name)
    assert collect(Runner(), str(folder)) == {"n1": {"probe.json": b"answers-10"}}, "Slurm has forgotten the job"
    assert collect(Runner(), str(folder), 11) == {}


def test_only_an_answer_of_the_node_program_is_one() -> None:
    read = answer_of("n1", b'{"ok": true, "result": {}}', {"python": "/p"})
    assert (read.response, read.exit, read.python) == ({"ok": True, "result": {}}, 0, "/p")
    assert answer_of("n1", b'{"ok": true, "result": {"ok": false}}', {}).exit == 1
    assert answer_of("n1", b'{"ok": true, "result": {"exit": "6"}}', {}).exit == 0
    foreign = (b'{"ok": true}', b'{"ok": true, "result": [1]}', b'{"ok": false, "error": "x"}')
    for data in (b"", b"[]", b'{"ok": 1}', b"\xff", b"[" * 100000, *foreign):
        error = answer_of("n1", data, {}).failure
        assert error is not None and error.code == "answer-unreadable" and error.what.startswith("n1: ")


REPEATS = "print(sys.stdin.read()); sys.exit(4 * (sys.argv[1] == 'bad'))"


def run_script(folder: Path, *words: str, node: str = "n1", code: str = REPEATS, python: str = sys.executable) -> int:
    """job_run.sh with another node program, as a job calls it; `words`: its options and names."""
    verbs = [word for word in words if word != "-k"]
    requests = {verb.partition(":")[0]: node_request(verb.rpartition(":")[2], "/p", {}) for verb in verbs}
    files = Asked("a", str(folder), requests).files()
    files["requests/node.pyz"] = f"import os, sys\n{code}\n".encode()
    files["requests/findings.sh"] = f"echo python={python}\n".encode()
    place(Runner(), str(folder), files)
    env = {"PATH": os.environ["PATH"], "SLURMD_NODENAME": node}
    argv = ["/bin/sh", str(folder / "run.sh"), *[word for word in words if word == "-k"], str(folder), *verbs]
    return subprocess.run(argv, env=env, capture_output=True, check=False).returncode


def test_each_request_leaves_a_whole_answer_and_the_first_that_fails_is_the_last(tmp_path: Path) -> None:
    assert run_script(tmp_path, "good", "bad", "never") == 4
    answers = tmp_path / "answers-0"
    assert sorted(path.name for path in (answers / "n1").iterdir()) == [
        "bad.json",
        "findings",
        "good.json",
        "stderr.log",
    ]
    first = (answers / "n1/good.json").read_bytes()
    assert json.loads(first)["verb"] == "good" and first.endswith(b"\n")
    # What this node has done in this attempt is not done twice.
    assert run_script(tmp_path, "good", code="print('changed')") == 0
    assert (answers / "n1/good.json").read_bytes() == first
    assert run_script(tmp_path, "never", node="n2") == 0
    assert (answers / "n2/never.json").exists()
    assert run_script(tmp_path, "-k", "bad", "look:container", node="n3") == 0, "all are asked"
    assert json.loads((answers / "n3/look.json").read_bytes())["verb"] == "container"
    for words, rc in ((("probe",), 1), (("-k", "probe"), 0)):
        assert run_script(tmp_path, *words, node="bare", python="") == rc
        files = collect(Runner(), str(tmp_path))["bare"]
        answer = _answers("bare", ["probe"], files, FAILED if rc else None)["probe"]
        assert answer.bare and answer.findings == {"python": ""}


@pytest.mark.parametrize(
    ("code", "rc", "told"),
    [
        ("sys.stdout.write('{'); sys.stdout.flush(); os.kill(os.getpid(), 9)", 137,
         "which was killed (signal 9; the kernel does this when"),
        ("os.kill(os.getpid(), 15)", 143, "which was ended by signal 15"),
        ("sys.stdout.write('{')", 70, "which ended without an answer (exit 0)"),
        ("open('/dev/full', 'wb', 0).write(b'{')", 1, "which ended without an answer (exit 1)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("failed", [FAILED, None])
def test_d40_an_answer_that_is_cut_off_is_none_and_the_step_is_told_with_how_it_ended(
    tmp_path: Path, code: str, rc: int, told: str, failed: EnvbuildError | None
) -> None:
    text = f"if sys.argv[1] == 'smoke': {code}\nelse: {REPEATS}"
    assert run_script(tmp_path, "probe", "smoke", code=text) == rc
    files = collect(Runner(), str(tmp_path))["n1"]
    answers = _answers("n1", ["probe", "smoke"], files, failed)
    error = answers["smoke"].error
    assert answers["probe"].error is None and error is not None and f"n1 was in `smoke`, {told}" in error.what
    wanted = ("job-failed", 9) if failed else ("node-program-died", 3)
    assert (error.code, error.exit_code, error.details["verb"]) == (*wanted, "smoke")


@pytest.fixture
def limited() -> Iterator[Path]:
    """A memory cgroup of 60 MB."""
    group = MEMORY / f"envbuild-test-{os.getpid()}"
    try:
        write_file(group / "memory.limit_in_bytes", "60000000")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"a memory cgroup (version 1) cannot be made here: {error}")
    yield group
    group.rmdir()


def test_d40_a_step_that_the_kernel_kills_for_memory_is_told_as_such(tmp_path: Path, limited: Path) -> None:
    write_file(tmp_path / "requests" / "findings.sh", f"echo python={sys.executable}\n")
    write_file(tmp_path / "requests" / "node.pyz", "x = bytearray(300 << 20)\n")
    write_file(tmp_path / "requests" / "install.json", "{}")
    argv = ["/bin/sh", str(RUN), str(tmp_path), "install"]
    inside = ["/bin/sh", "-c", 'echo $$ > "$0"; exec "$@"', str(limited / "cgroup.procs"), *argv]
    env = {"PATH": os.environ["PATH"], "SLURMD_NODENAME": "n1"}
    assert subprocess.run(inside, env=env, capture_output=True).returncode == 137
    error = first_death({"n0": {}, **collect(Runner(), str(tmp_path))}, FAILED)
    assert (error.code, error.exit_code, error.details["node"]) == ("job-out-of-memory", 9, "n1")
    assert "n1 was in `install`, which the kernel killed because memory ran out" in error.what
    assert "--compile-jobs" in error.hint


def test_d46_answers_come_whole_in_several_exchanges_and_one_that_is_too_large_is_the_error_of_its_node_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "EXCHANGE_LIMIT", 200_000)
    monkeypatch.setattr(answers, "FILE_LIMIT", 100_000)
    sizes: list[int] = []

    class Counted(Runner):
        def run(self, argv: Any, **more: Any) -> Finished:
            done = super().run(argv, **more)
            sizes.append(len(done.out))
            return done

    for node, size in {"large": 100_001, **{f"n{number}": 70_000 for number in range(5)}}.items():
        answer = json.dumps({"ok": True, "result": {"text": "x" * size}})
        write_file(tmp_path / "answers-0" / node / "smoke.json", answer)
    write_file(tmp_path / "answers-0" / "n0" / "a\x0cb", "a strange name")
    files = collect(Counted(), str(tmp_path))
    assert (len(sizes), max(sizes) < 300_000, set(files["n0"])) == (3, True, {"a\x0cb", "smoke.json"})
    found = {node: answer_of(node, each["smoke.json"], {}) for node, each in files.items()}
    assert {node for node, each in found.items() if each.exit} == {"large"}
    error = found["large"].failure
    assert error is not None and (error.code, error.exit_code) == ("answer-unreadable", ExitCode.UNREACHABLE)
    assert "large" in error.what and "MiB" in error.why


@pytest.mark.parametrize("gpus", [{}, {("gpu", None): 8}])
def test_a_launch_knows_whether_its_nodes_have_gpus_as_gres(
    gpus: dict[tuple[str, str | None], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = site({"idle": 2}, gpus)
    facts = SimpleNamespace(prefix=SimpleNamespace(path="/shared/envbuild"))
    monkeypatch.setattr(JobSite, "of", lambda _: found)
    monkeypatch.setattr(launch, "login_facts", lambda *_: facts)
    asked = launch.Asked({}, gpus_per_node=8, environment="/e", time_limit="1h")
    _, place, make = make_jobs(found.target, stack("megatron-deepspeed-slurm"), "exact", asked, None)
    job, made = make(place, "one")
    assert (job.whole_nodes, "--gpus-per-node" in made.commands[0].argv) == (not gpus, bool(gpus))


def test_all_of_a_long_log_is_said_and_no_letter_is_torn(tmp_path: Path) -> None:
    job = Job(name="launch-x", steps=(JobStep(argv=("true",)),), output=str(tmp_path))
    said: list[str] = []
    follow = _Follow(site({"idle": 1}), job, said.append)
    follow("7")
    assert said == [], "it has not begun"
    text = "é" * 1_700_000 + "\n"
    log = tmp_path / log_name(job, "7")
    log.write_bytes(text.encode()[:1001])
    follow("7")
    log.write_bytes(text.encode())
    follow("7")
    assert "".join(said) == text


def test_a_reader_that_has_gone_away_is_no_log_that_has_not_begun(tmp_path: Path) -> None:
    job = Job(name="launch-x", steps=(JobStep(argv=("true",)),), output=str(tmp_path))
    (tmp_path / log_name(job, "7")).write_text("step 1\n")

    def say(_: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        _Follow(site({"idle": 1}), job, say)("7")


def test_of_a_job_whose_login_host_is_gone_since_it_ended_nothing_is_told_of_gpus() -> None:
    def gone(*_: Any, **__: Any) -> Finished:
        raise EnvbuildError("node-unreachable", "login cannot be reached", exit_code=ExitCode.UNREACHABLE)

    lost = replace(site({"idle": 1}), runner=SimpleNamespace(host="login", run=gone))
    assert launch.taken_by(lost, "/out") == (Taken(), [], [])


def test_nodes_of_a_job_are_asked_what_they_do_while_it_runs_and_not_while_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks: dict[str, Callable[[], str]] = {}
    told: list[str] = []

    def to_end(*_: object, on_state: Callable[[JobState], None]) -> tuple[str, JobState]:
        for phase in (Phase.PENDING, Phase.RUNNING, Phase.PENDING, Phase.DONE):
            on_state(JobState(phase))
            told.append(asks[str(tmp_path)]())
        return "7", JobState(Phase.DONE)

    def followed(ask: dict[str, Callable[[], str]], *_: object) -> nullcontext[None]:
        asks.update(ask)
        return nullcontext()

    monkeypatch.setattr(answers, "run_to_end", to_end)
    monkeypatch.setattr(answers, "followed", followed)
    monkeypatch.setattr(answers, "progress_of", lambda *_: "asked")
    job = Job(name="x", steps=(JobStep(argv=("true",)),), output=str(tmp_path))
    work: Any = None
    assert answers._followed(work, site({"idle": 1}), job)[0] == "7"
    assert told == ["\n", "asked\n", "\n", "asked\n"]


def test_more_nodes_than_a_partition_has_are_refused_with_the_number_that_it_has() -> None:
    with pytest.raises(EnvbuildError) as caught:
        _bounded(site({"idle": 5, "drained": 2}, {("gpu", None): 8}), launch.Asked({}, nodes=6))
    assert (caught.value.code, caught.value.hint) == ("launch-does-not-fit", "--nodes 5")
    for unasked, words in ((True, "the target does not say how many"), (False, "no GPUs that the scheduler knows of")):
        with pytest.raises(EnvbuildError, match=words):
            _bounded(site({"idle": 5}), launch.Asked({}), unasked=unasked)
