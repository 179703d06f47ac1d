"""What the rules decide on a node, and a plan: what will run where, and why. Nothing to do is a plan too."""

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from pydantic import computed_field

from envbuild.errors import EnvbuildError
from envbuild.model.common import NodeName, Public, StrictModel

Verdict = Literal["allow", "patch", "warn", "refuse"]
StepKind = Literal["toolchain", "deliver", "install", "smoke", "activate", "container"]


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
    its compiler. `gcc`: the path of the host compiler if it is not the default. `delivery`: who fetches for it.
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


class Step(StrictModel):
    """One step on one node.

    `request`: the JSON for the node program's stdin (None for other steps). `fetch_bytes`: from the network.
    `disk_bytes` and `inodes`: what stays. `beside_bytes`: further space while the step runs. `seconds`: a rough
    estimate for time limits of jobs. `before`: what this host needed for the step before (None: not measured).
    `unsized`: parts without a recorded size, which are not counted. `rough`: some bytes on disk are estimates.
    """

    kind: StepKind
    what: str
    why: str
    request: dict[str, Any] | None = None
    fetch_bytes: int = 0
    disk_bytes: int = 0
    beside_bytes: int = 0
    inodes: int = 0
    seconds: float = 0.0
    before: float | None = None
    unsized: tuple[str, ...] = ()
    rough: bool = False


class NodePlan(StrictModel):
    """The steps of one node; none if its environment is complete and current."""

    node: str
    environment: str
    variant_digest: str
    python: str | None
    steps: tuple[Step, ...]
    resolution: Resolution

    @property
    def nothing_to_do(self) -> bool:
        """True when the stamp matches and the link points at it."""
        return not self.steps

    @computed_field  # type: ignore[prop-decorator]
    @property
    def lasting_bytes(self) -> int:
        """What the steps leave on the disk."""
        return sum(step.disk_bytes for step in self.steps)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def peak_bytes(self) -> int:
        """The most disk space that the steps use at once."""
        lasting = accumulate(step.disk_bytes for step in self.steps)
        return max((bytes_ + step.beside_bytes for bytes_, step in zip(lasting, self.steps, strict=True)), default=0)


class BuildClass(StrictModel):
    """Nodes that wait until `builder` has built for them, or take what it has from an earlier run (`finished`).

    `nodes` take its wheels of `sources` (names). Without `sources`, they share a prefix with it, and test the
    environment that it builds there.
    """

    builder: str
    nodes: tuple[str, ...]
    sources: tuple[str, ...] = ()
    finished: bool = False


class Plan(StrictModel):
    """All nodes of one run; warnings are those of the decisions plus what the plan itself noticed.

    `profile_why` says why this profile, where nobody asked for it and it is not the stack's default.
    `builds`: who builds for whom.
    """

    stack: str
    profile: str
    target: str
    nodes: tuple[NodePlan, ...]
    profile_why: str = ""
    warnings: tuple[str, ...] = ()
    builds: tuple[BuildClass, ...] = ()

    @property
    def nothing_to_do(self) -> bool:
        """True when no node has a step."""
        return all(node.nothing_to_do for node in self.nodes)


@dataclass(frozen=True)
class Share:
    """A number of nodes, or a percentage of all."""

    number: int
    percent: bool = False

    def of(self, total: int) -> int:
        """The number of nodes out of `total`, rounded down."""
        return total * self.number // 100 if self.percent else min(self.number, total)


def parse_share(text: str, option: str, *, least: int) -> Share:
    """`4` or `25%` of an option. Raises EnvbuildError `share-invalid` (exit 2) for anything else, or below `least`."""
    match = re.fullmatch(r"([0-9]{1,6})(%?)", text.strip())
    share = Share(int(match.group(1)), bool(match.group(2))) if match else None
    if share is None or share.number < least or (share.percent and share.number > 100):
        raise EnvbuildError(
            "share-invalid",
            f"invalid value for {option}: {text}",
            why=f"it has to be a number from {least}, or a percentage from {least}% to 100%",
            hint=f"`{option} 4` or `{option} 25%`",
        )
    return share


@dataclass(frozen=True)
class Batches:
    """`size`: nodes of one wave (None: all). `most`: how many nodes may fail (None: any number)."""

    size: Share | None = None
    most: Share | None = None

    def waves(self, nodes: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The nodes in waves, in their order; a wave has one node at least."""
        size = max(1, self.size.of(len(nodes))) if self.size is not None else max(1, len(nodes))
        return [nodes[begin : begin + size] for begin in range(0, len(nodes), size)]

    def spent(self, failed: int, total: int) -> bool:
        """Whether more nodes have failed than allowed."""
        return self.most is not None and failed > self.most.of(total)
