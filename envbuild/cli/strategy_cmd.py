"""`envbuild strategy`: the parallel degrees that train a model fastest, searched by estimates and trials."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import choose
from envbuild.cli.launch_cmd import launch_place, profile_to_run
from envbuild.cli.output import Ui, columns, common_options, fitted
from envbuild.cli.progress import RunProgress
from envbuild.cli.provision_cmd import show_evidence
from envbuild.errors import EnvbuildError
from envbuild.text import did_you_mean

if TYPE_CHECKING:
    from envbuild.model.evidence import Evidence
    from envbuild.model.stack import Stack
    from envbuild.resolve.compat import Gpu
    from envbuild.strategy.search import Placed, Problem

_SHOWN = 12
# Columns of a table and what they show; memory in GiB.
_CASE = (("DP", "dp"), ("TMP", "tmp"), ("PP", "pp"), ("microbatches", "microbatches"), ("of", "micro_batch"))
_ESTIMATED = (
    *_CASE,
    ("GiB in tensors", "estimated_tensors_gib"),
    ("GiB reserved", "estimated_reserved_gib"),
    ("est. TFLOP/s", "estimated_tflops"),
)
_MEASURED = (
    *_CASE,
    *(("tensors", "estimated_tensors_gib"), ("torch", "tensors_gib"), ("%", "tensors_percent")),
    *(("reserved", "estimated_reserved_gib"), ("torch", "reserved_gib"), ("%", "reserved_percent")),
    *(("used", "used_gib"), ("est. TFLOP/s", "estimated_tflops"), ("TFLOP/s per GPU", "tflops")),
)


@click.command("strategy")
@choose.stack_argument(run=True)
@choose.where_options
@click.option(
    "--gpus", type=choose.Count(1, 16384), metavar="N", help="GPUs to train on (default: those of the target's nodes)."
)
@click.option(
    "--gpus-per-node", type=choose.Count(1, 64), help="GPUs of a node (default: the target's, else 8 at most)."
)
@click.option("--model", metavar="NAME", help="Row of the stack's model table (default: the document's for N GPUs).")
@click.option("--global-batch", type=choose.Count(min=1), help="Sequences a step (default: the document's).")
@click.option("--gpu", metavar="MODEL", help="GPU to estimate for (default: this machine's, else the target's).")
@click.option(
    "--network", type=choose.Amount(min=0.01), default=3.1, metavar="GB/S",
    help="Network of a node (default: 3.1, the 25 Gbit/s of a p3.16xlarge).",
)  # fmt: skip
@choose.time_option("--budget", "deadline", least=1, default="5m", help="Longest time of all trials together.")
@click.option("-o", "--output", metavar="DIR", default="strategy", help="Folder for the trials (default: ./strategy).")
@click.option("--dry-run", is_flag=True, help="Rank only; compare with the best cases that the document published.")
@common_options
def strategy(ui: Ui, /, deadline: float, **flags: Any) -> int:
    """Search the parallel degrees that train STACK's model fastest.

    Varies data, tensor and pipeline parallel, and microbatches. Memory decides what fits; an estimate of time decides
    what runs first. The stack's own command then runs on this machine, case after case, as `bench` runs it. Out of
    memory counts as a result. Exit 1 if a run fails for another reason. Without STACK, it is the one that the target
    names.
    """
    target = choose.described_target(flags)
    per_node = flags["gpus_per_node"] or target.expects.gpus_per_node
    flags["gpus"] = flags["gpus"] or (per_node or 0) * (target.scheduler.nodes or 1)
    if not flags["gpus"]:
        raise click.UsageError("--gpus is needed: the target does not say how many GPUs a node has")
    flags["gpus_per_node"] = flags["gpus_per_node"] or min(flags["gpus"], per_node or 8)
    if flags["dry_run"]:
        return _rank_only(ui, flags)
    return _search(ui, flags, deadline)


def _problem(stack: Stack, flags: dict[str, Any], here: Gpu | None) -> Problem:
    """What is searched, on the GPU that was named, else the one that is here, else the one that the target expects."""
    from envbuild.provision.survey.ask import rules
    from envbuild.resolve.compat import rows_like
    from envbuild.strategy.search import machine_of, problem

    gpus = rules().gpus
    name = flags["gpu"] or flags.get("expected")
    named = rows_like(name, rules())
    gpu = here if here and not flags["gpu"] else named[0] if len(named) == 1 else None
    if gpu is None:
        says, hint = "no GPU model is given", f"--gpu MODEL: {', '.join([row.model for row in named] or sorted(gpus))}"
        if named:
            says = f"{name} fits several GPU models"
        elif name:
            says, hint = f"{name} is not one of envbuild's GPU models", did_you_mean(name, gpus)
        why = "" if flags["gpu"] else f"`expects: {{gpu: …}}` of the target is {name or 'not set'}"
        raise EnvbuildError("strategy-gpu", says, why=why, hint=hint)
    machine = machine_of(gpu, flags["gpus_per_node"], flags["network"])
    return problem(stack, flags["gpus"], machine, flags["model"], flags["global_batch"])


def _rank_only(ui: Ui, flags: dict[str, Any]) -> int:
    from envbuild.catalog.loader import load_stack
    from envbuild.strategy.search import as_row, listed, published

    flags["expected"] = choose.described_target(flags).expects.gpu
    problem = _problem(load_stack(flags["stack"]).stack, flags, None)
    ranked, best = problem.ranked(), published(problem)
    tried = listed(problem) if problem.best is None else []
    rows = [as_row(problem, item) for item in ranked]
    command = _command(flags, problem.settings(ranked[0].case))
    data = {
        "model": problem.model, "gpus": problem.gpus, "gpu": problem.machine.gpu, "global_batch": problem.global_batch,
        "cases": rows, "published": [_row(placed) for placed in best], "listed": [_row(placed) for placed in tried],
        "launch": command,
    }  # fmt: skip

    def human() -> str:
        per_node = f"{problem.machine.gpus_per_node} a node"
        head = f"{problem.model} on {problem.gpus} x {problem.machine.gpu} ({per_node})"
        lines = [
            f"{head}, global batch {problem.global_batch}: {len(rows)} cases may fit; nothing was run",
            "",
            _table(rows),
        ]
        if best:
            early = sum(placed.early for placed in best)
            lines += ["", f"{early} of {len(best)} published best cases on this GPU are among the first three:"]
            lines += [_placed_line(placed) for placed in best]
            errors = [placed.error for placed in best if placed.error is not None]
            if errors:
                lines.append(
                    f"the estimates are {min(errors):+.0%} to {max(errors):+.0%} of what was published: cases "
                    "nearer to each other than that are not told apart, so try several"
                )
        if tried:
            early = sum(placed.early for placed in tried)
            what = f"no best case is published for {problem.model} on {problem.gpus} GPUs (unverified)"
            lines += ["", f"{what}; of its {len(tried)} cases in the manual list {early} are among the first three:"]
            lines += [_placed_line(placed) for placed in tried]
        return "\n".join([*(fitted(line, sys.stdout) for line in lines), "", f"the first: {command}"])

    ui.result(data, human)
    return 0


def _search(ui: Ui, flags: dict[str, Any], deadline: float) -> int:
    from envbuild.launch.recipes import launch
    from envbuild.provision.strategy import Asked
    from envbuild.provision.strategy import strategy as search

    config = choose.configured(flags)
    profile = profile_to_run(flags, "strategy")
    prepared = choose.prepared_of(ui, {**flags, "profile": profile}, config, locked=False, jobs=True)
    if prepared.target.connection.kind != "local" or flags["gpus"] != flags["gpus_per_node"]:
        where = f"{prepared.target.name} is reached through {prepared.target.connection.kind}"
        raise EnvbuildError(
            "strategy-not-here",
            "trials run on this machine only",
            why=where if prepared.target.connection.kind != "local" else f"{flags['gpus']} GPUs are several nodes",
            hint="rank the cases with --dry-run; run one as a job with `envbuild launch STACK --submit`",
        )
    flags["expected"] = prepared.target.expects.gpu
    place = launch_place(prepared.stack.name, flags)
    asked = Asked(
        problem=lambda here: _problem(prepared.stack, flags, here),
        make=lambda problem, case, where: launch(prepared.stack, prepared.profile, problem.settings(case), where),
        place=place,
        activate=f"{place.environment}/.envbuild/activate.sh",
        budget=deadline,
    )
    with RunProgress(ui) as progress:
        evidence, run = search(prepared, choose.settings_of(config), progress, asked)
    code = show_evidence(ui, evidence, run)
    if not ui.json:
        ui.result({}, lambda: "\n".join(_trials(evidence, flags)))
    return code


def _trials(evidence: Evidence, flags: dict[str, Any]) -> list[str]:
    """The table of the trials, and the command of the best."""
    checks = [check for node in evidence.nodes for check in node.checks]
    rows = [
        {**check.details, "tflops": f"{check.metrics[0].median:.1f}" if check.metrics else check.details["answer"]}
        for check in checks
        if check.name.startswith("trial ")
    ]
    best = next((check.details.get("settings") for check in checks if check.name == "strategy"), None)
    if not rows:
        return []
    return ["", _table(rows), *(["", f"the best: {_command(flags, best)}"] if best else [])]


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The first rows; of trials with what was measured and the percent of it that the estimate was."""
    shown = _MEASURED if any("tflops" in row for row in rows) else _ESTIMATED
    lines = [[str(row.get(key, "–")) for _, key in shown] for row in rows[:_SHOWN]]
    more = f"\n  and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return columns([[heading for heading, _ in shown], *lines], right=True) + more


def _placed_line(placed: Placed) -> str:
    place = "does not fit by the estimate" if placed.place is None else f"place {placed.place}"
    figures = f", {placed.estimated:.1f} TFLOP/s estimated and {placed.tflops:g} published" if placed.tflops else ""
    return f"  {placed.model} on {placed.case.gpus}: {placed.case}: {place}{figures}"


def _row(placed: Placed) -> dict[str, object]:
    case = placed.case
    return {
        "model": placed.model, "gpus": case.gpus, "dp": case.dp, "tmp": case.tmp, "pp": case.pp,
        "microbatches": case.microbatches, "place": placed.place, "estimated_tflops": round(placed.estimated, 1),
        "published_tflops": placed.tflops,
    }  # fmt: skip


def _command(flags: dict[str, Any], settings: Mapping[str, str]) -> str:
    """The launch of a case, in the words of a shell."""
    words = ["envbuild", "launch", flags["stack"]]
    for option in ("profile", "target", "prefix"):
        words += [f"--{option}", flags[option]] if flags[option] else []
    nodes = -(-flags["gpus"] // flags["gpus_per_node"])
    words += ["--nodes", str(nodes), "--master", "ADDRESS"] if nodes > 1 else []
    words += ["--gpus-per-node", str(flags["gpus_per_node"])]
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    return shlex.join([*words, *(["--run"] if nodes == 1 else [])])
