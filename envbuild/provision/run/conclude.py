"""The end of a run: its evidence and report."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version

from envbuild import __version__
from envbuild.catalog.loader import is_path, load_stack, manifest_text
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.hostlist import expand_hosts
from envbuild.model.evidence import (
    Attachment,
    Evidence,
    Files,
    NodeEvidence,
    StackFinding,
    attachment,
    pack,
    root,
    run_exit,
    unpack,
)
from envbuild.model.lock import Variant, canonical_json
from envbuild.model.target import Target, as_login
from envbuild.provision.contact.first_contact import ContactResult, contact, node_request
from envbuild.provision.run import evidence as collect
from envbuild.provision.run.context import Work
from envbuild.provision.run.journal import EventKind, read_journal, utc_now
from envbuild.provision.run.run_dir import RunDir
from envbuild.regular_file import read_manifest
from envbuild.report.equality import equality_of, without_cause
from envbuild.report.render import write_report
from envbuild.report.tables import steps
from envbuild.resolve.artifacts import built
from envbuild.resources import own_commit

_TOOLS = ("ansible-core", "ansible-runner", "uv")


class FileLists:
    """The lists of one run by node; nobody is asked twice.

    A node of a job that has ended cannot be asked; the login host can, which sees an environment on a shared prefix.
    """

    def __init__(self, target: Target, run: RunDir) -> None:
        """`run`: the one that asks."""
        self._target, self._run = target, run
        self._known: dict[str, Files] = {}

    def __call__(self, nodes: Sequence[NodeEvidence]) -> dict[str, Files]:
        """By node what its environment was stamped with; a node that gives no list is left out."""
        # <prefix>/envs/<environment>: what the node itself made of the target's prefix.
        requests = {
            node.node: node_request(
                "verify",
                str(node.environment).rsplit("/", 2)[0],
                {"tell": "files", "environment": node.environment},
                self._run.id,
            )
            for node in nodes
            if node.node not in self._known and node.environment and node.image is None
        }
        host, answers = as_login(self._target), dict[str, ContactResult]()
        if self._target.connection.kind != "job":
            answers = contact(requests, host.connection, run=self._run)
        else:
            (login,) = expand_hosts(host.hosts)
            for name, request in requests.items():
                answers[name] = contact({login: request}, host.connection, run=self._run)[login]
        for name, answer in answers.items():
            try:
                self._known[name] = unpack(base64.b64decode(answer.result()["files"]))
            except (EnvbuildError, ValueError, KeyError, TypeError):
                continue  # the report says in any case that there is none
        return {node.node: self._known[node.node] for node in nodes if node.node in self._known}

    def by_root(self, nodes: Sequence[NodeEvidence]) -> dict[str, Files]:
        """The lists of roots that were measured in this run, and of those that were asked for before.

        A list that does not give the root of a node is none of them.
        """
        measured = (node for node in reversed(nodes) if node.root_level == "measured" and not node.drift_count)
        first = {str(node.root): node for node in measured if node.root}
        self(list(first.values()))
        made = {root(files): files for files in self._known.values()}
        return {digest: files for digest, files in made.items() if digest in {node.root for node in nodes}}


def attach(work: Work, variants: Iterable[Variant], lists: Mapping[str, Files]) -> tuple[Attachment, ...]:
    """Write lock, profile, `variants` and file lists (by root) into the run directory; name its plan and journal too.

    Raises EnvbuildError `run-directory-unwritable` (exit 75).
    """
    run, made = work.run, []
    run.attachments.mkdir(mode=0o700, exist_ok=True)
    for kind, name, data, of in _contents(work, variants, lists):
        path = run.attachments / name
        run.write_bytes(path, data)
        made.append(attachment(kind, path.relative_to(run.path).as_posix(), data, of))
    there = {"plan": run.plan, "journal": run.journal_path}
    return (
        *made,
        *(attachment(kind, path.name, path.read_bytes(), None) for kind, path in there.items() if path.is_file()),
    )


def _contents(
    work: Work, variants: Iterable[Variant], lists: Mapping[str, Files]
) -> Iterator[tuple[str, str, bytes, str | None]]:
    """For the folder `attachments`: kind, name, contents, and what they are of."""
    prepared = work.prepared
    lock = prepared.lock_file.read_bytes() if prepared.lock_file.is_file() else b""
    # Somebody may have made a new one since this run began.
    if hashlib.sha256(lock).hexdigest() == prepared.lock_digest:
        yield "lock", "lock.toml", lock, None
    yield "profile", "profile.json", manifest_text(prepared.stack, prepared.profile), None
    if is_path(prepared.reference):
        with suppress(EnvbuildError):  # it may be gone, or another one since this run began
            loaded = load_stack(prepared.reference)
            if loaded.stack == prepared.stack:
                yield "stack", "stack.yaml", read_manifest(loaded.path), None
    for variant in variants:
        variant = variant.with_trees({})  # where they lie is nobody else's
        yield "variant", f"variant-{variant.digest[:12]}.json", canonical_json(variant.to_json_dict()), variant.digest
    for digest, files in lists.items():
        yield "files", f"files-{digest[:12]}.json.gz", pack(files), digest


def _variants_of(work: Work, nodes: Iterable[NodeEvidence]) -> dict[str, Variant]:
    """By digest the variants that nodes have: as they were built, else of the lock."""
    known = {variant.digest: variant for variant in (*work.prepared.lock.variants, *work.survey.variants.values())}
    wanted = dict.fromkeys(str(node.variant_digest) for node in nodes)
    return {digest: known[digest] for digest in wanted if digest in known}


def write_evidence(
    work: Work, verb: str, nodes: list[NodeEvidence], *, warnings: tuple[str, ...] = (), pages: bool = True
) -> Evidence:
    """Evidence into the run directory, and the report's pages unless nothing happened that is worth a page.

    The run ends as it says.
    """
    prepared = work.prepared
    several = len(nodes) > 1 and prepared.target.connection.kind == "ssh"
    command, stack = work.settings.command, prepared.stack.name
    nodes = [collect.coded(node, command, verb=verb, several=several, stack=stack) for node in nodes]
    taken = steps(asdict(event) for event in read_journal(work.run.journal_path).events)
    nodes = [node.model_copy(update={"steps": taken.get(node.node, ())}) for node in nodes]
    # Where nothing was done, nobody is asked for files either: that run is to be over in a second.
    lists = FileLists(prepared.target, work.run) if pages else None
    equality = equality_of(nodes, lists)
    if verb == "provision" and equality is not None:
        odd = {node.node for node in without_cause(nodes, equality) if node.exit == ExitCode.OK}
        nodes = [collect.of_another_root(node, equality.root, command) if node.node in odd else node for node in nodes]
    variants = _variants_of(work, nodes)
    stands = any(node.environment or node.image for node in nodes)
    of_profile = prepared.stack.profiles[prepared.profile].deviations if stands else ()
    evidence = Evidence(
        envbuild=__version__,
        verb=verb,
        run=work.run.id,
        started=work.started,
        finished=utc_now(),
        stack=stack,
        profile=prepared.profile,
        target=prepared.target.name,
        lock_digest=prepared.lock_digest,
        exit=run_exit(nodes),
        command=command,
        nodes=tuple(nodes),
        deviations=(*of_profile, *collect.deviations(nodes)),
        warnings=(*warnings, *collect.of_gpus(nodes)),
        tools={**{name: version(name) for name in _TOOLS}, "envbuild-commit": own_commit() or "unknown"},
        steps_run=work.tasks,
        phases=work.phases,
        equality=equality,
        variants=built(variants, nodes),
        attachments=attach(work, variants.values(), lists.by_root(nodes) if lists else {}),
        findings=tuple(
            StackFinding(id=finding.id, severity=finding.severity, truth=finding.truth, does=finding.does)
            for finding in prepared.stack.findings
        ),
    )
    written = write_report(evidence, work.run.path, pages=pages)
    work.journal.append(EventKind.EVIDENCE_WRITTEN, files=sorted(path.name for path in written.values()))
    work.exit = evidence.exit
    return evidence
