"""What is compiled is compiled on one node of a fleet, and runs on the others, where no compiler ever was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.faults import clear
from tests.fleet.fleet_world import PREFIX, STACK, FleetWorld
from tests.fleet.nodes import Node, StartNodes
from tests.node.forge import BROKEN, FILES

pytestmark = [pytest.mark.slow, pytest.mark.nodes]
SAYS = ["sh", "-c", f"{PREFIX}/current/{STACK}/bin/python -c 'import quick._fast as f; print(f.answer())'"]
Place = tuple[FleetWorld, list[Node], list[Node]]


def lock(world: FleetWorld, files: dict[str, str] | None = None, **profile: Any) -> None:
    """A stack that compiles `quick._fast`."""
    pin = world.repository("quick", {**FILES, **(files or {})})
    source = {**pin, "install": "wheel", "build": {"extensions": ["quick._fast"]}}
    world.locked(packages=["alpha==1.0"], sources=[source], **profile)


@pytest.fixture(scope="module")
def started(lasting_fleet: StartNodes, tmp_path_factory: pytest.TempPathFactory, standalone_python: Path) -> Place:
    """The stack, two nodes without a compiler and three that have one."""
    world = FleetWorld(tmp_path_factory.mktemp("world"), standalone_python)
    lock(world)
    return world, lasting_fleet(2, kind="bare", tools=True), lasting_fleet(3, kind="gcc", tools=True)


@pytest.fixture
def place(started: Place) -> Iterator[Place]:
    """The same; what a test builds goes with it."""
    yield started
    for node in (*started[1], *started[2]):
        clear(node)


def built(evidence: dict[str, Any]) -> dict[str, Any]:
    (source,) = evidence["sources"]
    assert isinstance(source["build"], dict)
    return source["build"]


def test_one_node_compiles_and_nodes_without_a_compiler_get_the_extension_then_and_later(place: Place) -> None:
    world, bare, (builder, other, odd) = place
    nodes = [*bare, builder]
    for node in bare:
        assert node.run(["sh", "-c", "command -v gcc cc c++ g++ ld tcc clang"], check=False).stdout == ""
    world.target(nodes)
    done = world.fleet("provision", timeout=400, rc=0)
    found = done.nodes
    assert f"built on {builder.address}, taken over by {bare[0].address} and {bare[1].address}" in done.err
    assert {item["status"] for item in found.values()} == {"ok"}
    assert len({item["root"] for item in found.values()}) == 1
    assert {name: built(item)["from"] for name, item in found.items()} == {
        builder.address: "built", bare[0].address: "store", bare[1].address: "store",
    }  # fmt: skip
    assert len({built(item)["key"] for item in found.values()}) == 1
    assert all(built(found[node.address])["handed"]["used"] for node in bare)
    assert [node.run(SAYS).stdout for node in nodes] == ["42\n"] * 3
    steps = world.steps
    assert all(len(each) <= 8 for each in steps.values()), steps
    (told,) = world.journal("handed-over")
    assert (told["node"], set(told["data"]["to"])) == (builder.address, {node.address for node in bare})
    assert told["data"]["bytes"] > 0
    for node in nodes:
        left = node.run(["sh", "-c", f"ls -A {PREFIX}/store/wheels/tmp {PREFIX}/store {PREFIX}/tmp"], check=False)
        assert ".tar" not in left.stdout
    assert not list(world.last_run.glob("built-*"))

    again = world.fleet("provision")
    assert (again.rc, again.json["steps_run"]) == (0, 0)

    # One that comes later takes it from one that is finished.
    _, later = bare
    clear(later)
    world.target([builder, later], delivery="controller")
    done = world.fleet("provision", rc=0)
    found = done.nodes
    assert (found[builder.address]["status"], found[later.address]["status"]) == ("unchanged", "ok")
    assert found[builder.address]["root"] == found[later.address]["root"]
    assert later.run(SAYS).stdout == "42\n"
    assert f"take over quick as built on {builder.address}" in done.err

    # Where that one has lost its wheels, one of the new ones builds, and one with another compiler builds for itself.
    builder.run(["rm", "-r", f"{PREFIX}/store/wheels"])
    clear(later)
    words = '#!/bin/sh\n[ "$1" = --version ] && echo "gcc (another) 12.2.0" && exit\nexec /usr/bin/gcc "$@"\n'
    odd.run(["sh", "-c", "cat > /usr/local/bin/gcc && chmod 755 /usr/local/bin/gcc"], stdin=words)
    world.target([builder, later, other, odd])
    done = world.fleet("provision", timeout=400, rc=0)
    odd.run(["rm", "/usr/local/bin/gcc"])
    found = done.nodes
    assert [built(found[node.address])["from"] for node in (other, later, odd)] == ["built", "store", "built"]
    assert built(found[later.address])["handed"]["by"] == other.address
    assert built(found[odd.address])["handed"]["used"] is False
    assert any(f"quick of {builder.address} could not be handed" in text for text in done.json["warnings"])
    assert len({found[node.address]["root"] for node in (builder, later, other)}) == 1
    (said,) = [text for text in done.json["warnings"] if "has its own quick" in text]
    assert said.startswith(f"{odd.address} has its own quick: {other.address}'s is not right for it (cc: gcc (another)")


def test_a_source_that_does_not_compile_is_tried_on_two_nodes_and_not_on_all(
    place: Place, tmp_path: Path, standalone_python: Path
) -> None:
    world, nodes = FleetWorld(tmp_path, standalone_python), place[2]
    lock(world, {"fast.c": BROKEN.replace("PyMODINIT_FUNC", "garbage")})
    world.target(nodes)
    done = world.fleet("provision", timeout=400, rc=4)
    errors = {name: item["error"] for name, item in done.nodes.items()}
    assert [errors[node.address]["code"] for node in nodes] == ["build-failed", "build-failed", "not-built"]
    assert nodes[1].address in errors[nodes[2].address]["what"]
    assert {item["exit"] for item in done.nodes.values()} == {4}
    assert nodes[2].address not in world.steps


def test_nodes_on_one_folder_build_once_and_nothing_is_carried(place: Place) -> None:
    world, _, nodes = place
    world.target(nodes[:2], store="/shared/wheels")
    found = world.fleet("provision", timeout=400, rc=0).nodes
    assert sorted(built(item)["from"] for item in found.values()) == ["built", "store"]
    assert len({item["root"] for item in found.values()}) == 1
    (told,) = world.journal("handed-over")
    assert told["data"]["bytes"] == 0, "it was there already"


def test_nodes_that_fetch_for_themselves_are_sent_the_wheels_alone(place: Place) -> None:
    world, (bare, _), (builder, *_) = place
    shared = builder.folder.parent / "shared"
    shutil.copytree(world.wheels, shared / "dist")
    shutil.copytree(world.hub / "quick", shared / "hub" / "quick")
    lines = '[url "file:///shared/hub/"]\n\tinsteadOf = https://git.example.org/\n[safe]\n\tdirectory = *\n'
    for node in (builder, bare):
        node.run(["sh", "-c", "cat > /etc/pip.conf"], stdin="[global]\nno-index = true\nfind-links = /shared/dist\n")
    builder.run(["sh", "-c", "cat > /etc/gitconfig"], stdin=lines)
    world.target([builder, bare], delivery="node")
    found = world.fleet("provision", timeout=400, rc=0).nodes
    assert [built(found[node.address])["from"] for node in (builder, bare)] == ["built", "store"]
    assert len({item["root"] for item in found.values()}) == 1
    assert bare.run(SAYS).stdout == "42\n", "it could not even have fetched the source"
    steps = world.steps
    assert (steps[builder.address].count("deliver"), steps[bare.address].count("deliver")) == (0, 1)
    assert "built" not in bare.run(["sh", "-c", f"ls {PREFIX}/store/*"]).stdout, "it is in the store, and gone"
    assert not list(world.last_run.glob("*.tar"))
