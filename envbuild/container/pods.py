"""A run or command as pods on Kubernetes: an Indexed Job with a headless service, a PyTorchJob or a JobSet.

Each pod has a name in DNS; pod 0 is the master, and the others wait until it listens. Nothing is started twice: a run
that ends, ends the Job. Shared memory is a volume in memory (Kubernetes gives 64 MiB otherwise), which counts against
the memory limit. No cluster has run any of this; the tests compare it with the schemas of Kubernetes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, ValidationError

from envbuild.container.base_images import RESOURCE, Pods, Quantity, parse_reference
from envbuild.container.recipe import ImageRecipe
from envbuild.container.runtime_stage import HOME, USER
from envbuild.errors import EnvbuildError
from envbuild.launch.shell import head, steps_of
from envbuild.model.common import SettableName, StrictModel, Text, without_secrets
from envbuild.resolve.compat import rows_like
from envbuild.resolve.compat_read import load_compat
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
    environment: Annotated[Mapping[SettableName, Text], AfterValidator(without_secrets)] = {}

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
    rows = rows_like(expected, load_compat())
    # The brand was Tesla up to Turing.
    return tuple(f"{'Tesla' if gpu.capability < (8,) else 'NVIDIA'} {gpu.name}" for gpu in rows)


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
    import jinja2
    import yaml

    limits = {
        "cpu": str(request.cpus or ""),
        "memory": request.memory,
        "ephemeral-storage": request.disk,
        "nvidia.com/gpu": str(request.gpus or ""),
        **({request.rdma: "1"} if request.rdma else {}),
    }
    selector, products = _where(request)
    tolerations = [*(["nvidia.com/gpu:NoSchedule"] if request.gpus else []), *request.tolerations]
    templates = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False)  # noqa: S701
    templates.filters["quoted"] = lambda value: yaml.safe_dump(
        value, default_style='"', default_flow_style=True, width=math.inf, sort_keys=False
    ).strip()
    text = (resources.files("envbuild.container") / "pods.yaml.j2").read_text(encoding="utf-8")
    rendered = templates.from_string(text).render(
        recipe=recipe,
        request=request,
        kind=KINDS[request.kind],
        user=USER,
        home=HOME,
        data=DATA,
        arguments=_literal(command),
        variables=[{"name": key, "value": value} for key, value in _variables(request).items()],
        limits={key: value for key, value in limits.items() if value},
        selector=selector,
        products=products,
        tolerations=[_toleration(text) for text in tolerations],
        claims={use: getattr(request, use) or f"{request.name}-{use}" for use in ("home", "data")},
    )
    return list(yaml.safe_load_all(rendered))


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


def _where(request: PodRequest) -> tuple[dict[str, str], list[str]]:
    """The labels of the nodes, and NVIDIA's label of their GPUs where several are wanted that fit one name."""
    product = "nvidia.com/gpu.product"
    selector = dict(pair.split("=", 1) for pair in request.node_selector)
    # The label has the name that nvidia-smi prints, with `-` for each space.
    labels = [request.gpu_product] if request.gpu_product else [text.replace(" ", "-") for text in request.gpu_names]
    if request.gpus and len(labels) == 1:
        selector.setdefault(product, labels[0])
    return selector, labels if request.gpus and product not in selector else []


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
