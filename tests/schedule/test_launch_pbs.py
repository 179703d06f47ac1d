"""`launch --submit` and `bench` through jobs of the small fake PBS. No real PBS was run."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.schedule.fake_pbs import has_hosts
from tests.schedule.test_provision_pbs import PbsWorld
from tests.support.programs import executable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_hosts(), reason="nodes with names of their own need UTS namespaces (root)"),
]


@pytest.fixture
def world(tmp_path: Path) -> PbsWorld:
    return PbsWorld(tmp_path)


def stand_in(world: PbsWorld, last: str) -> Path:
    """An environment of opt-175b whose program says its words and a last line, and ends with 0 as the real one does."""
    built = world.top / "env"
    for folder in ("bin", ".envbuild"):
        (built / folder).mkdir(parents=True, exist_ok=True)
    (built / ".envbuild" / "activate.sh").write_text("")
    executable(built / "bin" / "opt-baselines", f'#!/bin/sh\necho "$@"\necho "{last}"\n')
    return built


@pytest.mark.parametrize(("last", "code"), [("done training in 3 s", 0), ("CUDA out of memory", 1)])
def test_a_launched_job_ends_as_its_log_proves(world: PbsWorld, last: str, code: int) -> None:
    given = ("--set", "model_size=8m", "--time-limit", "5m", "--environment", str(stand_in(world, last)))
    command = ("launch", "opt-175b", "--target", "./cluster.yaml", "--submit", "--nodes", "1", *given)
    printed = world.run(*command, "--print-script")
    assert printed.rc == 0, printed.err
    assert "#PBS -l select=1:ncpus=64:ngpus=4:mem=503gb\n" in printed.out and "opt-baselines" in printed.out
    done = world.run(*command)
    assert done.rc == code, done.err
    assert last in done.err
    assert world.submitted() == ["launch-opt-175b"]


# It goes on from a checkpoint in its folder, whose iterations it does not tell again.
PRINTS = """
import glob, os, sys, time, types
folder = os.path.dirname(sys.argv[-1])
until = time.monotonic() + 60
while not any(map(os.path.getsize, glob.glob(folder + "/.gpus/nvidia-smi.*"))) and time.monotonic() < until:
    time.sleep(0.02)
one, peak = (lambda: 1), (lambda device: 3 << 30)
cuda = types.SimpleNamespace(is_initialized=one, device_count=one, max_memory_allocated=peak, max_memory_reserved=peak)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
checkpoint = os.path.join(folder, "checkpoint")
for step in range(6 if os.path.exists(checkpoint) else 1, 6):
    print(f" iteration {step}/ 5 | elapsed time per iteration (ms): {100 + step} |")
open(checkpoint, "w").close()
"""
SMI = """#!/bin/sh
case "$*" in
*-lms*) echo 5120, Disabled, 47, 1980, 310.02; exec sleep 600 ;;
*--query-gpu=index*) echo 0, GPU-a, 1810, 100, Disabled, NVIDIA A100-SXM4-80GB ;;
*--query-compute-apps=*) echo GPU-a, 7, 9, vi ;;
esac
"""
REFERENCE = {
    "models": [{"name": "gpt-small", "layers": 8, "hidden": 64, "heads": 4, "sequence": 64}],
    "bench": {"log": "megatron", "metric": "elapsed time per iteration (ms)", "unit": "ms", "warmup": 1},
    "launch": {
        "recipe": "alpa", "source": "app", "arguments": ["train.py", "{case}", "{results}"],
        "defaults": {"model": "gpt-small"},
    },
    "manual": [{"gpus": 1, "model": "gpt-small", "cases": [[8, 1, 1, 1, 1]]}],
}  # fmt: skip


def test_a_run_is_measured_through_a_job(world: PbsWorld) -> None:
    app = {**world.repository("app", {"train.py": PRINTS}), "install": "path"}
    path = world.tiny(sources=[app], imports=["alpha"])
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"reference": REFERENCE}))
    assert world.job().rc == 0
    executable(world.fake.bin / "nvidia-smi", SMI)
    given = ("--nodes", "1", "--gpus-per-node", "1", "--set", "row=1", "--trials", "2")
    done = world.job("./tiny.yaml", *given, verb="bench")
    assert done.rc == 0, (done.out[-2000:], done.err)
    check = done.json["nodes"][0]["checks"][-1]
    assert (check["metrics"][0]["n"], check["metrics"][0]["median"]) == (8, 103.5), "the first of each is left out"
    assert (check["comparison"]["verdict"], world.submitted()) == ("no-claim", ["launch-tiny"] * 2)
    folders = [str(world.prefix / "launches" / f"tiny-{done.json['run']}-{number}") for number in (1, 2)]
    assert sorted(map(str, (world.prefix / "launches").iterdir())) == folders
    assert check["comparison"]["gpu"] == "NVIDIA A100-SXM4-80GB", "no probe of its node was needed"
    (command,) = check["details"]["launch"]["commands"]
    assert command["argv"][-1].startswith(f"{folders[1]}/"), "what is told is what was run"
    assert "PYTHONPATH" not in command["environment"], "but for what looks on"
    assert not check["details"]["launch"]["files"]
    assert check["says"].endswith(
        "measured 3.0 GiB in tensors, 3.0 GiB reserved, 5.0 GiB used; GPUs 47 % busy at 1,980 MHz and 310 W"
    )
    assert not list(Path(folders[1]).glob(".gpus"))
    said = "GPU 0 is in use by other processes: pid 7 (vi, 9 MiB); figures may be lower than what it can do"
    assert done.json["warnings"] == [f"x3001: {said}"]
