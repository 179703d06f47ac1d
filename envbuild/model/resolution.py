"""A resolution: what was decided for one node, each decision with its rule and both compared values."""

from typing import Literal

from envbuild.model.common import NodeName, Public, StrictModel

Verdict = Literal["allow", "patch", "warn", "refuse"]


class Decision(StrictModel):
    """One rule applied once. `compared` are the two values as text.

    `source`: where the rule's knowledge comes from, `verified`: how far its data were checked; one short line each (the
    catalog has the whole notes). `instead`: the nearest thing that would work, for a refusal. `torch`: the nearest
    build of torch in the data, in a profile or not.
    """

    rule: Public[str]
    verdict: Public[Verdict]
    what: str
    compared: tuple[str, str] | None = None
    source: Public[str] = ""
    verified: Public[str] = ""
    instead: str | None = None
    torch: str | None = None

    @property
    def alternatives(self) -> str:
        """Everything that would work; empty if nothing is known."""
        return " or ".join(filter(None, (self.instead, self.torch)))


class Candidate(StrictModel):
    """One lock variant that was considered, with its decisions; refused candidates keep theirs."""

    variant_id: Public[str]
    chosen: Public[bool]
    decisions: Public[tuple[Decision, ...]]


class DeliveryChoice(StrictModel):
    """Who fetches the files and sources of one node, and why; `why` may be empty."""

    by: Public[Literal["node", "controller"]] = "node"
    why: str = ""


class Resolution(StrictModel):
    """The outcome for one node: the variant to build, the interpreter to build it with, and for which GPUs.

    `arch_list`: what CUDA code of the sources is compiled for; None: nothing, or the stack says it. `nvcc`: the path of
    its compiler. `gcc`: the path of the host compiler if it is not the default. `wheels_from`: the node that compiles
    for this one, which cannot. `delivery`: who fetches for it.
    """

    node: NodeName
    stack: Public[str]
    profile: Public[str]
    variant_id: Public[str | None] = None
    variant_digest: Public[str | None] = None
    interpreter: str | None = None
    arch_list: Public[tuple[str, ...] | None] = None
    nvcc: str | None = None
    gcc: str | None = None
    wheels_from: NodeName | None = None
    delivery: Public[DeliveryChoice] = DeliveryChoice()
    decisions: Public[tuple[Decision, ...]]
    candidates: Public[tuple[Candidate, ...]]

    @property
    def refused(self) -> bool:
        """True when nothing fits."""
        return self.variant_id is None

    @property
    def nearest(self) -> str | None:
        """The variant that the refusals are about, None when one was chosen or none was considered."""
        if not self.refused or not self.candidates:
            return None
        return max(self.candidates, key=lambda one: sum(d in self.decisions for d in one.decisions)).variant_id
