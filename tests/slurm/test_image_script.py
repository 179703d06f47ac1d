"""The printed sbatch file for images, run by a real Slurm. Apptainer cannot be had: a small program stands for it.

What is shown: the file is made once and on a folder that all nodes see, every node is asked, and each gets the request
on standard input. What Apptainer makes of its words is not.
"""

from __future__ import annotations

import json
import os

import pytest

from tests.e2e.world import MINOR
from tests.slurm.job_world import JobWorld
from tests.support.files import write_file
from tests.support.programs import completed, executable

pytestmark = pytest.mark.slow

_APPTAINER = """#!/bin/bash
printf '%s\\n' "$*" >> "{log}"
case "$1" in
  build) : > "$2" ;;
  exec) exec python3 -c 'import json, os, sys; found = sys.stdin.buffer.read().rpartition(b"{{\\"args\\"")
print(json.dumps([json.loads(b"".join(found[1:]))["verb"], os.environ["SLURMD_NODENAME"]]))' ;;
esac
"""


def test_every_node_of_the_job_tests_inside_the_one_file(world: JobWorld) -> None:
    container = {
        "runtime": "apptainer", "registry": "registry.example.org/team/tiny", "base": "localhost/base",
        "python": f"/usr/bin/python{MINOR}", "glibc": "2.36",
    }  # fmt: skip
    world.tiny()
    world.target(engine="container", placement="image", container=container)
    printed = world.run("provision", "--target", "./cluster.yaml", "--print-script")
    assert printed.rc == 0, printed.err
    assert "#SBATCH --nodes=2" in printed.out

    folder = world.cluster.shared / "images by hand"
    write_file(folder / "image.sbatch", printed.out)
    executable(folder / "apptainer", _APPTAINER.format(log=folder / "log"))
    env = {**world.env, "PATH": os.pathsep.join((str(folder), world.env["PATH"]))}
    number = completed(["sbatch", "--parsable", "image.sbatch"], cwd=folder, env=env, check=True).stdout.strip()
    state = world.wait_for_state(number, "COMPLETED", "FAILED")
    log = (folder / f"envbuild-tiny-{number}.log").read_text()
    assert state == "COMPLETED", log
    answers = sorted(tuple(json.loads(line.partition(": ")[2])) for line in log.splitlines() if ": [" in line)
    assert answers == [("smoke", "gpu1"), ("smoke", "gpu2"), ("verify", "gpu1"), ("verify", "gpu2")]
    words = (folder / "log").read_text().splitlines()
    assert [line.split()[0] for line in words] == ["build", *["exec"] * 4]
    (file,) = (world.prefix / "images").iterdir()
    assert file.name.startswith("tiny-") and file.suffix == ".sif"
    assert all(line.startswith(f"exec --cleanenv --no-home --writable-tmpfs {file} ") for line in words[1:])
