"""Carry out a plan in which one node builds for others: an environment on a prefix that they share, or wheels.

Builders run first, together with the nodes that nobody waits for.

An environment on a shared prefix is tested by the others. Where a builder fails, the next one tries; what fails on two
nodes for a reason that is not the node's own is not tried on a third.

What a builder has compiled for nodes with stores of their own is put into a bundle there, fetched into the run
directory and delivered to the others of its class; they run then, and take it into their own stores. Where a builder
fails the next one of its class tries once; then the others end with that error, none of them compiles it again. Where
only the handing over fails, they build for themselves.
"""

from __future__ import annotations

import copy
import posixpath
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.plan import BuildClass, Plan, SpreadClass
from envbuild.node import paths, proc
from envbuild.plan.sharing import install_args, keys_of, stamp_of_environment
from envbuild.provision.ansible.play import run_hosts
from envbuild.provision.ansible.steps import NodeHost
from envbuild.provision.contact.first_contact import contact, node_request
from envbuild.provision.contact.wheel_stores import fetch_wheels, store_of
from envbuild.provision.environments import requests_of
from envbuild.provision.run.context import Outcome, Work
from envbuild.provision.run.journal import EventKind
from envbuild.provision.survey.plan_run import plan_of

Stage = Callable[[Work, Plan], tuple[Plan, dict[str, NodeHost]]]
_TRIES = 2
_OF_THE_NODE = frozenset({ExitCode.UNREACHABLE, ExitCode.REFUSED, ExitCode.TRY_AGAIN, ExitCode.INTERRUPTED})


@dataclass
class _BuildGroup:
    """A class while its nodes are provisioned. `keys`: of what `by` has in its store, once that is known."""

    made: BuildClass
    waiting: list[str]
    by: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)

    @property
    def next_builder(self) -> str | None:
        """Who builds now; None where nobody is left to try."""
        return next((name for name in self.made.builders if name not in self.tried), None)


@dataclass
class _SpreadGroup:
    made: SpreadClass
    waiting: list[str]


@dataclass(frozen=True)
class _Built:
    """The bundle with the wheels of one class, on this machine."""

    path: Path
    digest: str
    size: int


def execute_shared(plan: Plan, files: Mapping[str, NodeHost], work: Work, stage: Stage) -> tuple[Plan, Outcome]:
    """Run every step of every node that has one; the plan as it was carried out, and the answers.

    `stage` prepares the files for a plan that was made anew because a builder failed. Raises EnvbuildError as
    `run_hosts` does.
    """
    return _Run(plan, files, work, stage).run()


class _Run:
    """The state between the plays: who still waits; plan, requests and files of each node as they are now."""

    def __init__(self, plan: Plan, files: Mapping[str, NodeHost], work: Work, stage: Stage) -> None:
        self.plan, self.work, self.stage = plan, work, stage
        self.nodes = {node.node: node for node in plan.nodes if node.steps}
        self.donors = {node.node: node for node in plan.nodes if node.nothing_to_do}
        self.files, self.requests = dict(files), requests_of(plan)
        self.groups = [
            _SpreadGroup(spread, [name for name in spread.nodes if name in self.nodes]) for spread in plan.spreads
        ]
        self.builds = plan.builds
        self.tries: Counter[str] = Counter()
        self.outcome = Outcome()
        self.bundles: list[Path] = []

    def run(self) -> tuple[Plan, Outcome]:
        """Play until no node waits for an environment."""
        waiting = {name for group in self.groups for name in group.waiting}
        ready = [name for name in self.nodes if name not in waiting]
        try:
            while True:
                for group in [group for group in self.groups if group.waiting and self._has(group)]:
                    ready += group.waiting
                    group.waiting = []
                if not ready:
                    break
                now, ready = self._at_once(ready)
                self._compile(now)
                for group in [group for group in self.groups if group.waiting and group.made.builder in now]:
                    if not self._has(group):
                        ready += self._next(group)
        finally:
            for path in self.bundles:
                path.unlink(missing_ok=True)
        self.work.notes += _built_alone(self.outcome)
        plans = tuple(self.nodes.get(node.node, node) for node in self.plan.nodes)
        return self.plan.model_copy(update={"nodes": plans}), self.outcome

    def _compile(self, names: list[str]) -> None:
        """Play these until none waits for wheels: first builders, those who wait for nobody or whom a donor gives."""
        groups = [_BuildGroup(made, list(made.nodes)) for made in self.builds if set(made.nodes) <= set(names)]
        waiting = {name for group in groups for name in group.waiting}
        ready = [name for name in names if name not in waiting]
        ready += self._hand_over([group for group in groups if self._donated(group)])
        while ready or any(group.waiting for group in groups):
            building = [group for group in groups if group.waiting]
            for group in building:
                builder = group.next_builder or group.waiting[0]
                group.waiting.remove(builder)
                group.tried.append(builder)
                if group.waiting:
                    sources = ", ".join(group.made.sources)
                    self.work.journal.stage(f"{builder} builds {sources} for {len(group.waiting)} more")
                ready.append(builder)
            part = run_hosts({name: self.requests[name] for name in ready}, self.files, self.work)
            for node, verbs in part.responses.items():
                self.outcome.responses.setdefault(node, {}).update(verbs)
            self.outcome.errors.update(part.errors)
            ready = self._hand_over([group for group in building if self._built(group)])
            for group in building:
                self._give_up(group)

    def _donated(self, group: _BuildGroup) -> bool:
        """A finished node has what the class needs."""
        donor = self.donors.get(group.made.donor or "")
        if donor is None:
            return False
        stamp = stamp_of_environment(self.work.survey.facts[donor.node], donor.environment)
        sources = ((stamp.stamp or {}) if stamp is not None else {}).get("sources")
        group.by, group.keys = donor.node, self._wanted(group, sources)
        return bool(group.keys)

    def _wanted(self, group: _BuildGroup, sources: Any) -> dict[str, str]:
        return {name: key for name, key in keys_of(sources).items() if name in group.made.sources}

    def _built(self, group: _BuildGroup) -> bool:
        """The last builder of the class has installed what it built, so the others can take it."""
        builder = group.tried[-1]
        answer = self.outcome.responses.get(builder, {}).get("install") or {}
        if not answer.get("ok"):
            return False
        group.by, group.keys = builder, self._wanted(group, (answer.get("result") or {}).get("sources"))
        return True

    def _give_up(self, group: _BuildGroup) -> None:
        """End those who wait for builders that all failed."""
        if not group.waiting or group.next_builder is not None:
            return
        failed = group.tried[-1]
        error = self.outcome.error_of(failed)
        for node in group.waiting:
            self.outcome.errors[node] = not_built(node, failed, error)
        group.waiting = []

    def _hand_over(self, groups: list[_BuildGroup]) -> list[str]:
        """Bring what was built to those who wait for it; they are the nodes returned, ready to run."""
        groups = [group for group in groups if group.waiting]
        if not groups:
            return []
        ready: list[str] = []
        self.work.journal.stage("handing over what was built")
        began = time.monotonic()
        bundles = proc.parallel([partial(self._bundle, group) for group in groups])
        for group, answer in zip(groups, bundles, strict=True):
            if isinstance(answer, EnvbuildError) or answer is None:
                if not self._without(group, answer):
                    continue
            else:
                self._give(group, *answer, seconds=round(time.monotonic() - began, 3))
            ready += group.waiting
            group.waiting = []
        return ready

    def _without(self, group: _BuildGroup, error: EnvbuildError | None) -> bool:
        """Say that nothing was handed over; False where a class that had a donor now builds as others do."""
        why = f"{error.what} ({error.why})" if error is not None else "nothing was there to hand over"
        names = ", ".join(group.made.sources)
        self.work.notes.append(f"{names} of {group.by} could not be handed to {', '.join(group.waiting)}: {why}")
        return group.by != group.made.donor or not group.made.builders

    def _bundle(self, group: _BuildGroup) -> tuple[_Built | None, set[str]] | EnvbuildError | None:
        """The wheels of a class here, and which nodes lack them; no bundle where none does."""
        try:
            if not group.keys:
                return None
            lacking = self._lacking(group)
            return (self._fetched(group) if lacking else None), lacking
        except EnvbuildError as error:
            return error
        except OSError as error:
            return EnvbuildError(
                "bundle-not-written", f"the wheels of {group.by} cannot be stored on this machine", why=str(error)
            )
        except Exception as error:  # noqa: BLE001 - in a thread; those who wait build for themselves
            return self.work.run.unexpected("they were not fetched", error)

    def _lacking(self, group: _BuildGroup) -> set[str]:
        """Who has not all wheels already: from an earlier run, or because the store is one for all."""
        work, lacking = self.work, set(group.waiting)
        requests = {}
        for node in group.waiting:
            args = {"action": "list", "store": self._store(node)}
            requests[node] = node_request("wheels", work.survey.facts[node].prefix.path, args, work.run.id)
        for node, answer in contact(requests, work.prepared.target.connection, run=work.run).items():
            # Of a store that cannot be read nothing is there.
            entries = answer.result().get("entries", ()) if answer.failure is None else ()
            if set(group.keys.values()) <= {str(row.get("key")) for row in entries if row.get("state") == "unchecked"}:
                lacking.discard(node)
        return lacking

    def _store(self, node: str) -> str:
        """The wheel store of a node that installs; of a donor, that of the node with the same target."""
        planned = self.nodes.get(node)
        args = install_args(planned) if planned is not None else None
        if args is not None:
            return str(args["build"]["store"])
        facts = self.work.survey.facts[node]
        return store_of(self.work.prepared.target, facts.prefix.path, facts)

    def _fetched(self, group: _BuildGroup) -> _Built:
        """Put them into a bundle on the node that has the wheels, and fetch it."""
        work, store = self.work, self._store(group.by)
        prefix = work.survey.facts[group.by].prefix.path
        here = work.run.staging / f"built-{secrets.token_hex(4)}.tar"
        self.bundles.append(here)
        bundle = fetch_wheels(group.by, prefix, store, group.keys, here, work.prepared.target.connection, work.run)
        return _Built(here, bundle["digest"], bundle["bytes"])

    def _give(self, group: _BuildGroup, built: _Built | None, lacking: set[str], *, seconds: float) -> None:
        """Change requests and deliveries of those who wait: they take the wheels instead of building them."""
        self.work.journal.append(
            EventKind.HANDED_OVER, node=group.by, to=list(group.waiting), keys=group.keys,
            bytes=built.size if built else 0, seconds=seconds,
        )  # fmt: skip
        for node in group.waiting:
            install = self.requests[node]["install"] = copy.deepcopy(self.requests[node]["install"])
            handed: dict[str, Any] = {"by": group.by, "keys": group.keys}
            if built is not None and node in lacking:
                handed.update(file=self._delivered(node, built), digest=built.digest)
            install["args"]["build"].update(handed=handed, check_rebuild=False)

    def _delivered(self, node: str, built: _Built) -> str:
        """Put the bundle beside what else the node is brought; where it will lie there."""
        files, name = self.files[node], f"built-{built.digest[:12]}.tar"
        prefix, variant = self.work.survey.facts[node].prefix.path, self.work.survey.variants[node]
        store = files.store or paths.delivered(prefix, variant.digest)
        self.files[node] = replace(files, bundles={**files.bundles, name: built.path}, store=store)
        return posixpath.join(store, name)

    def _has(self, group: _SpreadGroup) -> bool:
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

    def _next(self, group: _SpreadGroup) -> list[str]:
        """Who builds now in place of a builder that failed; where it was tried often enough, those who wait end."""
        failed, waiting = group.made.builder, group.waiting
        group.waiting = []
        error = self._error_of(failed)
        self.work.tried.add(failed)
        if error.exit_code not in _OF_THE_NODE and error.code != "step-failed":
            self.tries.update(waiting)
        ended = [name for name in waiting if self.tries[name] >= _TRIES]
        self.outcome.errors.update({name: not_built(name, failed, error) for name in ended})
        waiting = [name for name in waiting if name not in ended]
        return self._plan_again(waiting) if waiting else []

    def _plan_again(self, waiting: list[str]) -> list[str]:
        """Plan for nodes whose builder failed, without it; returns the new builders."""
        whole = plan_of(self.work)
        made = whole.model_copy(update={"nodes": tuple(node for node in whole.nodes if node.node in waiting)})
        made, files = self.stage(self.work, made)
        self.nodes.update({node.node: node for node in made.nodes if node.node in waiting})
        self.requests.update(requests_of(made))
        self.files.update({name: content for name, content in files.items() if name in waiting})
        self.builds = made.builds
        taken: set[str] = set()
        for spread in made.spreads:
            names = [name for name in spread.nodes if name in waiting]
            if names:
                self.groups.append(_SpreadGroup(spread, names))
                taken.update(names)
        return [name for name in waiting if name not in taken]

    def _error_of(self, node: str) -> EnvbuildError:
        """Why a node that was to give an environment has none."""
        error = self.outcome.error_of(node)
        if error is not None:
            return error
        smoke = (self.outcome.responses.get(node, {}).get("smoke") or {}).get("result") or {}
        failed = [str(check.get("name")) for check in smoke.get("checks", ()) if check.get("status") == "failed"]
        code = ExitCode.BELOW_FLOOR if smoke.get("exit") == ExitCode.BELOW_FLOOR else ExitCode.CHECK_FAILED
        return EnvbuildError(
            "smoke-failed", f"its smoke test failed: {', '.join(failed) or 'no answer'}", exit_code=code
        )


def _built_alone(outcome: Outcome) -> list[str]:
    """What was handed to a node and was not right for it, in words."""
    notes = []
    for node, verbs in outcome.responses.items():
        for source in ((verbs.get("install") or {}).get("result") or {}).get("sources") or ():
            handed = (source.get("build") or {}).get("handed")
            if handed and not handed.get("used"):
                why = f"{handed.get('by')}'s is not right for it ({handed.get('why')})"
                notes.append(f"{node} has its own {source.get('name')}: {why}")
    return notes


def not_built(node: str, builder: str, error: EnvbuildError | None) -> EnvbuildError:
    """The error of a node that waited for a builder of its kind, which failed."""
    return EnvbuildError(
        "not-built",
        f"{node}: {builder} builds for all nodes of its kind, and failed",
        why=str(error) if error is not None else "it gave no answer",
        hint=error.hint if error is not None else "run the same command again",
        exit_code=error.exit_code if error is not None else ExitCode.BUILD_FAILED,
        details={"node": node, "builder": builder},
    )
