"""Who builds for whom, decided in one pass for each way in which nodes are reached. Pure."""

from __future__ import annotations

from envbuild.errors import EnvbuildError
from envbuild.model.plan import Plan
from envbuild.plan import shared_prefix
from envbuild.plan.distribution import Sharing, spread
from envbuild.plan.shared_builds import left_alone, share_builds, without
from envbuild.plan.source_builds import lacks_tools


def share(plan: Plan, given: Sharing) -> tuple[Plan, dict[str, EnvbuildError]]:
    """The plan with its builders, and the error of each node that cannot build what nobody gives it.

    Raises EnvbuildError as `shared_prefix.share` does.
    """
    return _WAYS[given.target.connection.kind](plan, given)


def over_ssh(plan: Plan, given: Sharing) -> Plan:
    """One node builds an environment on a prefix that all share, else each wheel for those that can use it."""
    if plan.nothing_to_do:
        return plan
    jobs = given.jobs or given.target.build_jobs
    return share_builds(spread(plan, given), given.facts, given.variants, jobs=jobs, check_rebuild=given.rebuild)


def _ssh(plan: Plan, given: Sharing) -> tuple[Plan, dict[str, EnvbuildError]]:
    return _alone(over_ssh(plan, given), given)


def _alone(plan: Plan, given: Sharing) -> tuple[Plan, dict[str, EnvbuildError]]:
    resolutions = {node.node: node.resolution for node in plan.nodes}
    lacking = {node: lacks_tools(resolutions[node]) for node in left_alone(plan, given.variants)}
    return (without(plan, tuple(lacking)) if lacking else plan), lacking


def _in_job(plan: Plan, given: Sharing) -> tuple[Plan, dict[str, EnvbuildError]]:
    local, pins = given.target.placement == "node-local", given.target.scheduler.starts_tasks
    return shared_prefix.share(plan, given.variants, local=local, pins=pins), {}


_WAYS = {"local": _alone, "ssh": _ssh, "job": _in_job}
