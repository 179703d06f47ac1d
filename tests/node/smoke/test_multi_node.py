"""The joint smoke test: nodes that meet, and an all-reduce that torchrun starts on each, here as two on one machine."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from envbuild.model.evidence import Check
from envbuild.node.protocol import NodeError
from envbuild.node.smoke import multi_node, rendezvous
from envbuild.node.smoke.runner import Scratch
from tests.node.torch_env import torch_environment
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.patience import PATIENCE, processes_of, with_deadline
from tests.support.torch_imported import torch_imported as torch_imported

TOKEN = "t" * 32


@pytest.fixture
def ports() -> list[int]:
    """Two ports that nobody uses."""
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        return [one.getsockname()[1], two.getsockname()[1]]


def test_nodes_meet_on_the_first_port_that_is_free_and_hear_the_same(ports: list[int]) -> None:
    found: dict[int, rendezvous.Meeting] = {}
    with socket.create_server(("0.0.0.0", ports[0])):

        def come(rank: int) -> None:
            found[rank] = rendezvous.join(["127.0.0.1"], ports, rank, TOKEN, 20, 8 - rank)

        others = [threading.Thread(target=come, args=(rank,)) for rank in (1, 2)]
        for each in others:
            each.start()
        found[0] = rendezvous.receive(ports, 3, TOKEN, 20, 8)
        for each in others:
            each.join()
    assert {each.port for each in found.values()} == {ports[1]}
    assert all(each.missing == [] for each in found.values())
    assert {each.ranks for each in found.values()} == {6}, "as many as every node can start"
    assert {(each.own, each.interface) for each in found.values()} == {("127.0.0.1", "lo")}
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", ports[1]))
        again.listen()


@pytest.mark.parametrize(
    ("here", "variables", "cuda", "ranks"),
    [
        (None, {}, True, 8),
        ("0,1", {}, True, 2),
        ("0,1", {"CUDA_VISIBLE_DEVICES": "3,4,5"}, True, 3),
        ("0,1,2,3,4,5,6,7,8,9", {}, True, 8),
        # Its rank says that it sees none.
        ("", {}, True, 1),
        ("0,1", {}, False, 8),
    ],
)
def test_a_node_starts_no_more_ranks_than_they_see_gpus(
    monkeypatch: pytest.MonkeyPatch, here: str | None, variables: dict[str, str], cuda: bool, ranks: int
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if here is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", here)
    assert multi_node._startable(multi_node.Spec("/env", {"environment": variables}, cuda), 8) == ranks


def test_strangers_and_wrong_tokens_are_not_counted_and_who_is_missing_is_told_to_all(ports: list[int]) -> None:
    found: dict[int, Any] = {}

    def come(rank: int, token: str) -> None:
        try:
            found[rank] = rendezvous.join(["127.0.0.1"], ports[:1], rank, token, 1.5, 1)
        except NodeError as error:
            found[rank] = error

    others = [threading.Thread(target=come, args=each) for each in ((1, TOKEN), (2, "another"))]
    for each in others:
        each.start()
    first = rendezvous.receive(ports[:1], 3, TOKEN, 1.5, 1)
    for each in others:
        each.join()
    assert (first.missing, found[1].missing) == ([2], [2])
    assert isinstance(found[2], NodeError)
    assert (found[2].code, found[2].exit_code) == ("nodes-cannot-meet", 1)


def test_who_speaks_slowly_holds_nobody_up() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(0.05):
                theirs.send(b"x")

        slow = threading.Thread(target=drip)
        slow.start()
        began = time.monotonic()
        assert rendezvous._read(ours, 0.4) == {}
        assert time.monotonic() - began < PATIENCE
        stop.set()
        slow.join()


def test_who_reaches_nobody_and_who_has_no_free_port_says_where_and_why(ports: list[int]) -> None:
    with fails("nodes-cannot-meet") as error:
        rendezvous.join(["127.0.0.1"], ports, 1, TOKEN, 0.1, 1)
    assert f"127.0.0.1 port {ports[0]}" in error.value.why and "refused" in error.value.why
    assert "smoke_nodes: 0" in error.value.hint
    with socket.create_server(("0.0.0.0", ports[0])), fails("nodes-cannot-meet") as error:
        rendezvous.receive(ports[:1], 2, TOKEN, 1, 1)
    assert str(ports[0]) in error.value.why


def test_a_job_says_who_a_node_is_and_how_many_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NODE_RANK": "2", "NNODES": "4", "MASTER_ADDR": "gpu1", "MASTER_PORT": "12000"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1")
    place = rendezvous.in_job(None)
    assert place == {"rank": 2, "nodes": 4, "addresses": ["gpu1", "10.0.0.1"], "ports": [12000, 12001, 12002, 12003]}
    assert rendezvous.in_job(2)["nodes"] == 2
    monkeypatch.delenv("NODE_RANK")
    with fails("request-invalid"):
        rendezvous.in_job(None)


def request(environment: Path, rank: int, ports: list[int], **more: Any) -> dict[str, Any]:
    place = {"rank": rank, "nodes": 2, "addresses": ["127.0.0.1"], "ports": ports, "names": ["first", "second"]}
    args = {"environment": str(environment), "cuda": False, "ranks": 1, "token": TOKEN,
            "place": place, "wait": PATIENCE, "deadline": 500, **more}  # fmt: skip
    return {"protocol": 1, "verb": "meet", "run": "r1", "prefix": "/nonexistent/prefix", "args": args}


def both(environment: Path, ports: list[int], **more: Any) -> list[tuple[int, dict[str, Any]]]:
    """Exit code and answer of both nodes, asked at the same time."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "envbuild.node", "meet"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for rank, process in enumerate(processes):
        assert process.stdin is not None
        process.stdin.write(json.dumps(request(environment, rank, ports, **more)))
        process.stdin.close()
        process.stdin = None
    out = [process.communicate(timeout=240)[0] for process in processes]
    return [(process.returncode, json.loads(text)) for process, text in zip(processes, out, strict=True)]


@pytest.mark.slow
@pytest.mark.torch
def test_two_nodes_sum_exactly_and_measure_the_same_bandwidth(ports: list[int], tmp_path: Path) -> None:
    environment = torch_environment()
    answers = both(environment, ports, tmp=str(tmp_path), floors={multi_node.METRIC: 1e6})
    # Correct and far below an impossible floor: exit 6.
    assert [code for code, _ in answers] == [6, 6], answers
    found = [Check.from_plain(answer["result"]["checks"][0]) for _, answer in answers]
    assert [check.name for check in found] == ["smoke/nodes/all-reduce"] * 2
    assert len({check.metrics[0].median for check in found}) == 1
    assert all(check.metrics[0].median > 0 and check.metrics[0].n == 10 for check in found)
    assert found[0].details["ranks"] == 2
    assert [check.details["node_rank"] for check in found] == [0, 1]
    assert found[0].details["interface"] == "lo"
    assert found[0].details["only_floors"]
    assert list(tmp_path.iterdir()) == []


def part_of(
    programs: dict[str, str], ports: list[int], deadline: float, tmp: Path | None = None
) -> list[dict[str, Any]]:
    """Both nodes in this process, with other programs; the checks."""
    found: dict[int, dict[str, Any]] = {}

    def one(rank: int) -> None:
        if rank:
            meeting = rendezvous.join(["127.0.0.1"], ports, 1, TOKEN, PATIENCE, 1)
        else:
            meeting = rendezvous.receive(ports, 2, TOKEN, PATIENCE, 1)
        spec = multi_node.Spec(str(torch_environment()), {}, False)
        part = multi_node.Part(multi_node.NAME)
        with Scratch(spec.environment, {}, str(tmp) if tmp else None, programs) as scratch:
            multi_node.JointTest(multi_node.Work(spec, scratch, deadline), rank, 2, meeting).run(part)
        found[rank] = part.check()

    torch_environment()
    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(2)]


def changed(name: str, old: str, new: str) -> dict[str, str]:
    text = (Path(multi_node.__file__).parent / "programs" / f"{name}.py").read_text()
    assert text.count(old) == 1, text.count(old)
    return {name: text.replace(old, new)}


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.usefixtures("torch_imported")
@pytest.mark.parametrize(
    ("old", "new", "failure"),
    [
        (
            "    correctness(channel",
            "    dist.all_reduce = lambda *_, **__: None\n    correctness(channel",
            "wrong sum",
        ),
        ("if count == 1]", "if count == 1][:1]", "2 ranks were asked for and 1 took part"),
    ],
    ids=["wrong sums, however fast", "fewer ranks than asked"],
)
def test_a_joint_test_that_is_wrong_fails_on_every_node(ports: list[int], old: str, new: str, failure: str) -> None:
    checks = part_of(changed("allreduce", old, new), ports, 500)
    assert [check["status"] for check in checks] == ["failed", "failed"]
    assert all(any(failure in text for text in check["details"]["failures"]) for check in checks), checks


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.usefixtures("torch_imported")
def test_a_rank_that_hangs_ends_at_the_deadline_with_its_stack(ports: list[int], tmp_path: Path) -> None:
    hung = changed(
        "allreduce",
        "    correctness(channel",
        "    rank and __import__('time').sleep(600)\n    correctness(channel",
    )

    def late(checks: list[dict[str, Any]], deadline: str = "") -> bool:
        told, details = f"hung past its deadline of {deadline}", checks[1]["details"]
        return any(told in failure for failure in details["failures"]) and "allreduce.py" in details["output"]

    deadline, checks = with_deadline(lambda deadline: part_of(hung, ports, deadline, tmp_path), 30, late)
    assert [check["status"] for check in checks] == ["failed", "failed"]
    assert late(checks, f"{deadline} s"), checks[1]
    assert processes_of(str(tmp_path)) == [], "torchrun's ranks end with it"


@pytest.mark.slow
def test_a_partner_that_does_not_come_is_named_and_the_node_itself_has_not_failed(ports: list[int]) -> None:
    changed_, result = multi_node.run(request(torch_environment(), 0, ports, wait=0.3))
    check = Check.from_plain(result["checks"][0])
    assert (changed_, result["ok"], result["exit"], check.status) == (False, True, 0, "not-run")
    assert check.says == "did not come within 0.3 s: second"


def test_a_node_that_takes_no_part_has_no_check(tmp_path: Path) -> None:
    write_file(tmp_path / "bin" / "python")
    assert multi_node.run(request(tmp_path, 2, [1])) == (False, {"checks": [], "ok": True, "exit": 0})
