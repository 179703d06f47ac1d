"""`slurm`: the adapter of a real Slurm on this machine; `cluster`: the same with its daemons to play with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.schedule.cluster import Runner
from envbuild.schedule.slurm import Slurm
from tests.slurm.cluster import Cluster, UnavailableError, why_not
from tests.slurm.job_world import JobWorld


@pytest.fixture(scope="session")
def _one_cluster() -> Iterator[Cluster]:
    reason = why_not()
    if reason:
        pytest.skip(f"no real Slurm here: {reason}")
    try:
        cluster = Cluster()
    except UnavailableError as error:
        pytest.skip(f"no real Slurm here: {error}")
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(_one_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster, idle, and the way to it in this process's environment."""
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, _one_cluster.env[name])
    yield _one_cluster
    _one_cluster.reset()


@pytest.fixture
def slurm(cluster: Cluster) -> Slurm:
    """The adapter."""
    return Slurm(Runner())


@pytest.fixture
def world(cluster: Cluster, tmp_path: Path) -> JobWorld:
    """A user of the cluster, whose target it is."""
    return JobWorld(tmp_path, cluster)
