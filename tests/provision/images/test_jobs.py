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
        # What podman has on a node is known from its last job.
        ("gpu1", {"record": {**RECORD, "file": None}, "present": False, "launcher": True},
         ({**RECORD, "file": None}, True, True)),
    ],
)  # fmt: skip
def test_a_record_counts_for_the_nodes_that_have_tested_its_image(
    node: str, login: dict[str, Any], wanted: tuple[Any, ...]
) -> None:
    found = jobs.shared_record(node, {"runtimes": {"apptainer": {}}, "record": {"id": "own"}}, login)
    assert (found["record"], found["present"], found["launcher"]) == wanted
    assert found["runtimes"] == {"apptainer": {}}


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


@pytest.mark.parametrize(
    ("scheduler", "more", "missing"),
    [
        ("slurm", {"container": {"runtime": "pyxis"}}, ""),
        ("pbs", {"container": {"runtime": "enroot"}}, ""),
        ("pbs", {"container": {"runtime": "pyxis"}}, "pyxis"),
        ("slurm", {"base": "image"}, "connection: job with base: image"),
    ],
)
def test_what_jobs_cannot_do_with_images_is_refused_by_name(scheduler: str, more: dict[str, Any], missing: str) -> None:
    hosts = {"slurm": "gpu"} if scheduler == "slurm" else {"pbs": "nodefile"}
    of_images = {"engine": "container", "placement": "image"} if "container" in more else {"placement": "shared"}
    target = Target.from_plain(
        {
            "name": "mine", "hosts": hosts, "connection": {"kind": "job"}, "scheduler": {"kind": scheduler},
            "prefix": "/shared/envbuild", **of_images, **more,
        }
    )  # fmt: skip
    found = unsupported(target)
    assert len(found) == bool(missing) and all(missing in each for each in found), found
