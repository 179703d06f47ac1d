"""One image on the nodes of a target, however they are reached."""

from __future__ import annotations

from envbuild.model.evidence import NodeEvidence
from envbuild.model.plan import Plan
from envbuild.provision.images.provision import ask_images, asks_of, carry_out_images, look_and_plan_images
from envbuild.provision.images.state import Images
from envbuild.provision.run.context import Question, Work


class InImages:
    """Every node runs one image; `look_and_plan` comes before `carry_out`."""

    def __init__(self) -> None:
        """Nothing is known of images yet."""
        self._images: Images | None = None

    def look_and_plan(self, work: Work, *, bring_python: bool) -> Plan:
        """Ask every node once, decide for each, and plan."""
        plan, self._images = look_and_plan_images(work)
        return plan

    def carry_out(self, work: Work, plan: Plan) -> tuple[Plan, list[NodeEvidence]]:
        """Get the image and bring it to the nodes that need it."""
        if self._images is None:
            raise ValueError("nothing was planned")
        return carry_out_images(work, plan, self._images)

    def ask(self, work: Work, question: Question) -> list[NodeEvidence]:
        """Inside the image that each node runs; `verify` is always deep there, for starting it costs the most."""
        return ask_images(work, question.verb, asks_of(work, question.verb))
