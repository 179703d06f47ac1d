"""What a run was asked, as it was agreed, and what it found on the nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from envbuild.errors import EnvbuildError
from envbuild.lock.agreement import asked
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock, Variant
from envbuild.model.plan import NodePlan, Plan
from envbuild.model.resolution import Resolution
from envbuild.model.stack import Stack
from envbuild.model.target import Target
from envbuild.text import plural

if TYPE_CHECKING:
    from envbuild.provision.contact.first_contact import ContactResult
    from envbuild.resolve.reachability import Supply


class Narrowing(NamedTuple):
    """What `--limit` and `--exclude` say: host lists as clusters write them."""

    limit: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """The options that were given."""
        return ("--limit",) * bool(self.limit) + ("--exclude",) * bool(self.exclude)


class Selection(NamedTuple):
    """Which of a target's hosts are meant: `chosen` of `total`, by these options (`--limit`, `--exclude`)."""

    chosen: int
    total: int
    by: tuple[str, ...]

    def __str__(self) -> str:
        """`3 of 8 nodes, by --limit`."""
        return f"{self.chosen} of {plural(self.total, 'node')}, by {' and '.join(self.by)}"

    def as_dict(self) -> dict[str, Any]:
        """The same for `--json`."""
        return {"nodes": self.chosen, "of": self.total, "by": list(self.by)}


class Choice(NamedTuple):
    """What the user asked for; None leaves it to target, stack and rules."""

    target: str
    stack: str | None = None
    profile: str | None = None
    prefix: str | None = None
    variant: str | None = None
    interpreter: str | None = None
    base: str | None = None
    engine: str | None = None
    cache: str | None = None
    hosts: tuple[str, ...] = ()
    trust_environment: bool = True
    narrowing: Narrowing = Narrowing()


class Prepared(NamedTuple):
    """A stack, its profile, a target and the lock that belongs to them.

    `lock_digest` is sha256 (hex) of the lock file as it is. `selection`: the target's hosts are these of more.
    `reference`: the stack as a loader finds it, a shipped name or a path. `profile_why`: why this profile, where
    nobody asked for it and it is not the stack's default.
    """

    stack: Stack
    profile: str
    target: Target
    lock: Lock
    lock_file: Path
    lock_digest: str
    choice: Choice
    selection: Selection | None = None
    reference: str = ""
    profile_why: str = ""

    @property
    def asked(self) -> tuple[str, ...]:
        """The packages that the lock has for themselves."""
        return asked(self.lock, self.stack.profiles[self.profile])

    @property
    def channels(self) -> dict[str, tuple[str, ...]]:
        """Where the conda channels of the profile lie; empty where nothing in the lock comes from one."""
        spec = self.stack.profiles[self.profile].conda
        if spec is None or not any(variant.conda and variant.conda.packages for variant in self.lock.variants):
            return {}
        from envbuild.conda.channels import addresses

        return addresses(spec)

    @property
    def limits(self) -> tuple[str, ...]:
        """What the environments of the profile cannot do, in a sentence; nothing where they run the benchmark."""
        runs = self.stack.profiles[self.profile].runs
        if runs == "benchmark":
            return ()
        return (f"the profile {self.profile} says `runs: {runs}`: `launch`, `bench` and `strategy` refuse it",)

    def explained(self, plan: Plan) -> Plan:
        """The plan with what its profile cannot do, and why it was taken and differs where nobody asked for it."""
        deviations = self.stack.profiles[self.profile].deviations if self.profile_why else ()
        warnings = (*self.limits, *(f"{self.profile}: {text}" for text in deviations), *plan.warnings)
        return plan.model_copy(update={"profile_why": self.profile_why, "warnings": warnings})


@dataclass
class Survey:
    """Per node: facts, resolution, the variant as it will be built, or the error that ended it.

    `kept` are nodes whose environment in use needs nothing; they have no resolution of their own. `supply`: what this
    machine could deliver, asked where a node does not reach all it needs.
    """

    facts: dict[str, NodeFacts] = field(default_factory=dict)
    resolutions: dict[str, Resolution] = field(default_factory=dict)
    variants: dict[str, Variant] = field(default_factory=dict)
    contacts: dict[str, ContactResult] = field(default_factory=dict)
    kept: dict[str, NodePlan] = field(default_factory=dict)
    errors: dict[str, EnvbuildError] = field(default_factory=dict)
    supply: Supply | None = None

    def take(self, node: str, answer: ContactResult) -> None:
        """What a node answered to a probe; of one that has no Python, only that it answered.

        The name is that of the run, which people know: hostnames may be equal or long.
        """
        if answer.error is None:
            self.contacts[node] = answer
        if answer.bare:
            return
        try:
            self.facts[node] = NodeFacts.from_plain(answer.result()).model_copy(update={"node": node})
        except EnvbuildError as error:
            self.errors[node] = error

    def add(self, other: Survey) -> None:
        """Take over what another one knows."""
        for part in ("facts", "resolutions", "variants", "contacts", "kept", "errors"):
            getattr(self, part).update(getattr(other, part))
        self.supply = other.supply or self.supply

    @property
    def without_python(self) -> list[str]:
        """Nodes that answered, but have no Python that could run the node program."""
        return [node for node, answer in self.contacts.items() if answer.bare]
