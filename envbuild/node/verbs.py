"""The verbs of the node program and where each one is; a verb's module is imported only when it is asked for."""

import importlib

from envbuild.node.protocol import Json

# Verb -> module and function of it, `(request) -> (changed, result)`.
VERBS = {
    # A provisioned node, in this order (`NodeSteps.steps` of `plan/node_steps.py`), from `install` on under one lease:
    "probe": "facts.run",
    "install": "env.install.run",  # `_build` is the order of a build
    "smoke": "smoke.smoke.run",  # what fails here is never stamped
    "activate": "env.activate.run",  # `_finish` compares all with RECORD and stamps; `switch` points `current` at it
    # All others.
    "doctor": "doctor.run",
    "meet": "smoke.multi_node.run",
    "ensure": "shared.ensure.run",
    "verify": "shared.look.run",
    "log": "logs.run",
    "use": "env.activate.use",
    "remove": "env.remove.run",
    "wheels": "wheels.manage.run",
    "cache": "env.caches.run",
    "container": "image.container.run",
}


def run(verb: str, request: Json) -> "tuple[bool, Json]":
    """Run a verb of `VERBS`; returns (whether it changed anything, its result). Raises NodeError."""
    module, _, function = VERBS[verb].rpartition(".")
    changed, result = getattr(importlib.import_module("envbuild.node." + module), function)(request)
    return changed, result
