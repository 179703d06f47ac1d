"""What a run says of itself while it goes: to a pipe, to other tools, and to who attaches to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.test_builds import locked
from tests.e2e.world import World, lines_until
from tests.node.forge import need_compiler
from tests.support.programs import executable

pytestmark = pytest.mark.slow


@pytest.fixture
def gate(world: World) -> Path:
    """A stack with a source, and a fifo at which its compile waits until somebody writes to it."""
    fifo, programs = world.top / "gate", world.top / "programs"
    programs.mkdir()
    os.mkfifo(fifo)
    executable(
        programs / "cc", f'#!/bin/sh\ncase "$*" in *fast.c*) read line < {fifo} ;; esac\nexec {need_compiler()} "$@"\n'
    )
    world.env |= {"PATH": f"{programs}:{world.env['PATH']}", "CCACHE_DISABLE": "1"}
    locked(world)
    return fifo


def provision(world: World, *more: str) -> subprocess.Popen[str]:
    return world.start("provision", "--target", "local", "--stack", "./tiny.yaml", "--json", *more)


def test_a_pipe_gets_a_line_at_every_change_and_who_attaches_sees_the_same(world: World, gate: Path) -> None:
    process = provision(world)
    lines_until(process, lambda line: "compiling quick: fast.c (" in line)
    watching = world.start("run", "show", "--follow", "--progress", "json")
    told = [json.loads(line) for line in lines_until(watching, lambda line: "fast.c" in line)]
    assert [event["kind"] for event in told[:2]] == ["run-started", "stage"]
    assert (told[-1]["kind"], told[-1]["node"]) == ("now", "localhost")
    assert told[-1]["data"] == {
        "step": "install", "phase": "compiling quick", "what": "fast.c", "host": os.uname().nodename,
    }  # fmt: skip
    gate.write_text("go\n")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "localhost: building the environment changed (" in err
    said, _ = watching.communicate()
    assert (watching.returncode, json.loads(out)["run"]) == (0, said.splitlines()[-1].split()[0])
    assert not list((world.prefix / "logs").glob("*.progress.*"))


def test_other_tools_get_one_object_a_line_and_an_interrupt_ends_it_as_ever(world: World, gate: Path) -> None:
    process = provision(world, "--progress", "json")
    told = [json.loads(line) for line in lines_until(process, lambda line: "fast.c" in line) if line.startswith("{")]
    assert {"stage", "planned", "step-started", "step-finished", "now"} <= {event["kind"] for event in told}
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "interrupted: ending the steps that run" in err and "the same command continues" in err


def test_a_run_keeps_what_it_told_and_says_nothing_where_nothing_is_wanted(world: World) -> None:
    del world.env["ENVBUILD_PREFIX"]  # the target's has the user's home in braces
    world.tiny()
    done = world.provision("--progress", "none", rc=0)
    assert [line for line in done.err.splitlines() if line.startswith("localhost: ")] == []
    told = [json.loads(line) for line in (world.last_run / "journal.jsonl").read_text().splitlines()]
    steps = [(each["data"]["step"], each["data"].get("status")) for each in told if each["kind"].startswith("step-")]
    assert steps[:2] == [("toolchain", None), ("toolchain", "changed")] and steps[-1] == ("activate", "changed")
    assert [event["t"] for event in told] == sorted(event["t"] for event in told)

    rows = {row["step"]: row for row in json.loads((world.home / ".local/state/envbuild/durations.json").read_text())}
    assert {"install", "smoke", "activate"} <= rows.keys()
    plan = world.provision("--repair", "--dry-run").json["plan"]
    before = {step["kind"]: step["before"] for step in plan["nodes"][0]["steps"]}
    for step in ("install", "smoke"):
        assert before[step] == rows[step]["seconds"]

    # A smoke test by itself says what it checks, and leaves no log beside that of what was built.
    place = ("--stack", "./tiny.yaml", "--target", "local")
    done = world.good("smoke", *place, "--progress", "json")
    told = [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]
    steps = [event for event in told if event["kind"].startswith("step-")]
    assert [event["data"].get("status") for event in steps] == [None, "ok"]
    run = min(path.name for path in world.runs.iterdir())
    world.good("verify", *place)
    logs = world.home / ".local" / "share" / "envbuild" / "logs"
    assert [path.name for path in logs.iterdir()] == [f"{run}.log"], "of what was built alone"
