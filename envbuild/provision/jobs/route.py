"""Environments on nodes that are reached through jobs of a scheduler."""

from __future__ import annotations

from envbuild.model.evidence import NodeEvidence
from envbuild.model.plan import Plan
from envbuild.plan.sharing import builder_of
from envbuild.provision.environments import Environments, asked_evidence, stage
from envbuild.provision.jobs.provision import execute_jobs
from envbuild.provision.jobs.site import JobSite
from envbuild.provision.jobs.smoke import smoke_in_job
from envbuild.provision.jobs.stage import stage as stage_on_login
from envbuild.provision.jobs.survey import survey_jobs
from envbuild.provision.run.context import Question, Work
from envbuild.provision.run.outcome import Outcome


class InJobs(Environments):
    """The login host is asked, then jobs: what nodes share is staged from there, one node builds and all test."""

    def look(self, work: Work, *, bring_python: bool) -> None:
        """Ask the login host, and nodes through a job where nothing is known of them."""
        with work.phase("probe", "asking the login host, and nodes through a job where they are not known"):
            work.survey = survey_jobs(work, JobSite.of(work.prepared.target), bring_python=bring_python)

    def execute(self, work: Work, plan: Plan) -> tuple[Plan, Outcome]:
        """Stage, then one job; plan and outcome of the nodes that it got. The job verifies."""
        plan = self.stage(work, plan)
        with work.phase("provision", "provisioning through a job"):
            return execute_jobs(plan, work, JobSite.of(work.prepared.target))

    def stage(self, work: Work, plan: Plan) -> Plan:
        """Put tools and bundles under the prefix, from the login host; the plan as it is then."""
        site, builder = JobSite.of(work.prepared.target), builder_of(plan)
        plan, files = stage(work, plan, only=builder.node)
        with work.phase("stage", f"staging on {site.login}"):
            stage_on_login(files.get(builder.node), work, site)
        return plan

    def ask(self, work: Work, question: Question) -> list[NodeEvidence]:
        """The smoke test through a job. Other verbs ask the login host, which is another target (`as_login`)."""
        current, outcome = smoke_in_job(work)
        return [
            asked_evidence(node, found, outcome.responses.get(node, {}), outcome.errors.get(node))
            for node, found in current.items()
        ]
