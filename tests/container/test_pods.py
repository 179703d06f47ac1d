"""Pods: valid for Kubernetes, with what document, target and user say, and a start that waits for the master."""

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
from envbuild.container.pods import KINDS, gpu_names
from tests.support.patience import PATIENCE
from tests.support.programs import completed

IMAGE = "registry.example.org/team/megatronapp:1"
COMMAND = ("--", "python", "train.py")
OPTIONS = (
    "--namespace", "team-a", "--node-selector", "pool=gpu", "--toleration", "dedicated=train:NoExecute",
    "--pull-secret", "login", "--env", "NCCL_DEBUG=$(HOME) $$", "--home", "my-home", "--data", "corpus.v1",
    "--cpus", "8", "--memory", "64Gi",
)  # fmt: skip


def documents(*words: str, stack: str = "megatronapp", image: str = IMAGE) -> list[dict[str, Any]]:
    """What `image pods` prints."""
    done = CliRunner().invoke(cli, ["image", "pods", stack, "--image", image, *words])
    assert done.exit_code == 0, done.output
    assert "No cluster has run this" in done.output and "&id" not in done.output
    return list(yaml.safe_load_all(done.output))


def templates(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of a run."""
    spec = run["spec"]
    if run["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return [each["template"] for each in spec.get("pytorchReplicaSpecs", {"": spec}).values()]


def pod(*words: str, **more: str) -> dict[str, Any]:
    """The pods of the run."""
    return dict(templates(documents(*words, **more)[-1])[0]["spec"])


def filled(text: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of a word of a command, or of a variable."""
    return re.sub(
        r"\$(\$|\(([^)]*)\))", lambda m: "$" if m[1] == "$" else variables.get(m[2], m[0]), text
    )  # fmt: skip


@pytest.mark.parametrize("kind", list(KINDS))
def test_d111_kubernetes_takes_them(kind: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for words in ((*OPTIONS, "--nodes", "4"), (*COMMAND,)):
        *before, run = documents("--kind", kind, *words)
        pods = [{"apiVersion": "v1", "kind": "Pod", **template} for template in templates(run)]
        for document in [*before, *([run] if kind == "job" else []), *pods]:
            for version in ("1.32", "1.37"):
                validate.validate(document, version, strict=True)


@pytest.mark.parametrize(
    ("stack", "words"),
    [
        ("megatron-alpa", ("--gpus-per-node", "8", "--nodes", "2")),
        ("megatron-deepspeed-slurm", ("--nodes", "2")),
        ("megatron-deepspeed-alcf", ()),
        ("opt-175b", ("--set", "model_size=125m")),
        ("torch-smoke", COMMAND),
    ],
)
def test_d111_any_stack_runs_as_an_indexed_job_once(stack: str, words: tuple[str, ...]) -> None:
    home, data, service, job = documents(*words, stack=stack)
    assert [home["kind"], data["kind"], service["kind"], job["kind"]] == [
        *["PersistentVolumeClaim"] * 2,
        "Service",
        "Job",
    ]
    nodes = int(words[words.index("--nodes") + 1]) if "--nodes" in words else 1
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", nodes, nodes)
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")
    assert (
        service["spec"]["clusterIP"] == "None" and spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    )


def test_d111_without_a_command_the_stacks_own_run_is_started() -> None:
    (container,) = pod("--set", "tensor_parallel=1")["containers"]
    shell, option, script = (filled(word, {}) for word in container["args"])
    assert (shell, option) == ("bash", "-c") and "pretrain_gpt.py" in script and "megatronapp-0.megatronapp" in script
    assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0
    assert 'case "$NODE_RANK" in' in script


def test_they_have_what_the_document_says() -> None:
    *_, service, job = documents()
    assert service["spec"]["publishNotReadyAddresses"] and job["spec"]["completions"] == 2
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {
        "cpu": "16", "memory": "200Gi", "ephemeral-storage": "100G", "nvidia.com/gpu": "4",
        "rdma/hca_shared_devices_a": "1",
    }  # fmt: skip
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert spec["volumes"][0] == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-4090"}, "d87"
    (rule,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert "example.org/ib" in pod("--rdma", "example.org/ib")["containers"][0]["resources"]["limits"]


def test_d111_what_is_asked_for_is_there() -> None:
    service, job = documents(*OPTIONS)
    assert service["metadata"]["namespace"] == job["metadata"]["namespace"] == "team-a"
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["nodeSelector"]["pool"] == "gpu" and spec["imagePullSecrets"] == [{"name": "login"}]
    taint = {"key": "dedicated", "operator": "Equal", "value": "train", "effect": "NoExecute"}
    assert taint in spec["tolerations"] and spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    claims = {each["name"]: each["persistentVolumeClaim"]["claimName"] for each in spec["volumes"][1:]}
    assert claims == {"home": "my-home", "data": "corpus.v1"}
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert filled(variables["NCCL_DEBUG"], variables) == "$(HOME) $$", "as it was given"
    assert variables["NCCL_IB_DISABLE"] == "0" and variables["NCCL_SOCKET_IFNAME"] == "eth0"
    assert container["resources"]["limits"]["memory"] == "64Gi"


# What YAML, Jinja or both would take for more than a value.
HOSTILE = (
    "a\n---\nkind: Secret", "key: value", "{a: b}", "{{ 7 * 7 }}", "{% raw %}", "{# gone #}", "*labels", "&x 1",
    "!!int 5", "- x", "| x", "# gone", "'\"\\", "null", "yes", "1e3", "0x10", "\ttab", "\u2028\x85é\U0001f600",
    " " * 200, "w " * 3000,
)  # fmt: skip


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_word_of_a_command_or_variable_is_more_than_a_word(kind: str) -> None:
    lines = [word for word in HOSTILE if word.isprintable()]
    given = [part for at, word in enumerate(lines) for part in ("--env", f"V{at}={word}")]
    plain, hostile = (documents("--kind", kind, *more) for more in (COMMAND, (*given, "--", *HOSTILE)))
    assert [document["kind"] for document in hostile] == [document["kind"] for document in plain]
    for made, usual in zip(templates(hostile[-1]), templates(plain[-1]), strict=True):
        (container,), (other,) = made["spec"].pop("containers"), usual["spec"].pop("containers")
        assert made == usual
        assert [filled(word, {}) for word in container.pop("args")] == list(HOSTILE)
        variables = {each["name"]: each["value"] for each in container.pop("env")}
        assert [filled(variables[f"V{at}"], {}) for at in range(len(lines))] == lines
        assert container == {key: value for key, value in other.items() if key not in ("args", "env")}


def test_d87_the_model_of_the_gpu_is_the_targets(tmp_path: Path) -> None:
    product, words = "nvidia.com/gpu.product", ("--gpus-per-node", "8", *COMMAND)
    assert pod(*words, stack="opt-175b")["nodeSelector"] == {product: "NVIDIA-A100-SXM4-80GB"}
    assert pod("--gpu-product", "NVIDIA-L4", *words, stack="opt-175b")["nodeSelector"] == {product: "NVIDIA-L4"}
    assert gpu_names("V100-SXM2-16GB") == ("Tesla V100-SXM2-16GB",) and gpu_names("MI300X") == gpu_names(None) == ()
    lab = tmp_path / "lab.yaml"
    lab.write_text("{name: lab, extends: local, expects: {gpu: H100, gpus_per_node: 8}}")
    spec = pod("-t", str(lab), *COMMAND, stack="megatron-alpa")
    term = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == [
        {
            "matchExpressions": [
                {"key": product, "operator": "In", "values": ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe"]}
            ]
        }
    ]


@pytest.mark.parametrize("rdma", [True, False])
def test_who_pins_memory_for_infiniband_is_root_for_to_others_the_capability_is_nothing(rdma: bool) -> None:
    """Linux takes it from every program that another user starts; Kubernetes sets no ambient ones, and no limits."""
    spec = pod() if rdma else pod("--gpus-per-node", "8", *COMMAND, stack="opt-175b")
    (container,) = spec["containers"]
    added = container["securityContext"]["capabilities"].get("add", [])
    assert (added, spec["securityContext"]["runAsUser"]) == ((["IPC_LOCK"], 0) if rdma else ([], 10001))
    assert spec["securityContext"].get("runAsNonRoot", False) is not rdma
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert {"name": "HOME", "value": "/home/envbuild"} in container["env"], "the volume, not /root"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *(
            ((option, value), "name-unusable")
            for option, values in {
                "--rdma": ("bad resource!", "rdma/hca\n"),
                "--name": ("app\n", "", "a.b", "a" * 50, "1a"),
                "--namespace": ("a.b",),
                "--nodes": ("1001",),
                "--gpus-per-node": ("65",),
                "--gpu-product": ("a b", ""),
                "--memory": ("lots", "1Gi\n"),
                "--home": ("/data", "..", ""),
                "--data": ("a_b",),
                "--pull-secret": ("a\nb: c",),
                "--node-selector": ("pool", "=x", "pool=a b"),
                "--toleration": ("", "a:Sometimes"),
                "--env": ("LD_PRELOAD=/x.so", "WANDB_API_KEY=abc", "NCCL_DEBUG=a\x1bb", "1A=b"),
            }.items()
            for value in values
        ),
        (("--kind", "pytorchjob", "--set", "no_such=1"), "launch-parameter"),
        (("--env", "A"), "usage"),
        (("--set", "a=b", *COMMAND), "usage"),
        (("--image", "a b:1"), "image-reference"),
        (("--image", ""), "image-reference"),
        (("opt-175b", "--nodes", "2"), "launch-does-not-fit"),
        (("megatron-deepspeed-alcf", "--nodes", "2"), "launch-does-not-fit"),
    ],
)
def test_d111_what_kubernetes_would_refuse_is_refused_here(words: tuple[str, ...], code: str) -> None:
    words = ("megatronapp", *words) if words[0].startswith("--") else words
    done = CliRunner().invoke(cli, ["image", "pods", "--image", IMAGE, *words], standalone_mode=False)
    assert getattr(done.exception, "code", "usage") == code
    assert getattr(done.exception, "exit_code", None) == (7 if code == "launch-does-not-fit" else 2)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_worker_starts_when_the_masters_port_answers(kind: str, tmp_path: Path) -> None:
    (container,) = templates(documents("--kind", kind, *COMMAND)[-1])[-1]["spec"]["containers"]
    script = filled(container["command"][2], {})
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        script = re.sub(r"MASTER_ADDR=megatronapp-[a-z0-9.-]+", "MASTER_ADDR=127.0.0.1", script)
        script = script.replace("MASTER_PORT=6000", f"MASTER_PORT={port}").replace("sleep 2", "sleep 0.2")
        (tmp_path / "python").symlink_to(sys.executable)
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", KINDS[kind].rank: "1"}
        argv = ["sh", "-c", script, "megatronapp", "sh", "-c", 'echo "$NODE_RANK $NNODES $MASTER_ADDR"']
        worker = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(timeout=0.5)
        server.listen()
        threading.Thread(target=server.accept, daemon=True).start()
        out, _ = worker.communicate(timeout=PATIENCE)
        assert out == "1 2 127.0.0.1\n"
    env[KINDS[kind].rank] = "0"
    master = completed(argv, env=env, timeout=PATIENCE)
    assert master.stdout == "0 2 127.0.0.1\n"
