"""Compares a lock with its stack and with the upstream repositories of its sources."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator
from itertools import islice

from envbuild.catalog.loader import manifest_digest
from envbuild.conda.channels import places
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.agreement import LockFinding, contents, differs
from envbuild.lock.create import added_names
from envbuild.lock.files import field_digests
from envbuild.lock.readers.git import GitReader, git_reader, resolve_ref
from envbuild.lock.readers.torch_wheels import Supply
from envbuild.lock.sources import pin_patches, with_patched_trees
from envbuild.lock.variants import UNRECORDED, run_fields
from envbuild.model.lock import Lock, LockedSource
from envbuild.model.stack import Profile, Stack
from envbuild.resolve.compat_read import load_compat
from envbuild.resolve.profile import findings as rule_findings

# The fields of a profile that no resolution looks at; a variant says the first four again.
_RUN = ("environment", "imports", "smoke", "training", "deviations", "runs", "system_packages")


def changed_fields(lock: Lock, stack: Stack) -> list[str]:
    """The fields of the lock's profile that changed; a missing field had its default value."""
    now = field_digests(stack.profiles[lock.profile])
    return sorted(name for name in now.keys() | lock.manifest_fields if now.get(name) != lock.manifest_fields.get(name))


def restated(lock: Lock, stack: Stack, say: Callable[[str], None]) -> Lock | None:
    """The lock with today's patches and the stack's name and texts; None if nothing changed, or it has to be resolved.

    Packages, versions of tools and date stay those of the resolution. `say` gets a sentence for each patched tree that
    could not be read.
    """
    if not lock.manifest_fields or not set(changed_fields(lock, stack)) <= set(_RUN):
        return None
    profile = stack.profiles[lock.profile]
    pinned = [
        source.model_copy(update={"patch_pins": pin_patches(source.patches, source.commit)})
        for variant in lock.variants
        for source in variant.sources
    ]
    with git_reader() as reader:
        sources = iter(with_patched_trees(pinned, lock, reader, say))
    fields = run_fields(profile)
    variants = tuple(
        own.with_fields(stack.name, lock.profile, sources=tuple(islice(sources, len(own.sources))), **fields)
        for own in lock.variants
    )
    digests = {"manifest_digest": manifest_digest(stack, lock.profile), "manifest_fields": field_digests(profile)}
    new = lock.model_copy(update={"stack": stack.name, "variants": variants, **digests})
    return None if new == lock or contents(new, profile) else new


def check_lock(lock: Lock, stack: Stack, *, online: bool = True, supply: Supply | None = None) -> list[LockFinding]:
    """Everything in which a lock disagrees with its stack, with itself, or (if `online`) with upstream.

    `supply`: the indexes to ask whether all locked packages are needed and which are yanked. An empty list: everything
    was checked and agrees. Sources and indexes that cannot be reached are `unchecked`.
    """
    says = "the digest does not match the contents (edited by hand?)"
    findings = [
        LockFinding("lock-digest-mismatch", "problem", variant.id, says, ExitCode.INTEGRITY)
        for variant in lock.variants
        if variant.digest != variant.compute_digest(lock.stack, lock.profile)
    ]
    if lock.stack != stack.name or lock.profile not in stack.profiles:
        says = f"the lock is of {lock.stack}, profile {lock.profile}; the stack is {stack.name}"
        return [*findings, LockFinding("lock-of-another-stack", "problem", "stack", says)]
    profile = stack.profiles[lock.profile]
    findings += _manifest(lock, stack)
    findings += contents(lock, profile)
    findings += _patches(lock)
    findings += _unrecorded(lock)
    # What rules refuse on every node.
    refused = [(text, item) for text, item in rule_findings(lock, load_compat()).items() if item.verdict == "refuse"]
    findings += [LockFinding(item.rule, "problem", "rules", text, ExitCode.REFUSED) for text, item in refused]
    if online:
        contains = {source.name: source.contains for source in profile.pinned_sources}
        with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
            asked = pool.map(lambda source: _one_upstream(source, contains.get(source.name, ())), lock.sources.values())
        findings += [finding for one in asked for finding in one]
        findings += _channels(lock, profile)
        findings += _by_the_indexes(lock, stack, supply) if supply else []
    return findings


def _manifest(lock: Lock, stack: Stack) -> list[LockFinding]:
    if lock.manifest_digest == manifest_digest(stack, lock.profile):
        return []
    fields = changed_fields(lock, stack)
    if not lock.manifest_fields:
        return [differs("manifest_digest", "the stack file is not the one that the lock was made from")]
    if not fields:
        return [differs("manifest_digest", "no field differs; another envbuild made the lock, create it again")]
    return [differs(name, f"`{name}` of the stack has changed since the lock was made") for name in fields]


def _patches(lock: Lock) -> Iterator[LockFinding]:
    """A patch of the catalog that does something else than when it was locked."""
    for source in lock.sources.values():
        try:
            now = pin_patches(tuple(pin.name for pin in source.patch_pins), source.commit)
        except EnvbuildError as error:
            yield _failed(error, source.name)
            continue
        for pin, current in zip(source.patch_pins, now, strict=True):
            if pin != current:
                yield LockFinding(
                    "patch-changed", "problem", source.name, f"{pin.name} is not the patch that was locked"
                )


def _unrecorded(lock: Lock) -> Iterator[LockFinding]:
    record = f"`envbuild lock create {lock.stack} --profile {lock.profile}` records them"
    for variant in lock.variants:
        image, conda = variant.image, variant.conda
        if image and image.digest == "unrecorded":
            says = f"{image.name} has no recorded digest: {image.reason or ''}"
            yield LockFinding("image-unrecorded", "note", variant.id, says)
        if conda and conda.unrecorded is not None:
            says = f"no conda packages yet, {conda.unrecorded}: {record}"
            yield LockFinding("conda-unrecorded", "note", variant.id, says)
        for item in variant.files:
            if item.sha256 == "unrecorded":
                says = f"{item.file} has no recorded sha256: {item.reason or ''}"
                yield LockFinding(UNRECORDED, "note", variant.id, says)


def _by_the_indexes(lock: Lock, stack: Stack, supply: Supply) -> list[LockFinding]:
    """Packages that nothing needs, by what the indexes say of the others, and those that are yanked."""
    yanked: list[str] = []
    try:
        added = added_names(lock, stack, supply, yanked.append)
    except EnvbuildError as error:
        return [LockFinding(error.code, "unchecked", "packages", f"not checked that all are needed: {error.what}")]
    findings = [LockFinding("package-yanked", "note", "packages", says) for says in yanked]
    return findings + [
        LockFinding("package-not-required", "problem", variant, f"nothing needs {', '.join(names)}", ExitCode.INTEGRITY)
        for variant, names in added.items()
        if names
    ]


def _channels(lock: Lock, profile: Profile) -> list[LockFinding]:
    """Conda packages that their channels do not have any more, or have with other contents."""
    rows = [(variant.id, archive) for variant in lock.variants for archive in variant.archives]
    if not rows or profile.conda is None:
        return []
    from envbuild.conda.solve import offered  # with it comes rattler

    try:
        current = offered([archive for _, archive in rows], places(profile.conda))
    except EnvbuildError as error:
        return [_failed(error, "conda")]
    findings = []
    for name, archive in rows:
        now = current.get((archive.channel, archive.subdir, archive.file))
        if now is None:
            says = f"{archive.channel} does not have {archive.file} any more; the lock is not affected"
            findings.append(LockFinding("conda-package-gone", "problem", name, says))
        elif now != archive.sha256:
            says = f"{archive.file} has sha256 {now or 'unknown'} in {archive.channel}, {archive.sha256} in the lock"
            findings.append(LockFinding("conda-package-changed", "problem", name, says, ExitCode.INTEGRITY))
    return findings


def _one_upstream(source: LockedSource, contains: tuple[str, ...]) -> list[LockFinding]:
    pins = [(source.git, source.commit, source.tree, source.name)]
    pins += [(sub.git, sub.commit, sub.tree, f"{source.name}/{sub.path}") for sub in source.submodules]
    findings: list[LockFinding] = []
    with git_reader() as reader:
        for url, commit, tree, name in pins:
            try:
                findings += _one_pin(reader, url, commit, tree, name, contains if name == source.name else ())
            except EnvbuildError as error:
                findings.append(_failed(error, name))
    try:
        now = resolve_ref(source.git, source.ref) if source.ref is not None else source.commit
        if now != source.commit:
            where = f"is at {now} now" if now else "is gone"
            says = f"`{source.ref}` {where}; the lock has {source.commit} and is not affected"
            findings.append(LockFinding("ref-moved", "problem", source.name, says))
    except EnvbuildError as error:
        findings.append(_failed(error, source.name))
    # One repository that is out of reach is one thing not checked, however often it was asked.
    return list(dict.fromkeys(findings))


def _one_pin(
    reader: GitReader, url: str, commit: str, tree: str, name: str, contains: tuple[str, ...]
) -> Iterator[LockFinding]:
    actual = reader.tree_id(url, commit)
    for item in contains:
        if not reader.contains(url, commit, item):
            says = f"{commit} does not contain {item}"
            yield LockFinding("ancestor-missing", "problem", name, says, ExitCode.INTEGRITY)
    if actual != tree:
        says = f"commit {commit} has tree {actual} upstream, {tree} in the lock"
        yield LockFinding("tree-mismatch", "problem", name, says, ExitCode.INTEGRITY)


def _failed(error: EnvbuildError, name: str) -> LockFinding:
    # A copy that lost objects answered: that is a finding, and says nothing of the lock.
    if error.exit_code == ExitCode.TRY_AGAIN and error.code != "object-missing":
        return LockFinding(error.code, "unchecked", name, f"not checked: {error.what}")
    return LockFinding(error.code, "problem", name, error.what, error.exit_code)
