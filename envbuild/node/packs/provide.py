"""The verb `install`: an environment out of the pack that lies in a shared folder for it, or else built in place."""

from envbuild.node.env import install, stamp
from envbuild.node.packs import published, unpack
from envbuild.node.protocol import Json, NodeError, log


def run(request: Json) -> "tuple[bool, Json]":
    """The result of `env.install`, or of `unpack` where `args.packed` has the environment. Raises NodeError."""
    taken = _take(request)
    return install.run(request) if taken is None else (True, taken)


def _take(request: Json) -> "Json | None":
    """Instead of an install: the environment out of the pack that lies in `args.packed` for it, where there is one.

    The result of `unpack`; None where there is no such pack, or it cannot be used here: then it is built.
    """
    args = request["args"]
    found = published.read(args["packed"], str(args.get("stack"))) if args.get("packed") else None
    if found is None:
        return None
    record = found[1]
    same = (record["environment"], record["variant_digest"]) == (args["environment"], args["variant"].get("digest"))
    if not same or stamp.read(record["environment"]) is not None:
        return None
    told = {key: record[key] for key in ("file", "sha256", "format", "root")}
    try:
        result = unpack.run(dict(request, verb="unpack", args=dict(args, **told)))[1]
    except NodeError as error:
        log("%s is not used: %s (%s)" % (record["file"], error, error.why))
        return None
    del result["record_checked"]  # nothing was installed from wheels
    return result
