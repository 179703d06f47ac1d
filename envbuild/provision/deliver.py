"""Bundles for nodes that fetch nothing themselves: the user's, else one that is made of what is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envbuild import resources
from envbuild.bundle.collect import Collector, wanted
from envbuild.bundle.files import Contents, extract, read_index, verify, write_bundle
from envbuild.errors import EnvbuildError
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Variant
from envbuild.model.plan import Plan
from envbuild.node.bundle import archive
from envbuild.plan.source_builds import delivered
from envbuild.provision.contact.toolchain import TOOLCHAIN
from envbuild.provision.run.context import Prepared, Work
from envbuild.resolve.variant_checks import record_command


def take_bundle(path: Path, prepared: Prepared) -> tuple[Prepared, dict[str, Any]]:
    """The run as it is with a bundle: nobody fetches anything. Also its index.

    A standalone Python that it holds goes into the cache of this machine. Raises EnvbuildError `bundle-damaged`,
    `bundle-unsafe` (exit 5), `bundle-missing` (2), `bundle-does-not-fit` (7).
    """
    # On this machine the node program checks the rest, as it unpacks it.
    index = read_index(path) if prepared.target.connection.kind == "local" else verify(path)
    _refuse_other(path, index, prepared)
    folder = resources.artifact_cache().parent / TOOLCHAIN
    pythons = [row["path"] for row in index["files"] if row["what"] == "interpreter"]
    lacking = {name: folder / Path(name).name for name in pythons if not (folder / Path(name).name).exists()}
    if lacking:
        folder.mkdir(parents=True, exist_ok=True)
        extract(path, lacking)
    target = prepared.target.model_copy(update={"delivery": "controller"})
    return prepared._replace(target=target), index


def _refuse_other(path: Path, index: dict[str, Any], prepared: Prepared) -> None:
    own = (prepared.lock.stack, prepared.lock.profile)
    if (index["stack"], index["profile"]) != own:
        raise _does_not_fit(
            path,
            f"it is for {index['stack']} ({index['profile']}), not for {own[0]} ({own[1]})",
            f"envbuild bundle create {own[0]} --profile {own[1]} -o FILE",
        )


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
    local = work.prepared.target.connection.kind == "local"
    for node in plan.nodes:
        if not any(step.kind == "deliver" for step in node.steps):
            continue
        variant, facts = work.survey.variants[node.node], work.survey.facts[node.node]
        if work.bundle is not None:
            path, digest = _given(work), str(work.bundle["digest"])
            refuse_lacking(path, work.bundle, variant, facts)
        else:
            path = work.run.staging / f"bundle-{variant.digest[:12]}.tar"
            # An earlier wave of this run has made it.
            digest = str(read_index(path)["digest"]) if path.exists() else _make(work, variant, facts, path)
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
            archive.to_tar(out, work.bundle, {row["path"]: str(path / row["path"]) for row in work.bundle["files"]})
    return packed


def _make(work: Work, variant: Variant, facts: NodeFacts, path: Path) -> str:
    prepared = work.prepared
    collector = Collector(
        record_command(prepared.reference, prepared.profile),
        channels=prepared.channels,
        on_fetch=lambda name: work.journal.stage(f"fetching {name}"),
    )
    contents = Contents(prepared.lock.stack, prepared.lock.profile, (variant.machine,), (variant.id,))
    return str(write_bundle(path, contents, collector.collect(variant, glibc_of(facts)))["digest"])
