"""What the job that carries out a plan asks the scheduler for, as its target says."""

from __future__ import annotations

from envbuild.errors import EnvbuildError
from envbuild.model.plan import Plan
from envbuild.model.target import Target
from envbuild.schedule.job import clock_text, seconds_of
from envbuild.schedule.pbs import Queues
from envbuild.text import few, plural

LEAST_LIMIT = 1800


def limit_of(plan: Plan, target: Target) -> int:
    """Seconds that a job may run: as the target says, or four times what was estimated, half an hour at least."""
    if target.scheduler.time_limit:
        return seconds_of(target.scheduler.time_limit)
    estimated = max(sum(step.seconds for step in node.steps) for node in plan.nodes)
    return max(LEAST_LIMIT, round(4 * estimated / 60) * 60)


def request_text(plan: Plan, target: Target) -> str:
    """Nodes, queue, time and account of the job, or why there is none; no scheduler is asked."""
    wanted, limit, queue = target.scheduler, limit_of(plan, target), target.partition
    try:
        if wanted.kind == "pbs":
            queues = Queues(wanted.limits)
            queue = queues.queue(wanted.nodes or queues.in_service(), limit)
    except EnvbuildError as error:
        return error.what
    nodes = plural(wanted.nodes, "node") if wanted.nodes else "all nodes in service"
    like = f" like {'this one' if len(plan.nodes) == 1 else 'these'}" if len(plan.nodes) < (wanted.nodes or 0) else ""
    place, account = (f" of {queue}" if queue else ""), (f", account {wanted.account}" if wanted.account else "")
    text = f"{nodes}{place}{like} for at most {clock_text(limit)}{account}"
    requests = (step.request for node in plan.nodes for step in node.steps if step.kind == "install" and step.request)
    built = {
        row["name"]: None for request in requests for row in request["args"]["variant"]["sources"] if "build" in row
    }
    unknown = f"; how long {few(list(built))} compile there is not known" if built else ""
    if wanted.time_limit:
        return text + unknown
    least = "; no `time_limit`, so four times the estimated seconds, 30 minutes at least"
    return f"{text}{least}{unknown}{': set `time_limit`' if built else ''}"
