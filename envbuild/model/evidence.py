"""Evidence: what was observed, the only input of a report. The JSON schema in docs is generated from this."""

import hashlib
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from envbuild.errors import ExitCode, gravest
from envbuild.model.common import Level, RelPath, Sha256, StrictModel
from envbuild.model.container import ImageEvidence
from envbuild.model.facts import NodeFacts
from envbuild.model.finding import Severity
from envbuild.model.first_use import TrustedFile
from envbuild.model.resolution import Resolution

EVIDENCE_VERSION = "2.0"
_RUN = r"^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}$"
CheckStatus = Literal["passed", "failed", "skipped", "not-run"]


class Metric(StrictModel):
    """A measured number with its sample: `n` values, median, least and greatest, in `unit`.

    `floor` is the least that the median must be, `lower_is_better` whether less is more: a time, not a rate.
    """

    name: str
    unit: str
    n: int
    median: float
    least: float
    greatest: float
    floor: float | None = None
    lower_is_better: bool = False


class Comparison(StrictModel):
    """A measured figure beside what a document claims for the same run; `claim` is None where it claims nothing.

    Values are in `unit`; `percent` is measured of claimed. `share` and `claim_share` are the percent of one GPU's dense
    peak, where the unit is a peak's and the GPU is known. `gpu` and `claim_gpu` with their numbers: on what; None:
    none, or not known. `reproduced` is no less than the claim, however far above it; `why` says that.
    """

    measured: float
    unit: str
    gpus: int
    gpu: str | None = None
    share: float | None = None
    claim: float | None = None
    where: str | None = None
    source: str | None = None
    claim_gpus: int | None = None
    claim_gpu: str | None = None
    claim_share: float | None = None
    percent: float | None = None
    verdict: Literal["reproduced", "below", "not-comparable", "no-claim"]
    why: str


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
    comparison: Comparison | None = None
    details: dict[str, Any] = {}


class NodeLog(StrictModel):
    """What the node program wrote down on a node while this run changed it: where it lies there, and its digest."""

    file: str
    bytes: int
    sha256: Sha256


class StepTime(StrictModel):
    """A step of the run on a node, as the journal has it: `began` seconds after the run did.

    `seconds`: how long it took, None where it did not end; `parts`: seconds by phase, where the node told them.
    """

    name: str
    status: str
    began: Annotated[float, Field(ge=0)]
    seconds: Annotated[float, Field(ge=0)] | None = None
    parts: dict[str, float] = {}


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
    log: NodeLog | None = None
    steps: tuple[StepTime, ...] = ()


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


class PackageFile(StrictModel):
    """The file of a locked package that fits the nodes of a variant; an installer that is given hashes takes no other.

    `sha256` as locked, `index` the *name* of the index that has it; of conda's, of the channel, and where it is in it.
    """

    name: str
    version: str
    file: str
    sha256: str
    index: str
    kind: Literal["pip", "conda"] = "pip"
    subdir: str | None = None
    build: str | None = None


class BuiltVariant(StrictModel):
    """A variant that nodes of the run have, `id` as in the lock, with its package files. The whole one is attached."""

    id: str
    digest: Sha256
    packages: tuple[PackageFile, ...] = ()


class Attachment(StrictModel):
    """A file that belongs to the evidence and lies beside it, `path` below the folder of `evidence.json`.

    `sha256` is over its first `bytes` bytes: the journal is closed after the evidence. `of`: the digest of a variant,
    or the Merkle root that a list of files gives.
    """

    kind: Literal["lock", "profile", "variant", "files", "plan", "journal"]
    path: RelPath
    sha256: Sha256
    bytes: Annotated[int, Field(ge=0)]
    of: Sha256 | None = None


def attachment(kind: str, path: str, data: bytes, of: str | None) -> Attachment:
    """The row of a file with these contents."""
    plain = {"kind": kind, "path": path, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "of": of}
    return Attachment.from_plain(plain)


class StackFinding(StrictModel):
    """What is wrong with the document that the stack was made from, and what envbuild does instead."""

    id: str
    severity: Severity
    truth: str
    does: str


class Evidence(StrictModel):
    """One run: the document that `--json` prints and reports are rendered from.

    `steps_run`: steps that were carried out on all nodes together; `phases`: seconds by phase.
    """

    schema_version: Literal["2.0"] = "2.0"
    envbuild: str
    verb: str
    run: Annotated[str, Field(pattern=_RUN)]
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
    steps_run: int = 0
    phases: dict[str, float] = {}
    equality: Equality | None = None
    variants: tuple[BuiltVariant, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    findings: tuple[StackFinding, ...] = ()

    @classmethod
    def is_run(cls, name: str) -> bool:
        """Whether a name is the id of a run."""
        return re.fullmatch(_RUN, name) is not None

    @model_validator(mode="after")
    def _is_one_run(self) -> Self:
        once = [node.node for node in self.nodes], [item.path for item in self.attachments]
        once = *once, [item.kind for item in self.attachments if item.kind not in ("variant", "files")]
        for names in once:
            if len(set(names)) < len(names):
                raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is there twice")
        # What a page calls the command that repeats the run is copied into a shell.
        if self.command and self.command[0] != "envbuild":
            raise ValueError("command: must begin with `envbuild`")
        return self


def checks_exit(checks: Iterable[Check]) -> ExitCode:
    """A floor that was missed is its own exit code; any other failed check is 1."""
    codes = [
        ExitCode.BELOW_FLOOR if check.details.get("only_floors") else ExitCode.CHECK_FAILED
        for check in checks
        if check.status == "failed"
    ]
    return gravest(codes)


def run_exit(nodes: Iterable[NodeEvidence]) -> ExitCode:
    """The exit code of a run: the gravest, and `PARTIAL` among them when some nodes are good and some are not."""
    codes = [node.exit for node in nodes]
    if any(codes) and not all(codes):
        codes.append(ExitCode.PARTIAL)
    return gravest(codes)
