"""What a run knows of images: asked, decided, planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from envbuild.errors import EnvbuildError, as_dicts
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import Plan
from envbuild.node import identity
from envbuild.provision.ansible.node_files import files_with
from envbuild.provision.contact.first_contact import ContactResult, node_request
from envbuild.provision.contact.toolchain import runner_tools
from envbuild.provision.images import plan as container_plan
from envbuild.provision.images.obtain import Obtained, Wanted, known_id, settings_of
from envbuild.provision.images.plan import NodeImage
from envbuild.provision.run.context import Work
from envbuild.provision.run.journal import EventKind
from envbuild.provision.run.outcome import NodeFiles, tmp_folder
from envbuild.provision.survey.ask import decide, refusal


@dataclass
class Images:
    """What a run about an image knows; `told` is each node's answer, `why` the nodes that something is done on.

    `login`: what the login host of jobs said.
    """

    wanted: Wanted
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodes: dict[str, NodeImage] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    used: dict[str, dict[str, Any]] = field(default_factory=dict)
    built: bool = False
    login: dict[str, Any] = field(default_factory=dict)


def decide_images(work: Work, images: Images) -> None:
    """Decide for every node that has told: how it runs the image, and why it needs one."""
    survey = work.survey
    # The rules of drivers and GPUs are about the variant that the image is of.
    meant = work.prepared.choice._replace(variant=images.wanted.variant.id)
    decide(work.prepared._replace(choice=meant), survey, list(survey.facts))
    for node, facts in survey.facts.items():
        resolution = survey.resolutions[node]
        try:
            if resolution.refused:
                raise refusal(resolution)
            images.nodes[node] = container_plan.node_image(
                node, work.prepared, images.wanted, images.told[node]["containers"], facts, repair=work.settings.repair
            )
        except EnvbuildError as error:
            survey.errors[node] = error
    work.journal.append(EventKind.CONTACTED, nodes=sorted(survey.facts), errors=as_dicts(survey.errors))
    images.why = container_plan.todo(images.nodes, container_plan.expected_id(images.nodes, known_id(images.wanted)))


def planned(work: Work, images: Images) -> Plan:
    """The plan from what is known now, written into the run directory."""
    settings = settings_of(work.prepared)
    delivery = "pull" if settings.image or settings.registry else _BROUGHT[settings.build]
    given = (work.prepared, images.wanted, images.nodes, images.why, work.survey.resolutions)
    return work.planned(container_plan.make_plan(*given, delivery=delivery))


def look_request(work: Work, node: str | None = None) -> dict[str, Any]:
    """What asks a node about containers; None: a node of a job, which says its own name."""
    args = {"action": "look", "node": node, "stack": work.prepared.stack.name}
    return node_request("container", work.prepared.target.prefix, args, work.run.id)


def args_of(work: Work, images: Images, node: str, got: Obtained, archive: str | None) -> dict[str, Any]:
    """The arguments of `install` on a node, which are those of `take`, `try` and `accept` in jobs too."""
    facts = images.told[node]["facts"]
    made = container_plan.install_args(
        work.prepared, images.wanted, got, images.nodes[node], images.told[node]["containers"], archive=archive,
        controller=identity.here(), wait=work.settings.wait, force=work.settings.repair,
    )  # fmt: skip
    return {**made, "tmp": tmp_folder(work.prepared.target.tmp, facts["user"], facts.get("home", ""))}


def told_of(answer: ContactResult) -> dict[str, Any]:
    """The answer of a node. Raises `node-without-python` (exit 7) with what helps here."""
    if answer.bare:
        raise EnvbuildError(
            "node-without-python",
            f"{answer.node} has no Python 3.6 or newer",
            why="Ansible and the node program run on the node, outside of the image",
            hint="install Python there; with `engine: container` envbuild brings none to a node that has none at all",
            details={"node": answer.node},
        )
    return answer.result()


def no_room(node: str, facts: NodeFacts, size: int) -> EnvbuildError | None:
    """An error where the file of an image cannot even be put down; the runtime's own storage tells for itself."""
    free = facts.prefix.free_bytes
    if free is None or free >= size:
        return None
    return EnvbuildError(
        "disk-full",
        f"{node}: no room for the image in {facts.prefix.path}",
        why=f"it has {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free",
        hint="make room, or name a larger disk as `prefix`; then run the same command again",
        details={"node": node},
    )


def files_for(work: Work, facts: NodeFacts, python: Mapping[str, str], got: Obtained | None, store: str) -> NodeFiles:
    """What is carried to a node: missing tools, and the file of the image into `store`."""
    tools = runner_tools(
        facts, python["path"], python["version"], folder=work.run.staging, toolchain_file=work.settings.toolchain_file
    )
    return replace(files_with(work, facts, tools, tools.tools), image=got.archive if got else None, store=store)


_BROUGHT = {"here": "take in", "job": "build in a job"}
