"""The patches of MegatronAPP, of ALCF's scripts, of ezpz and of metaseq; scripts and C++ really run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.patch_support import apply, shape, write
from tests.support.fails import fails
from tests.support.programs import completed, executable


def bash(folder: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    if not shutil.which("bash"):
        pytest.skip("no bash here: the edited scripts are not run")
    clean = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "TMPDIR")}
    return completed(["bash", "-c", script], cwd=folder, env={**clean, **environment}, timeout=60)


NAMES = [
    f"/{way}_{kind}_rank_" for way in ("forward", "backward") for kind in ("tensor", "write_sem", "read_sem")
] * 2  # fmt: skip
LAUNCHER = "examples/megatron4.0/pretrain_gpt_distributed_small.sh"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    for number in range(1, 6):
        shape(folder, "megatronapp-addresses", number)
    shape(folder, "megatronapp-semaphores")
    executable(tmp_path / "bin/hostname", "#!/bin/sh\necho 10.0.0.5 fe80::1\n")
    return folder


def compiled(app: Path) -> Callable[..., list[str]]:
    """What the program prints in an environment."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if not compiler:
        pytest.skip("no C++ compiler here: the edited C++ is not run")
    program = app.parent / "program"
    source = app / "shm_tensor_new_rdma.cpp"
    done = completed([compiler, "-std=c++17", "-Wall", "-Werror", source, "-o", program])
    assert done.returncode == 0, done.stderr

    def run(**environment: str) -> list[str]:
        words = [str(program)]
        return completed(words, env=environment, timeout=60).stdout.splitlines()

    return run


RUNS: list[tuple[str, dict[str, str], str]] = [
    ("single", {}, "10.0.0.5 6000 1 0 4 2 8"),
    ("single", {"MASTER_ADDR": "10.9.9.9", "PIPELINE_MP_SIZE": "7"}, "10.9.9.9 6000 1 0 4 2 8"),
    ("master", {}, "10.0.0.5 6000 2 0 8 4 4"),
    ("master", {"NNODES": "3", "MASTER_PORT": "7000", "GPUS_PER_NODE": "8"}, "10.0.0.5 7000 3 0 24 4 4"),
    ("worker", {"MASTER_ADDR": "10.0.0.5"}, "10.0.0.5 6000 2 1 8 4 4"),
    ("worker", {"MASTER_ADDR": "10.0.0.5", "NODE_RANK": "2", "NNODES": "3"}, "10.0.0.5 6000 3 2 12 4 4"),
    ("worker", {}, ""),
]


def test_ranks_and_addresses_of_the_run_scripts(app: Path) -> None:
    apply(app, "megatronapp-addresses")
    before = (app / LAUNCHER).read_text()
    path = {"PATH": f"{app.parent / 'bin'}:{os.environ['PATH']}"}
    for script, environment, shown in RUNS:
        done = bash(app, f"bash run_{script}.sh", **path, **environment)
        assert done.stdout.strip() == shown, done.stderr
    assert done.returncode and "set MASTER_ADDR to the address of the first node" in done.stderr
    assert (app / LAUNCHER).read_text() == before


def test_a_script_with_fewer_places_stops_the_whole_patch(app: Path) -> None:
    shape(app, "megatronapp-addresses")
    before = (app / "shm_tensor_new_rdma.cpp").read_bytes()
    with fails("patch-hits", 4):
        apply(app, "megatronapp-addresses")
    assert (app / "shm_tensor_new_rdma.cpp").read_bytes() == before


def test_addresses_come_from_the_environment_and_names_in_shared_memory_are_the_jobs_own(app: Path) -> None:
    assert apply(app, "megatronapp-semaphores")["hits"] == 18
    assert apply(app, "megatronapp-addresses")["hits"] == 21
    run = compiled(app)
    two = {"RANKS": "1", "MEGATRONAPP_NODE_ADDRESSES": "10.1.0.1,10.1.0.2", "MEGATRONAPP_GPUS_PER_NODE": "3"}
    assert run(**two)[0] == "010.1.0.1:0 010.1.0.1:1 010.1.0.1:2 110.1.0.2:0 110.1.0.2:1 110.1.0.2:2 "
    assert run(RANKS="1")[0] == (
        "0127.0.0.1:0 0127.0.0.1:1 0127.0.0.1:2 0127.0.0.1:3 MEGATRONAPP_NODE_ADDRESSES has no address for rank 4"
    )
    assert run(MEGATRONAPP_GPUS_PER_NODE="many") == []
    names = run(MEGATRONAPP_JOB="12.a/b", SLURM_JOB_ID="7")[1:]
    assert names == [f"/envbuild_{os.getuid()}_12-a-b_{name[1:]}" for name in NAMES]
    assert run(SLURM_JOB_ID="7", MASTER_PORT="6000")[1].startswith(f"/envbuild_{os.getuid()}_7_forward")
    assert run(PBS_JOBID="", MASTER_PORT="6000")[1].startswith(f"/envbuild_{os.getuid()}_6000_forward")


def test_only_this_jobs_shared_memory_is_removed(app: Path) -> None:
    apply(app, "megatronapp-semaphores")
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        pytest.skip("/dev/shm cannot be written here: the removal is not tried")
    mine = f"envbuild_{os.getuid()}_{os.getpid()}-x_"
    ours = [shared / f"{mine}forward_tensor_rank_0", shared / f"sem.{mine}backward_read_sem_rank_0"]
    others = [
        shared / f"envbuild_{os.getuid()}_{os.getpid()}-y_forward_tensor_rank_0",
        shared / f"sem.{os.getpid()}-other",
    ]
    try:
        for path in ours + others:
            path.touch()
        file = app / "Megatron/megatron/training.py"
        code = f"import runpy; runpy.run_path({str(file)!r})['pretrain']()"
        environment = {**os.environ, "MEGATRONAPP_JOB": f"{os.getpid()}.x"}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60, capture_output=True)
        assert [path.exists() for path in ours + others] == [False, False, True, True]
    finally:
        for path in ours + others:
            path.unlink(missing_ok=True)


def trace(gpus: int, microbatches: int, iterations: int, chunks: int = 2) -> str:
    steps = [
        (i, g, c, m) for i in range(iterations) for g in range(gpus) for c in range(chunks) for m in range(microbatches)
    ]
    events = [{"name": f"forward {c}-{m}", "ph": ph, "pid": g} for _, g, c, m in steps for ph in ("B", "E")]
    return json.dumps([*events, {"name": "gpu 0 iter starts", "ph": "I", "pid": 0}])


@pytest.mark.parametrize(
    ("text", "stages", "said"),
    [
        (trace(8, 6, 3), 4, "8 2 6 2"),
        (trace(4, 16, 20), 4, "4 1 16 19"),
        (trace(2, 1, 1), 1, "2 2 1 0"),
        ("[]", 1, "no forward steps"),
        (trace(3, 1, 1), 2, "which 2 stages do not divide"),
        (json.dumps([{"name": "forward 0-3", "ph": "B", "pid": 0}]), 1, "no whole iteration"),
    ],
)
def test_the_last_iteration_with_the_sizes_of_the_trace_or_why_it_cannot_be_drawn(
    tmp_path: Path, text: str, stages: int, said: str
) -> None:
    shape(tmp_path, "megatronapp-trace-sample")
    write(tmp_path, "trace.json", text)
    assert apply(tmp_path, "megatronapp-trace-sample")["hits"] == 2
    done = completed([sys.executable, "visualize_trace.py", str(stages)], cwd=tmp_path, timeout=60)
    if said[0].isdigit():
        assert done.stdout.strip() == said, done.stderr
    else:
        assert done.returncode == 1 and said in done.stderr


def test_a_host_file_of_the_user_is_read(tmp_path: Path) -> None:
    shape(tmp_path, "alcf-hosfile")
    assert apply(tmp_path, "alcf-hosfile")["hits"] == 1
    assert bash(tmp_path, "bash ALCF/launch.sh", HOSTFILE="mine", PBS_NODEFILE="site").stdout == "mine\n"
    assert bash(tmp_path, "bash ALCF/launch.sh", PBS_NODEFILE="site").stdout == "site\n"


def test_the_training_is_waited_for_and_its_exit_code_kept(tmp_path: Path) -> None:
    shape(tmp_path, "alcf-wait")
    assert bash(tmp_path, "bash ALCF/train-gpt3.sh").returncode == 0
    assert apply(tmp_path, "alcf-wait")["hits"] == 1
    done = bash(tmp_path, "bash ALCF/train-gpt3.sh")
    assert (done.returncode, done.stdout) == (3, "trained\n")


def test_the_data_folder_can_be_given(tmp_path: Path) -> None:
    shape(tmp_path, "alcf-data-path")
    assert apply(tmp_path, "alcf-data-path")["hits"] == 1
    for host, environment, code, shown in (
        ("x3001", {}, 0, "/ours/dataset/genes"),
        ("nid1", {}, 0, "/theirs/dataset/books"),
        ("other", {}, 1, "unknown"),
        ("other", {"DATA_PARENT": "/my data", "DATA_TYPE": "d"}, 0, "/my data/dataset/d"),
        ("x3001", {"DATA_PARENT": "/mine", "DATA_TYPE": "d"}, 0, "/mine/dataset/d"),
    ):
        done = bash(tmp_path, f"hostname() {{ echo {host}; }}; source ALCF/args.sh", **environment)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (code, shown)
    done = bash(tmp_path, "source ALCF/args.sh", DATA_PARENT="/mine")
    assert done.returncode and "set DATA_TYPE too" in done.stderr, "a folder without a name stops"


def test_the_base_of_the_guide_is_loaded_on_polaris_only(tmp_path: Path) -> None:
    shape(tmp_path, "alcf-base-environment")
    assert apply(tmp_path, "alcf-base-environment")["hits"] == 2
    polaris, other = "source ALCF/setup.sh; setupPolaris", "source ALCF/setup.sh; condaOther"
    assert bash(tmp_path, polaris).stdout == "module conda/2023-10-04\nvenv 2023-10-04\n"
    assert bash(tmp_path, polaris, ALCF_BASE="2025-09-25").stdout == "module conda/2025-09-25\nvenv 2025-09-25\n"
    assert bash(tmp_path, polaris, CONDA_EXE="x", VIRTUAL_ENV="y").stdout == "caught\n"
    assert bash(tmp_path, other).stdout == "module conda/2023-09-29-unstable\n"


def test_the_missing_comma_is_put_in(tmp_path: Path) -> None:
    file = shape(tmp_path, "alcf-transformer-comma")
    with pytest.raises(SyntaxError):
        compile(file.read_text(), "x", "exec")
    assert apply(tmp_path, "alcf-transformer-comma")["hits"] == 1
    compile(file.read_text(), "x", "exec")


def test_the_empty_licence_goes_from_the_project_table_only(tmp_path: Path) -> None:
    file = shape(tmp_path, "ezpz-licence")
    assert apply(tmp_path, "ezpz-licence")["hits"] == 1
    read = tomllib.loads(file.read_text())
    assert read["project"] == {"name": "ezpz", "keywords": []}
    assert read["tool"] == {"other": {"license": ""}}


def test_cython_is_bounded_wherever_it_is_asked_for(tmp_path: Path) -> None:
    project, setup = (shape(tmp_path, "metaseq-cython-bound", number) for number in (0, 1))
    assert apply(tmp_path, "metaseq-cython-bound")["hits"] == 3
    assert 'requires = ["setuptools", "wheel", "cython<3"]' in project.read_text()
    assert 'setup_requires=["cython<3", ' in setup.read_text()
    assert 'install_requires=["black==22.3.0", "cython<3", "cython-lint"]' in setup.read_text()
    assert '{"dev": ["cython"]}' in setup.read_text()
