"""The end of a run: its evidence and report."""

from __future__ import annotations

from dataclasses import asdict

from envbuild import __version__
from envbuild.model.evidence import Evidence, NodeEvidence, StackFinding, run_exit
from envbuild.provision.run import evidence as collect
from envbuild.provision.run.context import Work
from envbuild.provision.run.journal import EventKind, read_journal, utc_now


def write_evidence(
    work: Work, verb: str, nodes: list[NodeEvidence], *, warnings: tuple[str, ...] = (), pages: bool = True
) -> Evidence:
    """Evidence into the run directory, and the report's pages unless nothing happened that is worth a page."""
    from envbuild.provision.run.attachments import attach, variants_of
    from envbuild.provision.run.file_lists import FileLists
    from envbuild.report.equality import equality_of
    from envbuild.report.render import write_report
    from envbuild.report.timeline import steps
    from envbuild.resolve.built import built

    prepared = work.prepared
    several = len(nodes) > 1 and prepared.target.connection.kind == "ssh"
    nodes = [collect.coded(node, work.settings.command, verb=verb, several=several) for node in nodes]
    taken = steps(asdict(event) for event in read_journal(work.run.journal_path).events)
    nodes = [node.model_copy(update={"steps": taken.get(node.node, ())}) for node in nodes]
    # Where nothing was done, nobody is asked for files either: that run is to be over in a second.
    lists = FileLists(prepared.target, work.run) if pages else None
    equality = equality_of(nodes, lists)
    variants = variants_of(work, nodes)
    evidence = Evidence(
        envbuild=__version__,
        verb=verb,
        run=work.run.id,
        started=work.started,
        finished=utc_now(),
        stack=prepared.stack.name,
        profile=prepared.profile,
        target=prepared.target.name,
        lock_digest=prepared.lock_digest,
        exit=run_exit(nodes),
        command=work.settings.command,
        nodes=tuple(nodes),
        deviations=(*prepared.stack.profiles[prepared.profile].deviations, *collect.deviations(nodes)),
        warnings=(*warnings, *collect.of_gpus(nodes)),
        tools=_tool_versions(),
        steps_run=work.tasks,
        phases=work.phases,
        equality=equality,
        variants=built(variants, nodes),
        attachments=attach(work, variants.values(), lists.by_root(nodes) if lists else {}),
        findings=tuple(
            StackFinding(id=each.id, severity=each.severity, truth=each.truth, does=each.does)
            for each in prepared.stack.findings
        ),
    )
    written = write_report(evidence, work.run.path, pages=pages)
    work.journal.append(EventKind.EVIDENCE_WRITTEN, files=sorted(path.name for path in written.values()))
    return evidence


def _tool_versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("ansible-core", "ansible-runner", "uv")}
