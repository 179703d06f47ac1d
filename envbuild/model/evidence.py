"""Evidence: what was observed, the only input of a report. The JSON schema in docs is generated from this."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from envbuild.errors import ExitCode, gravest
from envbuild.model.common import Level, NodeName, NodeNames, Public, RelPath, Sha256, StrictModel
from envbuild.model.facts import NodeFacts
from envbuild.model.finding import Severity
from envbuild.model.plan import Resolution
from envbuild.node.merkle import root_of
from envbuild.node.protocol import RUN

Files = Mapping[str, Sequence[Any]]
# An environment of 100,000 files has a list of 16 MB.
LIMIT = 64 * 1024 * 1024
_DIGEST = re.compile(r"(?:[0-9a-f]{64})?\Z")
_TAG = re.compile(r"[a-z]{1,16}\Z")  # how a file was hashed, as node/merkle.py says
_GZIP = 16 + zlib.MAX_WBITS
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


def pack(files: Files) -> bytes:
    """The list as gzip of JSON, in columns (path, tag, sha256, ...); equal lists give equal bytes."""
    # Most of it are digests, in which nothing repeats; paths do, and by themselves pack better. zlib's filtered
    # strategy takes a tenth off.
    stream = zlib.compressobj(9, zlib.DEFLATED, _GZIP, 9, zlib.Z_FILTERED)
    columns = zip(*((path, *row) for path, row in sorted(files.items())), strict=True)
    text = json.dumps(list(columns), separators=(",", ":")).encode()
    return stream.compress(text) + stream.flush()


def unpack(data: bytes) -> Files:
    """The list, from what `pack` made or from a node's rows. Raises ValueError if it is neither, or is above 64 MiB."""
    try:
        rows: Any = json.loads(text(data))
        if isinstance(rows, list):
            rows = {path: row for path, *row in zip(*rows, strict=True)}
    except (RecursionError, TypeError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(rows, dict) or not all(isinstance(path, str) and _is_row(rows[path]) for path in rows):
        raise ValueError("not a list of files")
    return rows


def text(data: bytes) -> bytes:
    """The JSON of a packed list. Raises ValueError if it is not one whole gzip stream, or is larger than 64 MiB."""
    stream = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        contents = stream.decompress(data, LIMIT)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not stream.eof or stream.unused_data:
        raise ValueError(f"not one whole stream of at most {LIMIT} bytes")
    return contents


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 4:
        return False
    tag, digest, size, executable = row
    if not (isinstance(tag, str) and isinstance(digest, str)):
        return False
    named = _TAG.match(tag) is not None and _DIGEST.match(digest) is not None
    return named and {type(size), type(executable)} <= {int, bool}


def root(files: Files) -> str:
    """The Merkle root (sha256, hex) of the list."""
    return root_of(dict(files))  # type: ignore[arg-type]


EVIDENCE_VERSION = "2.0"
_RUN = f"^{RUN}$"
# Keys of free-form data that a published report keeps: `a.b` is `b` in `a`, `*` any letters.
_DETAILS: JsonValue = [
    "losses", "loss_first", "loss_last", "step_seconds", "first_step_seconds", "shape", "values", "python", "torch",
    "only", "only_floors", "open", "unimported", "code_changed", "failed_at", "read_at", "differed", "built_in", "size",
    "cpu_size", "bytes", "gpu_names", "gpu*_tflops", "*_gbps", "launch.model", "launch.nodes", "launch.gpus_per_node",
    "launch.degrees",
]  # fmt: skip
_SOURCE: JsonValue = [
    "name", "git", "commit", "tree", "bundle", "install", "generated", "compiled", "patches.name", "patches.digest",
    "patches.hits", "patches.changed", "patches.diff", "patches.files.path", "patches.files.hits", "build.from",
    "build.seconds", "build.jobs", "build.extensions", "build.arch.wanted", "build.arch.found", "build.arch.how",
    "build.route", "build.key", "build.sha256",
]  # fmt: skip
# Fixed texts of checks that a published report keeps: they name no machine and no path (node/smoke/only.py).
_SAYS: JsonValue = {
    "pattern": r"no usable GPU here: (the stack's own training script was not run"
    r"|nothing ran on CUDA, though torch is built for CUDA [0-9.]{1,9})"
    r"|nothing was computed, torch was imported only \(smoke: sound alone\)"
    r"|the rest of the smoke test, as only [a-z0-9/, -]{1,200} was asked for"
    r"|no source lies in this environment as code|no compiled extension that is known here is installed"
}
CheckStatus = Literal["passed", "failed", "skipped", "not-run"]


class Metric(StrictModel):
    """A measured number with its sample: `n` values, median, least and greatest, in `unit`.

    `floor` is the least that the median must be, `lower_is_better` whether less is more: a time, not a rate.
    """

    name: Public[str]
    unit: Public[str]
    n: Public[int]
    median: Public[float]
    least: Public[float]
    greatest: Public[float]
    floor: Public[float | None] = None
    lower_is_better: Public[bool] = False


class Comparison(StrictModel):
    """A measured figure beside what a document claims for the same run; `claim` is None where it claims nothing.

    Values are in `unit`; `percent` is measured of claimed. `share` and `claim_share` are the percent of one GPU's dense
    peak, where the unit is a peak's and the GPU is known. `gpu` and `claim_gpu` with their numbers: on what; None:
    none, or not known. `reproduced` is no less than the claim, however far above it; `why` says that.
    """

    measured: Public[float]
    unit: Public[str]
    gpus: Public[int]
    gpu: Public[str | None] = None
    share: Public[float | None] = None
    claim: Public[float | None] = None
    where: Public[str | None] = None
    source: Public[str | None] = None
    claim_gpus: Public[int | None] = None
    claim_gpu: Public[str | None] = None
    claim_share: Public[float | None] = None
    percent: Public[float | None] = None
    verdict: Public[Literal["reproduced", "below", "not-comparable", "no-claim"]]
    why: Public[str]


class Check(StrictModel):
    """One thing that was checked. A skipped check says why and is counted; `level` is how sure it is, where it matters.

    `not-checked` is for what a reader would take for granted: the headline names it.
    """

    name: Public[str]
    status: Public[CheckStatus]
    says: Annotated[str, Field(json_schema_extra={"public": _SAYS})]
    seconds: Public[float | None] = None
    metrics: Public[tuple[Metric, ...]] = ()
    level: Public[Level | None] = None
    comparison: Public[Comparison | None] = None
    details: Annotated[dict[str, Any], Field(json_schema_extra={"public": _DETAILS})] = {}


class ImageEvidence(StrictModel):
    """The image that a node runs: `id` is the sha256 (hex) of its configuration, equal wherever it is the same image.

    `digest` is what a registry called it. `launcher`: the program on the node that runs a command inside.
    """

    runtime: Public[str]
    version: Public[str | None] = None
    id: Public[str]
    name: str
    digest: Public[str | None] = None
    launcher: str | None = None


class NodeLog(StrictModel):
    """The log that the node program wrote on a node in this run: its path on the node, and its digest."""

    file: str
    bytes: int
    sha256: Sha256


class StepTime(StrictModel):
    """A step of the run on a node, from the journal: `began` seconds after the run did.

    `seconds`: how long it took, None if it did not end; `parts`: seconds by phase, if the node reported them.
    """

    name: Public[str]
    status: Public[str]
    began: Public[Annotated[float, Field(ge=0)]]
    seconds: Public[Annotated[float, Field(ge=0)] | None] = None
    parts: Public[dict[str, float]] = {}


class NodeEvidence(StrictModel):
    """What was observed on one node. `drift` names at most 20 files (path and kind), `drift_count` counts all.

    `image`: what it runs instead of an environment of its own. `root_level`: `root` was measured in this run, or is
    what the stamp says.
    """

    node: NodeName
    status: Public[Literal["ok", "unchanged", "failed", "unreachable", "refused", "not-begun"]]
    exit: Public[int]
    facts: Public[NodeFacts | None] = None
    resolution: Public[Resolution | None] = None
    environment: str | None = None
    variant_digest: Public[str | None] = None
    root: Public[str | None] = None
    root_level: Public[Level | None] = None
    packages: Public[dict[str, str]] = {}
    base_packages: Public[dict[str, str]] = {}
    sources: Annotated[tuple[dict[str, Any], ...], Field(json_schema_extra={"public": _SOURCE})] = ()
    checks: Public[tuple[Check, ...]] = ()
    drift: tuple[dict[str, str], ...] = ()
    drift_count: Public[int] = 0
    error: Annotated[dict[str, Any] | None, Field(json_schema_extra={"public": ["code", "exit"]})] = None
    files: Public[int | None] = None
    bytes: Public[int | None] = None
    image: Public[ImageEvidence | None] = None
    log: NodeLog | None = None
    steps: Public[tuple[StepTime, ...]] = ()


class Deviation(StrictModel):
    """Nodes whose environment differs from that of most nodes; `differs` says how, in three lines at most."""

    nodes: NodeNames
    root: Public[str | None] = None
    differs: tuple[str, ...] = ()


class Equality(StrictModel):
    """Whether all nodes have one environment: the Merkle root of most nodes, which nodes have it, and which deviate.

    `python`: the full version of their interpreter, which is part of the contents; None if no check read it.
    """

    root: Public[str]
    python: Public[str | None] = None
    nodes: NodeNames
    deviating: Public[tuple[Deviation, ...]] = ()


class PackageFile(StrictModel):
    """The file of a locked package that fits the nodes of a variant; an installer with hashes accepts no other.

    `sha256` as locked. `index`: the *name* of the index; for conda the channel, and the path in it.
    """

    name: Public[str]
    version: Public[str]
    file: Public[str]
    sha256: Public[str]
    index: Public[str]
    kind: Public[Literal["pip", "conda"]] = "pip"
    subdir: Public[str | None] = None
    build: Public[str | None] = None


class BuiltVariant(StrictModel):
    """A variant that nodes of the run have, with its package files; `id` as in the lock. The whole one is attached."""

    id: Public[str]
    digest: Public[Sha256]
    packages: Public[tuple[PackageFile, ...]] = ()


class Attachment(StrictModel):
    """A file that belongs to the evidence and lies beside it, `path` below the folder of `evidence.json`.

    `sha256` is over its first `bytes` bytes: the journal is closed after the evidence. `of`: the digest of a variant,
    or the Merkle root that a list of files gives.
    """

    kind: Public[Literal["lock", "profile", "stack", "variant", "files", "plan", "journal"]]
    path: Public[RelPath]
    sha256: Public[Sha256]
    bytes: Public[Annotated[int, Field(ge=0)]]
    of: Public[Sha256 | None] = None

    @property
    def is_public(self) -> bool:
        """Whether a published report includes it: it has contents, no places and no nodes.

        A user's own stack file goes into a kit only.
        """
        return self.kind not in ("plan", "journal", "stack")


def attachment(kind: str, path: str, data: bytes, of: str | None) -> Attachment:
    """The row of a file with these contents."""
    plain = {"kind": kind, "path": path, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "of": of}
    return Attachment.from_plain(plain)


class StackFinding(StrictModel):
    """A mistake of the stack's document, and what envbuild does instead."""

    id: Public[str]
    severity: Public[Severity]
    truth: Public[str]
    does: Public[str]


class Evidence(StrictModel):
    """One run: the document that `--json` prints and reports are rendered from.

    `steps_run`: steps that were carried out on all nodes together; `phases`: seconds by phase.
    `tools`: versions by name; `envbuild-commit`: that of envbuild.
    """

    schema_version: Public[Literal["2.0"]] = "2.0"
    envbuild: Public[str]
    verb: Public[str]
    run: Public[Annotated[str, Field(pattern=_RUN)]]
    started: Public[str]
    finished: Public[str]
    stack: Public[str]
    profile: Public[str]
    target: str
    lock_digest: Public[str]
    exit: Public[int]
    command: tuple[str, ...] = ()
    nodes: Public[tuple[NodeEvidence, ...]]
    deviations: Public[tuple[str, ...]] = ()
    warnings: tuple[str, ...] = ()
    tools: Public[dict[str, str]] = {}
    steps_run: Public[int] = 0
    phases: Public[dict[str, float]] = {}
    equality: Public[Equality | None] = None
    variants: Public[tuple[BuiltVariant, ...]] = ()
    attachments: Public[tuple[Attachment, ...]] = ()
    findings: Public[tuple[StackFinding, ...]] = ()

    @classmethod
    def is_run(cls, name: str) -> bool:
        """Whether a name is the id of a run."""
        return re.fullmatch(_RUN, name) is not None

    @model_validator(mode="after")
    def _is_one_run(self) -> Self:
        single = [str(item.kind) for item in self.attachments if item.kind not in ("variant", "files")]
        for names in ([node.node for node in self.nodes], [item.path for item in self.attachments], single):
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
    """The most severe exit code of a run; `PARTIAL` is one of them if some nodes are good and some are not."""
    codes = [node.exit for node in nodes]
    if any(codes) and not all(codes):
        codes.append(ExitCode.PARTIAL)
    return gravest(codes)
