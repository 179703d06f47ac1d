"""Bundles for nodes that fetch nothing themselves: the user's, else one that is made of what is here.

For one that is made, nodes of the target say which variants they get, and what they have built already.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild import resources
from envbuild.bundle.collect import (
    Collector,
    Contents,
    Piece,
    extract,
    read_index,
    unpack,
    verify,
    wanted,
    write_bundle,
)
from envbuild.errors import EnvbuildError
from envbuild.lock.variants import hash_unrecorded
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Variant
from envbuild.model.plan import Plan
from envbuild.node.bundle import archive
from envbuild.plan.sharing import keys_of
from envbuild.plan.source_builds import delivered
from envbuild.provision.contact.toolchain import TOOLCHAIN, bootstrap_python, standalone_python
from envbuild.provision.contact.wheel_stores import fetch_wheels
from envbuild.provision.run.context import Prepared, Survey, Work
from envbuild.resolve.variant_checks import record_command, stamps_of, unrecorded_files


def take_bundle(path: Path, prepared: Prepared) -> tuple[Prepared, dict[str, Any]]:
    """The run as it is with a bundle: nobody fetches anything. Also its index.

    A standalone Python that it holds goes into the cache of this machine. Raises EnvbuildError `bundle-damaged`,
    `bundle-unsafe` (exit 5), `bundle-missing` (2), `bundle-does-not-fit` (7).
    """
    # On this machine the node program checks the rest, as it unpacks it.
    index = read_index(path) if prepared.target.connection.kind == "local" else verify(path)
    own = (prepared.lock.stack, prepared.lock.profile)
    if (index["stack"], index["profile"]) != own:
        raise _does_not_fit(
            path,
            f"it is for {index['stack']} ({index['profile']}), not for {own[0]} ({own[1]})",
            f"envbuild bundle create {own[0]} --profile {own[1]} -o FILE",
        )
    folder = resources.artifact_cache().parent / TOOLCHAIN
    pythons = [row["path"] for row in index["files"] if row["what"] == "interpreter"]
    lacking = {name: folder / Path(name).name for name in pythons if not (folder / Path(name).name).exists()}
    if lacking:
        folder.mkdir(parents=True, exist_ok=True)
        extract(path, lacking)
    target = prepared.target.model_copy(update={"delivery": "controller"})
    return prepared._replace(target=target), index


def _does_not_fit(path: Path, why: str, command: str) -> EnvbuildError:
    hint = f"on a machine with a network, make one for this target: `{command}`"
    return EnvbuildError("bundle-does-not-fit", f"{path} does not fit", why=why, hint=hint)


def refuse_lacking(path: Path, index: dict[str, Any], variant: Variant, facts: NodeFacts) -> None:
    """Raises EnvbuildError `bundle-does-not-fit`, `bundle-incomplete` (exit 7) where a node cannot install from it."""
    if variant.machine not in index["machines"]:
        why = f"it is for {', '.join(index['machines'])}, {facts.node} is {variant.machine}"
        raise _does_not_fit(path, why, f"envbuild bundle create {index['stack']} -t TARGET -o FILE")
    there = {row["path"]: row["sha256"] for row in index["files"]}
    for name, sha256 in wanted(variant, glibc_of(facts), record_command(index["stack"], index["profile"])).items():
        if name not in there or sha256 not in (None, there[name]):
            raise EnvbuildError(
                "bundle-incomplete",
                f"{path} lacks a file that the lock names",
                why=f"{name} of {variant.id}, for {facts.node}, is "
                + ("not in the bundle" if name not in there else "a different file in the bundle"),
                hint="make it again with this lock: `envbuild bundle create STACK -o FILE`; --base-is-there "
                "is only for nodes with a base",
            )


def glibc_of(facts: NodeFacts) -> tuple[int, ...]:
    """The version of a node's glibc, which decides between wheels; empty where it has another C library."""
    return tuple(int(part) for part in facts.libc.version.split(".")) if facts.libc.kind == "glibc" else ()


def deliver(work: Work, plan: Plan) -> tuple[dict[str, Path], dict[str, dict[str, Any]]]:
    """A bundle for every node that is brought one, made once a variant; and what the install request says of it."""
    files: dict[str, Path] = {}
    requests: dict[str, dict[str, Any]] = {}
    prepared = work.prepared
    local = prepared.target.connection.kind == "local"
    for node in plan.nodes:
        if not any(step.kind == "deliver" for step in node.steps):
            continue
        variant, facts = work.survey.variants[node.node], work.survey.facts[node.node]
        if work.bundle is not None:
            path, digest = _given(work), str(work.bundle["digest"])
            refuse_lacking(path, work.bundle, variant, facts)
        else:
            path = work.run.staging / f"bundle-{variant.digest[:12]}.tar"
            if path.exists():  # an earlier wave of this run has made it
                index = read_index(path)
            else:
                contents = Contents(prepared.lock.stack, prepared.lock.profile, (variant.machine,), (variant.id,))
                pieces = _collector(prepared, work.journal.stage).collect(variant, glibc_of(facts))
                index = write_bundle(path, contents, pieces)
            digest = str(index["digest"])
        files[node.node] = path
        requests[node.node] = delivered(facts.stage_prefix, variant, str(path) if local else None, digest)
    return files, requests


def _given(work: Work) -> Path:
    """The bundle of the user as a file, which a folder is made to for other machines."""
    path = work.settings.bundle
    assert path is not None  # noqa: S101 - `work.bundle` is its index
    if not path.is_dir() or work.prepared.target.connection.kind == "local":
        return path.absolute()
    packed = work.run.staging / "bundle.tar"
    if not packed.exists():
        assert work.bundle is not None  # noqa: S101 - as above
        with packed.open("xb") as out:
            archive.to_tar(out, work.bundle, {row["path"]: path / row["path"] for row in work.bundle["files"]})
    return packed


def _collector(prepared: Prepared, say: Callable[[str], None]) -> Collector:
    record = record_command(prepared.reference, prepared.profile)
    return Collector(record, channels=prepared.channels, on_fetch=lambda name: say(f"fetching {name}"))


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
    collector = _collector(prepared, say)
    with tempfile.TemporaryDirectory(prefix="envbuild-bundle-") as scratch:
        for node, variant in chosen.items():
            facts = survey.facts[node]
            for file in unrecorded_files(variant, facts):
                raise hash_unrecorded(file, collector.record)
            machines.add(variant.machine)
            labels.add(variant.id)
            added = [*collector.collect(_whole(prepared, variant, asked), glibc_of(facts))]
            if asked.interpreter:
                added += _python(variant, facts, asked)
            if prepared.target.engine == "container":
                added += collector.uv(variant.machine, asked.toolchain_file)
            if not asked.recorded:
                added += _built(prepared, variant, facts, Path(scratch))
            pieces.update({piece.path: piece for piece in added})
            compiled = [source.name for source in variant.sources if source.build]
            there = {piece.more["source"] for piece in pieces.values() if piece.what == "built wheel"}
            if lacking := [name for name in compiled if name not in there]:
                notes.append(f"{', '.join(lacking)}: no built wheel of {node}, so it is compiled where it is installed")
        say(f"writing {asked.output}")
        contents = Contents(prepared.lock.stack, prepared.profile, tuple(machines), tuple(labels))
        return write_bundle(asked.output, contents, pieces.values()), list(dict.fromkeys(notes))


def _whole(prepared: Prepared, variant: Variant, asked: Asked) -> Variant:
    """The variant as the lock has it, for whichever version its base has; without all of those where it is there."""
    locked = next(candidate for candidate in prepared.lock.variants if candidate.id == variant.id)
    if not asked.base_is_there:
        return locked
    names = {canonicalize_name(Requirement(text).name) for text in locked.base.accepts or ()}
    packages = tuple(package for package in locked.packages if canonicalize_name(package.name) not in names)
    return locked.model_copy(update={"packages": packages})


def _python(variant: Variant, facts: NodeFacts, asked: Asked) -> Iterator[Piece]:
    """The Python of the lock, else the one that runs the node program where a node has none."""
    if variant.interpreter.kind == "standalone":
        tool = standalone_python(variant, asked.toolchain_file)
    else:
        tool = bootstrap_python(facts.os.arch, facts.libc.kind, asked.toolchain_file)
    yield Piece(f"tools/{tool.source.name}", tool.source, "interpreter", tool.sha256)


def _built(prepared: Prepared, variant: Variant, facts: NodeFacts, scratch: Path) -> Iterator[Piece]:
    """The wheels that a finished environment of this variant was made with, from the store of its node."""
    stamps = stamps_of(facts, prepared.lock, variant.here)
    keys = {name: key for stamped in stamps for name, key in keys_of((stamped.stamp or {}).get("sources")).items()}
    if not keys:
        return
    folder = scratch / secrets.token_hex(6)
    here = folder.with_suffix(".tar")
    fetch_wheels(prepared.target, facts, keys, here)
    for row in unpack(here, folder)["files"]:
        more = {"key": row["key"], "source": row["source"]}
        yield Piece(row["path"], folder / row["path"], row["what"], row["sha256"], more)
