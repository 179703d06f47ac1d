"""The joint test inside an image, as one node is asked for it: a program that is not the real runtime writes down what
it is given. The real podman: tests/fleet/test_containers.py.
"""  # fmt: skip

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import program_files
from envbuild.node.image import container
from tests.support.fails import fails
from tests.support.patience import until
from tests.support.programs import executable

CHECK = {"name": "smoke/nodes/all-reduce", "status": "passed", "details": {}}
ANSWER = {"protocol": 1, "verb": "meet", "ok": True, "result": {"checks": [CHECK], "ok": True, "exit": 0}}
PLACE = {"rank": 1, "nodes": 2, "addresses": ["10.0.0.1"], "ports": [12000]}


class Runtime:
    def __init__(self, top: Path, answer: dict[str, Any]) -> None:
        self.prefix, self.words, self.given = top / "prefix", top / "words", top / "given"
        self.path = top / "apptainer"
        said = json.dumps(answer, separators=(",", ":"))
        executable(self.path, f"#!/bin/sh\nprintf '%s\\n' \"$*\" > {self.words}\ncat > {self.given}\necho '{said}'\n")

    def meet(self, *, tested: bool = True, **request: Any) -> dict[str, Any]:
        asked = {"deadline": 60, "wait": 5, "token": "t", "ranks": 2, "cuda": False, **request}
        args: dict[str, Any] = {"action": "meet", "stack": "tiny", "request": asked}
        image = {
            "command": [str(self.path), "exec", "{image}"], "inside": "/in", "environment": "/in/envs/e",
            "id": "a" * 64, "file": {"path": "/p/x.sif"},
        }  # fmt: skip
        if tested:
            args.update(image)
        changed, result = container.run({"prefix": str(self.prefix), "run": "r1", "args": args})
        assert not changed
        return result

    def wait_for(self, path: Path) -> None:
        until(path.exists)

    def request(self) -> dict[str, Any]:
        return dict(json.loads(self.given.read_bytes()[len(program_files.archive()) :]))


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path, ANSWER)


def test_the_image_that_a_job_tests_is_started_with_the_place_of_the_node(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"NODE_RANK": "1", "NNODES": "4", "MASTER_ADDR": "gpu1", "MASTER_PORT": "12000"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_LAUNCH_NODE_IPADDR", raising=False)
    assert runtime.meet(most=2)["checks"] == [CHECK]
    words = runtime.words.read_text()
    assert words.startswith("exec /p/x.sif /in/envs/e/bin/python -I -S -c ") and words.endswith(" meet\n")
    request = runtime.request()
    place = {"rank": 1, "nodes": 2, "addresses": ["gpu1"], "ports": [12000, 12001, 12002, 12003]}
    assert (request["verb"], request["args"]["place"]) == ("meet", place)
    assert request["args"]["environment"] == "/in/envs/e"


def test_who_takes_no_part_starts_nothing(runtime: Runtime) -> None:
    assert runtime.meet(place={**PLACE, "rank": 2}) == {"checks": [], "ok": True, "exit": 0}
    assert not runtime.words.exists()


def test_without_an_image_in_use_nobody_meets(runtime: Runtime) -> None:
    with fails("image-none", 1):
        runtime.meet(tested=False, place=PLACE)


def test_what_went_wrong_inside_keeps_its_code(tmp_path: Path) -> None:
    error = {"code": "nodes-cannot-meet", "what": "nobody came", "why": "10.0.0.1 port 12000: refused", "exit": 1}
    with fails("nodes-cannot-meet", 1) as caught:
        Runtime(tmp_path, {"protocol": 1, "verb": "meet", "ok": False, "error": error}).meet(place=PLACE)
    assert caught.value.what == "in the image: nobody came" and "12000" in caught.value.why


def test_a_runtime_is_told_to_end_its_container_before_it_is_killed(tmp_path: Path) -> None:
    runtime, began, ended = Runtime(tmp_path, ANSWER), tmp_path / "began", tmp_path / "ended"
    trap = f"trap 'sleep 0.5; touch {ended}; exit 143' TERM"
    runtime.path.write_text(f"#!/bin/sh\n{trap}\ntouch {began}\nwhile :; do sleep 0.1; done\n")
    args = {
        "action": "meet", "stack": "tiny", "command": [str(runtime.path)], "inside": "/in", "environment": "/in/envs/e",
        "id": "a" * 64, "request": {"deadline": 60, "wait": 5, "place": PLACE},
    }  # fmt: skip
    request = {"protocol": 1, "verb": "container", "run": "r1", "prefix": str(runtime.prefix), "args": args}
    words = [sys.executable, "-m", "envbuild.node", "container"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdin is not None
        node.stdin.write(json.dumps(request))
        node.stdin.close()
        node.stdin = None
        runtime.wait_for(began)
        node.send_signal(signal.SIGTERM)
        out, _ = node.communicate(timeout=60)
    assert ended.exists()
    assert (node.returncode, json.loads(out)["error"]["code"]) == (130, "interrupted")
