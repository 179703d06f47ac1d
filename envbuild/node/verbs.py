"""The verbs of the node program and where each one is; a verb's module is imported only when it is asked for."""

import importlib

from envbuild.node.protocol import Json

# Verb -> module with `run(request) -> (changed, result)`; imported only when asked for.
VERBS = {
    "probe": "facts",
    "doctor": "doctor",
    "fetch": "packages.fetch_unpinned",
    "install": "packs.provide",
    "smoke": "smoke.smoke",
    "meet": "smoke.multi_node",
    "pack": "packs.pack",
    "unpack": "packs.unpack",
    "ensure": "packs.ensure",
    "relay": "packs.relay",
    "activate": "env.activate",
    "verify": "packs.verify",
    "files": "env.files",
    "log": "logs",
    "envs": "packs.listing",
    "settle": "env.backup",
    "use": "env.switch",
    "remove": "env.remove",
    "wheels": "wheels.manage",
    "cache": "env.caches",
    "image": "image.build_stage",
    "container": "image.container",
}


def run(verb: str, request: Json) -> "tuple[bool, Json]":
    """Run a verb of `VERBS`; returns (whether it changed anything, its result). Raises NodeError."""
    changed, result = importlib.import_module("envbuild.node." + VERBS[verb]).run(request)
    return changed, result
