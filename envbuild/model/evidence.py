"""Evidence: what was observed, the only input of a report. The JSON schema in docs is generated from this."""

from __future__ import annotations

from typing import Any, Literal

from envbuild.model.common import Level, StrictModel
from envbuild.model.container import ImageEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.first_use import TrustedFile
from envbuild.model.resolution import Resolution

EVIDENCE_VERSION = "1.0"
CheckStatus = Literal["passed", "failed", "skipped", "not-run"]


class Metric(StrictModel):
    """A measured number with its sample: `n` values, median, least and greatest, in `unit`."""

    name: str
    unit: str
    n: int
    median: float
    least: float
    greatest: float
    floor: float | None = None


class Check(StrictModel):
    """One thing that was checked. A skipped check says why and is counted; `level` is how sure it is, where it matters.

    `not-checked` is for what a reader would take for granted: the headline names it.
    """

    name: str
    status: CheckStatus
    says: str
    seconds: float | None = None
    metrics: tuple[Metric, ...] = ()
    level: Level | None = None
    details: dict[str, Any] = {}


class NodeEvidence(StrictModel):
    """What was observed on one node. `drift` names at most 20 files (path and kind), `drift_count` counts all.

    `first_use` are files of its environment that nobody but a first user vouches for. `image`: what it runs instead
    of an environment of its own. `root_level`: `root` was measured in this run, or is what the stamp says.
    """

    node: str
    status: Literal["ok", "unchanged", "failed", "unreachable", "refused", "not-begun"]
    exit: int
    facts: NodeFacts | None = None
    resolution: Resolution | None = None
    environment: str | None = None
    variant_digest: str | None = None
    root: str | None = None
    root_level: Level | None = None
    packages: dict[str, str] = {}
    base_packages: dict[str, str] = {}
    sources: tuple[dict[str, Any], ...] = ()
    checks: tuple[Check, ...] = ()
    drift: tuple[dict[str, str], ...] = ()
    drift_count: int = 0
    first_use: tuple[TrustedFile, ...] = ()
    error: dict[str, Any] | None = None
    files: int | None = None
    bytes: int | None = None
    image: ImageEvidence | None = None


class Deviation(StrictModel):
    """Nodes whose environment is not the one that most have: `differs` says in what, in three lines at most."""

    nodes: tuple[str, ...]
    root: str | None = None
    differs: tuple[str, ...] = ()


class Equality(StrictModel):
    """Whether all nodes have one environment: the Merkle root that most have, on which nodes, and who deviates."""

    root: str
    nodes: tuple[str, ...]
    deviating: tuple[Deviation, ...] = ()


class Evidence(StrictModel):
    """One run: the document that `--json` prints and reports are rendered from."""

    schema_version: Literal["1.0"] = "1.0"
    envbuild: str
    verb: str
    run: str
    started: str
    finished: str
    stack: str
    profile: str
    target: str
    lock_digest: str
    exit: int
    command: tuple[str, ...] = ()
    nodes: tuple[NodeEvidence, ...]
    deviations: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    tools: dict[str, str] = {}
    ansible_tasks: int = 0
    phases: dict[str, float] = {}
    equality: Equality | None = None
