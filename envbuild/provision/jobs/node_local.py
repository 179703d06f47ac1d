"""Jobs whose nodes each have a disk of their own: one node builds what is compiled, and each installs from a bundle.

The prefix is the same path on every node's disk. What login host and nodes share (`shared` of the target) holds jobs,
staged tools, bundles and built wheels, and says what nodes get: `node/env/published.py`.
"""

from __future__ import annotations

import posixpath
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.model.plan import NodePlan
from envbuild.model.target import Target
from envbuild.plan.tools import NodeTools
from envbuild.provision.run.context import Prepared, Survey
from envbuild.schedule.script import ensure_script


def is_local(target: Target) -> bool:
    """Whether nodes are reached through jobs and each has a disk of its own for environments."""
    return target.connection.kind == "job" and target.placement == "node-local"


def keep_only_wanted(survey: Survey, prepared: Prepared, nodes: list[str]) -> None:
    """Forget an environment that is not the one that was chosen, or has other variables: all is done again then.

    A change of the link or of variables alone has to reach all nodes too, and only a new request of `ensure` does.
    """
    for node in nodes:
        variant, facts = survey.variants.get(node), survey.facts[node]
        if variant is None:
            continue
        variables = variant.variables(prepared.target.environment)
        good = tuple(
            item
            for item in facts.environments
            if item.here == variant.here and (item.stamp or {}).get("variables") == variables
        )
        survey.facts[node] = facts.model_copy(update={"environments": good})


def published(builder: NodePlan, shared: str, stack: str, tools: NodeTools, folder: str) -> dict[str, Any]:
    """What `activate` of the node that builds writes into the shared folder: how all nodes get the same, now and later.

    `folder`: that of the job.
    """
    install = next(step.request for step in builder.steps if step.kind == "install" and step.request is not None)
    return {
        "folder": posixpath.join(shared, "ensure"),
        "script": ensure_script(shared, stack, tools.python, tools.pyz),
        "install": install["args"],
        "requests": [posixpath.join(folder, "requests", "ensure.json")],
    }


def refuse_script(target: Target) -> None:
    """Raises EnvbuildError `script-impossible` (exit 7): bash alone brings one environment to one prefix."""
    if target.engine == "container":
        raise EnvbuildError(
            "script-impossible",
            "envbuild cannot print a script for images",
            why="the node program takes an image in and tests inside it",
            hint="`envbuild provision` does that; `envbuild image build` only builds the image",
        )
    if is_local(target):
        raise EnvbuildError(
            "script-impossible",
            "envbuild cannot print a script for node-local environments",
            why="every job begins with the node program, which installs what its node lacks",
            hint="begin your jobs with `/bin/sh SHARED/ensure/STACK.sh`; with `placement: shared` there is a script",
        )
