"""The tutorial through Slurm, followed on a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.support.tutorial import TUTORIALS, follow


@pytest.mark.slow
def test_the_tutorial_through_slurm_works_as_it_is_written(cluster: Cluster, tmp_path: Path) -> None:
    env = {name: cluster.env[name] for name in ("SLURM_CONF", "PATH")}
    follow(TUTORIALS / "a-cluster-through-slurm.md", tmp_path, **env)
