"""`envbuild doctor`: what this machine lacks, or what follows on the nodes of a target, and their facts as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import choose, names
from envbuild.cli.output import Ui, common_options
from envbuild.cli.progress import RunProgress
from envbuild.doctor.controller import Diagnosis, diagnose
from envbuild.errors import EnvbuildError, ExitCode, as_dicts, exit_of, gravest, writing
from envbuild.node.doctor import prefix_in
from envbuild.node.facts import run as probe_here
from envbuild.node.probe.gpus import gpu_facts
from envbuild.node.read_text import search_path
from envbuild.node.redact import redact_data
from envbuild.text import grouped, visible

if TYPE_CHECKING:
    from envbuild.doctor.hosts import Visit, Wanted
    from envbuild.model.facts import NodeFacts
    from envbuild.model.target import Target

_PHASES = {
    "node-unreachable": "while connecting",
    "host-key-unknown": "at its host key",
    "host-key-changed": "at its host key",
    "ssh-auth-failed": "at the login",
    "login-needs-terminal": "at the login",
    "node-without-python": "without a Python",
}


@click.command("doctor")
@choose.stack_argument()
@choose.profile_option
@choose.nodes_of_target
@click.option(
    "--facts-out", metavar="FILE", type=choose.FILE,
    help="Write the facts of every node to this JSON file, for --facts of other commands; by a job if needed.",
)  # fmt: skip
@choose.deadline_option
@common_options
def doctor(ui: Ui, /, facts_out: Path | None, deadline: float | None, **flags: Any) -> int:
    """Check this machine, or with --target a cluster.

    On this machine, checks the programs that envbuild uses, and --prefix. On a cluster, asks its login node or nodes,
    for 30 s at most. If you or the target name a STACK, also says whether it fits them.
    """
    if unnamed := names.unnamed_target(flags["target"], choose.configured(flags)):
        ui.note(unnamed)
    if facts_out is not None:
        return _facts(ui, flags, facts_out, deadline)
    if deadline is not None:
        raise click.UsageError("--node-timeout needs --facts-out: a check takes 30 s at most")
    if flags["target"] or flags["stack"]:
        return _target(ui, flags)

    if flags["hosts"] or flags["limit"] or flags["exclude"]:
        raise EnvbuildError("target-missing", "--host, --limit and --exclude choose among the hosts of a target",
                            hint="name the target: `--target TARGET`")  # fmt: skip
    lines = [*diagnose(), *_here(flags["prefix"])]
    ok = all(line.level != "missing" for line in lines)
    data = {"ok": ok, "checks": [asdict(line) for line in lines]}
    ui.result(data, lambda: "\n".join(_line(line) for line in lines))
    return ExitCode.OK if ok else ExitCode.CHECK_FAILED


def _here(prefix: str | None) -> list[Diagnosis]:
    """The GPUs of this machine, if any, and `prefix`, if one is given: judged as those of a node are."""
    gpus = gpu_facts(search_path())
    has_gpus = gpus["gpus_physical"] or gpus["driver"]["problem"]
    if not has_gpus and prefix is None:
        return []
    from envbuild.doctor.node import gpu_line, prefix_line
    from envbuild.model.facts import NodeFacts

    place = choose.absolute(prefix or "/nowhere")
    plain = probe_here({"prefix": place, "args": {"brief": True}})[1]
    here = NodeFacts.from_plain({**plain, **gpus})
    lines = [gpu_line(here, exclusive=False)] if has_gpus else []
    if prefix is not None:
        lines.append(prefix_line(here.prefix, prefix_in(place)))
    return lines


def _line(line: Diagnosis, width: int = 17) -> str:
    text = f"{line.level:8} {line.name:{width}} {line.found}" + (
        f"   needs {line.needed.replace('>= ', '>=')}" if line.needed else ""  # one word, which no line breaks
    )
    for label, more in (("so", line.consequence), ("hint", line.hint)):
        text += f"\n{'':{width + 9}} {label}: {more}" if more else ""
    return text


def _target(ui: Ui, flags: dict[str, Any]) -> int:
    from envbuild.doctor.hosts import visit

    target = choose.target_of(ui, flags, jobs=None)
    visits = visit(target, _wanted(ui, flags, target))
    bad = any(line.level == "missing" for visit in visits for line in visit.lines)
    errors = {visit.node: visit.error for visit in visits if visit.error}
    hosts = [
        {"node": visit.node, "checks": [asdict(line) for line in visit.lines]} for visit in visits if not visit.error
    ]
    data = {"ok": not bad and not errors, "hosts": hosts, "errors": as_dicts(errors)}
    ui.result(data, lambda: _hosts(visits))
    return gravest([ui.exit_of(errors), ExitCode.CHECK_FAILED if bad else ExitCode.OK])


def _wanted(ui: Ui, flags: dict[str, Any], target: Target) -> Wanted | None:
    """The stack that is asked about: named here, in the configuration or by the target."""
    from envbuild.catalog.loader import load_stack
    from envbuild.doctor.hosts import Wanted
    from envbuild.lock.agreement import choose_profile

    config = choose.configured(flags)
    stack = flags["stack"] or choose.usual_stack(flags["target"], config)
    if stack is None:
        return None
    try:
        loaded = load_stack(stack)
    except EnvbuildError as error:
        if flags["stack"]:
            raise
        # The hosts can be checked without it; nobody asked about the stack here.
        ui.warn(f"the stack was not checked: {error.what}")
        return None
    profile = choose_profile(loaded, flags["profile"] or config.profile, target).name
    return Wanted(loaded, profile, flags["target"] or config.target)


def _hosts(visits: list[Visit]) -> str:
    """Hosts that differ in nothing but free space and names are told once."""
    from envbuild.hostlist import fold_hosts

    good = [visit for visit in visits if visit.error is None]
    alike = grouped(good, lambda visit: tuple((line.name, line.level, line.consequence) for line in visit.lines))
    parts: list[str] = []
    for same in alike.values():
        names = fold_hosts(visit.node for visit in same)
        parts.append(f"{names} ({len(same)} nodes, as the first)" if len(same) > 1 else names)
        width = max(len(line.name) for line in same[0].lines)
        parts += [_line(line, width) for line in same[0].lines]
    for visit in visits:
        if visit.error is not None:
            parts.append(f"{visit.node}: {visit.error}")
            parts += [
                f"  {label}: {text}" for label, text in (("why", visit.error.why), ("hint", visit.error.hint)) if text
            ]
    return "\n".join(parts)


def _facts(ui: Ui, flags: dict[str, Any], file: Path, deadline: float | None) -> int:
    """Ask every node for its facts, write them, and show the nodes by class."""
    from envbuild.provision.contact.first_contact import DEADLINE
    from envbuild.provision.survey.ask import probe_nodes
    from envbuild.resolve.node_classes import group

    target = choose.target_of(ui, flags, jobs=True)
    if target.connection.kind == "job":
        if deadline is not None:
            raise click.UsageError(
                f"--node-timeout is for nodes that are asked one by one; {target.name} is asked by a job"
            )
        facts, errors = _facts_by_job(ui, target, flags)
    else:
        facts, errors = probe_nodes(target, deadline or DEADLINE)
    plain = {node: item.to_json_dict() for node, item in facts.items()}
    exclusive = target.scheduler.exclusive
    if plain:
        with writing(file):
            file.write_text(json.dumps(redact_data(plain), indent=2) + "\n", encoding="utf-8")
        ui.note(f"wrote {file}")
    classes = [nodes._asdict() for nodes in group(facts, exclusive=exclusive)]

    def human() -> list[tuple[str, str]]:
        lines = [*_class_lines(facts, exclusive=exclusive), *_silent_lines(errors)]
        if len(plain) == 1:
            lines += [(line, "") for line in _facts_lines(next(iter(plain.values())))]
        return lines

    ui.result({"facts": plain, "errors": as_dicts(errors), "classes": classes}, human)
    return ui.exit_of(errors)


def _facts_by_job(
    ui: Ui, target: Target, flags: dict[str, Any]
) -> tuple[dict[str, NodeFacts], dict[str, EnvbuildError]]:
    """One short job that asks its nodes; an interrupt leaves it alone."""
    from envbuild.provision.jobs.survey import probe_in_job
    from envbuild.provision.run.context import one_run

    settings = choose.settings_of(choose.configured(flags))
    with RunProgress(ui) as progress, one_run("doctor", settings, progress, target=target.name) as run:
        facts, errors = probe_in_job(run, target)
        run.exit = exit_of(errors)
    return facts, errors


def _class_lines(facts: Mapping[str, NodeFacts], *, exclusive: bool) -> list[tuple[str, str]]:
    """The nodes by class, and who stands out and in what. `exclusive`: jobs there get whole nodes."""
    from envbuild.hostlist import fold_hosts
    from envbuild.resolve.node_classes import group

    lines = []
    for nodes in group(facts, exclusive=exclusive):
        lines += [_column(f"{len(nodes.nodes)} x", nodes.label, "bold"), _column("", fold_hosts(nodes.nodes))]
        lines += [_column("", f"not like the largest class: {text}", "yellow") for text in nodes.differs]
        if nodes.fault:
            lines += [_column("", f"fault: {nodes.fault}", "red"), _column("", f"hint: {nodes.hint}", "cyan")]
    return lines


def _silent_lines(errors: Mapping[str, EnvbuildError]) -> list[tuple[str, str]]:
    """The nodes that said nothing, by how far they came, and what helps."""
    from envbuild.hostlist import fold_hosts

    def phase(item: tuple[str, EnvbuildError]) -> tuple[str, str]:
        code = item[1].code
        other = "in the first contact" if code.startswith("contact-") else "when it was asked"
        return _PHASES.get(code, other), code

    lines = []
    for (where, code), silent_hosts in groupby(sorted(errors.items(), key=phase), key=phase):
        silent = dict(silent_hosts)
        first = next(iter(silent.values()))
        text = f"silent {where}: error[{code}]: {first.what}" + (f" ({first.why})" if first.why else "")
        lines += [_column(f"{len(silent)}", text, "red"), _column("", fold_hosts(silent))]
        lines += [_column("", f"hint: {first.hint}", "cyan")] if first.hint else []
    return lines


def _column(count: str, text: str, style: str = "") -> tuple[str, str]:
    """The text in a column of its own beside the count."""
    return f"{count:>6}  {visible(text)}", style


def _facts_lines(facts: dict[str, Any]) -> list[str]:
    """The facts of one node that people look for first."""
    prefix = facts["prefix"]
    rows = {
        "system": f"{facts['os']['id']} {facts['os']['version']}, {facts['libc']['kind']} {facts['libc']['version']}",
        "cpus": f"{facts.get('cpus')}, {(facts.get('memory_bytes') or 0) / 1e9:.0f} GB memory",
        "pythons": ", ".join(f"{item['version']} ({item['path']})" for item in facts["pythons"]) or "none",
        "compilers": ", ".join(f"{item['version']} ({item['path']})" for item in facts["compilers"]) or "none",
        "nvcc": ", ".join(f"{item['version']} ({item['path']})" for item in facts["nvcc"]) or "none",
        "driver": facts["driver"].get("version") or facts["driver"].get("problem") or "none",
        "gpus": ", ".join(item["name"] for item in facts["gpus"]) or "none",
        "scheduler": facts["scheduler"]["kind"],
        "prefix": f"{prefix['path']}, {(prefix.get('free_bytes') or 0) / 1e9:.1f} GB free"
        + ("" if prefix["writable"] else f", not writable: {prefix.get('reason') or ''}"),
        "environments": ", ".join(item["path"].rsplit("/", 1)[-1] for item in facts["environments"]) or "none",
    }
    return [f"  {name:<13} {visible(value)}" for name, value in rows.items()]
