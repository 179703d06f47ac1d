"""What a shared folder says of an environment that every node gets: how it is installed, and what its stamp is.

`<shared>/ensure/<stack>.json` is the request that every job sends, and `<stack>.sh` the POSIX sh file that sends it.
"""

import os

from envbuild.node import paths
from envbuild.node.protocol import Json, has_fields
from envbuild.node.read_text import names


def publish(request: Json, stamp: Json) -> None:
    """Write the request of `ensure` for the environment that was just stamped, then the script that sends it.

    `args.publish` of the request: `folder`, `script`, `install` (its arguments), `requests` (more places for the
    request).
    """
    args = dict(request["args"])
    publication = args.pop("publish")
    stack = paths.checked_name(stamp["stack"], "stack")
    args.update(
        environment=stamp["environment"], root=stamp["root"], install=_with_wheels(publication["install"], stamp)
    )
    args["stamp"] = stamp
    made = {"protocol": request["protocol"], "verb": "ensure", "run": request["run"], "prefix": request["prefix"]}
    for path in [*(publication.get("requests") or []), os.path.join(publication["folder"], stack + ".json")]:
        paths.write_json(path, dict(made, args=args))
    paths.write_atomic(os.path.join(publication["folder"], stack + ".sh"), os.fsencode(publication["script"]))


def _with_wheels(install: Json, stamp: Json) -> Json:
    """The arguments of `install` with the keys of the wheels that were built: a node may have no compiler."""
    built = {source["name"]: source.get("build") or {} for source in stamp["sources"]}
    keys = {name: build["key"] for name, build in built.items() if build.get("key")}
    if not keys:
        return install
    return dict(install, build=dict(install.get("build") or {}, handed={"by": "the first node", "keys": keys}))


def read(shared: str, stack: str) -> "Json | None":
    """The arguments of `ensure` for a stack; None where they are missing or none of ours."""
    request = paths.read_json(os.path.join(shared, "ensure", paths.checked_name(stack, "stack") + ".json"))
    args = (request or {}).get("args")
    whole = isinstance(args, dict) and has_fields(args, install=dict, stamp=dict, variant=dict, root=str)
    return args if whole else None


def bundle(args: Json) -> "Json | None":
    """The bundle that nodes install from: `file` and `digest`; None where each node fetches."""
    archive = (args["install"].get("artifacts") or {}).get("bundle")
    return archive if isinstance(archive, dict) and has_fields(archive, file=str) else None


def stacks(shared: str) -> "list[str]":
    """The stacks that have a request of `ensure` in a shared folder, sorted; none where it is no such folder."""
    files = [name for name in names(os.path.join(shared, "ensure")) if not name.startswith(".")]
    return [name[: -len(".json")] for name in files if name.endswith(".json")]


def facts(shared: str, stack: str) -> "list[Json]":
    """`StampFacts` of the environment that jobs of a stack get; empty where there is none, or its bundle is gone."""
    args = read(shared, stack)
    if args is None:
        return []
    source, stamp = bundle(args), args["stamp"]
    if source is not None and not os.path.isfile(source["file"]):
        return []
    says = "contents not read: %s" % ("every node fetches for itself" if source is None else source["file"])
    return [
        {
            "path": stamp["environment"],
            "stack": stamp["stack"],
            "profile": stamp.get("profile"),
            "variant_digest": stamp["variant_digest"],
            "root": args["root"],
            "current": True,
            "stamp": stamp,
            "checks": [{"name": "bundle", "status": "not-run", "says": says, "level": "not-checked"}],
        }
    ]
