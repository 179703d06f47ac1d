"""The verb `verify`: of an environment, or of the bundle in a folder that nodes share."""

from __future__ import annotations

import os
import time

from envbuild.node import paths
from envbuild.node.bundle import read
from envbuild.node.env import published, verify
from envbuild.node.protocol import Json, NodeError


def run(request: Json) -> tuple[bool, Json]:
    """Verify what `args.stack` has in the prefix of the request. Raises NodeError `environment-unknown` (exit 2)."""
    stack = paths.checked_name(request["args"].get("stack"), "stack")
    return _bundle(request) if stack in published.stacks(request["prefix"]) else verify.run(request)


def _bundle(request: Json) -> tuple[bool, Json]:
    """Read the bundle that nodes install `args.stack` from; the prefix of the request is the shared folder.

    With `deep` false it is only looked for. The root is that of the node that built. Result as of `verify`.
    """
    stack, shared = paths.checked_name(request["args"].get("stack"), "stack"), request["prefix"]
    args = published.read(shared, stack)
    begun = time.monotonic()
    check: Json = {"name": "bundle", "status": "failed", "says": "", "level": "measured"}
    if args is None:
        check["says"] = f"{os.path.join(shared, 'ensure', stack + '.json')} is not what a run wrote"
    elif published.bundle(args) is None or not request["args"].get("deep", True):
        check = (published.facts(shared, stack) or [{"checks": [dict(check, says="its bundle is not there")]}])[0][
            "checks"
        ][0]
    else:
        check.update(_read(published.bundle(args) or {}))
        check["seconds"] = round(time.monotonic() - begun, 3)
    told = {"environment": (args or {}).get("environment"), "root": (args or {}).get("root"), "level": "stamped"}
    return False, dict(told, ok=check["status"] != "failed", checks=[check], drift=[], drift_count=0)


def _read(bundle: Json) -> Json:
    try:
        index = read.verify(bundle["file"])
    except NodeError as error:
        return {"says": f"{error.what}: {error.why}"}
    if index["digest"] != bundle.get("digest", index["digest"]):
        return {"says": f"{bundle['file']} is another bundle than the one that nodes install"}
    return {"status": "passed", "says": f"{bundle['file']}: {len(index['files'])} files have their hashes"}
