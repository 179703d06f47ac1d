"""What belongs to the evidence of a run and is too large for it: files beside it, of which it has the digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from envbuild.model.evidence import Attachment, NodeEvidence, attachment
from envbuild.model.file_list import Files, pack
from envbuild.model.lock import Variant, canonical_json
from envbuild.provision.run.context import Work
from envbuild.provision.run.run_dir import RunDir


@dataclass(frozen=True)
class _Kept:
    """Contents for the folder `attachments`."""

    kind: str
    name: str
    data: bytes
    of: str | None = None


def attach(work: Work, variants: Iterable[Variant], lists: Mapping[str, Files]) -> tuple[Attachment, ...]:
    """Write lock, profile, `variants` and file lists (by root) into the run directory; name its plan and journal too.

    Raises EnvbuildError `run-directory-unwritable` (exit 75).
    """
    run = work.run
    run.attachments.mkdir(mode=0o700, exist_ok=True)
    made = []
    for each in _contents(work, variants, lists):
        path = run.attachments / each.name
        run.write_bytes(path, each.data)
        made.append(_attachment(run, each.kind, path, each.of))
    return (*made, *(_attachment(run, kind, path) for kind, path in _there(run) if path.is_file()))


def _contents(work: Work, variants: Iterable[Variant], lists: Mapping[str, Files]) -> Iterator[_Kept]:
    from envbuild.catalog.loader import manifest_text

    prepared = work.prepared
    lock = prepared.lock_file.read_bytes() if prepared.lock_file.is_file() else b""
    # Somebody may have made a new one since this run began.
    if hashlib.sha256(lock).hexdigest() == prepared.lock_digest:
        yield _Kept("lock", "lock.toml", lock)
    yield _Kept("profile", "profile.json", manifest_text(prepared.stack, prepared.profile))
    for variant in variants:
        data = canonical_json(variant.to_json_dict())
        yield _Kept("variant", f"variant-{variant.digest[:12]}.json", data, variant.digest)
    for root, files in lists.items():
        yield _Kept("files", f"files-{root[:12]}.json.gz", pack(files), root)


def _there(run: RunDir) -> tuple[tuple[str, Path], ...]:
    return ("plan", run.plan), ("journal", run.journal_path)


def _attachment(run: RunDir, kind: str, path: Path, of: str | None = None) -> Attachment:
    return attachment(kind, path.relative_to(run.path).as_posix(), path.read_bytes(), of)


def variants_of(work: Work, nodes: Iterable[NodeEvidence]) -> dict[str, Variant]:
    """By digest the variants that nodes have: as they were built, else of the lock."""
    known = {each.digest: each for each in (*work.prepared.lock.variants, *work.survey.variants.values())}
    wanted = dict.fromkeys(str(node.variant_digest) for node in nodes)
    return {digest: known[digest] for digest in wanted if digest in known}
