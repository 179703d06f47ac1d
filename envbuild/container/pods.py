"""A stack's pods on Kubernetes, from what its document says they have: a StatefulSet and its headless service.

Each pod gets a name of its own in DNS; pod 0 is the master, and the others wait until it listens. Shared memory is a
volume in memory (Kubernetes gives 64 MiB otherwise), which counts against the memory limit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from envbuild.container.base_images import RESOURCE, Pods, parse_reference
from envbuild.container.recipe import ImageRecipe
from envbuild.container.runtime_stage import HOME, USER
from envbuild.errors import EnvbuildError

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_START = """\
set -eu
export NNODES={replicas} NODE_RANK="${{HOSTNAME##*-}}"
export MASTER_ADDR={name}-0.{name} MASTER_PORT={port}
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


def manifests(
    recipe: ImageRecipe, pods: Pods, *, image: str, name: str, command: Sequence[str], rdma: str | None = None
) -> list[dict[str, Any]]:
    """The service and the StatefulSet.

    Raises EnvbuildError `name-unusable` for what cannot be a DNS name or a resource, `image-reference` (both exit 2).
    """
    if not _NAME.fullmatch(name):
        raise EnvbuildError("name-unusable", f"{name!r} cannot name a service", hint="letters, digits and `-`")
    if rdma is not None and not re.fullmatch(RESOURCE, rdma):
        hint = "as `kubectl describe node` lists it: rdma/hca_shared_devices_a"
        raise EnvbuildError("name-unusable", f"{rdma!r} cannot name a resource of Kubernetes", hint=hint)
    parse_reference(image)
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "envbuild"}
    about = {
        "envbuild.dev/stack": recipe.stack,
        "envbuild.dev/profile": recipe.profile,
        "envbuild.dev/lock": f"sha256:{recipe.variant.digest}",
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "clusterIP": "None",
            # Ranks look for each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {"app.kubernetes.io/name": name},
            "ports": [{"name": "master", "port": pods.port}],
        },
    }
    stateful = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "labels": labels, "annotations": about},
        "spec": {
            "serviceName": name,
            "replicas": pods.replicas,
            # All at once: a worker waits for the master by itself.
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            "template": {
                "metadata": {"labels": labels, "annotations": about},
                "spec": _pod(pods, image, name, command, rdma or pods.rdma),
            },
        },
    }
    return [service, stateful]


def _pod(pods: Pods, image: str, name: str, command: Sequence[str], rdma: str | None) -> dict[str, Any]:
    limits: dict[str, Any] = {"cpu": str(pods.cpus), "memory": pods.memory, "ephemeral-storage": pods.disk}
    if pods.gpus:
        limits["nvidia.com/gpu"] = str(pods.gpus)
    if rdma:
        limits[rdma] = "1"
    script = _START.format(name=name, replicas=pods.replicas, port=pods.port)
    entry = ["/bin/sh", "-c", script, name]
    security: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    user: dict[str, Any] = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    if rdma:
        # RDMA pins memory, and Kubernetes has no limit of that to raise: pods have the limit of the node's container
        # runtime, by systemd's default 8 MiB. This goes past it, and programs have it as root alone.
        security["capabilities"]["add"] = ["IPC_LOCK"]
        user = {"runAsUser": 0, "runAsGroup": 0, "fsGroup": USER}
    return {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": name}},
                        "topologyKey": "kubernetes.io/hostname",
                    }
                ]
            }
        },
        "securityContext": user,
        "terminationGracePeriodSeconds": 30,
        "containers": [
            {
                "name": "train",
                "image": image,
                "command": entry,
                "args": list(command),
                "env": [{"name": "GPUS_PER_NODE", "value": str(pods.gpus)}, {"name": "HOME", "value": HOME}],
                "ports": [{"name": "master", "containerPort": pods.port}],
                "resources": {"limits": limits, "requests": limits},
                "securityContext": security,
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "home", "mountPath": HOME}],  # noqa: S108
            }
        ],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": pods.shm}},
            {"name": "home", "emptyDir": {"sizeLimit": pods.disk}},
        ],
    }


def render(documents: list[dict[str, Any]], recipe: ImageRecipe) -> str:
    """The documents as one YAML text, with a head that says where they come from."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Lines of a script as lines; no anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    Dumper.add_representer(str, text)
    head = (
        f"# Written by `envbuild image pods {recipe.stack}`: {recipe.stack}, profile {recipe.profile}, variant "
        f"{recipe.variant.id}\n"
    )
    parts = [yaml.dump(each, Dumper=Dumper, sort_keys=False, width=120) for each in documents]
    return head + "---\n" + "---\n".join(parts)
