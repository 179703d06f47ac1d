"""A run or command as pods on Kubernetes: an Indexed Job with a headless service, a PyTorchJob or a JobSet.

Each pod has a name in DNS; pod 0 is the master, and the others wait until it listens. Nothing is started twice: a run
that ends, ends the Job. Shared memory is a volume in memory (Kubernetes gives 64 MiB otherwise), which counts against
the memory limit. No cluster has run any of this; the tests compare it with the schemas of Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from envbuild.container.base_images import RESOURCE, Pods, Quantity, parse_reference
from envbuild.container.recipe import ImageRecipe
from envbuild.container.runtime_stage import HOME, USER
from envbuild.errors import EnvbuildError
from envbuild.launch.shell import head, steps_of
from envbuild.model.common import SettableName, StrictModel, Text
from envbuild.resolve.compat_read import load_compat
from envbuild.resolve.rules.node import is_model
from envbuild.text import comment

if TYPE_CHECKING:
    from envbuild.model.launch import Launch

DATA = "/data"
_DNS = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_KEY = rf"({_DNS}(\.{_DNS})*/)?[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
ObjectName = Annotated[str, Field(pattern=rf"^{_DNS}(\.{_DNS})*$", max_length=253)]
_UNTRIED = "No cluster has run this. It fits the schemas of Kubernetes; read it before you apply it."


class _Kind(NamedTuple):
    """`master`: the DNS name of pod 0 of {name}; `rank`: the variable with a pod's number; `container`: its name."""

    master: str
    rank: str
    container: str
    port: str


KINDS = {
    "job": _Kind("{name}-0.{name}", "JOB_COMPLETION_INDEX", "train", "master"),
    "jobset": _Kind("{name}-node-0-0.{name}", "JOB_COMPLETION_INDEX", "train", "master"),
    # The operator wants these names of the container and its port.
    "pytorchjob": _Kind("{name}-master-0", "RANK", "pytorch", "pytorchjob-port"),
}
_START = """\
set -eu
export NNODES={nodes} NODE_RANK="${rank}"
export MASTER_ADDR={master} MASTER_PORT={port}
waited=0
while [ "$NODE_RANK" != 0 ] && ! python -c '
import socket, sys
socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()' "$MASTER_ADDR" "$MASTER_PORT" 2>/dev/null; do
  [ "$waited" -lt 600 ] || {{ echo "$MASTER_ADDR:$MASTER_PORT does not answer" >&2; exit 1; }}
  sleep 2
  waited=$((waited + 2))
done
exec "$@"
"""


class PodRequest(StrictModel):
    """What the pods have. `gpu_names`: whole names of GPUs as nvidia-smi prints them.

    `home` and `data` are claims of volumes that exist; without them new ones are written. Names leave room for
    what Kubernetes puts after them.
    """

    image: str
    name: Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,47}[a-z0-9])?$")]
    kind: Literal["job", "jobset", "pytorchjob"] = "job"
    namespace: Annotated[str, Field(pattern=f"^{_DNS}$")] | None = None
    nodes: Annotated[int, Field(ge=1, le=1000)] = 1
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    gpu_names: tuple[Text, ...] = ()
    gpu_product: Annotated[str, Field(pattern=f"^{_VALUE}$", min_length=1)] | None = None
    cpus: Annotated[int, Field(ge=1, le=4096)] | None = None
    memory: Quantity | None = None
    disk: Quantity | None = None
    shm: Quantity = "16Gi"
    rdma: Annotated[str, Field(pattern=f"^{RESOURCE}$")] | None = None
    port: Annotated[int, Field(ge=1024, le=65535)] = 29500
    home: ObjectName | None = None
    data: ObjectName | None = None
    pull_secret: ObjectName | None = None
    node_selector: tuple[Annotated[str, Field(pattern=f"^{_KEY}={_VALUE}$")], ...] = ()
    tolerations: tuple[
        Annotated[str, Field(pattern=rf"^{_KEY}(={_VALUE})?(:(NoSchedule|PreferNoSchedule|NoExecute))?$")], ...
    ] = ()
    environment: Mapping[SettableName, Text] = {}

    @property
    def master(self) -> str:
        """Where the pods meet."""
        return KINDS[self.kind].master.format(name=self.name)

    @property
    def output(self) -> str:
        """Where a run writes: below the home, which the pods share."""
        return f"{HOME}/{self.name}"


def pod_request(known: Pods | None, **given: Any) -> PodRequest:
    """What is given, above what the stack's document says of its pods.

    Raises EnvbuildError `name-unusable` for what Kubernetes would refuse, `image-reference` (both exit 2).
    """
    parse_reference(given["image"])
    fields = known.model_dump(exclude_none=True) if known else {}
    fields["nodes"] = fields.pop("replicas", 1)
    try:
        return PodRequest(**{**fields, **{key: value for key, value in given.items() if value is not None}})
    except ValidationError as error:
        first = error.errors()[0]
        raise EnvbuildError(
            "name-unusable",
            f"--{str(first['loc'][0]).replace('_', '-')}: {first['input']!s:.100} cannot be used in Kubernetes",
            why=str(first["msg"]),
            hint="a name has at most 49 lower-case letters, digits and `-`; a resource is written as "
            "`kubectl describe node` lists it (rdma/hca_shared_devices_a)",
        ) from error


def gpu_names(expected: str | None) -> tuple[str, ...]:
    """The whole names of the GPUs that a target's `expects: {gpu: ...}` fits, as their drivers print them."""
    rows = load_compat().gpus.values() if expected else ()
    # The brand was Tesla up to Turing.
    names = {f"{'Tesla' if gpu.capability < (8,) else 'NVIDIA'} {gpu.name}": gpu for gpu in rows}
    whole = tuple(name for name, gpu in names.items() if expected in (gpu.model, gpu.name))
    return whole or tuple(name for name in names if is_model(expected or "", name))


def launch_words(made: Launch, output: str) -> tuple[str, ...]:
    """What each pod runs of a launch. Raises EnvbuildError `launch-does-not-fit` where one command starts all nodes."""
    if made.nodes > 1 and len(made.commands) == 1:
        raise EnvbuildError(
            "launch-does-not-fit",
            f"one command of {made.stack} starts all {made.nodes} nodes, by MPI or Slurm",
            why="one pod cannot start processes in another",
            hint="--nodes 1, or `-- COMMAND` with a launcher that each pod starts (torchrun)",
        )
    return ("bash", "-c", "".join(step.text for step in steps_of(made, output, None)))


def manifests(recipe: ImageRecipe, request: PodRequest, command: Sequence[str]) -> list[dict[str, Any]]:
    """What is applied, in this order: claims that do not exist yet, the service of a Job, the run."""
    name = request.name
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "envbuild"}
    about = {
        "envbuild.dev/stack": recipe.stack,
        "envbuild.dev/profile": recipe.profile,
        "envbuild.dev/lock": f"sha256:{recipe.variant.digest}",
    }
    space = {"namespace": request.namespace} if request.namespace else {}

    def document(version: str, kind: str, spec: dict[str, Any], own: str = name) -> dict[str, Any]:
        meta = {"name": own, **space, "labels": labels, "annotations": about}
        return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}

    def claim(own: str) -> dict[str, Any]:
        size = {"requests": {"storage": request.disk or "100Gi"}}
        return document("v1", "PersistentVolumeClaim", {"accessModes": ["ReadWriteMany"], "resources": size}, own)

    new = [claim(f"{name}-{use}") for use in ("home", "data") if getattr(request, use) is None]
    template = {"metadata": {"labels": labels, "annotations": about}, "spec": _pod(request, command)}
    return [*new, *_RUNS[request.kind](request, template, document)]


Document = Callable[[str, str, dict[str, Any]], dict[str, Any]]


def _indexed(request: PodRequest, template: dict[str, Any]) -> dict[str, Any]:
    """One pod a node, each with its number; the first that fails ends all, and none is started again."""
    return {
        "completionMode": "Indexed",
        "completions": request.nodes,
        "parallelism": request.nodes,
        "backoffLimit": 0,
        "template": template,
    }


def _job(request: PodRequest, template: dict[str, Any], document: Document) -> list[dict[str, Any]]:
    service = {
        "clusterIP": "None",
        # Ranks look for each other before any of them is ready.
        "publishNotReadyAddresses": True,
        "selector": {"app.kubernetes.io/name": request.name},
        "ports": [{"name": "master", "port": request.port}],
    }
    template["spec"]["subdomain"] = request.name
    return [document("v1", "Service", service), document("batch/v1", "Job", _indexed(request, template))]


def _jobset(request: PodRequest, template: dict[str, Any], document: Document) -> list[dict[str, Any]]:
    job = {"name": "node", "replicas": 1, "template": {"spec": _indexed(request, template)}}
    spec = {
        "failurePolicy": {"maxRestarts": 0},
        "network": {"enableDNSHostnames": True, "subdomain": request.name, "publishNotReadyAddresses": True},
        "replicatedJobs": [job],
    }
    return [document("jobset.x-k8s.io/v1alpha2", "JobSet", spec)]


def _pytorchjob(request: PodRequest, template: dict[str, Any], document: Document) -> list[dict[str, Any]]:
    counts = {"Master": 1, "Worker": request.nodes - 1}
    replicas = {
        role: {"replicas": count, "restartPolicy": "Never", "template": template}
        for role, count in counts.items()
        if count
    }
    spec = {"runPolicy": {"backoffLimit": 0, "cleanPodPolicy": "Running"}, "pytorchReplicaSpecs": replicas}
    return [document("kubeflow.org/v1", "PyTorchJob", spec)]


_RUNS = {"job": _job, "jobset": _jobset, "pytorchjob": _pytorchjob}


def _pod(request: PodRequest, command: Sequence[str]) -> dict[str, Any]:
    kind, name = KINDS[request.kind], request.name
    limits: dict[str, Any] = {
        "cpu": str(request.cpus) if request.cpus else None,
        "memory": request.memory,
        "ephemeral-storage": request.disk,
        "nvidia.com/gpu": str(request.gpus) if request.gpus else None,
    }
    limits = {key: value for key, value in limits.items() if value}
    script = _START.format(nodes=request.nodes, port=request.port, master=request.master, rank=kind.rank)
    security: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    user: dict[str, Any] = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    if request.rdma:
        limits[request.rdma] = "1"
        # RDMA pins memory, and Kubernetes has no limit of that to raise: pods have the limit of the node's container
        # runtime, by systemd's default 8 MiB. This goes past it, and programs have it as root alone.
        security["capabilities"]["add"] = ["IPC_LOCK"]
        user = {"runAsUser": 0, "runAsGroup": 0, "fsGroup": USER}
    container = {
        "name": kind.container,
        "image": request.image,
        "command": _literal(["/bin/sh", "-c", script, name]),
        "args": _literal(command),
        "env": [{"name": key, "value": value} for key, value in _variables(request).items()],
        "ports": [{"name": kind.port, "containerPort": request.port}],
        "resources": {"limits": limits, "requests": limits},
        "securityContext": security,
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
            {"name": "home", "mountPath": HOME},
            {"name": "data", "mountPath": DATA},
        ],
    }
    claims = {"home": request.home or f"{name}-home", "data": request.data or f"{name}-data"}
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        **_where(request),
        "securityContext": user,
        **({"imagePullSecrets": [{"name": request.pull_secret}]} if request.pull_secret else {}),
        "containers": [container],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": request.shm}},
            *({"name": use, "persistentVolumeClaim": {"claimName": own}} for use, own in claims.items()),
        ],
    }


def _variables(request: PodRequest) -> dict[str, str]:
    """NCCL goes over the pods' own network, and over InfiniBand where they have a device; what is given goes first."""
    network = {
        "NCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_IB_DISABLE": str(int(not request.rdma)),
    }
    own = {"HOME": HOME, "GPUS_PER_NODE": str(request.gpus)}
    given = dict(zip(request.environment, _literal(list(request.environment.values())), strict=True))
    return {**own, **(network if request.gpus else {}), **given}


def _where(request: PodRequest) -> dict[str, Any]:
    """Each pod on a host of its own, with the GPUs that are wanted by NVIDIA's label; taints of GPU nodes are borne."""
    product = "nvidia.com/gpu.product"
    selector = dict(pair.split("=", 1) for pair in request.node_selector)
    # The label has the name that nvidia-smi prints, with `-` for each space.
    labels = [request.gpu_product] if request.gpu_product else [text.replace(" ", "-") for text in request.gpu_names]
    affinity: dict[str, Any] = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": {"app.kubernetes.io/name": request.name}},
                    "topologyKey": "kubernetes.io/hostname",
                }
            ]
        }
    }
    if request.gpus and len(labels) == 1:
        selector.setdefault(product, labels[0])
    elif request.gpus and labels and product not in selector:
        terms = [{"matchExpressions": [{"key": product, "operator": "In", "values": labels}]}]
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    tolerations = [_toleration("nvidia.com/gpu:NoSchedule")] if request.gpus else []
    tolerations += map(_toleration, request.tolerations)
    return {
        **({"nodeSelector": selector} if selector else {}),
        **({"tolerations": tolerations} if tolerations else {}),
        "affinity": affinity,
    }


def _toleration(text: str) -> dict[str, str]:
    taint, _, effect = text.partition(":")
    key, sign, value = taint.partition("=")
    how = {"operator": "Equal", "value": value} if sign else {"operator": "Exists"}
    return {"key": key, **how, **({"effect": effect} if effect else {})}


def _literal(words: Sequence[str]) -> list[str]:
    """The words for a container to have as they are: Kubernetes fills in `$(NAME)`, and takes `$$` for `$`."""
    return [re.sub(r"\$(?=[$(])", "$$", word) for word in words]


def render(documents: list[dict[str, Any]], recipe: ImageRecipe, made: Launch | None) -> str:
    """The documents as one YAML text, with a head that says where they come from, and what a launch decided."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Lines of a script as lines; no anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    Dumper.add_representer(str, text)
    origin = (
        f"Written by `envbuild image pods {recipe.stack}`: {recipe.stack}, profile {recipe.profile}, variant "
        f"{recipe.variant.id}"
    )
    lines = [comment(origin), comment(_UNTRIED), *(head(made) if made else ())]
    parts = [yaml.dump(document, Dumper=Dumper, sort_keys=False, width=120) for document in documents]
    return "\n".join(lines) + "\n---\n" + "---\n".join(parts)
