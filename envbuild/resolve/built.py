"""Which files of a lock's variant a node takes: one for each package, by its facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from envbuild.model.evidence import BuiltVariant, NodeEvidence, PackageFile
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Variant


def built(variants: Mapping[str, Variant], nodes: Iterable[NodeEvidence]) -> tuple[BuiltVariant, ...]:
    """Which files of each variant fit the nodes that have it; nodes without facts add none."""
    out = []
    having = list(nodes)
    for digest, variant in variants.items():
        facts = [node.facts for node in having if node.variant_digest == digest and node.facts is not None]
        rows = dict.fromkeys(row for each in facts for row in _files(variant, each))
        out.append(BuiltVariant(id=variant.id, digest=digest, packages=tuple(rows)))
    return tuple(out)


def _files(variant: Variant, facts: NodeFacts) -> Iterator[PackageFile]:
    from envbuild.resolve.artifacts import Platform, fitting_file
    from envbuild.resolve.versions import numbers

    glibc = numbers(facts.libc.version) if facts.libc.kind == "glibc" else ()
    platform = Platform(variant.python, variant.machine, glibc)
    for each in variant.archives:
        row = {key: getattr(each, key) for key in ("name", "version", "build", "subdir", "file", "sha256")}
        yield PackageFile(kind="conda", index=each.channel, **row)
    for package in variant.packages:
        file = fitting_file(package, platform)
        if file is not None:
            yield PackageFile(
                name=package.name, version=package.version, file=file.file, sha256=file.sha256, index=package.index
            )
