"""Pods: valid for Kubernetes, with what the document says, and a start that waits for the master."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from envbuild.cli.verbs import cli
from envbuild.container.base_images import load_containers
from envbuild.container.pods import manifests
from envbuild.container.recipe import ImageRecipe
from envbuild.container.select import Choice, recipe_for
from envbuild.errors import EnvbuildError
from tests.support.patience import PATIENCE

IMAGE = "registry.example.org/team/megatronapp:1"


@pytest.fixture(scope="module")
def recipe() -> ImageRecipe:
    return recipe_for(Choice("megatronapp"))


def documents(recipe: ImageRecipe, *, plain: bool = False, **more: Any) -> list[dict[str, Any]]:
    """Those of the stack; `plain`: without InfiniBand."""
    pods = load_containers().stacks["megatronapp"].pods
    assert pods is not None
    pods = pods.model_copy(update={"rdma": None}) if plain else pods
    given = {"image": IMAGE, "name": "megatronapp", "command": ["python", "train.py"], **more}
    return manifests(recipe, pods, **given)


@pytest.mark.parametrize("version", ["1.28", "1.31"])
def test_kubernetes_takes_them(recipe: ImageRecipe, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for document in documents(recipe):
        validate.validate(document, version, strict=True)


def test_they_have_what_the_document_says(recipe: ImageRecipe) -> None:
    service, stateful = documents(recipe)
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    spec = stateful["spec"]
    assert (spec["replicas"], spec["serviceName"], spec["podManagementPolicy"]) == (2, "megatronapp", "Parallel")
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {
        "cpu": "16", "memory": "200Gi", "ephemeral-storage": "100G", "nvidia.com/gpu": "4",
        "rdma/hca_shared_devices_a": "1",
    }  # fmt: skip
    assert container["resources"]["requests"] == container["resources"]["limits"]
    shm, home = pod["volumes"]
    assert shm == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}
    assert home["emptyDir"] == {"sizeLimit": "100G"}
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    other = documents(recipe, rdma="example.org/ib")[1]["spec"]["template"]["spec"]["containers"][0]
    assert "example.org/ib" in other["resources"]["limits"]


@pytest.mark.parametrize("plain", [True, False])
def test_who_pins_memory_for_infiniband_is_root_for_to_others_the_capability_is_nothing(
    recipe: ImageRecipe, plain: bool
) -> None:
    """Linux takes it from every program that another user starts; Kubernetes sets no ambient ones, and no limits."""
    pod = documents(recipe, plain=plain)[1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    added = container["securityContext"]["capabilities"].get("add", [])
    assert (added, pod["securityContext"]["runAsUser"]) == (([], 10001) if plain else (["IPC_LOCK"], 0))
    assert pod["securityContext"].get("runAsNonRoot", False) is plain
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert {"name": "HOME", "value": "/home/envbuild"} in container["env"], "the volume, not /root"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"rdma": "bad resource!"}, "name-unusable"),
        ({"rdma": "rdma/hca\n"}, "name-unusable"),
        ({"rdma": ""}, "name-unusable"),
        ({"image": " "}, "image-reference"),
        ({"image": "a b:1"}, "image-reference"),
        ({"image": ""}, "image-reference"),
        ({"name": "app\n"}, "name-unusable"),
    ],
)
def test_d111_what_kubernetes_would_refuse_is_refused_here(
    recipe: ImageRecipe, more: dict[str, str], code: str
) -> None:
    with pytest.raises(EnvbuildError) as caught:
        documents(recipe, **more)
    assert (caught.value.code, int(caught.value.exit_code), bool(caught.value.hint)) == (code, 2, True)


@pytest.mark.parametrize("name", ["", "-a", "a.b", "A", "a" * 64, "1a"])
def test_a_name_that_dns_does_not_take_is_refused(recipe: ImageRecipe, name: str) -> None:
    with pytest.raises(EnvbuildError) as caught:
        documents(recipe, name=name)
    assert caught.value.code == "name-unusable"


def test_the_printed_text_is_what_was_made(recipe: ImageRecipe) -> None:
    done = CliRunner().invoke(cli, ["image", "pods", "megatronapp", "--image", IMAGE, "--", "python", "train.py"])
    assert done.exit_code == 0 or done.return_value == 0
    assert list(yaml.safe_load_all(done.output)) == documents(recipe)
    assert "&id" not in done.output and "        set -eu\n" in re.sub(r"(?m)^ +", "        ", done.output)


def test_a_worker_starts_when_the_masters_port_answers(recipe: ImageRecipe, tmp_path: Path) -> None:
    script = documents(recipe)[1]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        script = script.replace("MASTER_ADDR=megatronapp-0.megatronapp", "MASTER_ADDR=127.0.0.1")
        script = script.replace("MASTER_PORT=6000", f"MASTER_PORT={port}").replace("sleep 2", "sleep 0.2")
        (tmp_path / "python").symlink_to(sys.executable)
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOSTNAME": "megatronapp-1"}
        argv = ["sh", "-c", script, "megatronapp", "sh", "-c", 'echo "$NODE_RANK $NNODES $MASTER_ADDR"']
        worker = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(timeout=1.0)
        server.listen()
        threading.Thread(target=server.accept, daemon=True).start()
        out, _ = worker.communicate(timeout=PATIENCE)
        assert out == "1 2 127.0.0.1\n"
    env["HOSTNAME"] = "megatronapp-0"
    master = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert master.stdout == "0 2 127.0.0.1\n"
