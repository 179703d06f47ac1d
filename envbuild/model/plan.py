"""A plan: what will run where, and why. Nothing to do is a plan too."""

from itertools import accumulate
from typing import Any, Literal

from pydantic import computed_field

from envbuild.model.common import StrictModel
from envbuild.model.resolution import Resolution

StepKind = Literal["toolchain", "deliver", "install", "smoke", "activate", "container"]


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
    """Nodes for which `sources` (names) are compiled once, because the same wheels fit all `nodes`.

    `donor`: a node that already has the wheels. Otherwise the first of `builders` builds before the others begin, and
    the second if the first fails; both are among `nodes`.
    """

    sources: tuple[str, ...]
    nodes: tuple[str, ...]
    builders: tuple[str, ...] = ()
    donor: str | None = None


class SpreadClass(StrictModel):
    """Nodes that share a prefix: `builder` builds the environment or has it (`finished`); `nodes`, if any, test it."""

    environment: str
    builder: str
    nodes: tuple[str, ...]
    finished: bool = False


class Plan(StrictModel):
    """All nodes of one run; warnings are those of the decisions plus what the plan itself noticed.

    `profile_why` says why this profile, where nobody asked for it and it is not the stack's default.
    `builds` are the nodes that do not each compile for themselves, `spreads` those that share a prefix.
    """

    stack: str
    profile: str
    target: str
    nodes: tuple[NodePlan, ...]
    profile_why: str = ""
    warnings: tuple[str, ...] = ()
    builds: tuple[BuildClass, ...] = ()
    spreads: tuple[SpreadClass, ...] = ()

    @property
    def nothing_to_do(self) -> bool:
        """True when no node has a step."""
        return all(node.nothing_to_do for node in self.nodes)
