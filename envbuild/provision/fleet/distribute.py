"""Carry out a plan in which one node builds an environment on a prefix that others share, and these test it.

Builders run first, with the nodes that nobody waits for. Where a builder fails, the next one tries; what fails on two
nodes for a reason that is not the node's own is not tried on a third.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.plan import Plan, SpreadClass
from envbuild.plan.source_builds import lacks_tools
from envbuild.provision.fleet.shared_builds import execute_once, not_built
from envbuild.provision.run.context import Work
from envbuild.provision.run.outcome import NodeFiles, Outcome
from envbuild.provision.survey.plan_run import plan_of

Stage = Callable[[Work, Plan], tuple[Plan, dict[str, NodeFiles]]]
_TRIES = 2
_OF_THE_NODE = frozenset({ExitCode.UNREACHABLE, ExitCode.REFUSED, ExitCode.TRY_AGAIN, ExitCode.INTERRUPTED})


@dataclass
class _Group:
    """A class while its nodes are provisioned."""

    made: SpreadClass
    waiting: list[str]


def execute_spread(plan: Plan, files: Mapping[str, NodeFiles], work: Work, stage: Stage) -> tuple[Plan, Outcome]:
    """Run every step of every node that has one; the plan as it was carried out, and the answers.

    `stage` prepares the files for a plan that was made anew because a builder failed. Raises EnvbuildError as
    `run_hosts` does.
    """
    if not plan.spreads:
        return plan, execute_once(plan, files, work)
    return _Run(plan, files, work, stage).run()


class _Run:
    """The state between the plays: who still waits, and the plan and files of each node as they are now."""

    def __init__(self, plan: Plan, files: Mapping[str, NodeFiles], work: Work, stage: Stage) -> None:
        self.plan, self.work, self.stage = plan, work, stage
        self.nodes = {node.node: node for node in plan.nodes if node.steps}
        self.files = dict(files)
        self.groups = [_Group(each, [name for name in each.nodes if name in self.nodes]) for each in plan.spreads]
        self.builds = plan.builds
        self.tries: Counter[str] = Counter()
        self.outcome = Outcome()

    def run(self) -> tuple[Plan, Outcome]:
        """Play until no node waits."""
        waiting = {name for group in self.groups for name in group.waiting}
        ready = [name for name in self.nodes if name not in waiting]
        while True:
            for group in [each for each in self.groups if each.waiting and self._has(each)]:
                ready += group.waiting
                group.waiting = []
            if not ready:
                break
            now, later = self._at_once(ready)
            self._play(now)
            ready = later
            for group in [each for each in self.groups if each.waiting and each.made.builder in now]:
                if not self._has(group):
                    ready += self._next(group)
        plans = tuple(self.nodes.get(node.node, node) for node in self.plan.nodes)
        return self.plan.model_copy(update={"nodes": plans}), self.outcome

    def _has(self, group: _Group) -> bool:
        """The builder of a group is finished, from this run or from an earlier one."""
        builder = group.made.builder
        if builder in self.work.tried:
            return False
        if builder not in self.nodes:
            return group.made.finished
        answers = self.outcome.responses.get(builder, {})
        return builder not in self.outcome.errors and bool((answers.get("activate") or {}).get("ok"))

    def _at_once(self, ready: list[str]) -> tuple[list[str], list[str]]:
        """Who plays now, and who after that: two builders on one prefix would be in each other's way."""
        builders = [group.made.builder for group in self.groups if group.made.builder in ready]
        later = set(builders[1:])
        return [name for name in ready if name not in later], [name for name in ready if name in later]

    def _play(self, now: list[str]) -> None:
        finished = [node for node in self.plan.nodes if node.nothing_to_do and node.node not in self.nodes]
        part = self.plan.model_copy(
            update={
                "nodes": (*finished, *(self.nodes[name] for name in now)),
                "builds": tuple(each for each in self.builds if set(each.nodes) <= set(now)),
            }
        )
        found = execute_once(part, {name: self.files[name] for name in now}, self.work)
        self.outcome.responses.update(found.responses)
        self.outcome.errors.update(found.errors)

    def _next(self, group: _Group) -> list[str]:
        """Who builds now in place of a builder that failed; where it was tried often enough, those who wait end."""
        failed, waiting = group.made.builder, group.waiting
        group.waiting = []
        error = self._error_of(failed)
        self.work.tried.add(failed)
        if error.exit_code not in _OF_THE_NODE and error.code != "step-failed":
            self.tries.update(waiting)
        ended = [name for name in waiting if self.tries[name] >= _TRIES]
        self.outcome.errors.update({name: self._ended(name, failed, error) for name in ended})
        waiting = [name for name in waiting if name not in ended]
        return self._plan_again(waiting) if waiting else []

    def _ended(self, node: str, builder: str, error: EnvbuildError) -> EnvbuildError:
        """Why a node ends that nobody builds for any more."""
        resolution, why = self.nodes[node].resolution, not_built(node, builder, error)
        return why if resolution.wheels_from is None else lacks_tools(resolution, str(why))

    def _plan_again(self, waiting: list[str]) -> list[str]:
        """Plan for nodes whose builder failed, without it; returns the new builders."""
        whole = plan_of(self.work)
        refused = {name: error for name, error in self.work.lacking.items() if name in waiting}
        self.outcome.errors.update(refused)
        waiting = [name for name in waiting if name not in refused]
        made = whole.model_copy(update={"nodes": tuple(node for node in whole.nodes if node.node in waiting)})
        made, files = self.stage(self.work, made)
        self.nodes.update({node.node: node for node in made.nodes if node.node in waiting})
        self.files.update({name: each for name, each in files.items() if name in waiting})
        self.builds = made.builds
        taken: set[str] = set()
        for each in made.spreads:
            names = [name for name in each.nodes if name in waiting]
            if names:
                self.groups.append(_Group(each, names))
                taken.update(names)
        return [name for name in waiting if name not in taken]

    def _error_of(self, node: str) -> EnvbuildError:
        """Why a node that was to give an environment has none."""
        error = self.outcome.error_of(node)
        if error is not None:
            return error
        smoke = (self.outcome.responses.get(node, {}).get("smoke") or {}).get("result") or {}
        failed = [str(each.get("name")) for each in smoke.get("checks", ()) if each.get("status") == "failed"]
        code = ExitCode.BELOW_FLOOR if smoke.get("exit") == ExitCode.BELOW_FLOOR else ExitCode.CHECK_FAILED
        return EnvbuildError(
            "smoke-failed", f"its smoke test failed: {', '.join(failed) or 'no answer'}", exit_code=code
        )
