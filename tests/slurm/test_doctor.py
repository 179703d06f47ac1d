"""`envbuild doctor --target` on a real Slurm: nothing is submitted, and what it says of GPUs and rights is so."""

from __future__ import annotations

import pytest

from tests.slurm.job_world import JobWorld

pytestmark = pytest.mark.slow


def test_doctor_says_how_gpus_are_asked_for_and_whether_a_job_would_be_accepted(world: JobWorld) -> None:
    done = world.job(verb="doctor")
    assert done.out.startswith("{"), done.err
    (host,) = done.json["hosts"]
    lines = {line["name"]: line for line in host["checks"]}
    assert lines["scheduler"]["level"] == "ok", lines
    assert lines["rights"]["found"].startswith("a job on gpu would be accepted"), lines["rights"]
    assert lines["gpus in jobs of gpu"]["consequence"].startswith("asked for with --gres=gpu:")
    assert not world.runs.exists() or not list(world.runs.iterdir())

    world.target(scheduler={"nodes": 500})
    done = world.job(verb="doctor")
    refused = {line["name"]: line for line in done.json["hosts"][0]["checks"]}["rights"]
    assert (done.rc, refused["level"]) == (1, "missing")
