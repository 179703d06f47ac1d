"""Nodes over SSH: in waves (`--batch`), and no new one is begun once too many have failed (`--max-fail`).

Every wave is planned for itself, so that a node of an earlier one that is finished can give what it built to the later
ones, and runs through all its steps before the next begins.
"""

from __future__ import annotations

from collections.abc import Callable

from envbuild.errors import EnvbuildError
from envbuild.model.evidence import NodeEvidence
from envbuild.model.plan import Batches, Plan
from envbuild.provision.contact.first_contact import contact, node_request
from envbuild.provision.environments import Environments, ask_in_use, stage
from envbuild.provision.fleet.multi_node_smoke import meet_in_use, meet_members, member_of
from envbuild.provision.fleet.sharing import SharedRun
from envbuild.provision.run.context import Outcome, Question, Work
from envbuild.provision.run.evidence import NOT_BEGUN
from envbuild.provision.run.journal import EventKind
from envbuild.provision.survey.ask import told_facts
from envbuild.provision.survey.plan_run import plan_of
from envbuild.text import plural

Wave = Callable[[Work, Plan], tuple[Plan, Outcome]]


class OverSsh(Environments):
    """Nodes over SSH."""

    def bring(self, work: Work, plan: Plan) -> tuple[Plan, Outcome]:
        """In waves."""
        return in_waves(work, plan, _wave)

    def meet(self, work: Work, plan: Plan, outcome: Outcome) -> None:
        """Nodes with one environment, where one has been changed."""
        well = (member_of(work, node.node, node.environment) for node in plan.nodes if outcome.well(node.node))
        changed = {node.node for node in plan.nodes if node.steps}
        meet_members(work, [member for member in well if member is not None], outcome, changed)

    def ask(self, work: Work, question: Question) -> list[NodeEvidence]:
        """As one by one, after `smoke` several together."""
        return ask_in_use(work, question, meet_in_use) if question.verb == "smoke" else ask_in_use(work, question)


def _wave(work: Work, plan: Plan) -> tuple[Plan, Outcome]:
    plan, files = stage(work, plan)
    with work.phase("provision", "provisioning"):
        return SharedRun(plan, files, work).run()


def in_waves(work: Work, plan: Plan, wave: Wave, *, replan: Callable[[Work], Plan] = plan_of) -> tuple[Plan, Outcome]:
    """Give `wave` the nodes that have something to do, some at a time; the plan as carried out, and all answers.

    Nodes whose wave does not begin any more have the error `not-begun`. Failed counts every node of the run, also one
    that could not be reached at all.
    """
    batches = work.settings.batches
    todo = tuple(node.node for node in plan.nodes if node.steps)
    waves = batches.waves(todo)
    total = len(plan.nodes) + sum(node not in {planned.node for planned in plan.nodes} for node in work.survey.errors)
    outcome, failed = Outcome(), set(work.survey.errors)
    for number, names in enumerate(waves):
        if batches.spent(len(failed), total):
            left = [name for later in waves[number:] for name in later]
            outcome.errors.update({name: _not_begun(name, len(failed), total, batches) for name in left})
            work.journal.append(EventKind.NOT_BEGUN, nodes=left, failed=sorted(failed))
            break
        part = plan
        if len(waves) > 1:
            work.journal.append(EventKind.WAVE_STARTED, number=number + 1, of=len(waves), nodes=list(names))
            work.journal.stage(f"wave {number + 1} of {len(waves)}: {plural(len(names), 'node')}")
            work.only = frozenset(names) | work.done
            part = replan(work)
        made, answers = wave(work, part)
        carried_out = {node.node: node for node in made.nodes if node.node in names}
        plan = plan.model_copy(update={"nodes": tuple(carried_out.get(node.node, node) for node in plan.nodes)})
        outcome.responses.update(answers.responses)
        outcome.errors.update(answers.errors)
        good = {name for name in names if answers.well(name)}
        failed |= set(names) - good
        if number + 1 < len(waves):
            work.done |= good
            _look_again(work, good)
    work.only = None
    return plan, outcome


def _look_again(work: Work, nodes: set[str]) -> None:
    """Put what finished nodes have now into the facts: the later waves are planned with it."""
    requests = {
        node: node_request("probe", work.survey.facts[node].prefix.path, {"node": node, "brief": True}, work.run.id)
        for node in sorted(nodes)
    }
    # One that gives no facts gives nothing to others; what it is itself is verified at the end.
    looked, _ = told_facts(contact(requests, work.prepared.target.connection, run=work.run))
    for node, now in looked.items():
        work.survey.facts[node] = work.survey.facts[node].model_copy(update={"environments": now.environments})


def _not_begun(node: str, failed: int, total: int, batches: Batches) -> EnvbuildError:
    most = batches.most.of(total) if batches.most is not None else 0
    return EnvbuildError(
        NOT_BEGUN,
        f"{node}: not started, because too many nodes failed",
        why=f"{failed} of {total} failed, `--max-fail` allows {most}",
        hint="repair the failed nodes; the same command then does the rest",
        details={"node": node},
    )
