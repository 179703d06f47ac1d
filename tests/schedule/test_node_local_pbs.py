"""`placement: node-local` through the fake PBS, whose nodes get a disk of their own each. No real PBS was run."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.schedule.fake_pbs import MPIEXEC, has_hosts
from tests.schedule.test_provision_pbs import PbsWorld

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_hosts(), reason="nodes with names and disks of their own need namespaces (root)"),
]
ON_NODE = """#!/bin/sh
host=$1
shift
exec unshare --uts --mount sh -c 'mount --make-rprivate / && mount --bind "{disks}/${{0%%.*}}" {local} &&
  hostname "$0" && exec "$@"' "$host" "$@"
"""


class LocalWorld(PbsWorld):
    """`local` is another folder on each node; what is shared lies beside it."""

    def __init__(self, top: Path) -> None:
        super().__init__(top)
        self.local, self.shared, self.disks = top / "local", top / "shared", top / "disks"
        self.local.mkdir()
        for number in range(1, 5):
            (self.disks / f"x300{number}").mkdir(parents=True)
        mpiexec = MPIEXEC.replace('[ "$1" != bash ]', '[ "$1" != bash ] && [ "$1" != /bin/sh ]')
        programs = {"on-node": ON_NODE.format(disks=self.disks, local=self.local), "mpiexec": mpiexec}
        for name, text in programs.items():
            (self.fake.bin / name).write_text(text)
        path = self.work / "cluster.yaml"
        more = {"placement": "node-local", "prefix": str(self.local / "eb"), "shared": str(self.shared)}
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **more}))

    def disk(self, node: str) -> Path:
        return self.disks / node / "eb"


def test_nodes_read_the_bundle_where_it_lies_and_later_jobs_bring_back_what_was_lost(tmp_path: Path) -> None:
    world = LocalWorld(tmp_path)
    world.tiny()
    done = world.job()
    assert done.rc == 0, done.err
    nodes = {node["node"]: node for node in done.json["nodes"]}
    assert sorted(nodes) == ["x3001", "x3002"]
    (root,) = {node["root"] for node in nodes.values()}
    said = [check["says"] for node in nodes.values() for check in node["checks"] if check["name"] == "ensure"]
    assert sum(text.startswith(f"installed from {world.shared}/store/") for text in said) == 1, said
    again = world.job()
    assert ({node["status"] for node in again.json["nodes"]}, world.submitted()) == ({"unchanged"}, [])

    for name in nodes:
        shutil.rmtree(world.disk(name))
    script = world.work / "mine.qsub"
    script.write_text(
        "#!/bin/bash\n#PBS -l select=2\n#PBS -l walltime=0:05:00\n"
        'mpiexec --envall -n 2 --ppn 1 --hostfile "$PBS_NODEFILE" --cpu-bind none '
        f"/bin/sh '{world.shared}/ensure/tiny.sh'\n. '{world.local}/eb/current/tiny/.envbuild/activate.sh'\n"
        f"python -c 'import alpha, sys; print(sys.prefix)' > '{world.work}/said'\n"
    )
    world.fake.stop("background")
    subprocess.run(["qsub", script], env=world.env, cwd=world.work, check=True, capture_output=True)
    assert (world.work / "said").read_text().startswith(f"{world.local}/eb/envs/tiny-")
    for name in nodes:
        (stamp,) = world.disk(name).glob("envs/*/.envbuild/stamp.json")
        assert json.loads(stamp.read_text())["root"] == root
