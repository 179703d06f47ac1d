"""Steps with the real ansible-playbook on a local connection, and without; a script stands for the node program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from envbuild import resources
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.target import Connection
from envbuild.provision.ansible import steps
from envbuild.provision.ansible.adapter import Inventory, find_program, run_playbook
from envbuild.provision.ansible.steps import MARKER, NodeHost, StepsResult, TaskEvent, Watch
from envbuild.transport.processes import (
    end_marked,
    end_masters,
    end_masters_of_the_dead,
    end_orphans,
    find_marked,
    marker_value,
    sockets_prefix,
)
from tests.support.canary import CANARY
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.patience import PATIENCE, alive, text_of, until, with_deadline
from tests.support.programs import completed

NODE_PROGRAM = """
import json, os, subprocess, sys, time
verb, request = sys.argv[1], json.load(sys.stdin)
if request.get("hang"):
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    open(request["hang"], "w").write(str(child.pid))
    child.wait()
print("a log line about " + verb, file=sys.stderr)
exit_code = request.get("exit", 0)
out = {"protocol": 1, "verb": verb, "ok": not exit_code, "changed": request.get("changed", False)}
out["result"] = {"echo": request, "token": os.environ.get("PLANTED_TOKEN", ""), "job": os.environ.get("JOB_ID")}
json.dump(out, sys.stdout)
sys.exit(exit_code)
"""


def _inventory(
    folder: Path, requests: dict[str, dict[str, object]], names: tuple[str, ...] = ("localhost",)
) -> Inventory:
    program = folder / "node program {{ 7*7 }}.py"
    program.write_text(NODE_PROGRAM)
    files = {}
    for verb, request in requests.items():
        files[verb] = folder / f"{verb} request.json"
        files[verb].write_text(json.dumps(request))
    return Inventory(tuple(NodeHost(name, sys.executable, str(program), files) for name in names), Connection())


def _run(
    tmp_path: Path,
    inventory: Inventory,
    events: list[TaskEvent],
    deadline: float = 4 * PATIENCE,
    way: str = "ansible",
    cancel: Callable[[], bool] = lambda: False,
) -> StepsResult:
    name, told, watch = "provision.yml", events.append, Watch(deadline, cancel)
    if way == "direct":
        (host,) = inventory.hosts
        # On this machine the package itself is called; its place is taken by the script as well.
        with mock.patch.object(steps, "call_here", lambda python, verb: [python, host.pyz, verb]):
            return steps.run_here(name, host, on_event=told, watch=watch)
    return run_playbook(name, inventory, run_dir=tmp_path, on_event=told, forks=4, watch=watch)


both_ways = pytest.mark.parametrize("way", ["ansible", "direct"])
# Each start of Ansible is a second of processor time.
also_ansible = pytest.mark.parametrize("way", [pytest.param("ansible", marks=pytest.mark.slow), "direct"])


def _ends(events: list[TaskEvent]) -> list[tuple[str, str, str]]:
    return [(event.node, event.role, event.status) for event in events if event.status not in ("started", "skipped")]


@both_ways
def test_steps_run_in_order_and_requests_arrive_literally(tmp_path: Path, way: str) -> None:
    nasty: dict[str, object] = {
        "a": "{{ 7*7 }}",
        "b": "$(id) `id` 'x' \"y\" \\ %s",
        "c": "{% raw %}{#",
        "d": "ä\n\t",
        "e": "!unsafe",
    }
    events: list[TaskEvent] = []
    inventory = _inventory(tmp_path, {"install": {**nasty, "changed": True}, "smoke": nasty})
    result = _run(tmp_path, inventory, events, way=way)
    assert (result.rc, result.tasks_run) == (0, 2)
    assert _ends(events) == [("localhost", "install", "changed"), ("localhost", "smoke", "ok")]
    ended = [event for event in events if event.status in ("changed", "ok")]
    assert json.loads(ended[0].stdout)["result"]["echo"] == {**nasty, "changed": True}
    assert ended[1].stderr == "a log line about smoke"
    assert ended[1].seconds is not None
    assert result.nodes == {"localhost": ended[1]}


@pytest.mark.slow
def test_a_step_starts_no_module_of_ansible_on_its_node(tmp_path: Path) -> None:
    program, request = tmp_path / "program.sh", tmp_path / "install.json"
    program.write_text("""read -r asked; printf '{"ok": true, "changed": true, "asked": %s}' "$asked"\n""")
    request.write_text('{"a": 1}\n')
    events: list[TaskEvent] = []
    # A shell in the place of Python, which no module could be run with.
    host = NodeHost("localhost", "/bin/sh", str(program), {"install": request})
    _run(tmp_path, Inventory((host,), Connection()), events)
    assert _ends(events) == [("localhost", "install", "changed")]
    assert json.loads(events[-1].stdout)["asked"] == {"a": 1}


@also_ansible
def test_a_failed_step_ends_its_node_and_keeps_rc_and_output(tmp_path: Path, way: str) -> None:
    events: list[TaskEvent] = []
    result = _run(tmp_path, _inventory(tmp_path, {"install": {"exit": 5}, "activate": {}}), events, way=way)
    assert result.rc != 0
    assert _ends(events) == [("localhost", "install", "failed")]
    last = result.nodes["localhost"]
    assert (last.rc, json.loads(last.stdout)["ok"]) == (5, False)


@pytest.mark.slow
def test_nodes_do_not_wait_for_each_other_and_one_failure_leaves_the_others(tmp_path: Path) -> None:
    good = _inventory(tmp_path, {"install": {}, "smoke": {}}, ("one", "two"))
    (tmp_path / "bad").mkdir()
    bad = _inventory(tmp_path / "bad", {"install": {"exit": 4}, "smoke": {}}, ("three",))
    bare = NodeHost("bare", "/nowhere/python3", good.hosts[0].pyz, good.hosts[0].requests)
    events: list[TaskEvent] = []
    result = _run(tmp_path, Inventory((*good.hosts, *bad.hosts, bare), Connection()), events)
    assert result.rc != 0
    assert {node: (event.role, event.status) for node, event in result.nodes.items() if node != "bare"} == {
        "one": ("smoke", "ok"),
        "two": ("smoke", "ok"),
        "three": ("install", "failed"),
    }
    assert result.nodes["bare"].status in ("failed", "unreachable")
    assert result.nodes["bare"].message


@pytest.mark.slow
def test_no_secret_is_kept_in_the_run_directory_and_no_setting_of_the_user_for_ansible_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, run = tmp_path / "home", tmp_path / "run"
    run.mkdir()
    write_file(home / ".ansible.cfg", "[defaults]\nstrategy = nonsense\nstdout_callback = nonsense\n")
    for name, value in {
        "PLANTED_TOKEN": CANARY,
        "HTTPS_PROXY": f"http://me:{CANARY}@proxy.invalid:1",
        "HOME": str(home),
        "ANSIBLE_STRATEGY": "nonsense",
        "ANSIBLE_STDOUT_CALLBACK": "nonsense",
        "ANSIBLE_CHECK_MODE_MARKERS": "nonsense",
        "ANSIBLE_BECOME": "1",
        "ANSIBLE_INVENTORY": "/nowhere",
        "ANSIBLE_VAULT_PASSWORD_FILE": "/nowhere",
        "JOB_ID": "123.scheduler",
        "LC_ALL": "C",
    }.items():
        monkeypatch.setenv(name, value)
    events: list[TaskEvent] = []
    request = {"index": f"https://me:{CANARY}@index.invalid/simple", "exit": 1}
    result = _run(run, _inventory(tmp_path, {"install": {}, "smoke": request}), events)
    assert _ends(events) == [("localhost", "install", "ok"), ("localhost", "smoke", "failed")], result
    assert CANARY in events[-1].stdout, "the node program needs the variable itself"
    files = [path for path in run.rglob("*") if path.is_file()]
    assert any(path.name == "events.jsonl" for path in files)
    assert [str(path) for path in files if CANARY.encode() in path.read_bytes()] == []
    assert [path.name for path in home.iterdir()] == [".ansible.cfg"], "nothing is written into HOME"


@also_ansible
def test_a_deadline_ends_everything_that_was_started(tmp_path: Path, way: str) -> None:
    pid_file = tmp_path / "pid"

    def refused(deadline: float) -> EnvbuildError:
        with pytest.raises(EnvbuildError) as caught:
            _run(tmp_path, _inventory(tmp_path, {"install": {"hang": str(pid_file)}}), [], deadline, way)
        return caught.value

    _, error = with_deadline(refused, 6, lambda _: bool(text_of(pid_file)))
    assert (error.code, error.exit_code) == ("playbook-deadline", ExitCode.BUILD_FAILED)
    assert error.details["nodes"] == {"localhost": "install: started"}
    assert not alive(int(until(lambda: text_of(pid_file))))


@also_ansible
def test_what_a_killed_controller_left_behind_is_ended_by_the_next_run(tmp_path: Path, way: str) -> None:
    pid_file = tmp_path / "pid"
    (tmp_path / "first").mkdir()
    code = (
        "import sys; from pathlib import Path; from tests.provision.ansible.test_adapter import _run, _inventory\n"
        "folder, pid = Path(sys.argv[1]), sys.argv[2]\n"
        "_run(folder, _inventory(folder, {'install': {'hang': pid}}), [], way=sys.argv[3])\n"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "first"), str(pid_file), way], cwd=root) as first:
        pid = int(until(lambda: text_of(pid_file)))
        first.kill()
        first.wait()
    assert _run(tmp_path, _inventory(tmp_path, {"smoke": {}}), [], way=way).rc == 0
    assert not alive(pid)


@also_ansible
def test_cancel_stops_the_run(tmp_path: Path, way: str) -> None:
    pid_file = tmp_path / "pid"
    inventory = _inventory(tmp_path, {"install": {"hang": str(pid_file)}})
    with fails("interrupted", ExitCode.INTERRUPTED) as caught:
        _run(tmp_path, inventory, [], way=way, cancel=pid_file.exists)
    assert caught.value.what == "the run was interrupted", "a playbook is a word of ours"
    pid = pid_file.read_text()
    assert not pid or not alive(pid)


@also_ansible
def test_sigterm_stops_the_run_and_the_handler_is_put_back(tmp_path: Path, way: str) -> None:
    pid_file = tmp_path / "pid"
    before = signal.getsignal(signal.SIGTERM)

    def send() -> None:
        int(until(lambda: text_of(pid_file)))
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(EnvbuildError) as caught:
        _run(tmp_path, _inventory(tmp_path, {"install": {"hang": str(pid_file)}}), [], way=way)
    sender.join()
    assert caught.value.code == "interrupted"
    assert signal.getsignal(signal.SIGTERM) is before
    assert not alive(int(until(lambda: text_of(pid_file))))


@pytest.mark.slow
def test_a_playbook_that_ansible_cannot_run_is_a_coded_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "provision.yml").write_text("- hosts: nodes\n  tasks:\n    - no_such_module: {}\n")
    monkeypatch.setattr(resources, "playbooks", lambda: tmp_path)
    with fails("playbook-broken") as caught:
        _run(tmp_path, _inventory(tmp_path, {"smoke": {}}), [])
    assert "no_such_module" in caught.value.why


def test_ansible_playbook_of_the_same_environment_is_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_program("ansible-playbook").parent == Path(sys.executable).parent
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with fails("installation-broken"):
        find_program("ansible-playbook")


def _waits(argv: list[str] | None = None, before: str = "", **environment: str) -> subprocess.Popen[bytes]:
    """A process that has begun and waits; `argv`: what stands in the place of its program's name."""
    code = f"{before}print(1, flush=True); import time; time.sleep(600)"
    words = [*(argv or [sys.executable]), "-c", code]
    # A Python that lies elsewhere than it was built for finds its modules by its name, which may be another here.
    env = {**os.environ, **environment, **({"PYTHONHOME": sys.base_prefix} if argv else {})}
    process = subprocess.Popen(words, executable=sys.executable, env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_marked_processes_are_found_and_ended_even_when_they_ignore_sigterm() -> None:
    value = f"test-{os.getpid()}-{time.monotonic_ns()}"
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    with _waits(before=stubborn, **{MARKER: value}) as process:
        assert find_marked(MARKER, value) == [process.pid]
        assert end_marked(MARKER, value, grace=0.3) == [process.pid]
        assert process.wait() == -signal.SIGKILL
    assert end_marked(MARKER, value) == []


def test_what_an_envbuild_of_another_container_started_is_none_of_ours_to_end() -> None:
    name, (_, _, namespace, _) = "TEST_ORPHANS", marker_value().split(".")
    with (
        _waits(**{name: f"4194305.12.{namespace}.7"}) as ours,
        _waits(**{name: f"4194305.12.{int(namespace, 16) ^ 1:x}.7"}) as theirs,
    ):
        try:
            assert end_orphans(name) == [ours.pid]
            assert theirs.poll() is None
        finally:
            theirs.kill()
            ours.kill()


def test_connection_masters_end_with_their_folder_or_when_their_owner_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    owner = sockets_prefix().removesuffix(".").rpartition(".")
    mine, dead = tmp_path / f"{sockets_prefix()}x", tmp_path / f"eb-ssh-4194305.12.{owner[2]}.x"
    for folder in (mine, dead):
        folder.mkdir()
    with _waits([f"ssh: {mine}/0123456789 [mux]"]) as here, _waits([f"ssh: {dead}/0123456789 [mux]"]) as left:
        end_masters_of_the_dead()
        assert left.wait(PATIENCE) == -signal.SIGTERM
        assert here.poll() is None
        assert [path.name for path in tmp_path.iterdir()] == [mine.name]
        end_masters(mine)
        assert here.wait(PATIENCE) == -signal.SIGTERM


def test_importing_the_adapter_imports_neither_ansible_nor_pydantic() -> None:
    heavy = ("ansible_runner", "ansible", "pydantic", "yaml")
    code = f"import sys, envbuild.provision.ansible.adapter; print([m for m in {heavy} if m in sys.modules])"
    done = completed([sys.executable, "-c", code], check=True)
    assert done.stdout.strip() == "[]"
