"""Makes the bundle of a stack for a target: its nodes say which variants they get, and what they have built already."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.bundle.collect import Collector, Piece, piece
from envbuild.bundle.files import Contents, unpack, write_bundle
from envbuild.lock.variants import hash_unrecorded
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Variant
from envbuild.plan.sharing import keys_of
from envbuild.provision.contact.toolchain import bootstrap_python, standalone_python
from envbuild.provision.contact.wheel_stores import fetch_wheels, store_of
from envbuild.provision.deliver import glibc_of
from envbuild.provision.run.context import Prepared, Survey
from envbuild.resolve.variant_checks import record_command, stamps_of, unrecorded_files


class Asked(NamedTuple):
    """What a bundle is to hold: without what the base of a variant has, with a Python, and where it is written."""

    output: Path
    base_is_there: bool = False
    interpreter: bool = False
    toolchain_file: Path | None = None
    recorded: bool = False


def create_bundle(
    prepared: Prepared, survey: Survey, asked: Asked, say: Callable[[str], None]
) -> tuple[dict[str, Any], list[str]]:
    """Write the bundle for the nodes of a survey; its index, and in sentences what it does not hold.

    Raises EnvbuildError as `Collector.collect` and `write_bundle` do, `hash-unrecorded` (exit 5), and the error of the
    first node where none gets a variant.
    """
    chosen = {node: variant for node, variant in survey.variants.items() if node not in survey.errors}
    if not chosen:
        raise next(iter(survey.errors.values()))
    pieces: dict[str, Piece] = {}
    notes = [f"{node} is left out: {error.what}" for node, error in survey.errors.items()]
    machines, labels = set[str](), set[str]()
    record = record_command(prepared.reference, prepared.profile)
    collector = Collector(record, channels=prepared.channels, on_fetch=lambda name: say(f"fetching {name}"))
    with tempfile.TemporaryDirectory(prefix="envbuild-bundle-") as scratch:
        for node, variant in chosen.items():
            facts = survey.facts[node]
            for file in unrecorded_files(variant, facts):
                raise hash_unrecorded(file, record)
            machines.add(variant.machine)
            labels.add(variant.id)
            added = [*collector.collect(_whole(prepared, variant, asked), glibc_of(facts))]
            if asked.interpreter:
                added += _python(variant, facts, asked)
            if prepared.target.engine == "container":
                added += collector.uv(variant.machine, asked.toolchain_file)
            if not asked.recorded:
                added += _built(prepared, variant, facts, Path(scratch))
            pieces.update({each.path: each for each in added})
            compiled = [source.name for source in variant.sources if source.build]
            there = {each.more["source"] for each in pieces.values() if each.what == "built wheel"}
            if lacking := [name for name in compiled if name not in there]:
                notes.append(f"{', '.join(lacking)}: no built wheel of {node}, so it is compiled where it is installed")
        say(f"writing {asked.output}")
        contents = Contents(prepared.lock.stack, prepared.profile, tuple(machines), tuple(labels))
        return write_bundle(asked.output, contents, pieces.values()), list(dict.fromkeys(notes))


def _whole(prepared: Prepared, variant: Variant, asked: Asked) -> Variant:
    """The variant as the lock has it, for whichever version its base has; without all of those where it is there."""
    locked = next(each for each in prepared.lock.variants if each.id == variant.id)
    if not asked.base_is_there:
        return locked
    names = {canonicalize_name(Requirement(text).name) for text in locked.base.accepts or ()}
    packages = tuple(each for each in locked.packages if canonicalize_name(each.name) not in names)
    return locked.model_copy(update={"packages": packages})


def _python(variant: Variant, facts: NodeFacts, asked: Asked) -> Iterator[Piece]:
    """The Python of the lock, else the one that runs the node program where a node has none."""
    if variant.interpreter.kind == "standalone":
        tool = standalone_python(variant, asked.toolchain_file)
    else:
        tool = bootstrap_python(facts.os.arch, facts.libc.kind, asked.toolchain_file)
    yield piece(f"tools/{tool.source.name}", tool.source, "interpreter", tool.sha256)


def _built(prepared: Prepared, variant: Variant, facts: NodeFacts, scratch: Path) -> Iterator[Piece]:
    """The wheels that a finished environment of this variant was made with, from the store of its node."""
    stamps = stamps_of(facts, prepared.lock, variant.digest)
    keys = {name: key for each in stamps for name, key in keys_of((each.stamp or {}).get("sources")).items()}
    if not keys:
        return
    target, prefix, folder = prepared.target, facts.stage_prefix, scratch / secrets.token_hex(6)
    here = folder.with_suffix(".tar")
    bundle = fetch_wheels(facts.node, prefix, store_of(target, prefix, facts), keys, here, target.connection)
    for row in unpack(here, folder, bundle["digest"])["files"]:
        more = {"key": row["key"], "source": row["source"]}
        yield piece(row["path"], folder / row["path"], row["what"], row["sha256"], more)
