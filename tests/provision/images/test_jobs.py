"""What a shared folder says of an image to the nodes of jobs. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuild.container.run_options import Chosen
from envbuild.errors import EnvbuildError
from envbuild.model.target import Target
from envbuild.provision.images import jobs
from envbuild.provision.images.plan import NodeImage
from envbuild.provision.jobs.survey import keep_answers
from envbuild.provision.survey.hosts import unsupported
from tests.provision.survey.test_up_to_date import facts

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


@pytest.mark.parametrize("containers", [{"runtimes": {"podman": {}}}, {"runtimes": []}, [], None])
def test_what_nodes_said_of_containers_counts_where_it_can_be_read(tmp_path: Path, containers: object) -> None:
    answers: dict[str, Any] = {"n1": {"facts": facts().to_json_dict(), "containers": containers}}
    keep_answers(tmp_path / "x.json", answers)
    good = containers == {"runtimes": {"podman": {}}}
    assert jobs.kept_answers(tmp_path / "x.json") == (answers if good else {})


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
