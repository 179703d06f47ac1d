"""MegatronAPP on one node without RDMA, and its gradients; what comes out is compiled and runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.node.protocol import NodeError
from tests.node import edit_samples
from tests.node.patch_support import apply, write

SCHEDULES, TRANSFER = "Megatron/megatron/core/pipeline_parallel/schedules.py", "shm_tensor_new_rdma.cpp"


def sample(patch: str, number: int) -> str:
    """The text of a file in the shape of the source, as it was."""
    text: str = edit_samples.load(patch)["files"][number]["before"]
    return text


def test_gradients_of_a_pipeline_stay_what_they_are(tmp_path: Path) -> None:
    before = sample("megatronapp-gradients", 0)
    file = write(tmp_path, SCHEDULES, before)
    assert apply(tmp_path, "megatronapp-gradients")["hits"] == 1
    loop = "    for param in model.parameters():\n        param.main_grad.uniform_(-1, 1)\n"
    assert file.read_text().startswith(before.replace(loop, ""))
    assert file.read_text().count("uniform_") == 1, "the comment of the other schedule stays"
    assert apply(tmp_path, "megatronapp-gradients")["already"]


@pytest.mark.parametrize(("number", "code"), [(1, "patch-no-hits"), (2, "patch-precondition")])
def test_other_loops_over_parameters_are_left_alone(tmp_path: Path, number: int, code: str) -> None:
    write(tmp_path, SCHEDULES, sample("megatronapp-gradients", number))
    with pytest.raises(NodeError) as caught:
        apply(tmp_path, "megatronapp-gradients")
    assert caught.value.code == code


def one_node(folder: Path, transfer: int = 0) -> int:
    """Both files with the patch; returns its hits."""
    write(folder, TRANSFER, sample("megatronapp-one-node", transfer))
    write(folder, "setup.py", sample("megatronapp-one-node", 2))
    hits: int = apply(folder, "megatronapp-one-node")["hits"]
    return hits


def test_transfers_of_one_node_compile_without_rdma_core_and_say_so_between_nodes(tmp_path: Path) -> None:
    assert one_node(tmp_path) == 5
    program = tmp_path / "transfer"
    command = ["g++", "-std=c++17", "-Wall", "-Werror", "-Wno-unused-function", TRANSFER, "-o", str(program)]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    said = [subprocess.run([str(program), *more], capture_output=True, text=True).stdout for more in ([], ["other"])]
    assert said[0] == "within a node"
    assert said[1] == "shm_tensor_new_rdma was built without RDMA, for the GPUs of one node"


@pytest.mark.parametrize("home", ["/opt/cuda-13.0", None])
def test_setup_takes_the_cuda_of_the_build_and_no_rdma_library(tmp_path: Path, home: str | None) -> None:
    one_node(tmp_path)
    write(tmp_path, "setuptools.py", "def setup(**given):\n    print(*sum(given.values(), []))\n")
    own = {key: value for key, value in os.environ.items() if key != "CUDA_HOME"}
    env = {**own, "CUDA_HOME": home} if home else own
    done = subprocess.run(
        [sys.executable, "setup.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    cuda = home or "/usr/local/cuda"
    assert done.stdout == f"torch -fPIC -I{cuda}/include -L{cuda}/lib64 -lcudart\n"


def test_a_name_of_rdma_core_that_the_stand_in_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NodeError) as caught:
        one_node(tmp_path, transfer=1)
    assert caught.value.code == "patch-precondition"
    assert "ibv_srq" in str(caught.value.why)
