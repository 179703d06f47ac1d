"""The verb `verify`: of an environment, or of the pack of one in a folder that nodes share."""

import os
import time

from envbuild.node import hashing, paths
from envbuild.node.env import verify
from envbuild.node.packs import published
from envbuild.node.protocol import Json, NodeError


def run(request: Json) -> "tuple[bool, Json]":
    """Verify what `args.stack` has in the prefix of the request. Raises NodeError `environment-unknown` (exit 2)."""
    stack = paths.checked_name(request["args"].get("stack"), "stack")
    return _pack(request) if stack in published.stacks(request["prefix"]) else verify.run(request)


def _pack(request: Json) -> "tuple[bool, Json]":
    """Compare the pack of `args.stack` with its hash; the prefix of the request is the shared folder.

    With `deep` false its size is looked at. The root is what its manifest says. Result as of `verify`.
    Raises NodeError `environment-unknown` (exit 2) where no pack was made.
    """
    stack = paths.checked_name(request["args"].get("stack"), "stack")
    shared = request["prefix"]
    found = published.read(shared, stack)
    script = os.path.join(shared, "ensure", stack + ".json")
    if found is None and not os.path.lexists(script):
        raise NodeError(
            "environment-unknown",
            "no environment of %s is packed in %s" % (stack, shared),
            hint="`envbuild provision` builds and packs one",
        )
    record = found[1] if found is not None else {}
    if record and not request["args"].get("deep", True):
        check = published.facts(shared, stack)[0]["checks"][0]
    else:
        check = _compared(record, "the pack that %s names is not there, or not as its manifest says" % script)
    told = {"environment": record.get("environment"), "root": record.get("root"), "level": "stamped"}
    return False, dict(told, ok=check["status"] != "failed", checks=[check], drift=[], drift_count=0)


def _compared(record: Json, missing: str) -> Json:
    """The check of a pack that is hashed now; `missing` is what is wrong where there is none."""
    begun = time.monotonic()
    problem = _problem(record["file"], record["sha256"]) if record else missing
    says = problem or "%s has its hash; root %.12s by its manifest" % (record["file"], record["root"])
    check = {"name": "pack", "status": "failed" if problem else "passed", "says": says, "level": "measured"}
    return dict(check, seconds=round(time.monotonic() - begun, 3))


def _problem(file: str, wanted: str) -> str:
    """Why a pack is not what it was; empty when it is."""
    try:
        digest = hashing.digest_of(file)
    except OSError as error:
        return "%s cannot be read: %s" % (file, error)
    return "" if digest == wanted else "sha256 of %s is %.12s, expected %.12s" % (file, digest, wanted)
