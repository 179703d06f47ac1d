"""`verify`: look at a prefix or at a folder that nodes share, and write nothing there."""

from __future__ import annotations

import os
import time

from envbuild.node import paths
from envbuild.node.env import published, stamp
from envbuild.node.env import verify as env_verify
from envbuild.node.probe import inventory
from envbuild.node.protocol import Json, NodeError


def run(request: Json) -> tuple[bool, Json]:
    """What `args.tell` names: `checks` (`verify`, the default), `environments` (`envs`) or `files` (`stamp.files`)."""
    tell = str(request["args"].get("tell", "checks"))
    answers = {"checks": verify, "environments": envs, "files": stamp.files}
    if tell not in answers:
        raise NodeError("request-invalid", f"`verify` tells nothing of {tell[:80]!r}", hint=", ".join(answers))
    return answers[tell](request)


def verify(request: Json) -> tuple[bool, Json]:
    """Verify what `args.stack` has in the prefix of the request. Raises NodeError `environment-unknown` (exit 2).

    The prefix may be a shared folder: then the bundle that nodes install the stack from is read, with `deep` false only
    looked for. The root is that of the node that built.
    """
    stack, shared = paths.checked_name(request["args"].get("stack"), "stack"), request["prefix"]
    if stack not in published.stacks(shared):
        return env_verify.run(request)
    args, begun = published.read(shared, stack), time.monotonic()
    bundle = published.bundle(args) if args else None
    check: Json = {"name": "bundle", "status": "failed", "says": "its bundle is not there", "level": "measured"}
    if args is None:
        check["says"] = f"{os.path.join(shared, 'ensure', stack + '.json')} is not what a run wrote"
    elif bundle is None or not request["args"].get("deep", True):
        facts = published.facts(shared, stack)
        check = facts[0]["checks"][0] if facts else check
    else:
        check.update(_read(bundle), seconds=round(time.monotonic() - begun, 3))
    answer = {"environment": (args or {}).get("environment"), "root": (args or {}).get("root"), "level": "stamped"}
    return False, dict(answer, ok=check["status"] != "failed", checks=[check], drift=[], drift_count=0)


def _read(bundle: Json) -> Json:
    # Imported where it is used, as `remove` below: the other answers need neither, and each is a process of its own.
    from envbuild.node.bundle import archive

    try:
        index = archive.verify(bundle["file"])
    except NodeError as error:
        return {"says": f"{error.what}: {error.why}"}
    if index["digest"] != bundle.get("digest", index["digest"]):
        return {"says": f"{bundle['file']} is another bundle than the one that nodes install"}
    return {"status": "passed", "says": f"{bundle['file']}: {len(index['files'])} files have their hashes"}


def envs(request: Json) -> tuple[bool, Json]:
    """StampFacts of every environment under the prefix; half-built ones have no stamp.

    In a folder that nodes share these are the environments that every node gets. With `args.detailed` also when the
    contents were last `read`, how many files `differed` then, `tested` (`stamp.last_test`), and the `processes` of this
    node that run from there.
    """
    prefix = request["prefix"]
    environments = inventory.facts(prefix)
    if request["args"].get("detailed"):
        from envbuild.node.env import remove

        running = remove.processes([environment["path"] for environment in environments])
        for environment in environments:
            environment["processes"] = running[environment["path"]]
            if environment["stamp"] is not None:
                place = environment["path"], environment["stamp"]
                environment["read"], environment["differed"] = stamp.last_read(*place)
                environment["tested"] = stamp.last_test(*place)
    published_ = [row for stack in published.stacks(prefix) for row in published.facts(prefix, stack)]
    return False, {"environments": environments + published_}
