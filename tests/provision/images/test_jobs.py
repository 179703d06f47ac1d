"""What a shared folder says of an image to the nodes of jobs, and what is kept of their answers. Pure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envbuild.container.run_options import Chosen
from envbuild.errors import EnvbuildError
from envbuild.model.target import Target
from envbuild.provision.images import jobs
from envbuild.provision.images.plan import NodeImage
from envbuild.provision.jobs.survey import read_facts
from envbuild.provision.run.run_dir import MAX_AGE
from envbuild.provision.survey.hosts import unsupported
from tests.report.samples import facts

RECORD = {"id": "a" * 64, "nodes": ["gpu1"], "file": {"path": "/shared/images/x.sif"}}


@pytest.mark.parametrize(
    ("node", "login", "wanted"),
    [
        ("gpu1", {"record": RECORD, "present": True, "launcher": True}, (RECORD, True, True)),
        ("gpu1", {"record": RECORD, "present": False, "launcher": True}, (RECORD, False, True)),
        ("gpu2", {"record": RECORD, "present": True, "launcher": True}, (None, False, False)),
        ("gpu1", {"record": None, "present": False, "launcher": False}, (None, False, False)),
    ],
)
def test_a_record_counts_for_the_nodes_that_have_tested_its_image(
    node: str, login: dict[str, Any], wanted: tuple[Any, ...]
) -> None:
    found = jobs.shared_record(node, {"runtimes": {"apptainer": {}}, "record": {"id": "own"}}, login)
    assert (found["record"], found["present"], found["launcher"]) == wanted
    assert found["runtimes"] == {"apptainer": {}}


def test_what_podman_has_on_a_node_is_known_from_its_last_job() -> None:
    record = {**RECORD, "file": None}
    login = {"record": record, "present": False, "launcher": True}
    assert jobs.shared_record("gpu1", {}, login)["present"]


def test_a_node_that_would_run_the_image_otherwise_is_refused() -> None:
    def image(*options: str) -> NodeImage:
        chosen = Chosen("apptainer", "/usr/bin/apptainer", options)
        return NodeImage(chosen, tuple(chosen.command("{image}")), False)

    nodes, errors = {"gpu1": image(), "gpu2": image("--nv"), "gpu3": image()}, dict[str, EnvbuildError]()
    jobs.one_kind(nodes, errors)
    assert (sorted(nodes), sorted(errors)) == (["gpu1", "gpu3"], ["gpu2"])
    assert (errors["gpu2"].code, errors["gpu2"].exit_code) == ("nodes-differ", 7)
    jobs.one_kind(nodes, errors, image("--nv"))
    assert (nodes, sorted(errors)) == ({}, ["gpu1", "gpu2", "gpu3"])


def test_answers_of_nodes_are_kept_for_a_week(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "one.images.json"
    told = {"gpu1": {"facts": facts("gpu1", 0), "containers": {"runtimes": {}}}}
    jobs.write_told(path, told)
    assert jobs.read_told(path) == told
    old = time.time() - MAX_AGE - 1
    os.utime(path, (old, old))
    assert jobs.read_told(path) == {}
    path.write_text('{"gpu1": {"facts": {}}}')
    assert jobs.read_told(path) == {}
    jobs.write_told(path, {})
    assert not path.exists()


_WRITES = """
import json, sys
from pathlib import Path
from envbuild.provision.images import jobs as container_jobs
from envbuild.provision.jobs import survey as job_facts
from envbuild.model.facts import NodeFacts
told = json.load(sys.stdin)
known = {node: NodeFacts.from_plain(each["facts"]) for node, each in told.items()}
for _ in range(25):
    container_jobs.write_told(Path(sys.argv[1]), told)
    job_facts.write_facts(Path(sys.argv[2]), known)
"""


def test_d48_two_runs_that_keep_answers_at_once_leave_whole_ones(tmp_path: Path) -> None:
    answers, known = tmp_path / "one.images.json", tmp_path / "one.json"
    both = [
        {f"{name}{at}": {"facts": facts(f"{name}{at}", 0), "containers": {"runtimes": {}}} for at in range(count)}
        for name, count in (("a", 9), ("b", 1))
    ]
    jobs.write_told(answers, both[0])
    argv = [sys.executable, "-c", _WRITES, str(answers), str(known)]
    runs = [subprocess.Popen(argv, stdin=subprocess.PIPE, text=True) for _ in both]
    for run, told in zip(runs, both, strict=True):
        assert run.stdin is not None
        json.dump(told, run.stdin)
        run.stdin.close()
    while any(run.poll() is None for run in runs):
        assert jobs.read_told(answers) in both
    assert [run.returncode for run in runs] == [0, 0]
    assert set(read_facts(known)) in [set(told) for told in both]
    assert sorted(path.name for path in tmp_path.iterdir()) == [answers.name, known.name]


@pytest.mark.parametrize("runtime", ["apptainer", "enroot", "pyxis"])
@pytest.mark.parametrize(("scheduler", "hosts"), [("slurm", {"slurm": "gpu"}), ("pbs", {"pbs": "nodefile"})])
def test_pyxis_is_refused_by_name_without_jobs_of_slurm(runtime: str, scheduler: str, hosts: dict[str, str]) -> None:
    target = Target.from_plain(
        {
            "name": "mine", "hosts": hosts, "connection": {"kind": "job"}, "scheduler": {"kind": scheduler},
            "prefix": "/shared/envbuild", "engine": "container", "placement": "image",
            "container": {"runtime": runtime},
        }
    )  # fmt: skip
    missing = unsupported(target)
    assert bool(missing) is (runtime == "pyxis" and scheduler == "pbs")
    assert all("pyxis" in each for each in missing)
