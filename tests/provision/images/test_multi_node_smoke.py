"""What nodes of a job are asked for a joint test inside their image. Pure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.model.target import Target
from envbuild.provision.images.provision import meeting_of_job
from tests.provision.fleet.test_multi_node_smoke import MACHINE, target, variant

IMAGE = {
    "command": ["apptainer", "exec", "{image}"], "inside": "/in", "id": "a" * 64, "environment": "/in/envs/e",
    "file": {"path": "/p/images/x.sif"}, "cuda": True, "gpus": 4, "key": "k",
}  # fmt: skip


def asked(nodes: int = 2, *, to: Target | None = None, recorded: bool = False, **more: Any) -> dict[str, Any]:
    prepared = SimpleNamespace(target=to or target(smoke_nodes=2), stack=SimpleNamespace(name="demo"))
    work: Any = SimpleNamespace(prepared=prepared, run=SimpleNamespace(id="r1"))
    tested = variant(smoke=more.pop("smoke", MACHINE))
    return meeting_of_job(work, nodes, tested, {**IMAGE, **more}, recorded=recorded)


def test_what_a_job_tests_is_told_for_it_has_no_record_yet() -> None:
    (request,) = asked().values()
    args = request["args"]
    assert (request["verb"], args["action"], args["stack"]) == ("container", "meet", "demo")
    assert {name: args[name] for name in ("command", "inside", "id", "file", "environment")} == {
        name: IMAGE[name] for name in ("command", "inside", "id", "file", "environment")
    }
    assert (args["request"]["ranks"], args["request"]["cuda"], args["request"]["most"]) == (4, True, 2)
    assert "place" not in args["request"], "the job says who a node is"


def test_of_the_image_in_use_the_record_on_the_node_counts() -> None:
    (request,) = asked(recorded=True).values()
    assert set(request["args"]) == {"action", "stack", "request"}


@pytest.mark.parametrize(
    "given",
    [
        {"nodes": 1},
        {"smoke": MACHINE[:1]},
        {"to": target(smoke_nodes=0)},
        {"gpus": None},  # a record of an earlier version does not say how many
    ],
)
def test_where_no_joint_test_is_meant_nothing_is_asked(given: dict[str, Any]) -> None:
    assert asked(**given) == {}
