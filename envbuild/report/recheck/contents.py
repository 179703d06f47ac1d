"""The files beside the evidence and the environments: lock, variants, package hashes, sources, roots.

Each file against its digest and format, then each against the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from envbuild import resources
from envbuild.errors import EnvbuildError
from envbuild.model import evidence
from envbuild.model.evidence import Attachment, BuiltVariant, Evidence, NodeEvidence, root
from envbuild.model.lock import Lock, LockedPackage, LockedSource, Variant
from envbuild.model.stack import CondaPackage
from envbuild.report import evidence_file
from envbuild.report.equality import names
from envbuild.report.recheck.opened import Finding, Opened, checked, judged, not_checked, problem, read_attachment
from envbuild.report.sources import mapping
from envbuild.report.verdict import GOOD
from envbuild.resolve.artifacts import built, same_version
from envbuild.text import few, plural

_TOPIC = "files"


@dataclass
class Attached:
    """What could be read: `variants` by digest, file lists by the root that they are said to give."""

    lock: Lock | None = None
    profile_digest: str | None = None
    variants: dict[str, Variant] = field(default_factory=dict)
    lists: dict[str, evidence.Files] = field(default_factory=dict)


def read_all(report: Opened) -> tuple[Attached, list[Finding]]:
    """Every attachment that exists and is whole, and findings about each and about unlisted files."""
    attached, findings, missing, good = Attached(), list[Finding](), list[str](), 0
    for item in report.evidence.attachments:
        try:
            data = read_attachment(report.folder, item.path)
        except ValueError as error:
            findings.append(problem("report-file-unsafe", _TOPIC, f"{item.path}: {error}"))
            continue
        if data is None:
            missing.append(item.path)
            continue
        bad = list(_digest(item, data)) or list(_take(attached, item, data))
        findings += bad
        good += not bad
    findings += _listing(report)
    if good:
        says = "file beside the evidence has its" if good == 1 else "files beside the evidence have their"
        findings.append(checked(_TOPIC, f"{good} {says} digest"))
    if missing:
        findings.append(not_checked(_TOPIC, f"not beside the report: {', '.join(missing)}"))
    elif not report.evidence.attachments:
        findings.append(not_checked(_TOPIC, "the evidence names no lock, plan or file list"))
    return attached, findings


def _digest(item: Attachment, data: bytes) -> Iterator[Finding]:
    if len(data) < item.bytes:
        yield problem("report-file-truncated", _TOPIC, f"{item.path} has {len(data):,} of {item.bytes:,} bytes")
    elif len(data) > item.bytes and item.kind != "journal":
        says = f"{item.path} has {len(data):,} bytes, {item.bytes:,} are recorded"
        yield problem("report-file-differs", _TOPIC, says)
    elif hashlib.sha256(data[: item.bytes]).hexdigest() != item.sha256:
        yield problem("report-file-differs", _TOPIC, f"{item.path} does not have the recorded sha256")


def _take(attached: Attached, item: Attachment, data: bytes) -> Iterator[Finding]:
    """Read an attachment; what is wrong with it."""
    from envbuild.lock.files import parse_lock

    try:
        if item.kind == "lock":
            attached.lock = parse_lock(data.decode(), item.path)
        elif item.kind == "profile":
            attached.profile_digest = item.sha256
        elif item.kind == "variant":
            attached.variants[str(item.of)] = Variant.from_plain(evidence_file.parse(data))
        elif item.kind == "files":
            attached.lists[str(item.of)] = evidence.unpack(data)
    except EnvbuildError as error:
        yield problem("report-lock-invalid", "lock", f"{error.what}: {error.why}")
    except (ValueError, KeyError, TypeError) as error:
        yield problem("report-file-invalid", _TOPIC, f"{item.path} is no {item.kind}: {str(error).splitlines()[0]}")


def _listing(report: Opened) -> Iterator[Finding]:
    """Files among the attachments that the evidence does not name."""
    named = {item.path for item in report.evidence.attachments}
    folders = {Path(path).parts[0] for path in named if "/" in path}
    for folder in sorted(folders):
        for file in sorted((report.folder / folder).rglob("*")):
            name = file.relative_to(report.folder).as_posix()
            if name not in named and not file.is_dir():
                yield problem("report-file-unlisted", _TOPIC, f"{name} is there and the evidence does not name it")


def check_contents(evidence: Evidence, attached: Attached) -> Iterator[Finding]:
    """All findings about contents."""
    yield from _lock(evidence, attached)
    yield from _variants(evidence, attached)
    yield from _packages(evidence, attached)
    yield from _sources(evidence, attached)
    yield from _roots(evidence, attached)


def _lock(evidence: Evidence, attached: Attached) -> Iterator[Finding]:
    digest = next((item.sha256 for item in evidence.attachments if item.kind == "lock"), None)
    if digest is not None and digest != evidence.lock_digest:
        yield problem("report-lock-differs", "lock", "the lock beside the evidence is not the one that it names")
    lock = attached.lock
    if lock is None:
        yield not_checked("lock", "the lock could not be read, so packages and variants were not compared")
        return
    if (lock.stack, lock.profile) != (evidence.stack, evidence.profile):
        says = f"the lock is of {lock.stack} ({lock.profile}), the report of {evidence.stack} ({evidence.profile})"
        yield problem("report-lock-of-another-stack", "lock", says)
    yield checked("lock", f"its contents give the digests that it has for its {plural(len(lock.variants), 'variant')}")
    if attached.profile_digest is None:
        yield not_checked("stack", "the stack's profile is missing, so the lock was not compared with it")
    elif attached.profile_digest != lock.manifest_digest:
        yield problem("report-profile-differs", "stack", "the lock was not made from the profile beside the evidence")
    else:
        yield checked("stack", "the lock names the digest of the stack's profile")
    path = resources.lockfiles() / f"{evidence.stack}.{evidence.profile}.lock.toml"
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == evidence.lock_digest:
        yield checked("lock", f"it is the lock of {evidence.stack} ({evidence.profile}) that this envbuild ships")
    else:
        yield not_checked("lock", "this envbuild does not ship this lock; check yourself that it is the right one")


def _variants(evidence: Evidence, attached: Attached) -> Iterator[Finding]:
    named = {variant.digest for variant in evidence.variants}
    problems = []
    for digest, variant in attached.variants.items():
        if not variant.compute_digest(evidence.stack, evidence.profile) == variant.digest == digest:
            problems.append(problem("report-variant-differs", "variants", f"{variant.id}: not what its digest says"))
        elif attached.lock is not None and not _is_of(variant, attached.lock):
            says = f"{variant.id} is no variant of the lock"
            problems.append(problem("report-variant-not-of-lock", "variants", says))
    for evident in evidence.variants:
        if evident.digest in attached.variants:
            problems += _built(evident, attached.variants[evident.digest], evidence.nodes)
    for node in evidence.nodes:
        good = node.status in GOOD and node.variant_digest
        if named and good and node.variant_digest not in named:
            says = f"{node.node} has the variant {str(good)[:12]}, which the evidence does not hold"
            problems.append(problem("report-variant-unknown", "variants", says))
    if attached.variants:
        says = f"{plural(len(attached.variants), 'variant')}: contents give the digest, and are those of the lock"
        yield from judged("variants", says, problems)
    else:
        yield from problems
        yield not_checked("variants", "the report holds no record of a built variant")


def _built(evident: BuiltVariant, variant: Variant, nodes: Iterable[NodeEvidence]) -> Iterator[Finding]:
    """Every package of the variant of which a file fits the nodes has one."""
    if evident.id != variant.id:
        yield problem("report-variant-differs", "variants", f"{evident.id} is {variant.id} in the lock")
    [due] = built({evident.digest: variant}, nodes)
    if missing := {row.name for row in due.packages} - {row.name for row in evident.packages}:
        says = f"{evident.id}: the hashes of {few(sorted(missing), 5)} are left out"
        yield problem("report-package-missing", "packages", says)


def _is_of(variant: Variant, lock: Lock) -> bool:
    """Whether the lock gives this variant with that base and these GPUs."""
    for locked in lock.variants:
        if locked.id == variant.id:
            made = locked.model_copy(update={"arch_list": variant.arch_list})
            if made.base.kind != "none":
                made = made.with_provided(lock.stack, lock.profile, variant.provided)
            return made.compute_digest(lock.stack, lock.profile) == variant.digest
    return False


def _packages(evidence: Evidence, attached: Attached) -> Iterator[Finding]:
    known = attached.variants
    held = [variant for variant in evidence.variants if variant.digest in known]
    problems = [finding for variant in held for finding in _hashes(variant, known[variant.digest])]
    nodes = [node for node in evidence.nodes if node.packages and node.variant_digest in known]
    for node in nodes:
        problems += _installed(node, known[str(node.variant_digest)])
    if not nodes:
        yield not_checked("packages", "what is installed could be compared with no variant")
        yield from problems
        return
    rows = {(row.file, row.sha256) for variant in held for row in variant.packages}
    of = "the lock" if attached.lock else "the variant"
    says = "; ".join(filter(None, (f"on {plural(len(nodes), 'node')} the locked versions", _counted(rows, of))))
    yield from judged("packages", says, problems)


def _counted(rows: set[tuple[str, str]], of: str) -> str:
    """How many hashes are whose."""
    without = {row for row in rows if row[1] == "unrecorded"}
    count = len(rows - without)
    says = [f"{count:,} {'hash is that' if count == 1 else 'hashes are those'} of {of}"] if count else []
    says += [f"{plural(len(without), 'file')} {'has' if len(without) == 1 else 'have'} none"] if without else []
    return ", ".join(says)


def _hashes(built: BuiltVariant, variant: Variant) -> Iterator[Finding]:
    locked = {(p.name, p.version, f.file, f.sha256, p.index) for p in variant.packages for f in p.files}
    locked |= {(a.name, a.version, a.file, a.sha256, a.channel) for a in variant.archives}
    for row in built.packages:
        if (row.name, row.version, row.file, row.sha256, row.index) not in locked:
            yield problem("report-package-not-of-lock", "packages", f"{row.file} with {row.sha256[:12]} is not locked")


def _installed(node: NodeEvidence, variant: Variant) -> Iterator[Finding]:
    installed = {canonicalize_name(name): version.partition(" ")[0] for name, version in node.packages.items()}
    # Verbs that only look name what is in dist-info, and no archive of conda (`1.26.4 py39_0 (conda)`).
    of_conda = any(version.endswith(" (conda)") for version in node.packages.values())
    wanted: list[LockedPackage | CondaPackage] = [*variant.packages, *(variant.archives if of_conda else ())]
    for name, locked in ((package.name, package.version) for package in wanted):
        version = installed.get(canonicalize_name(name))
        if version is None:
            yield problem("report-package-missing", "packages", f"{node.node}: {name} is not there")
        elif not same_version(version, locked):
            says = f"{node.node}: {name} is {version}, the lock says {locked}"
            yield problem("report-package-not-of-lock", "packages", says)


def _sources(evidence: Evidence, attached: Attached) -> Iterator[Finding]:
    problems, compared, untold = list[Finding](), 0, list[str]()
    for node in evidence.nodes:
        variant = attached.variants.get(str(node.variant_digest))
        locked = {source.name: source for source in variant.sources} if variant else {}
        if variant is None or not node.sources:
            untold += [node.node] if locked else []
            continue
        if left := locked.keys() - {str(source.get("name")) for source in node.sources}:
            says = f"{node.node}: {few(sorted(left))} of the lock left out"
            problems.append(problem("report-source-differs", "sources", says))
        for source in node.sources:
            name = str(source.get("name"))
            compared += 1
            if name not in locked:
                says = f"{node.node}: {name} is no source of the lock"
                problems.append(problem("report-source-differs", "sources", says))
            else:
                problems += _source(node, source, locked[name])
    if compared:
        says = f"{plural(compared, 'source')} compared: commit, tree and patches are those of the lock"
        yield from judged("sources", says, problems)
    if untold:
        yield not_checked("sources", f"{names(untold)}: the report names none, and the lock has some")


def _source(on: NodeEvidence, source: Mapping[str, Any], locked: LockedSource) -> Iterator[Finding]:
    node = on.node
    for key in ("git", "commit", "tree", "install"):
        if key in source and source[key] != getattr(locked, key):
            says = f"{node}: {locked.name}: {key} is {source[key]}, the lock says {getattr(locked, key)}"
            yield problem("report-source-differs", "sources", says)
    pins = {pin.name: pin for pin in locked.patch_pins}
    rows = source.get("patches")
    patches = [mapping(patch) for patch in rows] if isinstance(rows, list) else []
    # Of an image it is known what it was made of, and not what became of it.
    if on.image is None and (left := pins.keys() - {str(patch.get("name")) for patch in patches}):
        says = f"{node}: {locked.name}: {few(sorted(left))} of the lock left out"
        yield problem("report-patch-differs", "sources", says)
    for patch in patches:
        pin = pins.get(str(patch.get("name")))
        if not patch:
            continue
        if pin is None or patch.get("digest") != pin.digest:
            says = f"{node}: {locked.name}: the patch {patch.get('name')} is not the locked one"
            yield problem("report-patch-differs", "sources", says)
        elif isinstance(patch.get("hits"), int) and patch.get("changed") and not pin.least <= patch["hits"] <= pin.most:
            says = f"{node}: {pin.name} found {patch['hits']} places, {pin.least} to {pin.most} are locked"
            yield problem("report-patch-differs", "sources", says)


def _roots(evidence: Evidence, attached: Attached) -> Iterator[Finding]:
    problems = []
    for stated, files in attached.lists.items():
        if (computed := root(files)) != stated:
            says = f"the list of {len(files):,} files gives {computed[:12]}, not {stated[:12]}"
            problems.append(problem("report-root-differs", "root", says))
    rooted = [node for node in evidence.nodes if node.root]
    good = [node for node in rooted if node.root in attached.lists]
    if good:
        says = f"computed from the lists of files of {plural(len(good), 'node')}"
        yield from judged("root", says, problems)
    if rest := len(rooted) - len(good):
        yield not_checked("root", f"for {plural(rest, 'node')}, the report has no list of files to compute it from")
    if stamped := sum(node.root_level != "measured" for node in rooted):
        yield not_checked("root", f"for {plural(stamped, 'node')}, this run did not measure it: it is from the stamp")
    if rooted:
        says = "whether the files on the disk give this root: run `envbuild verify` on the node"
        yield not_checked("root", says)
