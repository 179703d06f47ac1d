"""What comes back from jobs and is told of them: answers of nodes, logs, GPUs, how they ended."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.node.proc import Finished
from envbuild.provision.contact.first_contact import ContactResult
from envbuild.provision.gpu_use import Taken
from envbuild.provision.jobs import answers, launch
from envbuild.provision.jobs import answers as job_answers
from envbuild.provision.jobs.answers import _tell_phases, collect, first_death, last_attempt, plain
from envbuild.provision.jobs.asked import Asked
from envbuild.provision.jobs.launch import _bounded, _Follow, make_jobs
from envbuild.provision.jobs.site import JobSite, place
from envbuild.schedule.cluster import Here
from envbuild.schedule.job import Job, JobState, JobStep, Phase, job_error
from envbuild.schedule.script import log_name
from tests.launch.support import stack
from tests.provision.jobs.test_parts import site
from tests.support.files import write_file

RUN = Path(__file__).parents[3] / "envbuild" / "provision" / "jobs" / "job_run.sh"
MEMORY = Path("/sys/fs/cgroup/memory")
FAILED = job_error("7", JobState(Phase.DONE, exit=137, word="FAILED"))


def test_small_files_arrive_for_this_user_alone_and_come_back_by_node(tmp_path: Path) -> None:
    folder = tmp_path / "it's a folder"
    place(Here(), str(folder), {"run.sh": b"\x00\xff", "requests/a.json": b"{}"})
    assert (folder / "run.sh").read_bytes() == b"\x00\xff"
    assert folder.stat().st_mode & 0o777 == 0o700
    for node, content in (("n 1", b"\x00answer\n"), ("n2", b"")):
        write_file(folder / node / "probe.json", content)
        (folder / node / "smoke.new").write_bytes(b"half")
    assert collect(Here(), str(folder), ".json") == {
        "n 1": {"probe": b"\x00answer\n"}, "n2": {"probe": b""}, "requests": {"a": b"{}"},
    }  # fmt: skip
    assert collect(Here(), str(tmp_path / "nowhere"), ".json") == {}


@pytest.mark.parametrize(("told", "last"), [(0, 10), (11, 11)])
def test_a_requeued_job_that_slurm_has_forgotten_is_read_from_its_last_run(
    tmp_path: Path, told: int, last: int
) -> None:
    assert last_attempt(Here(), str(tmp_path), told) == f"{tmp_path}/answers-{told}"
    for name in ("answers-2", "answers-10", "requests"):
        (tmp_path / name).mkdir()
    assert last_attempt(Here(), str(tmp_path), told) == f"{tmp_path}/answers-{last}"


def test_only_an_answer_of_the_node_program_is_one() -> None:
    read = plain(b'{"ok": true, "result": {}}', "", "n1")
    assert (read.response, read.exit) == ({"ok": True, "result": {}}, 0)
    assert plain(b'{"ok": true, "result": {"ok": false}}', "", "n1").exit == 1
    for data in (b"", b"[]", b'{"ok": 1}', b"\xff", b"[" * 100000):
        error = plain(data, "", "n1").failure
        assert error is not None and error.code == "answer-unreadable" and error.what.startswith("n1: ")


REPEATS = 'cat; echo; [ "$1" != bad ] || exit 4\n'


def run_script(folder: Path, *words: str, node: str = "n1", code: str = REPEATS) -> int:
    """job_run.sh with a node program in sh, as a job calls it; `words`: its options and verbs."""
    program = folder / "program"
    program.write_text(code)
    options, verbs = [word for word in words if word == "-k"], [word for word in words if word != "-k"]
    asked = Asked("a", str(folder), dict.fromkeys(verbs), program=("/bin/sh", str(program)))
    place(Here(), str(folder), asked.files(""))
    env = {"PATH": os.environ["PATH"], "SLURMD_NODENAME": node}
    argv = ["/bin/sh", str(folder / "run.sh"), *options, str(folder), *verbs]
    return subprocess.run(argv, env=env, capture_output=True, check=False).returncode


def test_each_verb_leaves_a_whole_answer_and_the_first_that_fails_is_the_last(tmp_path: Path) -> None:
    requests = tmp_path / "requests"
    requests.mkdir()
    for verb in ("good", "bad", "never"):
        (requests / f"{verb}.json").write_text(f'{{"ok": true, "verb": "{verb}"}}')
    assert run_script(tmp_path, "good", "bad", "never") == 4
    answers = tmp_path / "answers-0" / "n1"
    assert sorted(path.name for path in answers.iterdir()) == ["bad.json", "good.json", "stderr.log"]
    assert (answers / "good.json").read_text() == '{"ok": true, "verb": "good"}\n'
    # What this node has done in this attempt is not done twice.
    (requests / "good.json").write_text("changed")
    assert run_script(tmp_path, "good") == 0
    assert (answers / "good.json").read_text() == '{"ok": true, "verb": "good"}\n'
    assert run_script(tmp_path, "never", node="n2") == 0
    assert (tmp_path / "answers-0" / "n2" / "never.json").exists()
    assert run_script(tmp_path, "-k", "good", "bad", "never", node="n3") == 0
    assert (tmp_path / "answers-0" / "n3" / "never.json").exists(), "all are asked"


@pytest.mark.parametrize(
    ("code", "rc", "told"),
    [
        ('printf \'{"ok": true, "res\'; kill -9 $$', 137, "which was killed (signal 9; the kernel does this when"),
        ("kill -15 $$", 143, "which was ended by signal 15"),
        ("printf '{\"ok\": tr'", 70, "which ended without an answer (exit 0)"),
        ("cat > /dev/full", 1, "which ended without an answer (exit 1)"),
    ],
)
def test_d40_an_answer_that_is_cut_off_is_none_and_the_step_is_told_with_how_it_ended(
    tmp_path: Path, code: str, rc: int, told: str
) -> None:
    (tmp_path / "requests").mkdir()
    for verb in ("probe", "smoke"):
        (tmp_path / "requests" / f"{verb}.json").write_text('{"ok": true, "result": {}}')
    text = f'if [ "$1" = smoke ]; then {code}; else {REPEATS}fi\n'
    assert run_script(tmp_path, "probe", "smoke", code=text) == rc
    folder = str(tmp_path / "answers-0")
    assert {node: list(verbs) for node, verbs in collect(Here(), folder, ".json").items()} == {"n1": ["probe"]}
    other = ContactResult.failed("n2", EnvbuildError("other", "of another kind"))
    found = {"n1": {"smoke": ContactResult.failed("n1", FAILED)}, "n2": {"smoke": other}}
    _tell_phases(found, FAILED, Here(), folder)
    assert found["n2"]["smoke"] is other
    error = found["n1"]["smoke"].error
    assert error is not None and f"n1 was in `smoke`, {told}" in error.what
    assert (error.code, error.exit_code, error.details["verb"]) == ("job-failed", 9, "smoke")


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
    write_file(tmp_path / "requests" / "install.sh", 'exec python3 -c "x = bytearray(300 << 20)"\n')
    argv = ["/bin/sh", str(RUN), str(tmp_path), "install"]
    inside = ["/bin/sh", "-c", 'echo $$ > "$0"; exec "$@"', str(limited / "cgroup.procs"), *argv]
    env = {"PATH": os.environ["PATH"], "SLURMD_NODENAME": "n1"}
    assert subprocess.run(inside, env=env, capture_output=True).returncode == 137
    error = first_death(FAILED, ("n0", "n1"), Here(), str(tmp_path / "answers-0"))
    assert (error.code, error.exit_code, error.details["node"]) == ("job-out-of-memory", 9, "n1")
    assert "n1 was in `install`, which the kernel killed because memory ran out" in error.what
    assert "--compile-jobs" in error.hint


class _Counted(Here):
    """The same, and how much each exchange brought."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def run(self, argv: Any, **more: Any) -> Finished:
        done = super().run(argv, **more)
        self.sizes.append(len(done.out))
        return done


def test_d46_answers_of_a_large_fleet_come_whole_in_several_exchanges(tmp_path: Path) -> None:
    answer = json.dumps({"ok": True, "result": {"text": "x" * 800_000}}).encode() + b"\n"
    for number in range(30):  # 24 MB in all
        write_file(tmp_path / f"n{number}" / "probe.json", answer)
    runner = _Counted()
    assert collect(runner, str(tmp_path), ".json") == {f"n{number}": {"probe": answer} for number in range(30)}
    assert len(runner.sizes) == 3
    assert max(runner.sizes) < 12 << 20


def test_d46_one_answer_that_is_too_large_is_the_error_of_its_node_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_answers, "FILE_LIMIT", 100_000)
    for node, size in (("n1", 10), ("n2", 100_001), ("n3", 10)):
        write_file(tmp_path / node / "smoke.json", json.dumps({"ok": True, "result": {"text": "x" * size}}))
    found = {node: plain(verbs["smoke"], "", node) for node, verbs in collect(Here(), str(tmp_path), ".json").items()}
    assert [found[node].exit for node in ("n1", "n2", "n3")] == [0, 1, 0]
    error = found["n2"].failure
    assert error is not None and (error.code, error.exit_code) == ("answer-unreadable", ExitCode.UNREACHABLE)
    assert "n2" in error.what and "MiB" in error.why


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
