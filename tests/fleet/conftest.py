"""`fleet(n, kind)`: n real SSH nodes of a kind.

`bare`: no Python; `py36`: only a Python 3.6; `full`: Debian's Python; `gcc`: no Python, but a compiler. `tools=True`:
envbuild's tools lie under the prefix already, as where it was before; bringing them costs most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fleet.fleet_world import FleetWorld
from tests.fleet.nodes import Fleet, Kind, Node, StartNodes, unpack_tree, why_not
from tests.fleet.standalone import place_tools
from tests.support.debian import UnavailableError
from tests.support.once import once


@pytest.fixture(scope="session")
def node_trees(run_folder: Path) -> Callable[[Kind], Path]:
    """Unpacks the tree of a kind once a run of the tests."""
    return lambda kind: once(run_folder / "trees" / kind, lambda path: unpack_tree(kind, path))


@pytest.fixture(scope="session")
def tools_tree(run_folder: Path, standalone_python: Path) -> Path:
    """A tree with what every provision of the tests' stack puts under the prefix of a node first."""
    return once(run_folder / "tools", lambda path: place_tools(standalone_python, path))


@pytest.fixture(scope="session")
def _nodes_possible() -> None:
    reason = why_not()
    if reason:
        pytest.skip(f"no real SSH nodes here: {reason}")


@contextmanager
def _network() -> Iterator[Fleet]:
    try:
        network = Fleet()
    except UnavailableError as error:
        pytest.skip(f"no real SSH nodes here: {error}")
    try:
        yield network
    finally:
        network.close()


def _starter(network: Fleet, trees: Callable[[Kind], Path], request: pytest.FixtureRequest) -> StartNodes:
    def start(count: int = 1, kind: Kind = "bare", tools: bool = False) -> list[Node]:
        above = [request.getfixturevalue("tools_tree")] if tools else []
        try:
            return network.start(count, *above, trees(kind))
        except UnavailableError as error:
            pytest.skip(f"no real SSH nodes here: {error}")

    return start


@pytest.fixture
def fleet_network(_nodes_possible: None) -> Iterator[Fleet]:
    """The network of this test's nodes; `gateway` is where this machine is reached from them."""
    with _network() as network:
        yield network


@pytest.fixture
def fleet(fleet_network: Fleet, node_trees: Callable[[Kind], Path], request: pytest.FixtureRequest) -> StartNodes:
    """`fleet(2, kind="bare")` starts nodes; they end with the test."""
    return _starter(fleet_network, node_trees, request)


@pytest.fixture(scope="module")
def lasting_network(_nodes_possible: None) -> Iterator[Fleet]:
    """As `fleet_network`, for all tests of a module."""
    with _network() as network:
        yield network


@pytest.fixture(scope="module")
def lasting_fleet(
    lasting_network: Fleet, node_trees: Callable[[Kind], Path], request: pytest.FixtureRequest
) -> StartNodes:
    """As `fleet`; the nodes end with the module's last test."""
    return _starter(lasting_network, node_trees, request)


@pytest.fixture
def world(tmp_path: Path, standalone_python: Path) -> FleetWorld:
    """A controller with the locked stack, whose nodes are still to be named."""
    world = FleetWorld(tmp_path, standalone_python)
    world.locked()
    return world
