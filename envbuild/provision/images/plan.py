"""What has to be done so that every node runs one image. Pure: what nodes said and what is wanted in, a plan out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envbuild.container.run_options import Chosen, ContainerFacts, choose, launcher
from envbuild.container.verify_image import asked_of_image
from envbuild.errors import EnvbuildError
from envbuild.model.evidence import ImageEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import NodePlan, Plan, Resolution, Step
from envbuild.plan.node_steps import smoke_items, uses_cuda
from envbuild.provision.images.obtain import Obtained, Wanted, settings_of
from envbuild.provision.run.context import Prepared
from envbuild.text import plural

IMAGE = "{image}"
# The runtimes that run a file which all nodes of a job see, with its ending.
FILES = {"pyxis": "sqsh", "enroot": "sqsh", "apptainer": "sif"}


@dataclass(frozen=True)
class NodeImage:
    """One node: how it runs images, and what is in use there (`record`); `needs`: why that is not the wanted one.

    `has`: the runtime has the image of the record, so nothing has to be carried. `command` has IMAGE where the image is
    named.
    """

    chosen: Chosen
    command: tuple[str, ...]
    cuda: bool
    record: Mapping[str, Any] = field(default_factory=dict)
    has: bool = False
    needs: str = ""


def node_image(
    node: str, prepared: Prepared, image: Wanted, answer: Mapping[str, Any], facts: NodeFacts, *, repair: bool
) -> NodeImage:
    """Decide for one node. Raises what `choose` raises, `container-needs-registry` (exit 7)."""
    settings = settings_of(prepared)
    can = {name: bool(answer.get(name)) for name in ("cdi", "infiniband", "raises_limits", "root")}
    there = ContainerFacts(
        answer.get("runtimes") or {}, memlock=int(answer.get("memlock", -1)), gpus=len(facts.gpus), **can
    )
    chosen = choose(node, settings, there)
    if chosen.runtime in ("enroot", "pyxis") and settings.image is None and settings.registry is None:
        raise EnvbuildError(
            "container-needs-registry",
            "the nodes need an image from a registry",
            why=f"{chosen.runtime} on {node} takes images from registries alone",
            hint="write `registry:` or `image:` in `container:` of the target",
        )
    command = tuple(chosen.command(IMAGE))
    record: Mapping[str, Any] = answer.get("record") or {}
    has = bool(answer.get("present"))
    reasons = {
        "no image of this stack is in use there": not record,
        "--repair was given": repair,
        "the image in use was made from something else": record.get("key") != image.key,
        f"image {str(record.get('id'))[:12]} is no longer present in {record.get('runtime')}": not has,
        "it would be run with other options now": tuple(record.get("planned") or ()) != command,
        "the launcher is not there or was changed": not answer.get("launcher"),
    }
    needs = next((why for why, holds in reasons.items() if holds), "")
    cuda = settings.gpus != "none" and uses_cuda(image.variant, facts)
    return NodeImage(chosen, command, cuda, record, has, needs)


def expected_id(nodes: Mapping[str, NodeImage], known: str | None) -> str | None:
    """The id that all should have: the one known here, else the one that most of the good nodes have."""
    if known is not None:
        return known
    return most_common([str(node.record["id"]) for node in nodes.values() if not node.needs])


def most_common(ids: list[str]) -> str | None:
    """The id that most have, None where none has one."""
    return Counter(ids).most_common(1)[0][0] if ids else None


def todo(nodes: Mapping[str, NodeImage], wanted_id: str | None) -> dict[str, str]:
    """Node -> why something has to be done there."""
    reasons = {name: node.needs for name, node in nodes.items() if node.needs}
    for name, node in nodes.items():
        if not node.needs and wanted_id is not None and node.record["id"] != wanted_id:
            reasons[name] = f"it has the image {str(node.record['id'])[:12]}, the others have {wanted_id[:12]}"
    return reasons


def make_plan(
    prepared: Prepared, image: Wanted, nodes: Mapping[str, NodeImage], why: Mapping[str, str],
    resolutions: Mapping[str, Resolution], *, delivery: str,
) -> Plan:  # fmt: skip
    """The plan of a run. `delivery`: how the image gets to a node, as `load` or `pull`."""
    what = f"{delivery} {image.name}, compare its id, verify and smoke-test inside, write the launcher"

    def planned(name: str, node: NodeImage) -> NodePlan:
        words = f"with {node.chosen.runtime}: {what}"
        return NodePlan(
            node=name,
            environment=image.environment,
            variant_digest=image.variant.digest,
            python=None,
            steps=(Step(kind="container", what=words, why=why[name], seconds=60.0),) if name in why else (),
            resolution=resolutions[name],
        )

    # Each once, with how many nodes it is about.
    counted = Counter(text for node in nodes.values() for text in node.chosen.warnings)
    warnings = (*image.warnings, *(f"{text} (on {plural(count, 'node')})" for text, count in counted.items()))
    plan = Plan(
        stack=prepared.stack.name, profile=prepared.profile, target=prepared.target.name,
        nodes=tuple(planned(name, node) for name, node in nodes.items()),
        warnings=tuple(dict.fromkeys(warnings)),
    )  # fmt: skip
    return prepared.explained(plan)


def install_args(
    prepared: Prepared, image: Wanted, obtained: Obtained, node: NodeImage, answer: Mapping[str, Any],
    *, archive: str | None,
) -> dict[str, Any]:  # fmt: skip
    """What image and node say of the arguments of the verb `container`, action `install`."""
    settings, stack, runtime = settings_of(prepared), prepared.stack.name, node.chosen.runtime
    args: dict[str, Any] = {
        "action": "install",
        "stack": stack,
        "id": obtained.id,
        "name": image.name,
        "digest": obtained.digest,
        "runtime": runtime,
        "program": node.chosen.program,
        "runtime_version": (answer["runtimes"].get(runtime) or {}).get("version"),
        "key": image.key,
        "command": list(node.command),
        "planned": list(node.command),
        "inside": image.prefix,
        "environment": image.environment,
        "cuda": node.cuda,
        "launcher": launcher(stack, list(node.command)),
        "asks": {
            "verify": {**verify_args(prepared, image), "base": True},
            "smoke": {**smoke_args(prepared, image), "cuda": node.cuda},
        },
    }
    if archive is not None:
        args |= {"archive": archive, "sha256": obtained.sha256}
    elif obtained.pull is not None:
        args |= {"pull": obtained.pull, "insecure": settings.insecure}
    if runtime == "pyxis":
        args["maker"] = answer["runtimes"]["enroot"]["path"]
    return args


def verify_args(prepared: Prepared, image: Wanted) -> dict[str, Any]:
    """The arguments of `verify` inside an image."""
    return {"stack": prepared.stack.name, "limit": 20, **asked_of_image(image.environment, image.variant)}


def smoke_args(prepared: Prepared, image: Wanted) -> dict[str, Any]:
    """The arguments of `smoke` inside an image, all but `cuda`."""
    return {
        **asked_of_image(image.environment, image.variant),
        "items": smoke_items(image.variant, prepared.target),
        "tmp": "/tmp",  # noqa: S108 - in a container that lives as long as the test
    }


def image_evidence(record: Mapping[str, Any], launcher_path: str | None = None) -> ImageEvidence:
    """What a record, or the arguments of an install, say of the image."""
    return ImageEvidence(
        runtime=str(record["runtime"]),
        version=record.get("runtime_version"),
        id=str(record["id"]),
        name=str(record["name"]),
        digest=record.get("digest"),
        launcher=launcher_path or (record.get("launcher") or {}).get("path"),
    )
