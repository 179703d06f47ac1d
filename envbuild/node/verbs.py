"""The verbs of the node program and where each one is; a verb's module is imported only when it is asked for."""

import importlib

from envbuild.node.protocol import Json

# Verb -> module with `run(request) -> (changed, result)`; imported only when asked for.
VERBS = {
    # A provisioned node, in this order (`NodeSteps.steps` of `plan/node_steps.py`), from `install` on under one lease:
    "probe": "facts",
    "install": "env.install",  # `_build` is the order of a build
    "smoke": "smoke.smoke",  # what fails here is never stamped
    "activate": "env.activate",  # `_finish` compares all with RECORD and stamps; `switch` points `current` at it
    # All others.
    "doctor": "doctor",
    "meet": "smoke.multi_node",
    "ensure": "shared.ensure",
    "verify": "shared.verify",
    "files": "env.files",
    "log": "logs",
    "envs": "shared.listing",
    "use": "env.switch",
    "remove": "env.remove",
    "wheels": "wheels.manage",
    "cache": "env.caches",
    "container": "image.container",
}


def run(verb: str, request: Json) -> "tuple[bool, Json]":
    """Run a verb of `VERBS`; returns (whether it changed anything, its result). Raises NodeError."""
    changed, result = importlib.import_module("envbuild.node." + VERBS[verb]).run(request)
    return changed, result
