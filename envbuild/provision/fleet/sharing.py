"""Carry out a plan in which one node builds for others: an environment on a prefix that they share, or wheels.

Builders run first, together with the nodes that nobody waits for. Where a builder fails, the next one tries; what fails
on two nodes is not tried on a third. On a shared prefix, failures that are the node's own do not count.

An environment on a shared prefix is tested by the others. What a builder has compiled for nodes with stores of their
own is put into a bundle there, fetched into the run directory and delivered to the others of its class; they run then,
and take it into their own stores. Where only the handing over fails, they build for themselves.
"""

from __future__ import annotations

import copy
import posixpath
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.plan import BuildClass, Plan
from envbuild.node import paths, proc
from envbuild.plan.sharing import keys_of, stamp_of_environment
from envbuild.provision.ansible.play import run_hosts
from envbuild.provision.ansible.steps import NodeHost
from envbuild.provision.contact.first_contact import contact, node_request
from envbuild.provision.contact.wheel_stores import fetch_wheels, store_of
from envbuild.provision.environments import requests_of, stage
from envbuild.provision.run.context import Outcome, Work
from envbuild.provision.run.journal import EventKind
from envbuild.provision.survey.plan_run import plan_of
from envbuild.text import grouped

_TRIES = 2
_OF_THE_NODE = frozenset({ExitCode.UNREACHABLE, ExitCode.REFUSED, ExitCode.TRY_AGAIN, ExitCode.INTERRUPTED})


@dataclass(frozen=True)
class _Built:
    """The wheels of a class: build keys by source, the nodes that lack them, and for these a bundle on this machine."""

    keys: dict[str, str]
    lacking: frozenset[str] = frozenset()
    path: Path = Path()
    digest: str = ""
    size: int = 0


class SharedRun:
    """The state between the plays: who still waits for whom; plan, requests and files of each node as they are now."""

    def __init__(self, plan: Plan, files: Mapping[str, NodeHost], work: Work) -> None:
        """Nothing has run yet."""
        self.plan, self.work = plan, work
        self.nodes = {node.node: node for node in plan.nodes if node.steps}
        self.files, self.requests = dict(files), requests_of(plan)
        self.waiting: dict[str, BuildClass] = {}
        self.builders: list[str] = []  # of environments on a shared prefix; a plan that is made anew names them again
        self.tries: Counter[str] = Counter()
        self.outcome = Outcome()
        self.bundles: list[Path] = []

    def run(self) -> tuple[Plan, Outcome]:
        """Run every step of every node that has one; the plan as it was carried out, and the answers.

        Raises EnvbuildError as `run_hosts` does.
        """
        ready = self._without_builders(self.plan, list(self.nodes))
        try:
            while ready := [*ready, *self._released()]:
                # Two builders on one prefix would be in each other's way.
                later = [name for name in dict.fromkeys(self.builders) if name in ready][1:]
                self._play([name for name in ready if name not in later])
                ready = [name for name in ready if name in later]
        finally:
            for path in self.bundles:
                path.unlink(missing_ok=True)
        self.work.notes += _built_alone(self.outcome)
        plans = tuple(self.nodes.get(node.node, node) for node in self.plan.nodes)
        return self.plan.model_copy(update={"nodes": plans}), self.outcome

    def _without_builders(self, plan: Plan, names: list[str]) -> list[str]:
        """Have nodes wait for the builders of a plan; those that wait for nobody."""
        self.waiting |= {name: made for made in plan.builds for name in made.nodes if name in names}
        self.builders += [made.builder for made in plan.builds if not made.sources]
        return [name for name in names if name not in self.waiting]

    def _play(self, names: list[str]) -> None:
        """Run the steps of these nodes."""
        for made, waiting in self._classes():
            if made.sources and made.builder in names:
                self.work.journal.stage(f"{made.builder} builds {', '.join(made.sources)} for {len(waiting)} more")
        part = run_hosts({name: self.requests[name] for name in names}, self.files, self.work)
        for node, verbs in part.responses.items():
            self.outcome.responses.setdefault(node, {}).update(verbs)
        self.outcome.errors.update(part.errors)

    def _classes(self) -> list[tuple[BuildClass, list[str]]]:
        """Every class of which a node still waits, and these nodes."""
        return list(grouped(self.waiting, self.waiting.__getitem__).items())

    def _released(self) -> list[str]:
        """Those who need not wait any more: their builder has ended, well or not."""
        ready: list[str] = []
        while ended := [group for group in self._classes() if self._ended(group[0])]:
            self.waiting = {name: made for name, made in self.waiting.items() if not self._ended(made)}
            good = [group for group in ended if self._has(group[0])]
            ready += self._hand_over(good)
            ready += [name for group in ended if group not in good for name in self._next(*group)]
        return ready

    def _ended(self, made: BuildClass) -> bool:
        return made.finished or made.builder in self.outcome.responses or made.builder in self.outcome.errors

    def _has(self, made: BuildClass) -> bool:
        """The builder of a class has what the others wait for, from this run or from an earlier one."""
        builder = made.builder
        if builder in self.work.tried:
            return False
        if builder not in self.nodes:
            return made.finished
        answers = self.outcome.responses.get(builder, {})
        verb = "install" if made.sources else "activate"
        return builder not in self.outcome.errors and bool((answers.get(verb) or {}).get("ok"))

    def _hand_over(self, classes: list[tuple[BuildClass, list[str]]]) -> list[str]:
        """Give what was built to those who wait for it; they are the nodes returned, ready to run."""
        ready = [name for made, waiting in classes if not made.sources for name in waiting]
        giving = [(made, waiting) for made, waiting in classes if made.sources]
        if giving:
            self.work.journal.stage("handing over what was built")
        began = time.monotonic()
        answers = proc.parallel([partial(self._built, made, waiting) for made, waiting in giving])
        for (made, waiting), answer in zip(giving, answers, strict=True):
            if isinstance(answer, _Built):
                self._give(made, waiting, answer, seconds=round(time.monotonic() - began, 3))
            else:
                why = f"{answer.what} ({answer.why})" if answer is not None else "nothing was there to hand over"
                names = f"{', '.join(made.sources)} of {made.builder}"
                self.work.notes.append(f"{names} could not be handed to {', '.join(waiting)}: {why}")
                if made.finished:
                    waiting = self._next(made, waiting)
            ready += waiting
        return ready

    def _built(self, made: BuildClass, waiting: list[str]) -> _Built | EnvbuildError | None:
        """The wheels of a class, None where it has none; their bundle is fetched where a node lacks them."""
        work, by = self.work, made.builder
        try:
            keys = self._keys(made)
            if not keys:
                return None
            lacking = self._lacking(waiting, keys)
            if not lacking:
                return _Built(keys)
            here = work.run.staging / f"built-{secrets.token_hex(4)}.tar"
            self.bundles.append(here)
            digest = fetch_wheels(work.prepared.target, work.survey.facts[by], keys, here, work.run)
            return _Built(keys, lacking, here, digest, here.stat().st_size)
        except EnvbuildError as error:
            return error
        except Exception as error:  # noqa: BLE001 - in a thread; those who wait build for themselves
            return work.run.unexpected("they were not fetched", error)

    def _keys(self, made: BuildClass) -> dict[str, str]:
        """The build keys of what the builder has in its store."""
        by = made.builder
        if made.finished:
            environment = next(node.environment for node in self.plan.nodes if node.node == by)
            stamped = stamp_of_environment(self.work.survey.facts[by], environment)
            sources = ((stamped.stamp or {}) if stamped is not None else {}).get("sources")
        else:
            sources = (self.outcome.responses[by]["install"].get("result") or {}).get("sources")
        return {name: key for name, key in keys_of(sources).items() if name in made.sources}

    def _lacking(self, waiting: list[str], keys: Mapping[str, str]) -> frozenset[str]:
        """Who has not all wheels already: from an earlier run, or because the store is one for all."""
        work, target, lacking = self.work, self.work.prepared.target, set(waiting)
        requests = {}
        for node in waiting:
            facts = work.survey.facts[node]
            args = {"action": "list", "store": store_of(target, facts)}
            requests[node] = node_request("wheels", facts.prefix.path, args, work.run.id)
        for node, answer in contact(requests, target.connection, run=work.run).items():
            # Of a store that cannot be read nothing is there.
            entries = answer.result().get("entries", ()) if answer.failure is None else ()
            if set(keys.values()) <= {str(row.get("key")) for row in entries if row.get("state") == "unchecked"}:
                lacking.discard(node)
        return frozenset(lacking)

    def _give(self, made: BuildClass, waiting: list[str], built: _Built, *, seconds: float) -> None:
        """Change requests and deliveries of those who wait: they take the wheels instead of building them."""
        self.work.journal.append(
            EventKind.HANDED_OVER, node=made.builder, to=waiting, keys=built.keys,
            bytes=built.size, seconds=seconds,
        )  # fmt: skip
        for node in waiting:
            install = self.requests[node]["install"] = copy.deepcopy(self.requests[node]["install"])
            handed: dict[str, Any] = {"by": made.builder, "keys": built.keys}
            if node in built.lacking:  # the bundle goes beside what else the node is brought
                files, name = self.files[node], f"built-{built.digest[:12]}.tar"
                prefix, variant = self.work.survey.facts[node].prefix.path, self.work.survey.variants[node]
                store = files.store or paths.delivered(prefix, variant.digest)
                self.files[node] = replace(files, bundles={**files.bundles, name: built.path}, store=store)
                handed["bundle"] = {"file": posixpath.join(store, name), "digest": built.digest}
            install["args"]["build"].update(handed=handed, check_rebuild=False)

    def _next(self, made: BuildClass, waiting: list[str]) -> list[str]:
        """Who builds now in place of a builder that failed; where it was tried often enough, those who wait end."""
        failed = made.builder
        self.work.tried.add(failed)
        if not made.finished:
            error = self.outcome.error_of(failed) or smoke_failed(self.outcome.responses.get(failed, {}))
            of_the_node = error.exit_code in _OF_THE_NODE or error.code == "step-failed"
            self.tries.update(waiting if made.sources or not of_the_node else ())
            ended = [name for name in waiting if self.tries[name] >= _TRIES]
            self.outcome.errors.update({name: not_built(name, failed, error) for name in ended})
            waiting = [name for name in waiting if name not in ended]
        return self._plan_again(waiting) if waiting else []

    def _plan_again(self, waiting: list[str]) -> list[str]:
        """Plan for nodes whose builder failed, without it; returns the new builders."""
        whole = plan_of(self.work)
        made = whole.model_copy(update={"nodes": tuple(node for node in whole.nodes if node.node in waiting)})
        made, files = stage(self.work, made)
        self.nodes.update({node.node: node for node in made.nodes if node.node in waiting})
        self.requests.update(requests_of(made))
        self.files.update({name: content for name, content in files.items() if name in waiting})
        return self._without_builders(made, waiting)


def smoke_failed(responses: Mapping[str, Mapping[str, Any]]) -> EnvbuildError:
    """The error of a node that was to give an environment to others, and answered no error, but a test that failed."""
    smoke = (responses.get("smoke") or {}).get("result") or {}
    failed = [str(check.get("name")) for check in smoke.get("checks", ()) if check.get("status") == "failed"]
    code = ExitCode.BELOW_FLOOR if smoke.get("exit") == ExitCode.BELOW_FLOOR else ExitCode.CHECK_FAILED
    what = f"its smoke test failed: {', '.join(failed) or 'no answer'}"
    return EnvbuildError("smoke-failed", what, hint="the report has its checks", exit_code=code)


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


def not_built(node: str, builder: str, error: EnvbuildError) -> EnvbuildError:
    """The error of a node that waited for a builder of its kind, which failed."""
    return EnvbuildError(
        "not-built",
        f"{node}: {builder} builds for all nodes of its kind, and failed",
        why=str(error),
        hint=error.hint,
        exit_code=error.exit_code,
        details={"node": node, "builder": builder},
    )
