"""What a shared folder says of packed environments: the request of `ensure`, and whether its pack is there and whole.

In `<shared>`: `packs/` holds the packs, each with its manifest beside it; `ensure/<stack>.json` is the request that
every later job sends, and `ensure/<stack>.sh` the POSIX sh file that sends it.
"""

import os

from envbuild.node import paths
from envbuild.node.packs import pack_format
from envbuild.node.protocol import Json, has_fields
from envbuild.node.read_text import names

# The keys of a stamp that a pack's manifest and the request of `ensure` have.
_OF_REQUEST = ("stack", "profile", "variables", "evidence")


def publish(request: Json, record: Json) -> None:
    """Write the request of `ensure` for a pack, then the script that sends it; each file whole or not at all.

    Nothing is written without `args.ensure`: `folder`, `script`, `args` (of `activate`), `near`, `requests` (more
    places for the request), `link` (a link to the pack).
    """
    told = request["args"].get("ensure")
    if not told:
        return
    stack = paths.checked_name(record["stack"], "stack")
    pack = {"file": record["file"], "sha256": record["sha256"], "format": record["format"], "near": told.get("near")}
    args = dict(told["args"], environment=record["environment"], root=record["root"], pack=pack)
    made = {"protocol": request["protocol"], "verb": "ensure", "run": request["run"], "prefix": request["prefix"]}
    for path in list(told.get("requests") or []) + [os.path.join(told["folder"], stack + ".json")]:
        paths.write_json(path, dict(made, args=args))
    if told.get("link"):
        paths.switch_link(told["link"], record["file"])
    paths.write_atomic(os.path.join(told["folder"], stack + ".sh"), os.fsencode(told["script"]))


def read(shared: str, stack: str) -> "tuple[Json, Json] | None":
    """The arguments of `ensure` for a stack and the manifest of its pack; None where one is missing or does not fit."""
    request = paths.read_json(os.path.join(shared, "ensure", paths.checked_name(stack, "stack") + ".json"))
    args = (request or {}).get("args")
    if not isinstance(args, dict) or not has_fields(args, pack=dict, variant=dict):
        return None
    record = pack_format.known(*os.path.split(pack_format.stem(str(args["pack"].get("file")))))
    same = record is not None and all(record.get(key) == args["pack"].get(key) for key in ("file", "sha256", "format"))
    if record is None or not same or record.get("root") != args.get("root"):
        return None
    return args, record


def stacks(shared: str) -> "list[str]":
    """The stacks that have a request of `ensure` in a shared folder, sorted; none where it is no such folder."""
    there = [name for name in names(os.path.join(shared, "ensure")) if not name.startswith(".")]
    return [name[: -len(".json")] for name in there if name.endswith(".json")]


def facts(shared: str, stack: str) -> "list[Json]":
    """`StampFacts` of the environment that jobs of a stack get from their pack; empty where there is none.

    The pack's size is looked at here and not its content.
    """
    found = read(shared, stack)
    if found is None:
        return []
    args, record = found
    written = dict(record["installed"], variant_digest=record["variant_digest"], root=record["root"])
    written.update({key: args.get(key) for key in _OF_REQUEST}, interpreter=record["interpreter"])
    written.update(environment=record["environment"], arch_list=args["variant"].get("arch_list"))
    says = "contents not read: %s is there, %d MB" % (record["file"], record["bytes"] // 10**6)
    return [
        {
            "path": record["environment"],
            "stack": record["stack"],
            "profile": record.get("profile"),
            "variant_digest": record["variant_digest"],
            "root": record["root"],
            "current": True,
            "stamp": written,
            "checks": [{"name": "pack", "status": "not-run", "says": says, "level": "not-checked"}],
        }
    ]
